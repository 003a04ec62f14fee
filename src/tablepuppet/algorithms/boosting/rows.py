"""Joined rows as boosting sees them: row numbers per block, and sums of (row, cell) pairs.

In: p_i of every block, g and h in fixed point, and the cell of every joined row. Out: Σ(g, h) of each pair that occurs,
ordered by row, packed a piece at a time, so that nothing here is as long as the joined table.

A tree sees a sample of rows and of columns, drawn from the seed and the tree's number alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.exchange import Pairs
from tablepuppet.algorithms.boosting.fixed_point import Derivatives, Labels, uniform
from tablepuppet.algorithms.boosting.packing import pack
from tablepuppet.algorithms.boosting.paths import PathCode

RowNumbers = NDArray[np.signedinteger[Any]]
Cells = NDArray[np.uint16]
Sums = NDArray[np.int64]
NO_CELL = 65_535
_PAIRS = 1 << 17  # of a piece
_BATCHES = 8  # in which a piece is filled, at least
_ENTRIES = 1 << 20  # sums that are scattered into at a time, at least
_FOLDABLE = 1 << 16  # joined rows of one row whose 16-bit sums stay within half of 32 bits


class Scratch:
    """Sums of rows, of one block after the other: zero again whenever nobody uses them. Fresh ones for every level of
    a tree would be asked of the system page by page."""

    def __init__(self) -> None:
        self._zeros = np.zeros(0, np.int64)

    def zeros(self, *shape: int) -> Sums:
        size = prod(shape)
        if size > len(self._zeros):
            self._zeros = np.zeros(size, np.int64)
        return self._zeros[:size].reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class BlockIndex:
    """p_i: the row of a block that each joined row comes from; −1: none."""

    rows: int
    index: RowNumbers  # empty: the identity
    is_sorted: bool
    most: int  # joined rows that one row is in, at the most

    @classmethod
    def of(cls, rows: int, index: RowNumbers | None, *, is_sorted: bool) -> BlockIndex:
        if index is None:
            return cls(rows, kernels.fixed_type(np.zeros(0, np.int32)), True, 1)
        counts = np.zeros(rows + 1, np.int64)
        for start in range(0, len(index), _ENTRIES):
            counts += np.bincount(index[start : start + _ENTRIES] + 1, minlength=rows + 1)
        return cls(rows, kernels.fixed_type(index), is_sorted, int(counts.max(initial=1)))

    def folds(self, given: Derivatives) -> bool:
        """Whether Σg and Σh of a row fit into one 64-bit number."""
        return given.both.itemsize == 4 and self.most <= _FOLDABLE

    def pairs(
        self, starts: Sequence[int], cell: Cells, code: PathCode, given: Derivatives, scratch: Scratch
    ) -> list[list[Pairs]]:
        """The pairs of each part of the block, whose rows begin where `starts` says and count from there. Joined rows
        without a row here have row n_i, of the last part."""
        borders = [*starts, self.rows + 1]
        if not self.is_sorted:
            return self._scattered(borders, cell, code, given, scratch)
        if not len(self.index):
            parts = ((a, min(b, len(cell))) for a, b in pairwise(borders))
            return [list(_each(cell[a:b], code, given, a)) for a, b in parts]
        firsts = np.array(borders[:-1], self.index.dtype)  # of its own type: of another, all numbers would be copied
        places = [*np.searchsorted(self.index, firsts).tolist(), len(cell)]
        return [
            list(self._in_order(start, a, b, cell, code, given))
            for start, (a, b) in zip(starts, pairwise(places), strict=True)
        ]

    def _in_order(
        self, first: int, at: int, stop: int, cell: Cells, code: PathCode, given: Derivatives
    ) -> Iterator[Pairs]:
        room, row = _Room(max(_PAIRS, code.cells), code, given.unit), first - 1
        while at < stop:
            count, at, row = kernels.pairs_in_order(
                self.index, cell, given.both, code.cells, at, stop, row, room.steps, room.cells, room.sums
            )
            yield from room.packed(count)

    def _scattered(
        self, borders: list[int], cell: Cells, code: PathCode, given: Derivatives, scratch: Scratch
    ) -> list[list[Pairs]]:
        cells = code.cells
        together = min(self.rows + 1, max(1, max(_ENTRIES, len(cell) // 4) // cells))
        size = max(_PAIRS, cells)
        emitted = max(1, size // (_BATCHES * cells))
        room, count = _Room(min(size, (self.rows + 1) * cells), code, given.unit), 0
        scattered = scratch.zeros(together, cells, 1 if self.folds(given) else 2)
        pieces: list[list[Pairs]] = [[] for _ in borders[1:]]
        rows = [start - 1 for start in borders[:-1]]
        for first in range(0, self.rows + 1, together):
            last = min(first + together, self.rows + 1)
            kernels.scatter_cells(self.index, self.rows, cell, given.both, cells, first, last, scattered)
            for part, (start, stop) in enumerate(pairwise(borders)):
                for begin in range(max(first, start), min(last, stop), emitted):
                    some = scattered[begin - first : min(begin + emitted, last, stop) - first]
                    if count + some.shape[0] * cells > len(room.steps):
                        pieces[part] += room.packed(count)
                        count = 0
                    into = (count, room.steps, room.cells, room.sums)
                    count, rows[part] = kernels.emit_cells(some, begin, rows[part], *into)
                if first < stop <= last:
                    pieces[part] += room.packed(count)
                    count = 0
        return pieces


class _Room:
    """Pairs on their way into a packing."""

    def __init__(self, size: int, code: PathCode, unit: tuple[float, float]) -> None:
        self.code, self.unit = code, unit
        self.steps, self.cells = np.empty(size, np.int32), np.empty(size, np.uint16)
        self.sums = np.empty((2, size), np.int64)

    def packed(self, count: int) -> list[Pairs]:
        g, h = self.sums[:, :count]
        return (
            [pack(count, [self.steps[:count], g, h], self.unit, self.code.written(self.cells[:count]))] if count else []
        )


def _each(cell: Cells, code: PathCode, given: Derivatives, first: int) -> Iterator[Pairs]:
    """The pairs of rows that are in one joined row each, in order; `first` is the joined row of the first."""
    if len(cell) and int(cell.max()) < code.cells:  # all of them: they are packed from where they lie
        for start in range(0, len(cell), _PAIRS):
            own = slice(start, min(start + _PAIRS, len(cell)))
            yield pack(
                own.stop - start,
                [None, *given.parted(first + start, first + own.stop)],
                given.unit,
                code.written(cell[own]),
            )
        return
    both = given.both[first : first + len(cell)]
    room, at, row = _Room(min(_PAIRS, max(1, len(cell))), code, given.unit), 0, -1
    while at < len(cell):
        count, at, row = kernels.pairs_of_each(cell, both, code.cells, at, row, room.steps, room.cells, room.sums)
        yield from room.packed(count)


_SHARD = 1 << 16


def sampled_rows(labels: Labels, out: RowNumbers, fraction: float, seed: int, tree: int) -> RowNumbers:
    """The joined rows of a tree, ascending: a sample, without those that weigh nothing; the first numbers of `out`,
    which has room for all."""
    is_whole = fraction == 1.0 and (labels.weights is None or bool((labels.weights > 0).all()))
    count = 0
    for start in range(0, len(out), _SHARD):
        stop = min(start + _SHARD, len(out))
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
