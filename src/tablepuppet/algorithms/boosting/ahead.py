"""How an owner goes on by itself, below the splits that it objects with.

An objection takes the place of all that was below its node, so that what else an owner has against nodes down there is
of little use. What its own rows would be split by there, as long as its own splits are the best, it can find: it knows
where they go. Where a table has most of the splits of a tree, the next check then finds little that is wrong.

No tree depends on it. Splits that the server knows are candidates, and every tree is checked.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.bins import Codes, Splits
from tablepuppet.algorithms.boosting.exchange import Outline
from tablepuppet.algorithms.boosting.keys import KeyBook, Split
from tablepuppet.algorithms.boosting.packing import CHUNK

Sums = NDArray[np.int64]
_MOST = 0.75  # of a tree's splits are an owner's: it goes on by itself


def is_worth_it(outline: Outline, block: int) -> bool:
    """Whether most of a tree's splits are this block's."""
    return int(np.count_nonzero(outline.block == block)) > _MOST * int(np.count_nonzero(outline.block >= 0))


def splits_ahead(
    book: KeyBook, codes: Codes, allowed: Codes, outline: Outline, listed: Sums, objections: Mapping[int, Split]
) -> dict[int, Split]:
    """By node below an objection: the block's own best split there, with its own splits above it; as far as that gains
    more than another's split had at the same place. `listed` has the row, the cell, g and h of every pair."""
    nodes, left = len(outline.left), outline.left.astype(np.int64)
    place = _topmost(left, objections)[np.flatnonzero(left < 0)[listed[1]]]
    level = {node: objections[node] for node in np.unique(place[place >= 0]).tolist()}
    found: dict[int, Split] = {}
    while level:
        column, right = np.zeros(nodes, np.int64), np.zeros((nodes, 256), np.uint8)
        goes_on = np.zeros(nodes + 1, np.bool_)  # the last: nowhere
        for node, split in level.items():
            column[node], right[node], goes_on[node] = split.key.column, book.goes_right(split), left[node] >= 0
        listed, place = listed[:, goes_on[place]], place[goes_on[place]]
        place = left[place] + right[place, codes[listed[0], column[place]]]
        asked = np.intersect1d(place, np.flatnonzero(outline.asks))
        if not len(asked):
            return found
        number = np.full(nodes, -1)
        number[asked] = np.arange(len(asked))
        is_asked = number[place] >= 0
        listed, place = listed[:, is_asked], place[is_asked]
        sums = np.zeros((len(asked), book.columns.bins, 2), np.int64)
        pairs = np.stack([listed[0], number[place], *listed[2:]])
        kernels.count_listed(pairs, CHUNK, codes, book.columns.offsets, sums)
        bounds = outline.bounds[asked] if len(outline.bounds) else outline.bounds
        how = (outline.unit, book.rules, bounds, outline.light[asked])
        level = _wished(book, outline, Splits.of(sums, book.columns, allowed, *how), asked)
        found |= level
    return found


def _topmost(left: Sums, objections: Mapping[int, Split]) -> Sums:
    """Of each node the topmost one above it, or itself, that is objected to; −1: none."""
    found = np.full(len(left), -1)
    for node, child in enumerate(left.tolist()):
        if found[node] < 0 and node in objections:
            found[node] = node
        if child >= 0:
            found[child] = found[child + 1] = found[node]
    return found


def _wished(book: KeyBook, outline: Outline, splits: Splits, asked: Sums) -> dict[int, Split]:
    found = {}
    for place, node in enumerate(asked.tolist()):
        best = book.best(splits, place)
        if best is not None and (outline.block[node] == book.block or best[0] >= outline.gain[node]):
            found[node] = best[1]
    return found
