"""Key tokens are keyed hashes of canonical values: equal keys meet, unequal do not, and a dictionary does not help."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablepuppet.errors import PolicyError
from tablepuppet.owner.tokens import job_key, prefix, tokens
from tablepuppet.privacy.options import KeyMode
from tablepuppet.sources.columns import column_info

KEY = job_key(bytes(range(32)), "job")


def tokens_of(values: list[Any], kind: pa.DataType, mode: KeyMode = "hmac", domain: str = "0") -> list[bytes | None]:
    column = pa.chunked_array([pa.array(values, kind)])
    found: list[bytes | None] = tokens(column, column_info("k", kind), mode, KEY, domain).to_pylist()
    return found


def by_definition(value: str, family: str, domain: str = "0", key: bytes = KEY) -> bytes:
    return hmac.new(key, prefix(domain, family) + value.encode(), hashlib.sha256).digest()[:16]


@settings(max_examples=8)
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=60))
def test_whole_numbers_are_hashed_as_their_digits(values: list[int | None]) -> None:
    expected = [None if v is None else by_definition(str(v), "integer") for v in values]
    assert tokens_of(values, pa.int64()) == expected
    if all(v is None or v >= 0 for v in values):
        assert tokens_of(values, pa.uint64()) == expected


def test_whole_numbers_beyond_64_bits_have_tokens_too() -> None:
    values = [2**64 - 1, 2**63, 2**100, -(2**100), 10**38 - 1]
    assert tokens_of(values, pa.decimal128(38, 0)) == [by_definition(str(v), "integer") for v in values]
    assert tokens_of(values[:2], pa.uint64()) == tokens_of(values[:2], pa.decimal128(20, 0))


@settings(max_examples=8)
@given(st.lists(st.decimals(-(10**9), 10**9, places=9), min_size=1, max_size=60))
def test_decimals_are_hashed_as_all_their_digits(values: list[Decimal]) -> None:
    assert tokens_of(values, pa.decimal128(20, 9)) == [by_definition(f"{v:f}", "decimal 9") for v in values]


def test_booleans_are_hashed_as_words() -> None:
    expected = [by_definition("true", "boolean"), None, by_definition("false", "boolean")]
    assert tokens_of([True, None, False], pa.bool_()) == expected


def test_more_values_than_are_encoded_at_once_all_have_their_tokens() -> None:
    values = list(range(-70_000, 70_000))
    assert tokens_of(values, pa.int64()) == [by_definition(str(v), "integer") for v in values]


@settings(max_examples=8)
@given(st.lists(st.dates(date(1900, 1, 1), date(2200, 1, 1)), min_size=1, max_size=60))
def test_dates_are_hashed_as_the_digits_of_their_day(values: list[date]) -> None:
    expected = [by_definition(str((v - date(1970, 1, 1)).days), "date") for v in values]
    assert tokens_of(values, pa.date32()) == expected


@settings(max_examples=8)
@given(st.lists(st.none() | st.text(max_size=12), max_size=60))
def test_strings_are_hashed_as_utf_8(values: list[str | None]) -> None:
    expected = [None if v is None else by_definition(v, "string") for v in values]
    assert tokens_of(values, pa.string()) == expected
    assert tokens_of(values, pa.large_string()) == expected


@settings(max_examples=8)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=60))
def test_an_integer_has_one_token_however_wide_its_column_is(values: list[int]) -> None:
    expected = tokens_of(values, pa.int64())
    assert tokens_of(values, pa.int32()) == expected
    assert tokens_of([Decimal(v) for v in values], pa.decimal128(18, 0)) == expected


@settings(max_examples=8)
@given(st.lists(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)), min_size=1, max_size=60))
def test_a_moment_has_one_token_in_every_unit(values: list[datetime]) -> None:
    whole = [v.replace(microsecond=0) for v in values]
    expected = tokens_of(whole, pa.timestamp("s"))
    for unit in ("ms", "us", "ns"):
        assert tokens_of(whole, pa.timestamp(unit)) == expected
    assert tokens_of([v.replace(tzinfo=UTC) for v in whole], pa.timestamp("us", "UTC")) == expected


@settings(max_examples=8)
@given(st.lists(st.dates(date(1900, 1, 1), date(2200, 1, 1)), min_size=1, max_size=60))
def test_a_date_has_one_token_in_both_of_its_types(values: list[date]) -> None:
    assert tokens_of(values, pa.date32()) == tokens_of(values, pa.date64())


@settings(max_examples=8)
@given(st.lists(st.uuids(), min_size=1, max_size=60))
def test_a_uuid_has_one_token_as_bytes_and_as_text(values: list[uuid.UUID]) -> None:
    stored = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([v.bytes for v in values], pa.binary(16)))
    as_bytes = tokens(pa.chunked_array([stored]), column_info("k", pa.uuid()), "hmac", KEY, "0").to_pylist()
    text = pa.chunked_array([pa.array([str(v) for v in values])])
    assert tokens(text, column_info("k", pa.string(), "UUID"), "hmac", KEY, "0").to_pylist() == as_bytes


def test_seven_as_number_text_decimal_and_date_are_four_different_keys() -> None:
    seven = {
        tokens_of([7], pa.int64())[0],
        tokens_of(["7"], pa.string())[0],
        tokens_of([Decimal("7.0")], pa.decimal128(5, 1))[0],
        tokens_of([date(1970, 1, 8)], pa.date32())[0],
    }
    assert len(seven) == 4


@given(st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), st.text(max_size=5))
def test_no_value_can_imitate_another_domain_or_type(domain: str, family: str, other: str, value: str) -> None:
    if (domain, family) != (other, value):
        assert prefix(domain, family) != prefix(other, value)
        assert not prefix(domain, family).startswith(prefix(other, value))


def test_tokens_of_two_jobs_two_domains_or_two_keys_have_nothing_in_common() -> None:
    column = pa.chunked_array([pa.array(range(100))])
    info = column_info("k", pa.int64())
    keys = [KEY, job_key(bytes(range(32)), "another job"), job_key(bytes(32), "job")]
    found = [set(tokens(column, info, "hmac", key, "0").dictionary.to_pylist()) for key in keys]
    found.append(set(tokens(column, info, "hmac", KEY, "1").dictionary.to_pylist()))
    assert len(set.union(*found)) == 400


def test_the_dictionary_is_sorted_by_token_so_that_its_order_tells_nothing() -> None:
    found = tokens(pa.chunked_array([pa.array(range(50))]), column_info("k", pa.int64()), "hmac", KEY, "0")
    dictionary = found.dictionary.to_pylist()
    assert dictionary == sorted(dictionary)
    assert found.indices.to_pylist() != list(range(50))


def test_a_dictionary_attack_undoes_sha_256_and_fails_on_hmac() -> None:
    secret_ids = [3, 141, 59_265, 358_979]
    guesses = {hashlib.sha256(str(v).encode()).digest()[:16]: v for v in range(400_000)}
    by_hash = tokens_of(secret_ids, pa.int64(), "sha256")
    assert [guesses[t] for t in by_hash if t is not None] == secret_ids
    # The same attack with everything that the server knows: the definition, the domain, the type; not the key.
    for wrong_key in (b"", bytes(32)):
        for value in secret_ids:
            assert by_definition(str(value), "integer", key=wrong_key) not in tokens_of(secret_ids, pa.int64())
    assert not set(tokens_of(secret_ids, pa.int64())) & set(guesses)


def test_a_client_without_the_shared_key_refuses_instead_of_inventing_one() -> None:
    with pytest.raises(PolicyError, match="has no key"):
        job_key(None, "job")


def test_a_column_without_rows_and_one_of_nulls_have_no_tokens() -> None:
    empty = tokens(pa.chunked_array([], pa.int64()), column_info("k", pa.int64()), "hmac", KEY, "0")
    assert len(empty) == 0
    assert pc.unique(
        tokens(pa.chunked_array([pa.nulls(3, pa.int64())]), column_info("k", pa.int64()), "hmac", KEY, "0")
    )
    assert tokens_of([None, None], pa.int64()) == [None, None]


def test_a_hashed_value_begins_with_its_column_and_its_family() -> None:
    assert prefix("0", "integer") == b"1:07:integer"
