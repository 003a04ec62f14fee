"""RowIndex: p_i, one block's row number for every joined row, in its most compact form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Moved, PerRow, RowNumbers, pieces
from tablepuppet.mapping.walk.gather_scatter import GatherScatter, Place, loops
from tablepuppet.models.compiler import COMPILED_FROM

T = TypeVar("T", bound=np.generic)
FAR = 1 << 17  # rows of a block whose values do not stay in a core's cache
_OFTEN = 4  # joined rows per row of a block, from which its rows are arranged
_PIECE = 1 << 16  # row numbers that are looked at together
_DENSE = 8  # rows of a block per row of a batch, up to which it is faster to mark rows than to sort them


@dataclass(frozen=True, slots=True, eq=False)
class RowIndex:
    """p_i: the row of a block that each joined row comes from; −1 where an outer join found none."""

    rows: int  # n_i
    index: RowNumbers | None  # None: the identity
    is_sorted: bool = False
    is_partial: bool = False
    order: RowNumbers | None = None  # rows as walks number them (`arranged`); None: as they are

    @property
    def is_identity(self) -> bool:
        return self.index is None

    @classmethod
    def of(cls, index: RowNumbers, rows: int) -> RowIndex:
        """The most compact form of a mapping to `rows` rows."""
        if len(index) == rows and all(counts_up(index[piece], piece.start) for piece in pieces(rows)):
            return cls(rows, None, is_sorted=True)
        is_partial = bool(len(index)) and int(index.min()) < 0
        is_sorted = not is_partial and all(rises(index[p.start : p.stop + 1]) for p in pieces(len(index)))
        small = index.astype(np.int32, copy=False) if rows < 2**31 else index
        return cls(rows, np.ascontiguousarray(small), is_sorted, is_partial)

    def arranged(self) -> RowIndex:
        """The same, with rows numbered as joined rows first come to them, where walks are faster so.

        The rows that one key finds then lie side by side, in whatever order their owner has them: in a many-to-many
        join, joined rows that follow each other fetch neighbours. A walk puts values into this order first, and sums
        back from it, so it must go over many more joined rows than the block has.
        """
        if self.index is None or self.is_sorted or not is_worth_arranging(self.rows, len(self.index)):
            return self
        index, order = self.index.copy(), np.empty(self.rows, self.index.dtype)
        loops().number_by_appearance(index, np.full(self.rows, -1, order.dtype), order)
        return replace(self, index=index, order=order)

    def arrange(self, values: PerRow) -> PerRow:
        """Values per row in the order of walks: as they are where joined rows have them in order, else written out."""
        if self.order is None:
            return values if self.index is None and isinstance(values, Moved) else np.ascontiguousarray(values)
        out = np.empty(values.shape)
        loops().gather(out, np.ascontiguousarray(values), self.order)
        return out

    def restore(self, values: NDArray[T]) -> NDArray[T]:
        """Values in the order of walks, per row."""
        if self.order is None or not values.size:
            return values
        out = np.empty_like(values)
        loops().put(out.reshape(self.rows, -1), values.reshape(self.rows, -1), self.order)
        return out

    def take(self, joined: RowNumbers) -> RowNumbers:
        """p_i of some joined rows."""
        if self.index is None:
            return joined
        found = self.index.take(joined)
        return found if self.order is None else np.where(found < 0, found, self.order[found])

    def numbers(self, joined_rows: int) -> RowNumbers:
        """p_i of all joined rows."""
        if self.index is None:
            return np.arange(joined_rows)
        return self.index if self.order is None else np.where(self.index < 0, self.index, self.order[self.index])

    def place(self, gather_scatter: GatherScatter, start: int, stop: int) -> Place:
        """The rows of joined rows start ≤ j < stop, to be used by all that follows."""
        if self.index is None:
            return slice(start, stop)
        return gather_scatter.place(self.index[start:stop], is_partial=self.is_partial)

    def expand(self, gather_scatter: GatherScatter, values: PerRow, place: Place, joined_rows: int) -> Array:
        """v[p_i(j)] of so many joined rows: (n_i, k) → (joined rows, k)."""
        if isinstance(place, slice):
            return values[place]
        out = np.empty((joined_rows, values.shape[1]))
        gather_scatter.gather(out, np.asarray(values), place)
        return out

    def expand_add(self, gather_scatter: GatherScatter, out: Array, values: PerRow, place: Place) -> None:
        """out[j] += v[p_i(j)]."""
        if isinstance(place, slice):
            out += values[place]
        else:
            gather_scatter.gather_add(out, np.asarray(values), place)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The rows that joined rows start ≤ j < stop can come from."""
        if start >= stop:
            return 0, 0
        if self.index is None:
            return start, stop
        if self.is_sorted:
            return int(self.index[start]), int(self.index[stop - 1]) + 1
        return 0, self.rows

    def collapse_add(
        self, gather_scatter: GatherScatter, out: Array, base: int, columns: Sequence[Array], place: Place
    ) -> None:
        """out[p_i(j) − base] += the columns' j-th entries, side by side."""
        if not isinstance(place, slice):
            gather_scatter.scatter_add(out, base, place, columns)
            return
        inside, first = slice(place.start - base, place.stop - base), 0
        for values in columns:  # no other joined row comes to these rows
            out[inside, first : first + values.shape[1]] = values
            first += values.shape[1]


def is_worth_arranging(rows: int, joined_rows: int) -> bool:
    """Whether walks over so many joined rows are faster where a block's rows are arranged, if they are not sorted."""
    return rows >= FAR and joined_rows >= max(COMPILED_FROM, _OFTEN * rows)


class _Block(Protocol):
    @property
    def rows(self) -> int: ...

    @property
    def is_sorted(self) -> bool: ...


def moved_rows(joined_rows: int, blocks: Iterable[_Block]) -> int:
    """Joined rows, as they count for the way in which values are moved: twice, where those of a block do not stay in a
    core's cache, for compiled loops fetch a far row once (docs/decisions/0108-far-rows-are-fetched-by-loops.md)."""
    return joined_rows * (1 + any(block.rows >= FAR and not block.is_sorted for block in blocks))


def distinct(rows: RowNumbers, size: int) -> tuple[RowNumbers, RowNumbers]:
    """The different row numbers of a batch from a block of `size` rows, ascending (−1 the first of them), and where
    each of the batch's lies among them.

    >>> unique, where = distinct(np.array([7, 2, 7]), 8)
    >>> unique.tolist(), where.tolist()
    ([2, 7], [1, 0, 1])
    """
    if len(rows) >= _PIECE and rises(rows):  # as those of a table that joined rows come to in order
        is_new = np.ones(len(rows), np.bool_)
        np.not_equal(rows[1:], rows[:-1], out=is_new[1:])
        return rows.take(np.flatnonzero(is_new)), np.cumsum(is_new) - 1
    if size <= _DENSE * len(rows):
        place = rows.astype(np.intp) + 1
        occurs = np.zeros(size + 1, np.bool_)
        occurs[place] = True
        number = np.cumsum(occurs) - 1
        return np.flatnonzero(occurs) - 1, number.take(place)
    if len(rows) >= 2**32 or int(rows.max(initial=0)) >= 2**31:
        unique, where = np.unique(rows, return_inverse=True)
        return unique, where
    # Sorting numbers and places as one is several times faster than sorting places by their numbers.
    packed = rows.astype(np.int64) << 32
    packed |= np.arange(len(rows))
    packed.sort()
    ordered = packed >> 32
    is_new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    where = np.empty(len(rows), np.int64)
    where[packed & 0xFFFFFFFF] = np.cumsum(is_new) - 1
    return ordered[is_new], where


def count_rows(rows: RowNumbers, size: int) -> RowNumbers:
    """How often each of `size` rows occurs; −1 is none."""
    counts: RowNumbers = np.zeros(size, np.int32 if len(rows) < 2**31 else np.int64)
    ones = np.ones(_PIECE, counts.dtype)
    for piece in pieces(len(rows), _PIECE):
        here = rows[piece]
        here = (here[here >= 0] if int(here.min()) < 0 else here).astype(np.intp, copy=False)
        np.add.at(counts, here, ones[: len(here)])
    return counts


def counts_up(index: RowNumbers, start: int) -> bool:
    """Whether the numbers are start, start + 1, …"""
    return bool((index == np.arange(start, start + len(index), dtype=index.dtype)).all())


def rises(index: RowNumbers) -> bool:
    """Whether no number is less than the one before it."""
    return bool((index[1:] >= index[:-1]).all())
