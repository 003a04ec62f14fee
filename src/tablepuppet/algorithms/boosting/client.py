"""The client's half: histograms of its own rows, and bits of the keys that it reveals.

It keeps nothing between rounds but its keys: every check brings all sums that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.keys import KeyBook, Objection, Split, add_up
from tablepuppet.algorithms.boosting.tree_checks import Check, Codes, Key, NewColumn, NewKey, Objections, Outline
from tablepuppet.errors import TransportError

Sums = NDArray[np.int64]


@dataclass
class ClientHalf:
    """One part of a block."""

    book: KeyBook
    train: Codes  # (rows + 1, columns): the last row is the one that an outer join did not find
    held: Codes  # of rows that are held out

    def check(self, check: Check) -> Objections:
        """The objections of this block, which lies here alone, to some trees."""
        self.book.add_unions(check.unions)
        is_first = not self.book.told
        sums = [add_up(outline, own) for outline, own in zip(check.trees, self.histograms(check), strict=True)]
        kept, fresh = self.book.add_new(self.book.objections(check, sums))
        changed = range(len(self._occurs)) if is_first else sorted({key.column for key in fresh})
        complete = [column for column in changed if self.book.is_complete(column, self._occurs[column])]
        return send_objections(self.book, kept, [self.reveal(key) for key in fresh], complete)

    @cached_property
    def _occurs(self) -> list[Sums]:
        """The codes that training rows have in each column; with 0, if any row, of training or not, has none."""
        found = [np.bincount(codes, minlength=1) for codes in self.train[:-1].T]
        for counts, is_missing in zip(found, self.book.has_missing, strict=True):
            counts[0] = is_missing
        return [np.flatnonzero(counts) for counts in found]

    @cached_property
    def _by_column(self) -> Codes:
        return np.ascontiguousarray(self.train.T)

    def histograms(self, check: Check) -> list[Sums]:
        """Σ (g, h) per node and bin, of every tree, where the node is a cell; else 0."""
        if len(check.columns) != len(self.book.columns.kinds):
            raise TransportError("a check does not have this block's columns")
        if not check.trees:
            raise TransportError("a check has no trees")
        return [self._count(outline) for outline in check.trees]

    def reveal(self, key: Key) -> NewKey | NewColumn:
        """Of every row whether it goes right, or the bin of a column."""
        codes = np.concatenate([self.train[:, key.column], self.held[:, key.column]])
        return self.book.reveal_as(key, codes if self.book.is_whole(key) else self.book.columns.right(key)[codes])

    def _count(self, outline: Outline) -> Sums:
        _check_outline(outline)
        cells = np.flatnonzero(outline.left < 0)
        out = np.zeros((len(outline.left), self.book.columns.bins, 2), np.int64)
        if outline.pairs is None:
            raise TransportError("a check has no sums")
        rows = len(self.train)
        counts = outline.pairs.counts.numbers(rows)
        size = int(counts.sum())
        if len(counts) != rows or counts.min(initial=0) < 0 or counts.max(initial=0) > len(cells):
            raise TransportError("sums are of rows or cells that there are not")
        own = [packed.numbers(size) for packed in (outline.pairs.cells, outline.pairs.g, outline.pairs.h)]
        if any(len(o) != size for o in own) or (size and not 0 <= own[0].min() <= own[0].max() < len(cells)):
            raise TransportError("sums are of rows or cells that there are not")
        pairs = kernels.PairArrays(counts.astype(np.int32), cells[own[0]].astype(np.int32), *own[1:])
        kernels.count_pairs(pairs, self._by_column, self.book.columns.offsets, out)
        return out


def send_objections(
    book: KeyBook, objections: Sequence[Objection], keys: list[NewKey | NewColumn], complete: Sequence[int] = ()
) -> Objections:
    """Objections as they travel, keys by their numbers."""
    none = Split(Key(-1))
    splits = [o.split or none for o in objections]
    return Objections(
        keys=keys,
        tree=np.array([o.tree for o in objections], np.int32),
        node=np.array([o.node for o in objections], np.int32),
        gain=np.array([o.gain for o in objections], np.float64),
        key=np.array([book.numbers.get(s.key, -1) for s in splits], np.int32),
        to_left=np.array([s.to_left for s in splits], np.bool_),
        is_void=np.array([o.is_void for o in objections], np.bool_),
        complete=list(complete),
    )


def _check_outline(outline: Outline) -> None:
    """Refuses an outline that is not a tree: every node but the first is a child of one before it."""
    nodes = len(outline.left)
    arrays = (outline.asks, outline.gain, outline.block, outline.key, outline.to_left)
    is_flat = outline.left.ndim == 1 and all(a.shape == (nodes,) for a in arrays)
    if not nodes or not is_flat or outline.least.shape != (nodes, 2):
        raise TransportError("the outline of a tree does not follow the protocol")
    inner = np.flatnonzero(outline.left >= 0)
    children = outline.left[inner]
    if len(inner) and ((children <= inner).any() or (children >= nodes - 1).any()):
        raise TransportError("the outline of a tree does not follow the protocol")
