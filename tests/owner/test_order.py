"""The order of shown rows: bits that follow from key, seed and place, and tell nothing about the place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.owner.row_sets import in_order, order_bits


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_rows_bits_depend_on_its_place_and_not_on_who_holds_it(first: int, second: int) -> None:
    whole = order_bits(b"key", "orders", 7, 0, first + second)
    halves = [order_bits(b"key", "orders", 7, 0, first), order_bits(b"key", "orders", 7, first, second)]
    assert (np.concatenate(halves) == whole).all()


def test_bits_of_many_rows_are_those_of_few() -> None:
    whole = order_bits(b"key", "orders", 7, 3, 600_000)
    assert (whole[555_555:] == order_bits(b"key", "orders", 7, 555_558, 44_445)).all()
    assert (whole[100_000:100_005] == order_bits(b"key", "orders", 7, 100_003, 5)).all()


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9) | st.integers(2**63, 2**63 + 9), max_size=60))
def test_rows_are_sorted_by_all_of_their_bits_and_then_by_place(given_bits: list[int]) -> None:
    bits = np.array(given_bits, np.uint64)
    assert (in_order(bits) == np.argsort(bits, kind="stable")).all()


@pytest.mark.parametrize("kind", ["bits of rows", "with ties", "with equal leading bits"])
def test_many_rows_are_sorted_as_few_are(kind: str) -> None:
    bits = order_bits(b"key", "orders", 7, 0, 400_000)
    if kind == "with ties":
        bits[1::7], bits[5::11] = bits[0], bits[2] ^ np.uint64(1)
    if kind == "with equal leading bits":
        bits >>= np.uint64(20)
    assert (in_order(bits) == np.argsort(bits, kind="stable")).all()


def test_rows_that_share_all_but_their_last_bits_are_put_in_order_within_a_bucket() -> None:
    bits = order_bits(b"key", "orders", 7, 0, 400_000)
    bits[100:120] = bits[100] & ~np.uint64(31) | np.arange(20, dtype=np.uint64)[::-1]
    assert (in_order(bits) == np.argsort(bits, kind="stable")).all()


def test_another_key_seed_or_scan_gives_other_bits() -> None:
    bits = order_bits(b"key", "orders", 7, 0, 100)
    others = (order_bits(b"yek", "orders", 7, 0, 100), order_bits(b"key", "orders", 8, 0, 100))
    for other in (*others, order_bits(b"key", "cards", 7, 0, 100)):
        assert not (other == bits).any()


def test_the_order_has_no_memory_of_the_place() -> None:
    order = np.argsort(order_bits(b"key", "orders", 0, 0, 20_000))
    # Spearman's correlation of a random permutation is within ±4.5/√n but for one case in 10⁵.
    assert abs(np.corrcoef(np.arange(20_000), order)[0, 1]) < 4.5 / np.sqrt(20_000)
