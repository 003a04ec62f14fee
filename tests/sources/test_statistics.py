"""Join-weighted statistics: a row of weight G counts as G rows, and parts merge to the whole."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.errors import SourceError, TransportError
from tablepuppet.protocol.columns import CategoryStatistics, ColumnInfo, NumberStatistics, Statistics
from tablepuppet.sources.statistics import ROWS_PER_STATISTICS, merge, statistics

NUMBER = ColumnInfo("price", "float", "DOUBLE")
TEXT = ColumnInfo("category", "string", "VARCHAR")
VECTOR = ColumnInfo("embedding", "vector", "FLOAT[2]", 2)

FLOATS = st.none() | st.floats(-1e6, 1e6) | st.just(math.nan)
WORDS = st.none() | st.sampled_from(["", "a", "b", "Z", "é", "\U0001f600", "ﬀ", "a b"]) | st.text(max_size=3)


def assert_same(left: Statistics, right: Statistics) -> None:
    assert type(left) is type(right)
    if isinstance(left, CategoryStatistics):
        assert isinstance(right, CategoryStatistics)
        assert (left.categories, left.missing) == (right.categories, right.missing)
        np.testing.assert_array_equal(left.weights, right.weights)
        return
    assert isinstance(left, NumberStatistics)
    assert isinstance(right, NumberStatistics)
    assert (left.weight, left.missing) == (right.weight, right.missing)
    np.testing.assert_allclose(left.mean, right.mean, rtol=1e-9, atol=1e-9)
    scale = float(np.max(right.mean**2, initial=1.0)) * max(1.0, right.weight)
    np.testing.assert_allclose(left.spread, right.spread, rtol=1e-9, atol=1e-14 * scale)


def column(values: list[Any], info: ColumnInfo) -> pa.ChunkedArray:
    kinds = {"float": pa.float64(), "string": pa.string(), "vector": pa.list_(pa.float64(), 2)}
    half = len(values) // 2  # two chunks, as sources give them
    return pa.chunked_array([values[:half], values[half:]], kinds[info.kind])


def weighted(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Any, int, int]]]:
    """Rows of (value, G, client)."""
    return st.lists(st.tuples(values, st.integers(1, 5), st.integers(0, 2)), max_size=30)


CASES = (
    st.tuples(st.just(NUMBER), weighted(FLOATS))
    | st.tuples(st.just(TEXT), weighted(WORDS))
    | st.tuples(st.just(VECTOR), weighted(st.none() | st.lists(st.floats(-100, 100), min_size=2, max_size=2)))
)


@given(CASES)
def test_the_statistics_of_parts_merge_to_those_of_the_whole(
    case: tuple[ColumnInfo, list[tuple[Any, int, int]]],
) -> None:
    info, rows = case
    whole = statistics(column([v for v, _, _ in rows], info), info, None, np.array([g for _, g, _ in rows], np.int64))
    parts = []
    for client in range(3):
        own = [(v, g) for v, g, c in rows if c == client]
        parts.append(statistics(column([v for v, _ in own], info), info, None, np.array([g for _, g in own], np.int32)))
    assert_same(merge(parts), whole)
    assert_same(merge([merge(parts[:2]), parts[2]]), whole)
    assert_same(merge([whole]), whole)


@given(CASES)
def test_a_row_of_weight_g_counts_as_g_rows(case: tuple[ColumnInfo, list[tuple[Any, int, int]]]) -> None:
    info, rows = case
    values = column([v for v, _, _ in rows], info)
    repeats = np.array([g for _, g, _ in rows], np.int64)
    expanded = np.repeat(np.arange(len(rows)), repeats)
    assert_same(statistics(values, info, None, repeats), statistics(values, info, expanded, None))


@given(CASES, st.data())
def test_only_the_rows_named_count_and_row_minus_one_is_skipped(
    case: tuple[ColumnInfo, list[tuple[Any, int, int]]], data: st.DataObject
) -> None:
    info, given_rows = case
    values = [v for v, _, _ in given_rows]
    rows = np.array(data.draw(st.lists(st.integers(-1, len(values) - 1), max_size=20)), np.int32)
    named = column([values[r] for r in rows if r >= 0], info)
    assert_same(statistics(column(values, info), info, rows, None), statistics(named, info, None, None))


def test_moments_stay_exact_far_from_zero() -> None:
    values = np.array([1e9 + 1, 1e9 + 2, 1e9 + 3] * 1000)
    found = statistics(pa.chunked_array([values]), NUMBER, None, None)
    assert isinstance(found, NumberStatistics)
    np.testing.assert_allclose(found.spread, [2000.0], rtol=1e-12)


def test_categories_are_sorted_by_code_point() -> None:
    words = ["é", "a", "\U0001f600", "Z", "ﬀ", "a", "", "z"]
    found = statistics(pa.chunked_array([words]), TEXT, None, None)
    assert isinstance(found, CategoryStatistics)
    assert found.categories == sorted(set(words))
    assert found.weights[found.categories.index("a")] == 2


def test_a_vector_with_a_missing_entry_is_missing_as_a_whole() -> None:
    vectors = column([[1.0, 2.0], [math.nan, 5.0], [None, 5.0], None, [3.0, 4.0]], VECTOR)
    found = statistics(vectors, VECTOR, None, None)
    assert isinstance(found, NumberStatistics)
    assert (found.weight, found.missing) == (2.0, 3.0)
    np.testing.assert_array_equal(found.mean, [2.0, 3.0])


def test_an_owner_without_vectors_does_not_decide_their_length() -> None:
    unknown = ColumnInfo("embedding", "vector", "FLOAT[]", 0)
    empty = statistics(pa.chunked_array([[None]], pa.list_(pa.float32())), unknown, None, None)
    full = statistics(column([[1.0, 2.0]], VECTOR), VECTOR, None, None)
    merged = merge([empty, full])
    assert isinstance(merged, NumberStatistics)
    assert (merged.weight, merged.missing, merged.mean.tolist()) == (1.0, 1.0, [1.0, 2.0])


def test_infinity_is_refused_by_name_and_without_the_value() -> None:
    with pytest.raises(SourceError, match="column price contains infinity"):
        statistics(pa.chunked_array([[1.0, math.inf]]), NUMBER, None, None)
    # A row that takes no part does not matter.
    statistics(pa.chunked_array([[1.0, math.inf]]), NUMBER, np.array([0]), None)


def test_numbers_too_large_to_square_are_refused() -> None:
    with pytest.raises(SourceError, match="column price has numbers too large"):
        statistics(pa.chunked_array([[1e200, -1e200]]), NUMBER, None, None)


@pytest.mark.parametrize("kind", ["other"])
def test_a_column_of_another_kind_cannot_be_a_feature(kind: str) -> None:
    info = msgspec.convert({"name": "blob", "kind": kind, "detail": "BLOB"}, ColumnInfo)
    with pytest.raises(SourceError, match="column blob has type BLOB, which cannot be a feature"):
        statistics(pa.chunked_array([[b"x"]]), info, None, None)


def test_clients_that_disagree_are_refused() -> None:
    number = statistics(pa.chunked_array([[1.0]]), NUMBER, None, None)
    text = statistics(pa.chunked_array([["a"]]), TEXT, None, None)
    pair = statistics(column([[1.0, 2.0]], VECTOR), VECTOR, None, None)
    with pytest.raises(TransportError, match="numbers at some, strings at others"):
        merge([number, text])
    with pytest.raises(TransportError, match="vectors of different lengths"):
        merge([number, pair])


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("takes_some", [False, True])
def test_a_column_longer_than_what_is_looked_at_at_once_has_the_statistics_of_all_rows(
    is_weighted: bool, takes_some: bool
) -> None:
    rng = np.random.default_rng(3)
    size = 2 * ROWS_PER_STATISTICS + 7
    values = rng.normal(5.0, 1.0, size)
    values[values < 4.0] = np.nan
    rows = np.array([3, -1, *range(5, size)]) if takes_some else None
    weights = rng.uniform(1, 3, size if rows is None else len(rows)) if is_weighted else None
    found = statistics(pa.chunked_array([pa.array(values, from_pandas=True)]), NUMBER, rows, weights)
    taken, heavy = (
        (values if rows is None else values[rows[rows >= 0]]),
        np.ones(size if rows is None else len(rows) - 1),
    )
    if weights is not None:
        heavy = weights if rows is None else weights[rows >= 0]
    there = ~np.isnan(taken)
    assert isinstance(found, NumberStatistics)
    np.testing.assert_allclose([found.weight, found.missing], [heavy[there].sum(), heavy[~there].sum()], rtol=1e-12)
    mean = np.average(taken[there], weights=heavy[there])
    np.testing.assert_allclose(found.mean, [mean], rtol=1e-13)
    np.testing.assert_allclose(found.spread, [heavy[there] @ np.square(taken[there] - mean)], rtol=1e-12)
    values[-1] = math.inf
    with pytest.raises(SourceError, match="infinity"):
        statistics(pa.chunked_array([pa.array(values, from_pandas=True)]), NUMBER, None, None)
