"""Values between rows and joined rows: gather by row number, scatter-add by row number.

In: values (n, k), row numbers (m,), −1 for a row that does not exist. Out: what numpy indexing
would give, written into arrays that exist already. Two implementations of one contract, which give the same bits:
NumPy here, compiled loops in compiled.py for many joined rows, where loading them is won back (docs/decisions).
"""

from __future__ import annotations

import threading
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tablepuppet.models.losses import COMPILED_FROM

Array = NDArray[np.float64]
RowNumbers = NDArray[np.signedinteger[Any]]


class Moves(Protocol):
    """One way of moving values; both ways add in the order of the joined rows."""

    def gather(self, out: Array, values: Array, index: RowNumbers) -> None:
        """out[j] = values[index[j]]; 0 where index[j] is −1."""

    def gather_add(self, out: Array, values: Array, index: RowNumbers) -> None:
        """out[j] += values[index[j]]."""

    def scatter_add(self, out: Array, base: int, index: RowNumbers, values: Array) -> None:
        """out[index[j] − base] += values[j]."""


def moves_for(joined_rows: int) -> Moves:
    """The faster way for a joined table of this size."""
    if joined_rows < COMPILED_FROM:
        return NumpyMoves()
    # Loading the compiler's runtime costs a third of a second and 100 MB: only where that is won back.
    from tablepuppet.mapping import compiled

    return cast(Moves, compiled)


def preload(rows: int) -> None:
    """Begins to load the compiled way where a table of this size is to be joined: while clients and DuckDB work."""
    if rows >= COMPILED_FROM:
        threading.Thread(target=_try_out, name="tablepuppet-preload", daemon=True).start()


def _try_out() -> None:
    """One value each way: the compiler's runtime starts with the first call."""
    moves = moves_for(COMPILED_FROM)
    values, index = np.zeros((1, 1)), np.zeros(1, np.int32)
    moves.gather(values, values.copy(), index)
    moves.gather_add(values, values.copy(), index)
    moves.scatter_add(values, 0, index, values.copy())


class NumpyMoves:
    """Moves by NumPy alone, as fast as compiled loops while values lie in one column."""

    def gather(self, out: Array, values: Array, index: RowNumbers) -> None:
        if not len(values):
            out[...] = 0.0
            return
        place = index.astype(np.intp, copy=False)
        if out.shape[1] == 1:
            np.take(values.reshape(-1), place, out=out.reshape(-1), mode="clip")
        else:
            np.take(values, place, axis=0, out=out, mode="clip")
        if int(place.min(initial=0)) < 0:
            out[place < 0] = 0.0

    def gather_add(self, out: Array, values: Array, index: RowNumbers) -> None:
        found = np.empty_like(out)
        self.gather(found, values, index)
        out += found

    def scatter_add(self, out: Array, base: int, index: RowNumbers, values: Array) -> None:
        if int(index.min(initial=0)) < 0:
            found = index >= 0
            index, values = index[found], values[found]
        place = index.astype(np.intp)
        place -= base
        for k in range(values.shape[1]):  # whole columns: `add.at` is fast along one axis only
            np.add.at(out[:, k], place, values[:, k])
