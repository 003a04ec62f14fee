"""Joined rows as boosting sees them: row numbers per block, sums of (row, cell) pairs, and routes through trees.

In: p_i of every block, g and h in fixed point, and the cell of every joined row. Out: Σ(g, h) of each pair that occurs,
ordered by row.

A tree sees a sample of rows and of columns, drawn from the seed and the tree's number alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.fixed_point import Derivatives, Labels, uniform
from tablepuppet.algorithms.boosting.kernels import BlockRows, PairArrays, RowOrder
from tablepuppet.algorithms.boosting.known import Choice, KnownBlock
from tablepuppet.algorithms.boosting.tree_checks import Packed, Pairs

RowNumbers = NDArray[np.signedinteger[Any]]
Cells = NDArray[np.int16]
Sums = NDArray[np.int64]
NO_CELL = -1
_NO_CODES = np.zeros((0, 0), np.uint8)
_CHUNK = 1 << 16  # rows whose numbers are made at a time


@dataclass(frozen=True, eq=False)
class BlockIndex:
    """p_i: the row of a block that each joined row comes from; −1: none."""

    rows: int
    index: RowNumbers  # empty: the identity
    is_sorted: bool

    @classmethod
    def of(cls, rows: int, index: RowNumbers | None, *, is_sorted: bool) -> BlockIndex:
        given = np.zeros(0, np.int32) if index is None else index
        view = np.ascontiguousarray(given).view()
        view.flags.writeable = False  # a loop is compiled once, wherever its arrays come from
        return cls(rows, view, is_sorted or index is None)

    @cached_property
    def zeros(self) -> Sums:
        """Room for Σ(g, h) of every row and of the one that does not exist, zero whenever nobody uses it."""
        return np.zeros((self.rows + 1, 2), np.int64)

    def _by_row(self, spare: RowNumbers) -> RowOrder:
        """Joined rows by their rows here, written into `spare`; those without one come last, at row n_i."""
        if not len(self.index):
            starts = np.arange(self.rows + 2)
            starts[-1] = self.rows
            return RowOrder(spare[:0], starts)
        starts = np.zeros(self.rows + 2, np.int64)
        kernels.order_rows(BlockRows(self.index, 0, self.rows, _NO_CODES), starts, spare)
        return RowOrder(spare[:0] if self.is_sorted else spare, starts)

    def pairs(
        self, starts: Sequence[int], cells: tuple[Cells, int], given: Derivatives, spare: RowNumbers
    ) -> list[Pairs]:
        """The pairs of each part of the block, whose rows begin where `starts` says. Joined rows without a row here
        have row n_i, of the last part. `cells` has the cell of every joined row and how many there are; `spare` has
        room for the numbers of all joined rows."""
        cell, most_cells = cells
        most = min(int(np.count_nonzero(cell >= 0)), (self.rows + 1) * most_cells)
        counts = np.empty(self.rows + 1, np.int32)
        rows = self._by_row(spare)
        most_joined = int(np.diff(rows.starts).max()) if len(self.index) else 1
        is_short = given.both.itemsize == 4 and most_joined <= kernels.FOLDED_ROWS
        g, h = np.empty((2, most), np.int32 if is_short else np.int64)
        found = PairArrays(counts, np.empty(most, np.int16), g, h)
        kernels.sum_pairs(rows, cell, given.both, np.zeros((most_cells, 2), np.int64), found)
        parts, end = [], 0
        for start, stop in pairwise([*starts, self.rows + 1]):
            own = slice(end, end := end + int(counts[start:stop].sum()))
            own_counts = counts[start:stop] if stop > self.rows else np.append(counts[start:stop], 0)
            parts.append(Pairs(*map(Packed.of, (own_counts, found.cells[own], found.g[own], found.h[own]))))
        return parts


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """How joined rows, of training or held out, find their side of a block's splits."""

    block: KnownBlock
    index: BlockIndex
    is_held: bool

    def part(
        self, order: RowNumbers, segments: Sequence[tuple[int, int]], how: Sequence[Choice], spare: RowNumbers
    ) -> Sums:
        """Parts the rows of every segment; where the right sides begin."""
        rows, borders = self.block.rows, np.empty(len(segments), np.int64)
        block = BlockRows(self.index.index, rows + 1 if self.is_held else 0, rows, self.block.codes)
        splits = self.block.splits_by(how)
        kernels.part_nodes(order, np.array(segments, np.int64), block, splits, spare, borders)
        return borders


def add_leaves(
    order: RowNumbers, segments: Sequence[tuple[int, int]], values: Sequence[float], scores: NDArray[np.float64]
) -> None:
    """Adds a value to the scores of every segment's rows."""
    if segments:
        kernels.add_values(order, np.array(segments, np.int64), np.array(values), scores)


def sampled_rows(labels: Labels, out: RowNumbers, fraction: float, seed: int, tree: int) -> RowNumbers:
    """The joined rows of a tree, ascending: a sample, without those that weigh nothing; the first numbers of `out`,
    which has room for all."""
    is_whole = fraction == 1.0 and (labels.weights is None or bool((labels.weights > 0).all()))
    count = 0
    for start in range(0, len(out), _CHUNK):
        stop = min(start + _CHUNK, len(out))
        own = np.arange(start, stop, dtype=out.dtype)
        if not is_whole:
            is_in = uniform(seed, tree, own.astype(np.uint64)) < fraction
            if labels.weights is not None:
                is_in &= labels.weights[labels.numbers(start, stop)] > 0
            own = own[is_in]
        out[count : count + len(own)] = own
        count += len(own)
    return out[:count]


def allowed_columns(widths: Sequence[int], fraction: float, seed: int, tree: int) -> list[NDArray[np.bool_]]:
    """By block: the columns that a tree may use."""
    total = sum(widths)
    drawn = uniform(seed + 1, tree, np.arange(total, dtype=np.uint64))
    chosen = np.zeros(total, np.bool_)
    chosen[np.argsort(drawn, kind="stable")[: max(1, ceil(fraction * total))]] = True
    return np.split(chosen, np.cumsum(widths)[:-1])
