"""RowIndex: p_i, one block's row number for every joined row, in its most compact form.

Values go between rows and joined rows here: gather by row number, scatter-add by row number. NumPy and SciPy do both,
on a shard of joined rows at a time. The order of addition depends on the shards alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import ROWS_IN_CACHE, Array, RowNumbers, pieces

_SPARSE_ROWS = 1 << 18  # rows of a block, from which a shard's values are added one by one: few rows have any
_FEW_COLUMNS = 4  # that are added up one by one as fast as by a sparse product, to the same bits
_DENSE_RATIO = 8  # rows of a block per row of a batch, up to which it is faster to mark rows than to sort them


class Place(NamedTuple):
    """The rows of some joined rows, and which of them exist; None: all."""

    rows: RowNumbers
    is_there: NDArray[np.bool_] | None
    is_sparse: bool = False


class IndexFacts(msgspec.Struct, frozen=True):
    """Facts about p_i of some joined rows, whose numbers lie elsewhere, or are not held at all."""

    rows: int  # n_i
    is_identity: bool = False  # joined row j has row j of the block
    is_sorted: bool = False
    is_partial: bool = False  # some joined rows have no row of the block
    first: int = 0  # number
    last: int = 0

    def index(self, numbers: RowNumbers) -> "RowIndex":
        """p_i of some joined rows, from these facts about all."""
        is_far = is_sparse(self.rows, is_sorted=self.is_sorted)
        return RowIndex(
            self.rows, None if self.is_identity else numbers, self.is_sorted, self.is_partial, is_sparse=is_far
        )


class RowIndex(msgspec.Struct, frozen=True, eq=False):
    """p_i: the row of a block that each joined row comes from; −1 where an outer join found none."""

    rows: int  # n_i
    index: RowNumbers | None  # None: the identity
    is_sorted: bool = False
    is_partial: bool = False
    is_sparse: bool = False  # some joined rows together meet few rows of the whole block

    @property
    def is_identity(self) -> bool:
        return self.index is None

    @classmethod
    def of(cls, index: RowNumbers, rows: int) -> "RowIndex":
        """The most compact form of a mapping to `rows` rows."""
        if len(index) == rows and all(counts_up(index[piece], piece.start) for piece in pieces(rows)):
            return cls(rows, None, is_sorted=True)
        is_partial = bool(len(index)) and int(index.min()) < 0
        is_sorted = not is_partial and all(rises(index[p.start : p.stop + 1]) for p in pieces(len(index)))
        small = index.astype(np.int32, copy=False) if rows < 2**31 else index
        return cls(rows, np.ascontiguousarray(small), is_sorted, is_partial, is_sparse(rows, is_sorted=is_sorted))

    def take(self, joined: RowNumbers) -> RowNumbers:
        """p_i of some joined rows."""
        return joined if self.index is None else self.index.take(joined)

    def numbers(self, joined_rows: int) -> RowNumbers:
        """p_i of all joined rows."""
        return np.arange(joined_rows) if self.index is None else self.index

    def place(self, start: int, stop: int) -> Place | slice:
        """The rows of joined rows start ≤ j < stop, to be used by all that follows."""
        if self.index is None:
            return slice(start, stop)
        numbers = self.index[start:stop]
        is_there = numbers >= 0 if self.is_partial else None
        return Place(numbers, None if is_there is None or bool(is_there.all()) else is_there, self.is_sparse)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The rows that joined rows start ≤ j < stop can come from."""
        if start >= stop:
            return 0, 0
        if self.index is None:
            return start, stop
        if self.is_sorted:
            return int(self.index[start]), int(self.index[stop - 1]) + 1
        return 0, self.rows


def is_sparse(rows: int, *, is_sorted: bool) -> bool:
    """Whether few rows of a block have values in a shard. It follows from the whole block: its parts on a cluster add
    up values in the same way, to the same bits."""
    return rows >= _SPARSE_ROWS and not is_sorted


def gather(values: Array, place: Place | slice) -> Array:
    """v[p(j)] of the joined rows at a place, 0 where there is no row: (n, k) → (joined rows, k)."""
    if isinstance(place, slice):
        return values[place]
    if not len(values):
        return np.zeros((len(place.rows), *values.shape[1:]))
    found = np.asarray(values).take(place.rows, axis=0, mode="clip")
    if place.is_there is not None:
        found[~place.is_there] = 0.0
    return found


def scatter_add(out: Array, base: int, columns: Sequence[Array], place: Place | slice) -> None:
    """out[p(j) − base] += the columns' j-th entries, side by side; joined rows without a row are left out."""
    if isinstance(place, slice):  # no other joined row comes to these rows
        inside, first = out[place.start - base : place.stop - base], 0
        for values in columns:
            inside[:, first : first + values.shape[1]] = values
            first += values.shape[1]
        return
    rows, is_there = place.rows, place.is_there
    if is_there is not None:
        rows, columns = rows[is_there], [values[is_there] for values in columns]
    if len(rows):
        low, high = int(rows.min()), int(rows.max()) + 1
        _add_rows(out[low - base : high - base], np.subtract(rows, low, dtype=np.intp), columns, place.is_sparse)


def _add_rows(out: Array, rows: NDArray[np.intp], columns: Sequence[Array], is_sparse: bool) -> None:
    """out[rows[j]] += the columns' j-th entries."""
    if is_sparse or out.shape[1] <= _FEW_COLUMNS:
        for number, column in enumerate(column for values in columns for column in values.T):
            if is_sparse:
                np.add.at(out[:, number], rows, column)  # which is fast along one axis only
            else:
                out[:, number] += np.bincount(rows, column, len(out))
    else:
        from scipy.sparse import csc_array  # here: it takes a tenth of a second to load

        starts = np.arange(len(rows) + 1)
        values = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
        out += csc_array((np.ones(len(rows)), rows, starts), shape=(len(out), len(rows))) @ values


def distinct(rows: RowNumbers, size: int) -> tuple[RowNumbers, RowNumbers]:
    """The different row numbers of a batch from a block of `size` rows, ascending (−1 first), and the place of each of
    the batch's among them.

    >>> unique, where = distinct(np.array([7, 2, 7]), 8)
    >>> unique.tolist(), where.tolist()
    ([2, 7], [1, 0, 1])
    """
    if size > _DENSE_RATIO * len(rows):
        return np.unique(rows, return_inverse=True)
    place = rows.astype(np.intp) + 1
    occurs = np.zeros(size + 1, np.bool_)
    occurs[place] = True
    number = np.cumsum(occurs) - 1
    return np.flatnonzero(occurs) - 1, number.take(place)


def count_rows(rows: RowNumbers, size: int) -> RowNumbers:
    """How often each of `size` rows occurs; −1 is none."""
    counts: RowNumbers = np.zeros(size, np.int32 if len(rows) < 2**31 else np.int64)
    ones = np.ones(ROWS_IN_CACHE, counts.dtype)
    for piece in pieces(len(rows), ROWS_IN_CACHE):
        here = rows[piece]
        here = (here[here >= 0] if int(here.min()) < 0 else here).astype(np.intp, copy=False)
        np.add.at(counts, here, ones[: len(here)])
    return counts


def counts_up(index: RowNumbers, start: int) -> bool:
    return bool((index == np.arange(start, start + len(index), dtype=index.dtype)).all())


def rises(index: RowNumbers) -> bool:
    """Whether no number is less than the one before it."""
    return bool((index[1:] >= index[:-1]).all())
