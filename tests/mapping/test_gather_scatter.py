"""Compiled gather and scatter do what NumPy's do, for any shape of index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.arrays import RowNumbers, Triangles
from tablepuppet.mapping.rows.index import RowIndex
from tablepuppet.mapping.rows.joined import JoinedRows
from tablepuppet.mapping.walk import compiled, lane
from tablepuppet.mapping.walk.gather_scatter import GatherScatter, NumpyGatherScatter, empty_sums, gather_scatter_for
from tablepuppet.mapping.walk.lane import Shard, Signal, Sums
from tablepuppet.models.compiler import COMPILED_FROM

WAYS = [NumpyGatherScatter(), cast(GatherScatter, compiled)]


@pytest.mark.parametrize("gather_scatter", WAYS, ids=["numpy", "compiled"])
@given(
    rows=st.integers(0, 30),
    joined=st.integers(0, 200),
    outputs=st.integers(1, 6),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gather_and_scatter_follow_their_definition(
    gather_scatter: GatherScatter, rows: int, joined: int, outputs: int, wide: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    drawn = rng.integers(-1, rows, joined)
    index: RowNumbers = drawn.astype(np.int64) if wide else drawn.astype(np.int32)
    values, signal = rng.normal(size=(rows, outputs)), rng.normal(size=(joined, outputs))
    expected = np.concatenate([values, np.zeros((1, outputs))])[index]

    out = np.full((joined, outputs), 7.0)
    place = gather_scatter.place(index, is_partial=True)
    gather_scatter.gather(out, values, place)
    np.testing.assert_array_equal(out, expected)
    gather_scatter.gather_add(out, values, place)
    np.testing.assert_array_equal(out, 2 * expected)

    collapsed = np.zeros((rows + 1, outputs))
    np.add.at(collapsed, index, signal)
    found = np.zeros((rows, outputs))
    gather_scatter.scatter_add(found, 0, place, [signal[:, :1], signal[:, 1:]])
    np.testing.assert_allclose(found, collapsed[:rows], atol=1e-12)


@pytest.mark.parametrize("gather_scatter", WAYS, ids=["numpy", "compiled"])
def test_scatter_counts_from_its_base(gather_scatter: GatherScatter) -> None:
    out = np.zeros((2, 1))
    place = gather_scatter.place(np.array([5, 6, 6], np.int32), is_partial=False)
    gather_scatter.scatter_add(out, 5, place, [np.ones((3, 1))])
    np.testing.assert_array_equal(out[:, 0], [1.0, 2.0])


@pytest.mark.parametrize("columns", [1, 2, 3, 5, 40])
def test_both_ways_give_the_same_bits(columns: int) -> None:
    rng = np.random.default_rng(columns)
    index = rng.integers(-1, 40, 3000).astype(np.int32)
    values = np.asfortranarray(rng.normal(size=(3000, columns)))
    one, other = np.ones((40, columns)), np.ones((40, columns))
    for gather_scatter, out in zip(WAYS, (one, other), strict=True):
        gather_scatter.scatter_add(out, 0, gather_scatter.place(index, is_partial=True), [values])
    assert one.tobytes() == other.tobytes()


def test_only_large_joins_load_the_compiled_loops() -> None:
    assert isinstance(gather_scatter_for(COMPILED_FROM - 1), NumpyGatherScatter)
    assert gather_scatter_for(COMPILED_FROM) is compiled


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_triangles_are_collapsed_as_if_they_were_written_out(
    is_sorted: bool, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    rows, joined = 50, 70_000
    monkeypatch.setattr(lane, "wins", lambda *_given, **_more: is_compiled)
    drawn = rng.integers(0 if is_sorted else -1, rows, joined)
    p = RowIndex.of(np.sort(drawn) if is_sorted else drawn, rows)
    z, scale, beside = rng.normal(size=(joined, 3)), rng.random((joined, 1)), rng.normal(size=(joined, 2))
    table = JoinedRows(joined, (p,), RowIndex(joined, None, is_sorted=True), np.arange(float(joined)))

    def step(shard: Shard) -> tuple[Sequence[Signal], Sums]:
        here = shard.labels.astype(np.int64)
        return ([(beside[here], Triangles(z[here], scale[here]))],), {}

    found = table.run(step, [np.zeros((rows, 1))], signals=1).signals[0][0]
    outer = (scale[:, :, None] * z[:, :, None] * z[:, None, :])[:, *np.triu_indices(3)]
    expected = np.zeros((rows + 1, 8))
    np.add.at(expected, p.numbers(joined), np.concatenate([beside, outer], axis=1))
    np.testing.assert_allclose(found, expected[:rows], atol=1e-9)


def test_many_rows_are_added_with_the_bits_of_few() -> None:
    rng = np.random.default_rng(4)
    index = rng.integers(0, 50, 20_000)
    columns = [rng.normal(size=(20_000, 1)), rng.normal(size=(20_000, 2))]
    gather_scatter = NumpyGatherScatter()
    found, expected = empty_sums(50, 3, 20_000), empty_sums(50, 3, 20_000)
    gather_scatter.scatter_add(found, 0, gather_scatter.place(index, is_partial=False), columns)
    for first in range(0, len(index), 1_000):
        some = slice(first, first + 1_000)
        place = gather_scatter.place(index[some], is_partial=False)
        gather_scatter.scatter_add(expected, 0, place, [c[some] for c in columns])
    np.testing.assert_array_equal(found, expected)
