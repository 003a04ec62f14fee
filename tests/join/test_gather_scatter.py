"""Gather and scatter follow their definition, for any shape of index and at the sizes of shards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.arrays import JOINED_ROWS_PER_SHARD, RowNumbers, Triangles
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.row_index import RowIndex, gather, scatter_add
from tablepuppet.join.walk import Shard, Signal, Sums
from tablepuppet.training.server import _within


def check(index: RowNumbers, rows: int, outputs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, signal = rng.normal(size=(rows, outputs)), rng.normal(size=(len(index), outputs))
    p = RowIndex.of(index, rows)
    place = p.place(0, len(index))
    np.testing.assert_array_equal(gather(values, place), np.concatenate([values, np.zeros((1, outputs))])[index])

    collapsed = np.zeros((rows + 1, outputs))
    np.add.at(collapsed, index, signal)
    found = np.zeros((rows, outputs))
    scatter_add(found, 0, [signal[:, :1], signal[:, 1:]], place)
    np.testing.assert_allclose(found, collapsed[:rows], atol=1e-12)


@given(
    rows=st.integers(0, 30),
    joined=st.integers(0, 200),
    outputs=st.integers(1, 6),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gather_and_scatter_follow_their_definition(
    rows: int, joined: int, outputs: int, wide: bool, seed: int
) -> None:
    drawn = np.random.default_rng(seed).integers(-1, rows, joined)
    check(drawn if wide else drawn.astype(np.int32), rows, outputs, seed)


@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("rows", [1000, (1 << 18) - 1, 1 << 18])
@pytest.mark.parametrize("kind", ["sorted", "shuffled", "partial"])
def test_so_they_do_at_the_size_of_a_shard_and_of_large_blocks(kind: str, rows: int, outputs: int) -> None:
    drawn = np.random.default_rng(rows).integers(-1 if kind == "partial" else 0, rows, JOINED_ROWS_PER_SHARD)
    check(np.sort(drawn) if kind == "sorted" else drawn, rows, outputs, 1)


def test_scatter_counts_from_its_base() -> None:
    out = np.zeros((2, 1))
    scatter_add(out, 5, [np.ones((3, 1))], RowIndex(7, np.array([5, 6, 6], np.int32)).place(0, 3))
    np.testing.assert_array_equal(out[:, 0], [1.0, 2.0])


@pytest.mark.parametrize("is_sorted", [False, True])
def test_triangles_are_collapsed_as_if_they_were_written_out(is_sorted: bool) -> None:
    rng = np.random.default_rng(4)
    rows, joined, size = 50, 70_000, 8  # more than are written out at a time
    drawn = rng.integers(0 if is_sorted else -1, rows, joined)
    p = RowIndex.of(np.sort(drawn) if is_sorted else drawn, rows)
    z, scale, further = rng.normal(size=(joined, size)), rng.random((joined, 1)), rng.normal(size=(joined, 2))
    table = JoinedRows(joined, (p,), RowIndex(joined, None, is_sorted=True), np.arange(float(joined)))

    def step(shard: Shard) -> tuple[Sequence[Signal], Sums]:
        here = shard.labels.astype(np.int64)
        return ([(further[here], Triangles(z[here], scale[here]))],), {}

    found = table.run(step, [np.zeros((rows, 1))], signals=1).signals[0][0]
    outer = (scale[:, :, None] * z[:, :, None] * z[:, None, :])[:, *np.triu_indices(size)]
    expected = np.zeros((rows + 1, 2 + outer.shape[1]))
    np.add.at(expected, p.numbers(joined), np.concatenate([further, outer], axis=1))
    np.testing.assert_allclose(found, expected[:rows], atol=1e-8)


def test_a_part_takes_those_of_a_lists_rows_that_are_its_own() -> None:
    for bits in range(2**6):
        rows = np.flatnonzero([bits >> k & 1 for k in range(6)])
        for start, stop in itertools.combinations(range(7), 2):
            own = rows[_within(rows, slice(start, stop))]
            assert own.tolist() == [row for row in rows.tolist() if start <= row < stop]
