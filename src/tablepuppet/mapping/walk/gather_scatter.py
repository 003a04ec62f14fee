"""Values between rows and joined rows: gather by row number, scatter-add by row number.

In: values (n, k), row numbers (m,), −1 for a row that does not exist. Out: what numpy indexing
would give, written into arrays that exist already. Two implementations of one contract, which give the same bits:
NumPy here, compiled loops in compiled.py for many joined rows, where loading them is won back and
the compiler is installed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers, sparse_loops
from tablepuppet.models.compiler import is_installed, wins

_PIECE = 1 << 20  # joined rows that are looked at together
_MANY = 1 << 12  # rows that are worth it to leave the interpreter to others meanwhile
_MOST = 1 << 16  # rows of a shard
_FEW = 3  # columns up to which NumPy adds one after the other; more are added row by row, as by a sparse product

Place = Any  # row numbers as one way of moving wants them; of a block in order, a slice


class GatherScatter(Protocol):
    """One way of moving values; both ways add in the order of the joined rows."""

    def place(self, index: RowNumbers, *, is_partial: bool) -> Place:
        """Row numbers as the others want them: made once for a shard; `is_partial`: some may be −1."""

    def gather(self, out: Array, values: Array, place: Place) -> None:
        """out[j] = values[index[j]]; 0 where index[j] is −1."""

    def gather_add(self, out: Array, values: Array, place: Place) -> None:
        """out[j] += values[index[j]]."""

    def scatter_add(self, out: Array, base: int, place: Place, columns: Sequence[Array]) -> None:
        """out[index[j] − base] += the columns' j-th entries, side by side."""


def gather_scatter_for(joined_rows: int) -> GatherScatter:
    """The faster way for a joined table of this size."""
    return cast(GatherScatter, loops()) if wins(joined_rows) and is_installed() else NumpyGatherScatter()


def loops() -> Any:
    """Compiled loops over joined rows; where there is no compiler, the same by NumPy."""
    if not is_installed():
        return NumpyLoops
    from tablepuppet.mapping.walk import compiled

    return compiled


def empty_sums(rows: int, columns: int, joined_rows: int) -> Array:
    """Sums per row to begin with, as the faster way wants them: loops fetch a far row once, NumPy goes by columns."""
    is_by_row = columns > _FEW or (wins(joined_rows) and is_installed())
    return np.zeros((rows, columns), order="C" if is_by_row else "F")


def preload(rows: int) -> None:
    """Begins to load the compiled way where a table of this size is to be joined: while clients and DuckDB work."""
    if wins(rows) and is_installed():
        threading.Thread(target=_try_out, name="tablepuppet-preload", daemon=True).start()


def _try_out() -> None:
    """One value each way: the compiler's runtime starts with the first call."""
    gather_scatter = cast(GatherScatter, loops())
    values, place = np.zeros((1, 1)), gather_scatter.place(np.zeros(1, np.int32), is_partial=False)
    gather_scatter.gather(values, values.copy(), place)
    gather_scatter.gather_add(values, values.copy(), place)
    gather_scatter.scatter_add(values, 0, place, [values.copy()])


class _Found(NamedTuple):
    """Row numbers, and which of them are there; None: all."""

    rows: RowNumbers
    is_there: NDArray[np.bool_] | None


class NumpyGatherScatter:
    """Gather and scatter by NumPy and by SciPy's loops over one-hot matrices: as fast as compiled ones for a column."""

    def place(self, index: RowNumbers, *, is_partial: bool) -> _Found:
        is_there = index >= 0 if is_partial else None
        return _Found(index, None if is_there is None or bool(is_there.all()) else is_there)

    def gather(self, out: Array, values: Array, place: _Found) -> None:
        if not len(values):
            out[...] = 0.0
            return
        if out.shape[1] == 1:
            values.reshape(-1).take(place.rows, out=out.reshape(-1), mode="clip")
        else:
            values.take(place.rows, axis=0, out=out, mode="clip")
        if place.is_there is not None:
            out[~place.is_there] = 0.0

    def gather_add(self, out: Array, values: Array, place: _Found) -> None:
        count = len(out)
        if place.is_there is None and out.shape[1] == 1 and _is_for_loops(count) and len(values):
            starts, ones = _one_hot(place.rows.dtype)
            flat = np.ascontiguousarray(values).reshape(-1)
            sparse_loops().csr_matvec(
                count, len(flat), starts[: count + 1], place.rows, ones[:count], flat, out.reshape(-1)
            )
            return
        found = np.empty_like(out)
        self.gather(found, values, place)
        out += found

    def scatter_add(self, out: Array, base: int, place: _Found, columns: Sequence[Array]) -> None:
        index, is_there = place
        if is_there is not None:
            index, columns = index[is_there], [values[is_there] for values in columns]
        if base:
            index = index - base
        if out.shape[1] > _FEW and out.flags.c_contiguous:
            values = np.ascontiguousarray(columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1))
            _add_rows(out, index, values)
            return
        into = iter(out.T)
        for values in columns:
            for column in values.T:  # whole columns: `add.at` is fast along one axis only
                _add_at(next(into), index, column)


def _is_for_loops(count: int) -> bool:
    """Whether so many rows are worth it to leave the interpreter to others meanwhile."""
    return _MANY <= count <= _MOST


@cache
def _one_hot(dtype: np.dtype[Any]) -> tuple[RowNumbers, Array]:
    """Where the rows of a one-hot matrix begin, and its ones."""
    return np.arange(_MOST + 1, dtype=dtype), np.ones(_MOST)


def _add_at(out: Array, index: RowNumbers, values: Array) -> None:
    """out[index[j]] += values[j], in order. NumPy's own holds the interpreter's lock: many rows go by SciPy's loop."""
    count = len(index)
    if not _is_for_loops(count) or not out.flags.c_contiguous:
        np.add.at(out, index, values)
        return
    numbers, ones = _one_hot(index.dtype)
    sparse_loops().coo_matvec(count, index, numbers[:count], ones[:count], np.ascontiguousarray(values), out)


def _add_rows(out: Array, index: RowNumbers, values: Array) -> None:
    """out[index[j]] += values[j], in order: SciPy's loop of a product with a one-hot matrix, which adds in place."""
    count, columns = values.shape
    starts, ones = np.arange(count + 1, dtype=index.dtype), np.ones(count)
    sparse_loops().csc_matvecs(len(out), count, columns, starts, index, ones, values.reshape(-1), out.reshape(-1))


class NumpyLoops:
    """What compiled.py has besides gather and scatter, by NumPy: for machines without the compiler."""

    @staticmethod
    def gather(out: Array, values: Array, index: RowNumbers) -> None:
        """out[j] = values[index[j]]; every row is there."""
        np.take(values, index, axis=0, out=out, mode="clip")

    @staticmethod
    def put(out: NDArray[Any], values: NDArray[Any], order: RowNumbers) -> None:
        """out[order[j]] = values[j]."""
        out[order] = values

    @staticmethod
    def number_by_appearance(index: RowNumbers, number: RowNumbers, order: RowNumbers) -> None:
        """Numbers rows anew, first come, first numbered; `number` is −1 at first, and row order[k] gets number k.

        >>> index, number, order = np.array([5, -1, 2, 5]), np.full(6, -1), np.zeros(6, int)
        >>> NumpyLoops.number_by_appearance(index, number, order)
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
