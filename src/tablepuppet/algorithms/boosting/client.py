"""The client's half: histograms of its own rows, and bits of the keys that it tells.

It keeps nothing between rounds but its keys: every check brings all sums that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.ahead import is_worth_it, splits_ahead
from tablepuppet.algorithms.boosting.bins import Codes, Columns, Key
from tablepuppet.algorithms.boosting.exchange import Check, Complete, NewColumn, NewKey, Objections, Outline
from tablepuppet.algorithms.boosting.keys import Counted, KeyBook, Objection, Split, node_sums
from tablepuppet.algorithms.boosting.packing import CHUNK, words_of
from tablepuppet.algorithms.boosting.paths import Walk
from tablepuppet.errors import TransportError

Sums = NDArray[np.int64]
_FEW_BINS = 1 << 16  # of all nodes, whose sums stay in the cache
_FEW_PAIRS = 1 << 18  # that are listed for the sake of it
_DENSE = 6  # so many times the pairs may be spread over rows and cells


@dataclass
class ClientHalf:
    """One part of a block."""

    book: KeyBook
    train: Codes  # (rows + 1, columns): the last row is the one that an outer join did not find
    held: Codes  # of rows that are held out
    goes_ahead: bool = True  # trees are mended by what it answers

    def check(self, check: Check) -> Objections:
        """What this block, which lies here alone, has against some trees."""
        self.book.add_unions(check.unions)
        is_first = not self.book.told
        self._check(check)
        counted = [self._counted(tree, self.goes_ahead and is_worth_it(tree, self.book.block)) for tree in check.trees]
        objections = self.book.objections(check, [groups for groups, _ in counted])
        ahead = self._ahead(check, [listed for _, listed in counted], objections)
        later = [o for o in objections if (o.tree, o.node) not in ahead]
        kept, fresh = self.book.news(later, [split.key for split in ahead.values()])
        changed = range(len(self._occurs)) if is_first else sorted({key.column for key in fresh})
        complete = [self.book.completed(column, self._occurs[column]) for column in changed]
        return told(self.book, kept, [self.reveal(key) for key in fresh], [c for c in complete if c is not None])

    @cached_property
    def _occurs(self) -> list[Sums]:
        """The codes that training rows have in each column; with 0, if any row, of training or not, has none."""
        found = [np.bincount(codes, minlength=1) for codes in self.train[:-1].T]
        for counts, is_missing in zip(found, self.book.has_missing, strict=True):
            counts[0] = is_missing
        return [np.flatnonzero(counts) for counts in found]

    def histograms(self, check: Check) -> list[Sums]:
        """Σ (g, h) per cell and bin, of every tree."""
        self._check(check)
        return [self._count(outline, self.book.columns, is_listed=False)[0] for outline in check.trees]

    def _check(self, check: Check) -> None:
        if len(check.columns) != len(self.book.columns.kinds):
            raise TransportError("a check does not have this block's columns")
        if not check.trees:
            raise TransportError("a check has no trees")

    def _ahead(
        self, check: Check, listed: Sequence[Sums], objections: Sequence[Objection]
    ) -> dict[tuple[int, int], Split]:
        """By tree and node: the splits that it would go on with."""
        if not self.book.has_room(objections):
            return {}
        found: dict[tuple[int, int], Split] = {}
        allowed = check.columns.astype(np.uint8)
        for tree, (outline, own) in enumerate(zip(check.trees, listed, strict=True)):
            wishes = {o.node: o.split for o in objections if o.tree == tree and o.split is not None}
            if own.size and wishes:
                ahead = splits_ahead(self.book, self.train, allowed, outline, own, wishes)
                found |= {(tree, node): split for node, split in ahead.items()}
        return found

    def reveal(self, key: Key) -> NewKey | NewColumn:
        """Of every row whether it goes right, or the bin of a column."""
        if self.book.is_whole(key):
            return self.book.told_as(key, np.concatenate([self.train[:, key.column], self.held[:, key.column]]))
        right, column = self.book.columns.right(key), np.uint64(key.column)
        bits = np.zeros((len(self.train) + len(self.held) + 7) // 8, np.uint8)
        kernels.write_sides(self.train, column, right, 0, bits)
        kernels.write_sides(self.held, column, right, len(self.train), bits)
        return NewKey(key.column, self.book.columns.is_missing(key), bits)

    def _counted(self, outline: Outline, is_listed: bool) -> tuple[Iterable[Counted], Sums]:
        """Σ (g, h) per node and bin, a few columns at a time where all would not fit into the cache and most rows are
        in many cells; and pairs, if they are to be listed or were."""
        columns, cells = self.book.columns, int(np.count_nonzero(outline.left < 0))
        pairs, width = sum(piece.size for piece in outline.pieces), -(-cells // 8) * 8
        is_wide = len(outline.left) * columns.bins > _FEW_BINS and pairs <= _FEW_PAIRS
        if is_wide and _DENSE * pairs >= len(self.train) * width:
            _, listed = self._count(outline, columns.between(0, 0), is_listed=True)
            spread, runs = np.zeros((len(self.train), width), np.int64), np.zeros(len(self.train) + 2, np.int64)
            count = kernels.spread_listed(listed, spread, runs)
            if count > 0:
                return self._by_columns(outline, cells, spread, runs[: count + 1]), listed
            is_listed = True
        sums, listed = self._count(outline, columns, is_listed)
        return [(0, len(columns.kinds), node_sums(outline, sums))], listed

    def _by_columns(self, outline: Outline, cells: int, spread: Sums, runs: Sums) -> Iterator[Counted]:
        """The columns one after the other, up to `_FEW_BINS` bins of all nodes together."""
        columns, first = self.book.columns, 0
        while first < len(columns.kinds):
            most = columns.offsets[first] + _FEW_BINS // len(outline.left)
            last = max(first + 1, int(np.searchsorted(columns.offsets, most, side="right")) - 1)
            own = columns.between(first, last)
            sums = np.zeros((cells, own.bins, 2), np.int64)
            kernels.count_spread(spread, runs, self.train, first, own.offsets, sums)
            yield first, last, node_sums(outline, sums)
            first = last

    def _count(self, outline: Outline, columns: Columns, is_listed: bool) -> tuple[Sums, Sums]:
        """Σ (g, h) per cell and bin; and of every pair its row, cell, g and h, if they are to be listed."""
        cells = int(np.count_nonzero(outline.left < 0))
        _check_outline(outline, cells)
        out = np.zeros((cells, columns.bins, 2), np.int64)
        listed = [np.zeros((4, 0), np.int64)]
        row, walk = -1, Walk.of(outline, self.book)
        codes = self.train if self.train.shape[1] else np.zeros((len(self.train), 1), np.uint8)
        for piece in outline.pieces:
            if piece.size:
                words, starts = words_of(piece)
                how = [kernels.fixed_type(a) for a in (piece.least, piece.widths, piece.unary)]
                packed = (words, CHUNK, piece.size, *how, starts, piece.top, piece.shift)
                listed.append(np.empty((4, piece.size if is_listed else 0), np.int64))
                given: tuple[Any, ...] = (*packed, *walk.given(piece), row, codes, columns.offsets, out, listed[-1])
                row = kernels.count_pairs(*given)
                if row < 0:
                    raise TransportError("sums are of rows or cells that there are not")
        return out, np.concatenate(listed, axis=1)


def told(
    book: KeyBook, objections: Sequence[Objection], keys: list[NewKey | NewColumn], complete: Sequence[Complete] = ()
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


def _check_outline(outline: Outline, cells: int) -> None:
    """Refuses an outline that is not a tree: every node but the first is a child of one before it."""
    nodes = len(outline.left)
    arrays = (outline.asks, outline.gain, outline.block, outline.key, outline.to_left, outline.light)
    if not nodes or any(a.shape != (nodes,) for a in arrays) or outline.left.ndim != 1:
        raise TransportError("the outline of a tree does not follow the protocol")
    inner = np.flatnonzero(outline.left >= 0)
    children = outline.left[inner]
    if len(inner) and ((children <= inner).any() or (children >= nodes - 1).any()):
        raise TransportError("the outline of a tree does not follow the protocol")
