"""expand and collapse are adjoint, in any shape of mapping; walks do not depend on threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.join.counted import multiplicities

from tablepuppet.arrays import JOINED_ROWS_PER_SHARD
from tablepuppet.join import joined_rows as module
from tablepuppet.join.joined_rows import JoinedRows, RowIndex


@st.composite
def mappings(draw: st.DrawFn) -> tuple[JoinedRows, np.random.Generator]:
    """Random joined rows over one to three blocks: identity, sorted, shuffled or partial."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = draw(st.integers(1, 300))
    indices = []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.sampled_from(["identity", "sorted", "shuffled", "partial"]))
        size = rows if shape == "identity" else draw(st.integers(1, 40))
        index = np.arange(rows) if shape == "identity" else rng.integers(-1 if shape == "partial" else 0, size, rows)
        indices.append(RowIndex.of(np.sort(index) if shape == "sorted" else index, size))
    labels = rng.normal(size=rows)
    return JoinedRows(rows, tuple(indices), RowIndex.of(np.arange(rows), rows), labels), rng


def echo(shard: Any, *, signal: Any = None) -> tuple[Sequence[Any], dict[str, Any]]:
    """A join step that sends the labels back as its signal and adds up ⟨scores, labels⟩."""
    column = shard.labels[:, None]
    return (column,), {"product": float((shard.scores * column).sum()), "rows": len(column)}


@given(mappings())
def test_expand_and_collapse_are_adjoint(case: tuple[JoinedRows, np.random.Generator]) -> None:
    joined, rng = case
    values = [rng.normal(size=(p.rows, 1)) for p in joined.indices]
    done = joined.run(echo, values, signals=1)
    collapsed = sum(float((v * c).sum()) for v, c in zip(values, done.signals[0], strict=True))
    assert done.sums["rows"] == joined.rows
    np.testing.assert_allclose(done.sums["product"], collapsed, rtol=1e-9, atol=1e-9)


@given(mappings())
def test_multiplicity_is_the_collapse_of_ones(case: tuple[JoinedRows, np.random.Generator]) -> None:
    joined, _ = case
    ones = JoinedRows(joined.rows, joined.indices, joined.label_index, np.ones(joined.rows))
    collapsed = ones.run(echo, [np.zeros((p.rows, 1)) for p in joined.indices], signals=1).signals[0]
    for counts, c in zip(multiplicities(joined), collapsed, strict=True):
        np.testing.assert_array_equal(counts, c[:, 0])


@given(mappings(), st.integers(1, 50))
def test_a_batch_sees_just_the_rows_that_occur_in_it(case: tuple[JoinedRows, np.random.Generator], size: int) -> None:
    joined, rng = case
    chosen = rng.choice(joined.rows, min(size, joined.rows), replace=False)
    batch, numbers = joined.take(chosen)
    values = [rng.normal(size=(p.rows, 2)) for p in joined.indices]
    for block, (rows, v) in enumerate(zip(numbers, values, strict=True)):
        np.testing.assert_array_equal(joined.expand(block, v)[chosen], batch.expand(block, v[rows]))
    np.testing.assert_array_equal(batch.labels, joined.labels[chosen])


def test_a_large_batch_in_order_is_known_to_be() -> None:
    rows = 1 << 17
    drawn, label = np.arange(0, 3 * rows, 3), np.zeros(rows)
    each, pairs = drawn.astype(np.int32), (drawn // 6).astype(np.int32)
    taken, occurring = module.batch([each, pairs], label, None, [3 * rows, rows])
    assert taken.indices[0].is_identity
    assert taken.indices[1].is_sorted
    np.testing.assert_array_equal(occurring[0], each)
    np.testing.assert_array_equal(occurring[1][taken.indices[1].numbers(rows)], pairs)
    shuffled, _ = module.batch([each[::-1]], label, None, [3 * rows])
    assert not shuffled.indices[0].is_sorted


def test_shard_borders_and_threads_do_not_show_in_the_result(monkeypatch: Any) -> None:
    rng = np.random.default_rng(0)
    rows = 5 * JOINED_ROWS_PER_SHARD + 77
    indices = (RowIndex.of(np.arange(rows), rows), RowIndex.of(rng.integers(-1, 77, rows), 77))
    joined = JoinedRows(rows, indices, indices[0], rng.normal(size=rows))
    values = [rng.normal(size=(p.rows, 1)) for p in indices]
    threaded = joined.run(echo, values, signals=1)
    monkeypatch.setattr(module, "pool", lambda: _Sequential())
    alone = joined.run(echo, values, signals=1)
    assert threaded.sums == alone.sums
    for a, b in zip(threaded.signals[0], alone.signals[0], strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_in_order_that_span_shards_and_lanes_are_summed_once() -> None:
    rng = np.random.default_rng(0)
    rows, size = 6 * JOINED_ROWS_PER_SHARD, 90
    numbers = np.sort(np.concatenate([rng.integers(0, size, rows // 2), np.full(rows // 2, 45)]))
    indices = (RowIndex.of(numbers, size), RowIndex.of(np.arange(rows), rows))
    joined = JoinedRows(rows, indices, indices[1], rng.normal(size=rows))
    assert len(joined.lanes_of_shards) > 2
    found = joined.run(multiples, [np.zeros((p.rows, 1)) for p in indices], signals=1, blocks=2).signals[0]
    np.testing.assert_allclose(found[0][:, 0], np.bincount(numbers, joined.labels, size), atol=1e-8)
    np.testing.assert_array_equal(found[1], joined.labels[:, None] * [1.0, 2.0])


class _Sequential:
    def map(self, function: Any, items: Any) -> Any:
        return map(function, items)


def test_an_identity_mapping_holds_no_array_and_others_hold_four_bytes_a_row() -> None:
    assert RowIndex.of(np.arange(5), 5).index is None
    index = RowIndex.of(np.array([0, 0, 1]), 2).index
    assert index is not None
    assert index.dtype == np.int32


@given(mappings())
def test_labels_alone_are_as_heavy_as_all_joined_rows(case: tuple[JoinedRows, np.random.Generator]) -> None:
    joined, rng = case
    owner = RowIndex.of(np.sort(rng.integers(0, 9, joined.rows)), 9)
    several = JoinedRows(joined.rows, joined.indices, owner, np.round(rng.normal(size=9)))
    for rows in (joined, several, replace(several, weights=rng.uniform(size=9))):
        found, weights = rows.by_label(), rows.joined_weights()
        assert found.weights is not None
        assert len(set(found.labels.tolist())) == found.rows
        for power in range(3):
            expected = np.average(rows.joined_labels() ** power, weights=weights) * (
                rows.rows if weights is None else weights.sum()
            )
            np.testing.assert_allclose(found.weights @ found.labels**power, expected, atol=1e-9)


def test_classes_are_counted_as_they_would_be_sorted() -> None:
    rng = np.random.default_rng(0)
    labels, counts = rng.choice([0.0, 2.0, 3.0], 100), rng.integers(0, 4, 100)
    for values in (labels, labels + 0.5):  # the second are no classes
        index = RowIndex(len(values), None, is_sorted=True)
        found = JoinedRows(int(counts.sum()), (index,), index, values, counts=counts).by_label()
        assert found.weights is not None
        assert found.labels.tolist() == np.unique(values).tolist()
        assert found.weights.tolist() == [counts[values == label].sum() for label in found.labels]


@given(mappings())
def test_a_list_of_signals_gives_each_block_its_own(case: tuple[JoinedRows, np.random.Generator]) -> None:
    joined, rng = case
    values = [rng.normal(size=(p.rows, 1)) for p in joined.indices]
    [everybody] = joined.run(echo, values, signals=1).signals
    [each] = joined.run(multiples, values, signals=1, blocks=len(values)).signals
    for block, (one, own) in enumerate(zip(everybody, each, strict=True)):
        np.testing.assert_allclose(own, one * np.arange(1.0, block + 2.0), atol=1e-12)


def multiples(shard: Any, *, blocks: int) -> tuple[Sequence[Any], dict[str, Any]]:
    """A join step that sends block i the labels times 1, …, i + 1."""
    return ([shard.labels[:, None] * np.arange(1.0, i + 2.0) for i in range(blocks)],), {}


@pytest.mark.parametrize("rows", [0, 1, 700_001])
def test_values_come_in_ascending_order_some_at_a_time(rows: int) -> None:
    values = np.random.default_rng(0).normal(size=rows)
    expected = np.sort(values)
    parts = list(module.ascending(values))
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    assert max(map(len, parts)) <= max(1, rows / 4)
