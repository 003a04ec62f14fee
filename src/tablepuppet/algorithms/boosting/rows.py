"""Joined rows as boosting sees them: row numbers per block, and sums of (row, cell) pairs.

In: p_i of every block, g and h in fixed point, and the cell of every joined row. Out: Σ(g, h) of each pair that occurs,
ordered by row, a piece at a time, so that nothing here is as long as the joined table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.exchange import Pairs
from tablepuppet.algorithms.boosting.fixed_point import Derivatives
from tablepuppet.algorithms.boosting.packing import pack

RowNumbers = NDArray[np.signedinteger[Any]]
Sums = NDArray[np.int64]
NO_CELL = 65_535
_PAIRS = 1 << 17  # of a piece
_ENTRIES = 1 << 20  # sums that are scattered into at a time, at least


@dataclass(frozen=True, slots=True, eq=False)
class BlockIndex:
    """p_i: the row of a block that each joined row comes from; −1: none."""

    rows: int
    index: RowNumbers  # empty: the identity
    is_sorted: bool

    @classmethod
    def of(cls, rows: int, index: RowNumbers | None, *, is_sorted: bool) -> BlockIndex:
        numbers: RowNumbers = np.zeros(0, np.int32) if index is None else index
        return cls(rows, kernels.fixed_type(numbers), is_sorted or index is None)

    def pairs(self, cell: NDArray[np.uint16], cells: int, given: Derivatives) -> Iterator[Sums]:
        """Rows, cells, Σ g and Σ h of pairs in order, a line each; joined rows without a row here have row n_i."""
        return self._in_order(cell, cells, given) if self.is_sorted else self._scattered(cell, cells, given)

    def _in_order(self, cell: NDArray[np.uint16], cells: int, given: Derivatives) -> Iterator[Sums]:
        start = 0
        while start < len(cell):
            out = np.empty((4, max(_PAIRS, cells)), np.int64)
            if len(self.index):
                count, start = kernels.pairs_in_order(self.index, cell, given.g, given.h, cells, start, out)
            else:
                stop = min(start + _PAIRS, len(cell))
                count = kernels.pairs_of_each(cell, given.g, given.h, cells, start, stop, out)
                start = stop
            yield out[:, :count]

    def _scattered(self, cell: NDArray[np.uint16], cells: int, given: Derivatives) -> Iterator[Sums]:
        together = max(1, max(_ENTRIES, len(cell) // 4) // cells)
        emitted = max(1, _PAIRS // cells)
        for first in range(0, self.rows + 1, together):
            last = min(first + together, self.rows + 1)
            sums = np.zeros((last - first, cells, 2), np.int64)
            kernels.scatter_cells(self.index, self.rows, cell, given.g, given.h, cells, first, last, sums)
            for begin in range(0, last - first, emitted):
                out = np.empty((4, min(emitted, last - first - begin) * cells), np.int64)
                count = kernels.emit_cells(sums[begin : begin + emitted], first + begin, out)
                yield out[:, :count]


def cut_pairs(pairs: Iterator[Sums], starts: list[int]) -> list[list[Pairs]]:
    """The pairs of each part of a block: its rows begin where `starts` says, and count from there."""
    pieces: list[list[Pairs]] = [[] for _ in starts]
    last = [-1] * len(starts)
    for found in pairs:
        borders = [*np.searchsorted(found[0], starts).tolist(), found.shape[1]]
        for part, start in enumerate(starts):
            own = found[:, borders[part] : borders[part + 1]]
            if own.shape[1]:
                rows = own[0] - start
                steps = np.diff(rows, prepend=last[part])
                last[part] = int(rows[-1])
                pieces[part].append(Pairs(pack(steps), pack(own[1]), pack(own[2]), pack(own[3])))
    return pieces
