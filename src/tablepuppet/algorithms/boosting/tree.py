"""A tree while it grows: the joined rows of its nodes, and histograms over what the server knows.

In: derivatives in fixed point and known blocks. Out: nodes. The joined rows of a node lie side by side in one array of
row numbers; a split parts them. Of two children the one with fewer rows is counted, the other is its parent less it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.exchange import Outline
from tablepuppet.algorithms.boosting.fixed_point import Derivatives
from tablepuppet.algorithms.boosting.known import Choice, KnownBlock
from tablepuppet.algorithms.boosting.rows import NO_CELL, BlockIndex, RowNumbers

Sums = NDArray[np.int64]


@dataclass(slots=True)
class Node:
    """Joined rows order[start:stop], and how they are split."""

    start: int
    stop: int
    depth: int
    g: int
    h: int
    left: int = -1  # its right child has the next number
    choice: Choice | None = None
    is_gone: bool = False  # another split of an ancestor took its place


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """What bounds a tree."""

    depth: int
    rules: NDArray[np.float64]  # λ, least Σh, least gain, further λ of categories, smoothing

    def is_open(self, node: Node, unit: tuple[float, float]) -> bool:
        """Whether a node may be split."""
        return node.depth < self.depth and node.h * unit[1] >= 2 * self.rules[1]


class GrowingTree:
    """One tree."""

    def __init__(
        self,
        growth: Growth,
        blocks: Sequence[KnownBlock],
        indices: Sequence[BlockIndex],
        given: Derivatives,
        order: RowNumbers,
        allowed: Sequence[NDArray[np.bool_]],
        spare: RowNumbers,
    ) -> None:
        self.growth, self.blocks, self.indices, self.given = growth, blocks, indices, given
        self.order, self.allowed, self.spare = order, allowed, spare
        g, h = kernels.totals(order, given.g, given.h)
        self.nodes = [Node(0, len(order), 0, int(g), int(h))]
        self._sums: dict[int, list[Sums]] = {}
        self._per_row: dict[int, Sums] = {}  # zero between uses

    def is_open(self, number: int) -> bool:
        return self.growth.is_open(self.nodes[number], self.given.unit)

    def forget_sums(self) -> None:
        """The blocks' bins have changed."""
        self._sums.clear()

    def grow(self, numbers: Sequence[int], forced: Mapping[int, Choice] | None = None) -> None:
        """Splits these nodes and all below them by the best known keys, or by those that are forced."""
        forced = forced or {}
        level = [n for n in numbers if self.is_open(n)]
        while level:
            below = []
            for number in level:
                choice = forced.get(number) or self.best(number)
                self.nodes[number].choice = choice
                if choice is not None:
                    below += self._split(number, self.blocks[choice.block].settled(choice))
                self._sums.pop(number, None)
            level = below

    def best(self, number: int, *, sets: bool = True) -> Choice | None:
        """The best split of a node among all known keys."""
        best: Choice | None = None
        for block, sums in zip(self.blocks, self._histograms(number), strict=True):
            if len(sums):
                found = block.best(sums, self.given.unit, self.allowed[block.block], self.growth.rules, sets=sets)
                if found is not None and found.comes_before(best):
                    best = found
        return best

    def undo(self, number: int) -> None:
        """A node without what was below it."""
        below = [self.nodes[number].left]
        while below:
            left = below.pop()
            if left >= 0:
                for child in (left, left + 1):
                    self.nodes[child].is_gone = True
                    below.append(self.nodes[child].left)
        self.nodes[number].left, self.nodes[number].choice = -1, None

    def _split(self, number: int, choice: Choice) -> list[int]:
        """The children of a node that may be split again."""
        node = self.nodes[number]
        node.choice = choice
        rows = self.order[node.start : node.stop]
        index = self.indices[choice.block]
        how = self.blocks[choice.block].splits_by(choice)
        border = node.start + kernels.part_rows(rows, index.index, index.rows, *how, self.spare)
        is_left_small = border - node.start <= node.stop - border
        small = (node.start, border) if is_left_small else (border, node.stop)
        g, h = map(int, kernels.totals(self.order[slice(*small)], self.given.g, self.given.h))
        one, other = (g, h), (node.g - g, node.h - h)
        left, right_sums = (one, other) if is_left_small else (other, one)
        node.left = len(self.nodes)
        self.nodes.append(Node(node.start, border, node.depth + 1, *left))
        self.nodes.append(Node(border, node.stop, node.depth + 1, *right_sums))
        children = [node.left, node.left + 1]
        if any(map(self.is_open, children)):
            few, many = children if is_left_small else children[::-1]
            sums, whole = self._count(few), self._histograms(number)
            self._sums[few] = sums
            self._sums[many] = [a - b for a, b in zip(whole, sums, strict=True)]
        return [child for child in children if self.is_open(child)]

    def _histograms(self, number: int) -> list[Sums]:
        if number not in self._sums:
            self._sums[number] = self._count(number)
        return self._sums[number]

    def _count(self, number: int) -> list[Sums]:
        """Σ(g, h) of a node per bin of every block: over its joined rows, or over the block's, whichever are fewer."""
        node = self.nodes[number]
        rows = self.order[node.start : node.stop]
        return [self._count_block(block, rows) for block in self.blocks]

    def _count_block(self, block: KnownBlock, rows: RowNumbers) -> Sums:
        layout, codes, index = block.layout, block.train, self.indices[block.block]
        out = np.zeros((layout.bins, 2), np.int64)
        columns = codes.shape[1]
        if not columns:
            return out
        given = self.given
        if len(rows) * (columns - 1) <= index.rows * (columns + 1) or not len(index.index):
            kernels.histogram_of_joined(rows, index.index, index.rows, codes, layout.offsets, given.g, given.h, out)
        else:
            if block.block not in self._per_row:
                self._per_row[block.block] = np.zeros((index.rows + 1, 2), np.int64)
            sums = self._per_row[block.block]
            kernels.collapse(rows, index.index, index.rows, given.g, given.h, sums)
            kernels.histogram_of_rows(sums, codes, layout.offsets, out)
        return out

    # -- what clients are asked ------------------------------------------------------------

    def outline(self, roots: Sequence[int]) -> tuple[Outline, list[int]]:
        """These nodes and what is below them, as far as it may be split; and their numbers here."""
        numbers = [n for n in roots if self.is_open(n)]
        left = []
        place = 0
        while place < len(numbers):
            child = self.nodes[numbers[place]].left
            is_inner = child >= 0 and (self.is_open(child) or self.is_open(child + 1))
            left.append(len(numbers) if is_inner else -1)
            if is_inner:
                numbers += [child, child + 1]
            place += 1
        choices = [self.nodes[n].choice for n in numbers]
        return (
            Outline(
                unit=self.given.unit,
                left=np.array(left, np.int32),
                asks=np.array([self.is_open(n) for n in numbers], np.bool_),
                gain=np.array([0.0 if c is None else c.gain for c in choices]),
                block=np.array([-1 if c is None else c.block for c in choices], np.int32),
                key=np.array([-1 if c is None else c.key for c in choices], np.int32),
                to_left=np.array([c is not None and c.to_left for c in choices], np.bool_),
            ),
            numbers,
        )

    def mark_cells(self, outline: Outline, numbers: Sequence[int], cell: NDArray[np.uint16]) -> int:
        """Writes the cell of every joined row; how many cells there are."""
        cell[...] = NO_CELL
        cells = [n for n, left in zip(numbers, outline.left.tolist(), strict=True) if left < 0]
        for place, number in enumerate(cells):
            kernels.mark(self.order[self.nodes[number].start : self.nodes[number].stop], place, cell)
        return len(cells)
