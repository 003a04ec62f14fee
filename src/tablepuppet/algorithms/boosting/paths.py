"""Where in a tree a pair of a row and a cell lies, in bits: only the turns that the row's owner does not know.

At a node that is split by its own key, a client knows where each of its rows goes. At a node that another block splits
a pair has one bit; and before all others, where a check begins with several nodes, those of the number of the first.

    server   PathCode: of each cell its turns. Bits are written level by level, and pair by pair in each
    client   Walk: from the first node to the cell, by its own codes and the bits
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.exchange import NUMBER, Codes, Outline, Pairs
from tablepuppet.algorithms.boosting.keys import KeyBook
from tablepuppet.algorithms.boosting.packing import CHUNK
from tablepuppet.errors import TransportError

Sums = NDArray[np.int64]
_SERVER, _ENDED = -2, -3  # who knows a turn besides blocks: the number of a root; none, below a cell


@dataclass(frozen=True, slots=True, eq=False)
class PathCode:
    """Of each cell of an outline the turns that a block does not know."""

    turns: Codes  # (levels, cells): 1 to the right
    asked: Codes  # whether the block is told

    @classmethod
    def each(cls, outline: Outline, blocks: int) -> list[PathCode]:
        """That of every block."""
        left, owners = outline.left.tolist(), outline.block.tolist()
        roots, width = _roots(outline.left)
        paths = {root: [(k >> d & 1, _SERVER) for d in range(width)] for k, root in enumerate(roots.tolist())}
        for node, child in enumerate(left):
            if child >= 0:
                paths[child] = [*paths[node], (0, owners[node])]
                paths[child + 1] = [*paths[node], (1, owners[node])]
        found = [paths[node] for node, child in enumerate(left) if child < 0]
        both = np.array(list(zip_longest(*found, fillvalue=(0, _ENDED))), np.int32).reshape(-1, len(found), 2)
        is_turn = both[:, :, 1] != _ENDED
        asked = [(is_turn & (both[:, :, 1] != block)).astype(np.uint8) for block in range(blocks)]
        turns = np.ascontiguousarray(both[:, :, 0]).astype(np.uint8)
        return [cls(turns * own, own) for own in asked]

    @property
    def cells(self) -> int:
        return int(self.turns.shape[1])

    def written(self, cells: NDArray[np.uint16]) -> tuple[Codes, Sums]:
        """The bits of some pairs, packed, and how many of them each level has."""
        counts = np.empty(len(self.asked), np.int64)
        out = np.empty((len(counts) * len(cells) + 7) // 8, np.uint8)
        kernels.write_paths(cells, self.turns, self.asked, counts, out)
        return out[: (int(counts.sum()) + 7) // 8], counts


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """How a client finds the cell of a pair."""

    roots: Sums
    width: int  # bits of a root's number
    after: Sums  # of each node its left child; a cell itself
    column: Sums  # that a node's own key looks at
    right: Codes  # (nodes, 256): for each code of it whether it goes right; nothing where a bit says so
    asked: Codes  # whether a bit says so
    cell: Sums  # of each node that is one; −1: none

    @classmethod
    def of(cls, outline: Outline, book: KeyBook) -> Walk:
        left = outline.left.astype(np.int64)
        column, right = np.zeros(len(left), np.int64), np.zeros((len(left), 256), np.uint8)
        is_own = outline.block == book.block
        own = np.flatnonzero((left >= 0) & is_own)
        for node, number, to_left in zip(
            own.tolist(), outline.key[own].tolist(), outline.to_left[own].tolist(), strict=True
        ):
            key = book.key(number)
            column[node], right[node] = key.column, book.right(number)
            if book.columns.kinds[key.column] == NUMBER:
                right[node, 0] = not to_left
        asked = ((left >= 0) & ~is_own).astype(np.uint8)
        cell = np.where(left < 0, np.cumsum(left < 0) - 1, -1)
        return cls(*_roots(left), np.where(left < 0, np.arange(len(left)), left), column, right, asked, cell)

    def given(self, pairs: Pairs) -> tuple[Any, ...]:
        """What kernels.count_pairs finds the cells of some pairs by."""
        counts, paths = pairs.turns, pairs.paths
        is_typed = paths.dtype == np.uint8 and counts.dtype == np.int64 and paths.ndim == counts.ndim == 1
        fits = is_typed and self.width <= len(counts) <= len(self.after) + self.width
        fits = fits and bool(((counts >= 0) & (counts <= pairs.size)).all())
        if not fits or len(paths) != (int(counts.sum()) + 7) // 8:
            raise TransportError("the paths of packed pairs do not follow the protocol")
        room = np.append(paths, np.zeros(CHUNK // 8 + 1, np.uint8))  # who reads too many finds out afterwards
        own = (self.roots, self.width, self.after, self.column, self.right, self.asked, self.cell)
        return room, np.append(0, np.cumsum(counts)), *own


def _roots(left: NDArray[Any]) -> tuple[Sums, int]:
    """The nodes that are nobody's children, and the bits of their numbers."""
    is_child = np.zeros(len(left) + 1, np.bool_)
    inner = left[left >= 0]
    is_child[inner] = is_child[inner + 1] = True
    roots = np.flatnonzero(~is_child[:-1])
    return roots, (len(roots) - 1).bit_length()
