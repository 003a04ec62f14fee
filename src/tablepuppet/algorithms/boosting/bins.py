"""Bins: a client's columns as small whole numbers, and the keys that can be made of them.

In: raw columns of a block's rows. Out: one code per row and column. Code 0 is "missing". Numbers have codes 1, 2, … by
borders at midpoints between values; each bin has at least a few joined rows. Each category has a code. If there are too
many, the rarest share the last code, unless further columns, which come after all others, separate them. The row after
the training rows stands for those that an outer join did not find: all its values are missing.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.tree_checks import NUMBER, CategoryBins, Key, NumberBins
from tablepuppet.arrays import Array

_SPARSE_FROM = 32  # categories, above which they may be sparse
_DENSE, _COMMON = 200, 20  # joined rows for each category: no longer sparse, or rare
_FURTHER = 10  # joined rows of a category that a further column is worth


class BinRules(msgspec.Struct, frozen=True):
    bins: int  # of a column, at most
    categories: int  # of a string, at most
    least: int  # joined rows of a bin of numbers


def number_bins(values: Array, weights: Array, most: int, least: int) -> NumberBins:
    """Borders between distinct values: at most `most` bins with `least` joined rows or more, but for the last.

    `weights` is how often each value is joined. Bins are LightGBM's, of all rows: zero has one of its own, and one less
    is left for the others, and one less if any value is missing.

    >>> number_bins(np.array([1.0, 2.0, 4.0, np.nan]), np.ones(4), 255, least=1).borders.tolist()
    [1.5, 3.0]
    """
    present = ~np.isnan(values) & (weights > 0)
    distinct, where = np.unique(values[present], return_inverse=True)
    counts = np.bincount(where, weights[present], len(distinct)).astype(np.float64)
    most = max(2, most - 1 - bool(np.isnan(values).any()))
    zero, above = (int(distinct.searchsorted(0.0, side)) for side in ("left", "right"))
    below = counts[:zero].sum() / max(1.0, counts.sum() - counts[zero:above].sum())
    low_ends = _share_out(counts[:zero], max(1, int(below * most)), least)
    high_ends = above + _share_out(counts[above:], max(1, most - len(low_ends) - (zero > 0)), least)
    around = sorted({end - 1 for end in (zero, above) if 0 < end < len(distinct)})
    ends = np.array([*low_ends, *around, *high_ends], np.int64)
    low, high = distinct[ends], distinct[ends + 1]
    middle = low + (high - low) / 2
    return NumberBins(np.where((middle >= low) & (middle < high), middle, low))  # high is above it, however rounded


def _share_out(counts: Array, most: int, least: int) -> NDArray[np.int64]:
    """Where bins of values that occur so often end, the last one's end aside.

    If there are few values, a bin ends as soon as it has `least`. Else a value of more than an even share has its own
    bin, and the others share the remaining bins evenly.
    """
    last = len(counts) - 1
    if last < most and (last < 0 or counts.min() >= least):
        return np.arange(max(0, last))
    cumulated = np.cumsum(counts)
    size, rest, heavy = float(least), 0, np.zeros(0, np.int64)
    light = cumulated
    if last >= most:
        most = max(1, min(most, int(cumulated[-1] // max(least, 1))))
        heavy = np.flatnonzero(counts >= cumulated[-1] / most)
        light = np.cumsum(np.where(counts >= cumulated[-1] / most, 0.0, counts))
        rest = most - len(heavy)
        size = light[-1] / max(1, rest)
    ends: list[int] = []
    done = 0.0
    while len(ends) < most - 1:
        start = ends[-1] + 1 if ends else 0
        end = int(cumulated.searchsorted(done + size))
        own = int(heavy.searchsorted(start))  # the next heavy value: values before it get a bin if they fill half
        if own < len(heavy) and end >= heavy[own]:
            end = int(heavy[own])
            if end > start and cumulated[end - 1] - done >= max(1.0, size / 2):
                end -= 1
        if end >= last:
            break
        ends.append(end)
        done = float(cumulated[end])
        if rest and not (own < len(heavy) and end == heavy[own]):
            rest -= 1
            size = float(light[-1] - light[end]) / max(1, rest)
    return np.array(ends, np.int64)


def category_bins(categories: Sequence[str], weights: Array, most: int, is_cut: bool = False) -> CategoryBins:
    """The heaviest categories, in the order given; of equal ones the first. `is_cut`: there are others besides."""
    rows = float(weights.sum()) / len(categories) if len(categories) > _SPARSE_FROM else np.inf
    sparsity = (rows < _DENSE) + (rows < _COMMON)
    if len(categories) <= most - 1 - is_cut:
        return CategoryBins(list(categories), has_other=is_cut, sparsity=sparsity)
    heaviest = np.sort(np.argsort(-weights, kind="stable")[: most - 2])
    return CategoryBins([categories[i] for i in heaviest.tolist()], has_other=True, sparsity=sparsity)


def further_bins(
    column: int, categories: Sequence[str], weights: Array, most: int, in_all: int, is_cut: bool = False
) -> list[CategoryBins]:
    """The next heaviest categories of a column, up to `in_all` with its first ones, so many a column as it has."""
    if len(categories) <= most - 1 - is_cut or most < 3:
        return []
    order = np.argsort(-weights, kind="stable")[:in_all]
    worth = order[weights[order] >= _FURTHER]
    sparsity = category_bins(categories, weights, most).sparsity
    found = []
    for start in range(most - 2, len(worth), most - 2):
        names = [categories[i] for i in np.sort(worth[start : start + most - 2]).tolist()]
        found.append(CategoryBins(names, has_other=True, sparsity=sparsity, further_of=column))
    return found


class Columns(msgspec.Struct, frozen=True, eq=False):
    """The layout of a block's bins."""

    kinds: NDArray[np.uint8]
    offsets: NDArray[np.int64]  # of each column's bins; the last: their number
    signs: NDArray[np.int8]  # of each column: 1, values of leaves never fall in it; −1, they never rise; 0: any

    @classmethod
    def of(cls, kinds: Sequence[int], sizes: Sequence[int], signs: Sequence[int] = ()) -> "Columns":
        every = np.array([*signs, *[0] * (len(kinds) - len(signs))], np.int8)
        return cls(np.array(kinds, np.uint8), np.cumsum([0, *sizes], dtype=np.int64), every)

    @property
    def bins(self) -> int:
        return int(self.offsets[-1])

    def size(self, column: int) -> int:
        return int(self.offsets[column + 1] - self.offsets[column])

    def take(self, numbers: NDArray[np.int64] | slice) -> "Columns":
        """The layout of some columns alone."""
        sizes = np.diff(self.offsets)[numbers].tolist()
        return self.of(self.kinds[numbers].tolist(), sizes, self.signs[numbers].tolist())

    def right(self, key: Key) -> NDArray[np.bool_]:
        """For each possible code of the key's column, whether it goes right; 255 is a category that nobody knows."""
        right = np.ones(256, np.bool_)
        if self.kinds[key.column] == NUMBER:
            right[1 : key.border + 1] = False
        else:
            right[list(key.left)] = False
        return right

    def missing_key(self, column: int) -> Key:
        """The key that says no more than which numbers of a column are missing."""
        return Key(column, border=self.size(column) - 1)

    def is_missing(self, key: Key) -> bool:
        return bool(self.kinds[key.column] == NUMBER) and key == self.missing_key(key.column)

    def needed_keys(self, key: Key, has_missing: NDArray[np.bool_]) -> list[Key]:
        """A key, after the key for missing values of its column, if it has any."""
        if self.kinds[key.column] != NUMBER or not has_missing[key.column] or self.is_missing(key):
            return [key]
        return [self.missing_key(key.column), key]
