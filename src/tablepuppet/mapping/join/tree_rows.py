"""Some joined rows of a tree: those of some rows of the label's relation, made where and when they are wanted.

In: a tree join, and rows of its root in order. Out: how many joined rows each row of each relation is in, without
making one (counted from the root to the leaves), and any view of the joined rows themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.mapping.join.listed_rows import SLICE, Counts

if TYPE_CHECKING:
    from tablepuppet.mapping.join.tree_join import Edge, TreeJoin


@dataclass(frozen=True, slots=True, eq=False)
class TreeSide:
    """The joined rows of some rows of the root."""

    join: TreeJoin
    roots: RowNumbers
    ends: NDArray[np.int64] | None  # where each root's joined rows end; None: it has one

    @classmethod
    def of(cls, join: TreeJoin, roots: RowNumbers) -> TreeSide:
        below = join.below[join.root]
        return cls(join, roots, None if below is None else np.cumsum(below[roots]).astype(np.int64))

    @property
    def rows(self) -> int:
        if self.ends is None:
            return len(self.roots)
        return int(self.ends[-1]) if len(self.ends) else 0

    def counts(self) -> list[Counts]:
        """From the root to the leaves: what is known of a row's joined rows is shared out among those that it finds."""
        join = self.join
        counts: list[Counts] = [np.zeros(size, np.int32 if self.rows < 2**31 else np.int64) for size in join.sizes]
        below = join.below[join.root]
        counts[join.root][self.roots] = 1 if below is None else below[self.roots]
        for edge in join.edges:
            above, here = counts[edge.parent], counts[edge.relation]
            if edge.only is None:
                _share_out(here, edge, above, join)
            elif edge.parent == join.root and below is None:
                _add_up(here, edge.only, self.roots, None)
            else:
                _add_up(here, edge.only, np.flatnonzero(above), above)
        return counts

    def read(self, start: int, stop: int) -> Iterator[Mapping[int, RowNumbers]]:
        """Joined rows start ≤ j < stop, a slice of the roots at a time."""
        if self.ends is None:
            for first in range(start, stop, SLICE):
                yield self.join.expand(self.roots[first : min(first + SLICE, stop)])
            return
        inner = np.searchsorted(self.ends, np.arange(start, stop, SLICE), side="right")
        borders = np.unique(np.append(inner, np.searchsorted(self.ends, stop) + 1)) if stop > start else inner
        for first, last in itertools.pairwise(borders.tolist()):
            found = self.join.expand(self.roots[first:last])
            begin = int(self.ends[first - 1]) if first else 0
            end = int(self.ends[last - 1])
            if begin < start or end > stop:
                inside = slice(max(start - begin, 0), min(stop, end) - begin)
                found = {relation: rows[inside] for relation, rows in found.items()}
            yield found


def _add_up(here: Counts, only: RowNumbers, rows: RowNumbers, above: Counts | None) -> None:
    """Each row has the joined rows of those that find it; None: one each. In pieces: NumPy copies what it counts."""
    step = max(1 << 20, len(here) // 8)
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        found, joined = only[piece], None if above is None else above[piece]
        if int(found.min()) < 0:
            is_there = found >= 0
            found, joined = found[is_there], None if joined is None else joined[is_there]
        here += np.bincount(found, joined, minlength=len(here)).astype(here.dtype)


def _share_out(here: Counts, edge: Edge, above: Counts, join: TreeJoin) -> None:
    """Rows of a group share what finds the group, each by the joined rows below it. All quotients are whole."""
    below = join.below[edge.relation]
    known = np.ones(len(here) + 1) if below is None else below
    groups = np.bincount(edge.group[:-1], above, minlength=len(edge.starts) - 1)
    weights = edge.per_group(known)
    each = np.divide(groups, weights, out=np.zeros(len(weights)), where=weights > 0)
    grouped = edge.grouped[:-1]
    here[grouped] = np.repeat(each, np.diff(edge.starts)) * known[grouped]
