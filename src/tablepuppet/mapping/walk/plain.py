"""What compiled.py has besides gather and scatter, by NumPy: for machines without the compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers

_PIECE = 1 << 20  # joined rows that are looked at together


def gather(out: Array, values: Array, index: RowNumbers) -> None:
    """out[j] = values[index[j]]; every row is there."""
    np.take(values, index, axis=0, out=out, mode="clip")


def put(out: NDArray[Any], values: NDArray[Any], order: RowNumbers) -> None:
    """out[order[j]] = values[j]."""
    out[order] = values


def number_by_appearance(index: RowNumbers, number: RowNumbers, order: RowNumbers) -> None:
    """Numbers rows anew, first come, first numbered; `number` is −1 at first, and row order[k] gets number k.

    >>> index, number, order = np.array([5, -1, 2, 5]), np.full(6, -1), np.zeros(6, int)
    >>> number_by_appearance(index, number, order)
    >>> index.tolist(), order[:2].tolist()
    ([0, -1, 1, 0], [5, 2])
    """
    first = np.full(len(number), -1, np.int64)  # the joined row that comes to each row first
    for start in reversed(range(0, len(index), _PIECE)):
        piece = index[start : start + _PIECE]
        there = np.flatnonzero(piece >= 0)[::-1]
        first[piece[there]] = there + start  # backwards: of several the last assignment, the first row, stays
    seen = np.flatnonzero(first >= 0)
    seen = seen[np.argsort(first[seen])]
    order[: len(seen)] = seen
    number[seen] = np.arange(len(seen))
    for start in range(0, len(index), _PIECE):
        piece = index[start : start + _PIECE]
        piece[...] = np.where(piece >= 0, number[piece], piece)
