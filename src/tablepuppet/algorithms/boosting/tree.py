"""A tree while it grows: the joined rows of its nodes, and histograms over the server's known bins.

In: derivatives in fixed point and known blocks. Out: nodes. The joined rows of a node lie side by side in one array of
row numbers; a split parts them. Of two children the one with fewer rows is counted, the other is its parent less it.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from heapq import heappop, heappush
from math import inf

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.fixed_point import Derivatives
from tablepuppet.algorithms.boosting.kernels import BlockRows, NodeSums
from tablepuppet.algorithms.boosting.known_blocks import Choice, KnownBlock
from tablepuppet.algorithms.boosting.messages import Tree
from tablepuppet.algorithms.boosting.rows import NO_CELL, BlockIndex, Router
from tablepuppet.algorithms.boosting.splits import CACHED, SplitRules
from tablepuppet.algorithms.boosting.tree_checks import Cells, Outline, Sums
from tablepuppet.arrays import RowNumbers
from tablepuppet.errors import TransportError

_UNBOUND = np.zeros((0, 2))
_MIN_ROWS_PER_BIN = 16  # rows for each bin, of the block and joined


class Node(msgspec.Struct):
    """Joined rows order[start:stop], and how they are split."""

    start: int
    stop: int
    depth: int
    g: float  # whole numbers, in units; of drawn splits in plain
    h: float
    left: int = -1  # its right child has the next number
    border: int = -1  # where the rows of its right child begin
    choice: Choice | None = None
    is_gone: bool = False  # another split of an ancestor took its place
    bound: tuple[float, float] | None = None  # bounds of its leaves, where some columns have signs
    ridge: float = 0.0  # what its λ is increased by, below sorted categories
    path: int = 1  # 1 for the root, 2p and 2p + 1 for the children of p
    is_searched: bool = False  # the best known split was looked for; `choice` is it, or a better one
    is_checked: bool = False  # clients have nothing better


class Growth(msgspec.Struct, frozen=True, eq=False, dict=True):
    depth: int
    rules: NDArray[np.float64]  # (options.py)
    leaves: int | None = None  # where trees grow by leaves: so many
    is_bound: bool = False  # some columns have signs

    @cached_property
    def least(self) -> list[float]:
        """The least Σh, of a side, a sorted category and a rare one; then of how many rows each is at least."""
        return [float(self.rules[place]) for place in (1, 5, 5, 8, 6, 7)]


class TreeRows(msgspec.Struct, frozen=True, eq=False):
    blocks: Sequence[KnownBlock]
    indices: Sequence[BlockIndex]
    allowed: Sequence[NDArray[np.bool_]]  # by block: columns that may be used
    order: RowNumbers  # joined rows
    spare: RowNumbers  # room for as many


class GrowingTree:
    """One tree. Its nodes are split level by level, all of a level together."""

    def __init__(self, growth: Growth, rows: TreeRows, given: Derivatives) -> None:
        self.growth, self.given = growth, given
        self.blocks, self.indices, self.allowed = rows.blocks, rows.indices, rows.allowed
        self.order, self.spare = rows.order, rows.spare
        whole = self._totals([(0, len(self.order))])[0]
        self.nodes = [Node(0, len(self.order), 0, *whole, bound=(-inf, inf) if growth.is_bound else None)]
        self._sums: dict[int, dict[int, Sums]] = {}  # by node, then block
        self._deepest = growth.depth

    def is_open(self, number: int) -> bool:
        node, (least, _, _, rows, _, _) = self.nodes[number], self.growth.least
        is_large = node.h * self.given.unit[1] >= 2 * least and node.stop - node.start >= 2 * rows
        return is_large and node.depth < self._deepest

    def forget_sums(self, blocks: Sequence[int]) -> None:
        """The bins of some blocks have changed."""
        self._sums = {n: {b: s for b, s in sums.items() if b not in blocks} for n, sums in self._sums.items()}

    def grow(self, numbers: Sequence[int], forced: Mapping[int, Choice] | None = None) -> None:
        """Splits these nodes and all below them by the best known keys, or by those that are forced."""
        forced = forced or {}
        if self.growth.leaves is not None:
            self._grow_leaves(self.growth.leaves, forced)
            return
        level = [n for n in numbers if self.is_open(n)]
        while level:
            free = [n for n in level if n not in forced]
            found = dict(zip(free, self.best(free), strict=True)) | {n: forced[n] for n in level if n in forced}
            chosen: dict[int, Choice] = {}
            for number in level:
                choice = found[number]
                self.nodes[number].choice = choice
                if choice is not None:
                    chosen[number] = self.nodes[number].choice = self.blocks[choice.block].give_key(choice)
            level = self._split(chosen)
            for number in chosen.keys() & forced.keys():
                self._check_gain(number, forced[number])

    def _grow_leaves(self, leaves: int, forced: Mapping[int, Choice]) -> None:
        """Splits the leaf that gains most, from the root on, until there are so many; the lower path wins a tie.

        Nodes that were split before and are not reached any more are leaves again.
        """
        for number, choice in forced.items():
            node = self.nodes[number]
            node.choice, node.is_searched = self.blocks[choice.block].give_key(choice), True
        waiting: list[tuple[float, int, int]] = []
        self._await(waiting, [0])
        while waiting and leaves > 1:
            _, _, number = heappop(waiting)
            node = self.nodes[number]
            if node.left < 0:
                assert node.choice is not None
                self._split({number: node.choice})
                if node.choice.sums is None:
                    self._check_gain(number, node.choice)
            self._await(waiting, [node.left, node.left + 1])
            leaves -= 1
        for _, _, number in waiting:
            self.undo(number, keeps=True)

    def _await(self, waiting: list[tuple[float, int, int]], numbers: Sequence[int]) -> None:
        """Adds nodes that have a split to those that wait for it."""
        opened = [n for n in numbers if self.is_open(n)]
        fresh = [n for n in opened if not self.nodes[n].is_searched]
        for number, choice in zip(fresh, self.best(fresh), strict=True):
            node = self.nodes[number]
            node.choice = None if choice is None else self.blocks[choice.block].give_key(choice)
            node.is_searched = True
        for number in opened:
            node = self.nodes[number]
            if node.choice is not None:
                heappush(waiting, (-node.choice.gain, node.path, number))

    def best(self, numbers: Sequence[int], *, sets: bool = True) -> list[Choice | None]:
        """The best split of each of these nodes among all known keys."""
        if not numbers:
            return []
        self._count(numbers)
        asked = [block for block in self.blocks if block.layout.bins]
        if not asked:
            return [None] * len(numbers)
        how = SplitRules(np.array(self.given.unit), self.growth.rules, self.bounds(numbers), self.least(numbers))
        found = []
        for block in asked:
            width = len(block.layout.kinds)
            step = max(1, CACHED * width // (block.layout.bins * len(numbers))) if self._is_short(block) else width
            found.append(
                block.best(partial(self._find_sums, block, numbers), step, self.allowed[block.block], how, sets=sets)
            )
        gains = np.array([np.where(splits.found[:, 0] >= 0, splits.gain, -1.0) for splits in found])
        first = np.argmax(gains, axis=0).tolist()  # of equal gains the earliest block's
        return [asked[f].choice(found[f], place) for place, f in enumerate(first)]

    def bounds(self, numbers: Sequence[int]) -> NDArray[np.float64]:
        """Bounds of the nodes' values; empty where nothing is bound."""
        if not self.growth.is_bound:
            return _UNBOUND
        return np.array([self.nodes[n].bound for n in numbers], np.float64).reshape(-1, 2)

    def least(self, numbers: Sequence[int]) -> NDArray[np.float64]:
        """Of nodes the least Σh, a fixed one, or that of some of their rows."""
        own = [self.nodes[n] for n in numbers]
        sums = np.array([n.h * self.given.unit[1] for n in own])[:, None]
        rows = np.array([max(1, n.stop - n.start) for n in own])[:, None]
        least: NDArray[np.float64] = np.maximum(self.growth.least[:3], np.array(self.growth.least[3:]) * sums / rows)
        return least

    def undo(self, number: int, *, keeps: bool = False) -> None:
        """Removes all nodes below a node, and its split unless it `keeps` that."""
        below = [self.nodes[number].left]
        while below:
            left = below.pop()
            if left >= 0:
                for child in (left, left + 1):
                    self.nodes[child].is_gone = True
                    below.append(self.nodes[child].left)
        self.nodes[number].left = -1
        if not keeps:
            self.nodes[number].choice = None

    def _split(self, chosen: Mapping[int, Choice]) -> list[int]:
        """Gives nodes children; those that may be split again."""
        segments = {n: ((self.nodes[n].start, self.nodes[n].stop), choice) for n, choice in chosen.items()}
        for n, border in Router(self.blocks, self.indices).part(self.order, segments, self.spare).items():
            self.nodes[n].border = border
        unknown = [n for n, choice in chosen.items() if choice.sums is None]
        lefts = [(self.nodes[n].start, self.nodes[n].border) for n in unknown]
        sums = dict(zip(unknown, self._totals(lefts), strict=True))
        below, family = [], []
        for number, choice in chosen.items():
            node = self.nodes[number]
            g, h = choice.sums or sums[number]
            node.left = len(self.nodes)
            below_left, below_right = self._child_bounds(node, choice, g, h)
            depth, path, ridge = node.depth + 1, 2 * node.path, self._ridge(choice)
            self.nodes.append(Node(node.start, node.border, depth, g, h, bound=below_left, ridge=ridge, path=path))
            others = (node.border, node.stop, depth, node.g - g, node.h - h)
            self.nodes.append(Node(*others, bound=below_right, ridge=ridge, path=path + 1))
            own = [n for n in (node.left, node.left + 1) if self.is_open(n)]
            below += own
            if own:
                is_left_small = node.border - node.start <= node.stop - node.border
                family.append((number, node.left + (not is_left_small), node.left + is_left_small))
        self._count([small for _, small, _ in family])
        for number, small, large in family:
            whole, part = self._sums.get(number, {}), self._sums[small]
            self._sums[large] = {block: sums - part[block] for block, sums in whole.items()}
        return below

    def _child_bounds(self, node: Node, choice: Choice, g: int, h: int) -> Sequence[tuple[float, float] | None]:
        """Bounds of two children's values. If the column has a sign, they meet in the middle."""
        sign = self.blocks[choice.block].sign(choice.key)
        if node.bound is None or not sign:
            return node.bound, node.bound
        (unit_g, unit_h), penalty = self.given.unit, float(self.growth.rules[0])
        left = value_of(g * unit_g, h * unit_h + penalty, node.bound)
        right = value_of((node.g - g) * unit_g, (node.h - h) * unit_h + penalty, node.bound)
        low, high = node.bound
        middle = (left + right) / 2
        below, above = (low, middle), (middle, high)
        return (below, above) if sign > 0 else (above, below)

    def _ridge(self, choice: Choice) -> float:
        """What a split increases λ by."""
        return float(self.growth.rules[3]) if self.blocks[choice.block].is_set(choice.key) else 0.0

    def _check_gain(self, number: int, choice: Choice) -> None:
        """Checks a client's claim about its split, now that its rows are known."""
        node, (unit_g, unit_h), rules = self.nodes[number], self.given.unit, self.growth.rules
        block = self.blocks[choice.block]
        ridge = rules[0] + self._ridge(choice)
        sides = [self.nodes[child] for child in (node.left, node.left + 1)]
        least = min(side.h for side in sides)
        gain = sum(_worth(s.g * unit_g, s.h * unit_h + ridge, node.bound) for s in sides if s.h)
        gain -= _worth(node.g * unit_g, node.h * unit_h + rules[0], node.bound)
        if (
            least <= 0
            or least * unit_h < self.least([number])[0, 0]
            or abs(gain - choice.gain) > 1e-9 * max(abs(gain), 1.0)
        ):
            raise TransportError(f"{block.owner} claims a gain that its split does not have: Objections.gain")

    def _totals(self, segments: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        out = np.zeros((len(segments), 2), np.int64)
        kernels.sum_nodes(self.order, np.array(segments, np.int64).reshape(-1, 2), self.given.both, out)
        return [(g, h) for g, h in out.tolist()]

    def _is_short(self, block: KnownBlock) -> bool:
        """Whether there are so few rows that sums of nodes are counted for each search: to keep them takes longer."""
        rows = len(self.order) + len(block.codes)
        return rows * len(block.layout.kinds) <= _MIN_ROWS_PER_BIN * block.layout.bins

    def _find_sums(self, block: KnownBlock, numbers: Sequence[int], columns: slice) -> Sums:
        """Σ(g, h) of nodes per bin of some columns; of all, where sums are kept."""
        if self._is_short(block):
            return self._count_columns(block, numbers, columns)
        return np.array([self._sums[n][block.block] for n in numbers])

    def _count(self, numbers: Sequence[int]) -> None:
        """Σ(g, h) of nodes per bin of every block, as far as they are kept and not known."""
        for block in self.blocks:
            own = [n for n in numbers if block.block not in self._sums.setdefault(n, {})]
            if own and not self._is_short(block):
                sums = self._count_columns(block, own, slice(None))
                for place, number in enumerate(own):
                    self._sums[number][block.block] = sums[place]

    def _count_columns(self, block: KnownBlock, numbers: Sequence[int], columns: slice) -> Sums:
        """Σ(g, h) of nodes per bin of some columns."""
        index, layout = self.indices[block.block], block.layout.take(columns)
        out = np.zeros((len(numbers), layout.bins, 2), np.int64)
        segments = np.array([(self.nodes[n].start, self.nodes[n].stop) for n in numbers], np.int64)
        rows = BlockRows(index.index, 0, index.rows, np.ascontiguousarray(block.codes[:, columns]))
        sums = NodeSums(out, index.zeros if len(index.index) else index.zeros[:0])
        kernels.count_nodes(self.order, segments, rows, layout.offsets.astype(np.uint64), self.given.both, sums)
        return out

    def find_unchecked(self, again: Sequence[int]) -> list[int]:
        """The topmost nodes that clients were not asked about as they are now."""
        for number in again:
            self.nodes[number].is_checked = False
        found, below = [], [0]
        while below:
            number = below.pop()
            node = self.nodes[number]
            if not node.is_checked and self.is_open(number):
                found.append(number)
            elif node.left >= 0:
                below += [node.left, node.left + 1]
        return sorted(found)

    def make_outline(self, roots: Sequence[int]) -> tuple[Outline, list[int]]:
        """These nodes and all below them that may be split; and their numbers here."""
        numbers, left = [n for n in roots if self.is_open(n)], []
        for number in numbers:  # which grow meanwhile
            child = self.nodes[number].left
            is_inner = child >= 0 and (self.is_open(child) or self.is_open(child + 1))
            left.append(len(numbers) if is_inner else -1)
            if is_inner:
                numbers += [child, child + 1]
        choices = [self.nodes[n].choice for n in numbers]
        outline = Outline(
            unit=self.given.unit,
            left=np.array(left, np.int32),
            asks=np.array([self.is_open(n) for n in numbers], np.bool_),
            gain=np.array([0.0 if c is None else c.gain for c in choices]),
            block=np.array([-1 if c is None else c.block for c in choices], np.int32),
            key=np.array([-1 if c is None else c.key for c in choices], np.int32),
            to_left=np.array([c is not None and c.to_left for c in choices], np.bool_),
            bounds=self.bounds(numbers),
            least=self.least(numbers),
        )
        return outline, numbers

    def mark_cells(self, outline: Outline, numbers: Sequence[int], cell: Cells) -> int:
        """Writes the cell of every joined row; how many cells there are."""
        cell[:] = NO_CELL
        cells = [self.nodes[n] for n, left in zip(numbers, outline.left.tolist(), strict=True) if left < 0]
        for number, node in enumerate(cells):
            cell[self.order[node.start : node.stop]] = number
        return len(cells)


def as_tree(nodes: Sequence[Node], unit: tuple[float, float], l2: float, rate: float) -> tuple[Tree, list[int]]:
    """The tree of all nodes that are left, and their numbers there: −η ΣG / (ΣH + λ) in the leaves, within bounds."""
    numbers, left = [0], []
    for number in numbers:  # which grow meanwhile
        child = nodes[number].left
        left.append(len(numbers) if child >= 0 else -1)
        numbers += [child, child + 1] if child >= 0 else []
    own = [nodes[n] for n in numbers]
    inner = [node.choice if node.left >= 0 else None for node in own]

    def value(node: Node) -> float:
        weight = node.h * unit[1] + (l2 + node.ridge)
        if node.bound is not None:
            return rate * value_of(node.g * unit[0], weight, node.bound) if weight > 0 else 0.0
        return -rate * (node.g * unit[0]) / weight if weight > 0 else 0.0

    return (
        Tree(
            left=left,
            block=[-1 if c is None else c.block for c in inner],
            key=[-1 if c is None else c.key for c in inner],
            to_left=[c is not None and c.to_left for c in inner],
            gain=[0.0 if c is None else float(c.gain) for c in inner],
            value=[0.0 if node.left >= 0 else value(node) for node in own],
            cover=[node.h * unit[1] for node in own],
        ),
        numbers,
    )


def value_of(g: float, h: float, bound: tuple[float, float]) -> float:
    """−g/h within bounds."""
    return min(max(-g / h, bound[0]), bound[1])


def _worth(g: float, h: float, bound: tuple[float, float] | None) -> float:
    """The gain of a leaf: g²/h, or less where it is bound."""
    if bound is None:
        return g * g / h
    w = value_of(g, h, bound)
    return -(2 * g * w + h * w * w)
