"""Values of many joined rows in ascending order.

In: numbers in memory of their own, which are moved about there. Out: the same in ascending order, some at a time, so
that no second array of their length is needed. Rows are shared out by the range that a value lies in, then by finer
ones, both by counting; some hundred values at a time are left to a sort, which a processor does in its registers. To
sort all of them at once takes twice as long on some processors (docs/decisions/0130-scores-in-order-by-counting.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, pieces
from tablepuppet.threads import pool

_FEW = 1 << 17  # values that are sorted at once
_CHUNK = 1 << 18  # values that are shared out at a time: they stay in the cache
_RANGE = 1 << 17  # values of a range, about
_RANGES = (1 << 8) - 1  # at most, so that their numbers take a byte: those can be put in order by counting
_FINE = 1 << 16  # cells that ranges are made of: what takes two bytes


class _Cells(NamedTuple):
    """Cells of even width, from the least value to the greatest: a value that is greater lies in no earlier one."""

    low: float
    scale: float  # cells a unit
    number: int

    @classmethod
    def over(cls, values: Array, number: int) -> _Cells | None:
        """None: what has no such cells, being all the same or not all numbers."""
        low, high = float(values.min()), float(values.max())
        scale = (number - 1) / (high - low) if high > low else math.inf
        return cls(low, scale, number) if 0.0 < scale < math.inf else None

    def of(self, values: Array) -> NDArray[np.uint16]:
        place = values - self.low
        place *= self.scale
        return place.astype(np.uint16)

    def counts(self, values: Array) -> NDArray[np.intp]:
        return np.bincount(self.of(values), minlength=self.number)


def ascending(values: Array) -> Iterator[Array]:
    """The values in ascending order, some at a time; nobody else may use `values` any more.

    >>> [part.tolist() for part in ascending(np.array([3.0, 1.0, 2.0]))]
    [[1.0, 2.0, 3.0]]
    """
    cells = _Cells.over(values, _FINE) if len(values) >= _FEW else None
    if cells is None:
        values.sort()
        yield values
        return
    chunks = [values[rows] for rows in pieces(len(values), _CHUNK)]
    counts = sum(pool().map(cells.counts, chunks), np.zeros(_FINE, np.intp))
    range_of = ((np.cumsum(counts) - 1) // max(_RANGE, -(-len(values) // _RANGES))).astype(np.uint8)  # of a cell
    ranges = int(range_of[-1]) + 1

    def share_out(chunk: Array) -> list[int]:
        """Puts values of the same range beside each other; where each begins."""
        own = range_of[cells.of(chunk)]
        chunk[:] = chunk[np.argsort(own, kind="stable")]
        return [0, *np.cumsum(np.bincount(own, minlength=ranges)).tolist()]

    borders = list(pool().map(share_out, chunks))

    def ordered(number: int) -> Array:
        found = np.concatenate(
            [chunk[own[number] : own[number + 1]] for chunk, own in zip(chunks, borders, strict=True)]
        )
        _sort(found)
        return found

    yield from pool().map(ordered, np.flatnonzero(np.bincount(range_of[counts > 0])).tolist())


def _sort(values: Array) -> None:
    """Sorts the values of a range: by cells, then what lies in each."""
    cells = _Cells.over(values, 1 << 8)
    if cells is None:
        values.sort()
        return
    own = cells.of(values).astype(np.uint8)
    values[:] = values[np.argsort(own, kind="stable")]
    start = 0
    for end in np.cumsum(np.bincount(own)).tolist():
        values[start:end].sort()
        start = end
