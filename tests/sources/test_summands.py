"""Statistics as summands: their sums are what merging every client's own statistics gives."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tablepuppet.arrays import Array
from tablepuppet.errors import TransportError
from tablepuppet.protocol.columns import CategoryStatistics, ColumnInfo, NumberStatistics, Statistics
from tablepuppet.sources.statistics import (
    first_summands,
    first_totals,
    means_only,
    merge,
    names_only,
    second_summands,
    second_totals,
    statistics,
)

NUMBER, TEXT = ColumnInfo("x", "float"), ColumnInfo("c", "string")


def clients() -> list[list[Statistics]]:
    """Three clients' numbers and categories; the last has no number at all."""
    generator = np.random.default_rng(2)
    found: list[list[Statistics]] = []
    kinds: list[list[str | None]] = [["a", "b"], ["b", "z", None], [None]]
    for client, categories in enumerate(kinds):
        rows = 40
        weights = generator.integers(1, 9, rows).astype(np.float64)
        numbers = generator.normal(1e6, 2.0, rows) if client < 2 else np.full(rows, np.nan)
        column = pa.chunked_array([pa.array(numbers, from_pandas=True)])
        texts = pa.chunked_array([pa.array([categories[i % len(categories)] for i in range(rows)], pa.string())])
        found.append([statistics(column, NUMBER, None, weights), statistics(texts, TEXT, None, weights)])
    return found


def added(parts: list[list[Array]]) -> list[Array]:
    return [np.sum(arrays, axis=0) for arrays in zip(*parts, strict=True)]


def test_two_sums_give_what_merging_gives() -> None:
    held = clients()
    agreed = [merge([names_only(s) for s in column]) for column in zip(*held, strict=True)]
    first = first_totals(agreed, added([first_summands(own, agreed) for own in held]))
    found = second_totals(first, added([second_summands(own, means_only(first)) for own in held]))
    number, category = (merge(column) for column in zip(*held, strict=True))
    assert isinstance(found[0], NumberStatistics)
    assert isinstance(number, NumberStatistics)
    assert (found[0].weight, found[0].missing) == (number.weight, number.missing)
    np.testing.assert_allclose(found[0].mean, number.mean, rtol=1e-15)
    np.testing.assert_allclose(found[0].spread, number.spread, rtol=1e-9)
    assert isinstance(found[1], CategoryStatistics)
    assert isinstance(category, CategoryStatistics)
    assert (found[1].categories, found[1].missing) == (category.categories, category.missing)
    np.testing.assert_array_equal(found[1].weights, category.weights)


def test_names_hold_no_figure() -> None:
    for statistic in (s for own in clients() for s in own):
        told = names_only(statistic)
        if isinstance(told, CategoryStatistics):
            assert not told.weights.any()
            assert told.missing == 0.0
        else:
            assert isinstance(told, NumberStatistics)
            assert (told.weight, told.missing) == (0.0, 0.0)
            assert not told.mean.any()
            assert not told.spread.any()


def test_clients_that_disagree_about_a_feature_are_told() -> None:
    (number, text), *_ = clients()
    with pytest.raises(TransportError, match="is a string at other clients"):
        first_summands([number], [names_only(text)])
    longer = NumberStatistics(weight=1.0, missing=0.0, mean=np.zeros(3), spread=np.zeros(3))
    with pytest.raises(TransportError, match="different lengths"):
        first_summands([longer], [names_only(number)])
