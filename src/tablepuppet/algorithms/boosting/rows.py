"""Joined rows as boosting sees them: row numbers per block, sums of (row, cell) pairs, and routes through trees.

In: p_i of every block, g and h in fixed point, and the cell of every joined row. Out: Σ(g, h) of each pair that occurs,
ordered by row.

A tree sees a sample of rows and of columns, drawn from the seed and the tree's number alone.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import ceil

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.fixed_point import Derivatives, Labels, uniform
from tablepuppet.algorithms.boosting.kernels import BlockRows, PairArrays, RowOrder
from tablepuppet.algorithms.boosting.known_blocks import Choice, KnownBlock
from tablepuppet.algorithms.boosting.messages import Tree
from tablepuppet.algorithms.boosting.tree_checks import Cells, Packed, Pairs, Sums
from tablepuppet.arrays import RowNumbers, pieces

NO_CELL = -1
_NO_CODES = np.zeros((0, 0), np.uint8)


class BlockIndex(msgspec.Struct, frozen=True, eq=False, dict=True):
    """p_i: the row of a block that each joined row comes from; −1: none."""

    rows: int
    index: RowNumbers  # empty: the identity
    is_sorted: bool

    @classmethod
    def of(cls, rows: int, index: RowNumbers | None, *, is_sorted: bool) -> "BlockIndex":
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
        have row n_i, of the last part. `cells`: the cell of every joined row, and the number of cells. `spare` has room
        for the numbers of all joined rows."""
        cell, most_cells = cells
        most = min(int(np.count_nonzero(cell >= 0)), (self.rows + 1) * most_cells)
        counts = np.empty(self.rows + 1, np.int32)
        rows = self._by_row(spare)
        found = PairArrays(counts, np.empty(most, np.int16), *np.empty((2, most), np.int64))
        kernels.sum_pairs(rows, cell, given.both, np.zeros((most_cells, 2), np.int64), found)
        parts, end = [], 0
        for start, stop in pairwise([*starts, self.rows + 1]):
            own = slice(end, end := end + int(counts[start:stop].sum()))
            own_counts = counts[start:stop] if stop > self.rows else np.append(counts[start:stop], 0)
            parts.append(Pairs(*map(Packed.of, (own_counts, found.cells[own], found.g[own], found.h[own]))))
        return parts


Segment = tuple[int, int]  # where the rows of a node begin and end


class Router(msgspec.Struct, frozen=True, eq=False):
    """How joined rows, of training or held out, find their side of splits."""

    blocks: Sequence[KnownBlock]
    indices: Sequence[BlockIndex]
    is_held: bool = False

    def part(self, order: RowNumbers, nodes: Mapping[int, tuple[Segment, Choice]], spare: RowNumbers) -> dict[int, int]:
        """Parts the rows of every node by its split; where those of its right child begin."""
        found: dict[int, int] = {}
        for number, (block, index) in enumerate(zip(self.blocks, self.indices, strict=True)):
            own = {n: given for n, given in nodes.items() if given[1].block == number}
            if not own:
                continue
            segments, borders = np.array([s for s, _ in own.values()], np.int64), np.empty(len(own), np.int64)
            rows = BlockRows(index.index, block.rows + 1 if self.is_held else 0, block.rows, block.codes)
            splits = block.splits_by([choice for _, choice in own.values()])
            kernels.part_nodes(order, segments, rows, splits, spare, borders)
            found.update(zip(own, borders.tolist(), strict=True))
        return found

    def part_level(
        self, order: RowNumbers, tree: Tree, level: Mapping[int, Segment], spare: RowNumbers
    ) -> dict[int, Segment]:
        """Parts the rows of some nodes of a tree; where those of their children lie."""
        inner = [n for n in level if tree.left[n] >= 0]
        nodes = {n: (level[n], Choice(0.0, tree.block[n], tree.key[n], tree.to_left[n])) for n in inner}
        below: dict[int, Segment] = {}
        for n, border in self.part(order, nodes, spare).items():
            (start, stop), left = level[n], tree.left[n]
            below |= {left: (start, border), left + 1: (border, stop)}
        return below


def add_leaves(
    order: RowNumbers, segments: Sequence[tuple[int, int]], values: Sequence[float], scores: NDArray[np.float64]
) -> None:
    if segments:
        kernels.add_values(order, np.array(segments, np.int64), np.array(values), scores)


def sample_rows(labels: Labels, out: RowNumbers, fraction: float, seed: int, tree: int) -> RowNumbers:
    """The joined rows of a tree, ascending: a sample, without those that weigh nothing; the first numbers of `out`,
    which has room for all."""
    is_whole = fraction == 1.0 and (labels.weights is None or bool((labels.weights > 0).all()))
    count = 0
    for some in pieces(len(out)):
        own = np.arange(some.start, some.stop, dtype=out.dtype)
        if not is_whole:
            is_in = uniform(seed, tree, own.astype(np.uint64)) < fraction
            if labels.weights is not None:
                is_in &= labels.weights[labels.rows(some)] > 0
            own = own[is_in]
        out[count : count + len(own)] = own
        count += len(own)
    return out[:count]


def sample_columns(widths: Sequence[int], fraction: float, seed: int, tree: int) -> list[NDArray[np.bool_]]:
    """By block: the columns that a tree may use."""
    total = sum(widths)
    drawn = uniform(seed + 1, tree, np.arange(total, dtype=np.uint64))
    chosen = np.zeros(total, np.bool_)
    chosen[np.argsort(drawn, kind="stable")[: max(1, ceil(fraction * total))]] = True
    return np.split(chosen, np.cumsum(widths)[:-1])
