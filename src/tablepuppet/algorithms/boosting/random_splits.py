"""Trees whose splits are drawn, not searched: any number of them by the bits of one round.

    pool     keys that may be drawn: every border of a number; each of few categories against the rest; of more, as many
             random halves as there are categories. Of a block, no more than its owners reveal
    a tree   each node down to the last level has a column, one of its keys, and a side for missing values, which follow
             from the seed, the tree's number and the node alone; the trees of all classes share them
    a leaf   has exact sums of its joined rows; a node of which one side would be too light is one

In: layouts of blocks. Out: the keys to reveal, then trees. Clients are sent no sums, and the server no gains.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.algorithms.boosting.bins import Columns
from tablepuppet.algorithms.boosting.fixed_point import Derivatives, LeafNoise, clipped_derivatives, uniform
from tablepuppet.algorithms.boosting.known_blocks import Choice
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.rows import Router, Segment, sample_columns, sample_rows
from tablepuppet.algorithms.boosting.server import Ask, BoostingServer
from tablepuppet.algorithms.boosting.tree import Node
from tablepuppet.algorithms.boosting.tree_checks import NUMBER, ONE_HOT, Key, Sums
from tablepuppet.arrays import RowNumbers
from tablepuppet.privacy.gaussian import secure_generator

_DRAWS, _ORDER, _SETS = 7_919, 7_920, 7_921  # streams of chance, beside those of samples and roundings


class Drawable(msgspec.Struct, frozen=True, eq=False):
    """Facts about a block before its keys are drawn."""

    layout: Columns
    has_missing: NDArray[np.bool_]  # of each column
    limit: int | None = None  # keys that its owners reveal


class Draws:
    """The splits of all trees of a run."""

    def __init__(self, blocks: Sequence[Drawable], options: Boosting, seed: int, trees: range) -> None:
        self.options, self.seed = options, seed
        self._widths = [len(block.layout.kinds) for block in blocks]
        firsts = [sum(self._widths[:number]) for number in range(len(blocks))]
        pools = [
            _pool(number, block, first, seed) for number, (block, first) in enumerate(zip(blocks, firsts, strict=True))
        ]
        columns = [(b, column) for b, pool in enumerate(pools) for column in sorted(pool)]
        self._keys = [(b, key) for b, column in columns for key in pools[b][column]]
        self._sizes = np.array([len(pools[b][column]) for b, column in columns], np.int64)
        self._firsts = np.cumsum(self._sizes) - self._sizes
        self._columns = columns
        self._block = np.array([b for b, _ in self._keys], np.int32)
        self._number = np.full(len(self._keys), -1, np.int32)  # of each key, among those that its block reveals
        self.keys = self._number_keys(blocks, trees)

    def _number_keys(self, blocks: Sequence[Drawable], trees: range) -> list[list[Key]]:
        """By block: the keys that some tree draws; of a column with missing values, the key for them comes first."""
        is_drawn = np.zeros(len(self._keys), np.bool_)
        for tree in trees:
            is_drawn[self._draw(tree)[0]] = True
            if is_drawn.all():
                break
        found: list[dict[Key, int]] = [{} for _ in blocks]
        for place in np.flatnonzero(is_drawn).tolist():
            block, key = self._keys[place]
            for one in blocks[block].layout.needed_keys(key, blocks[block].has_missing):
                found[block].setdefault(one, len(found[block]))
            self._number[place] = found[block][key]
        return [list(keys) for keys in found]

    def _draw(self, tree: int) -> tuple[Sums, NDArray[np.bool_]]:
        """Of every inner node, level by level: its key among all of them, and whether missing values go left."""
        allowed = sample_columns(self._widths, self.options.feature_fraction, self.seed, tree)
        columns = np.flatnonzero([allowed[b][column] for b, column in self._columns])
        nodes = (1 << self.options.levels) - 1 if len(columns) else 0
        column, key, side = uniform(self.seed + _DRAWS, tree, np.arange(3 * nodes, dtype=np.uint64)).reshape(3, -1)
        chosen = columns[(column * len(columns)).astype(np.int64)] if nodes else np.zeros(0, np.int64)
        places = self._firsts[chosen] + (key * self._sizes[chosen]).astype(np.int64)
        return places, side < 0.5

    def splits(self, tree: int) -> list[Choice]:
        """The splits of a tree's inner nodes; the children of node k are 2k + 1 and 2k + 2."""
        places, to_left = self._draw(tree)
        drawn = zip(self._block[places].tolist(), self._number[places].tolist(), to_left.tolist(), strict=True)
        return [Choice(0.0, *split) for split in drawn]


def _pool(number: int, block: Drawable, first: int, seed: int) -> dict[int, list[Key]]:
    """By column: the keys of a block that may be drawn; only some of them, if its owners reveal fewer. Its `first`
    column has so many before it."""
    layout, missing = block.layout, block.has_missing
    every = [key for column in range(len(layout.kinds)) for key in _candidates(layout, missing, first, column, seed)]
    limit = len(every) if block.limit is None else block.limit
    kept: set[Key] = set()
    order = np.argsort(uniform(seed + _ORDER, number, np.arange(len(every), dtype=np.uint64)), kind="stable")
    for place in order.tolist():
        wanted = set(layout.needed_keys(every[place], missing)) - kept
        if len(kept) + len(wanted) <= limit:
            kept |= wanted
    found: dict[int, list[Key]] = {}
    for key in every:
        if key in kept:
            found.setdefault(key.column, []).append(key)
    return found


def _candidates(layout: Columns, has_missing: NDArray[np.bool_], first: int, column: int, seed: int) -> list[Key]:
    size, is_missing = layout.size(column), bool(has_missing[column])
    if layout.kinds[column] == NUMBER:
        return [Key(column, border=at) for at in range(1, size - 1 + is_missing)]
    codes = np.arange(1 - is_missing, size)
    if len(codes) < 2:
        return []
    if layout.kinds[column] == ONE_HOT:
        needed = codes[:1] if len(codes) == 2 else codes  # of two, the second is the complement of the first
        return [Key(column, left=(code,)) for code in needed.tolist()]
    coins = np.arange(len(codes) ** 2, dtype=np.uint64).reshape(len(codes), -1)
    is_left = uniform(seed + _SETS, first + column, coins) < 0.5
    is_whole = is_left.all(axis=1) | ~is_left.any(axis=1)
    is_left[is_whole] = np.eye(len(codes), dtype=np.bool_)[is_whole]
    return list(dict.fromkeys(Key(column, left=tuple(codes[own].tolist())) for own in is_left))


@dataclass(eq=False, kw_only=True)
class DrawnServer(BoostingServer):
    """All trees of a run whose splits are drawn; blocks know all keys before the first."""

    draws: Draws
    noise: LeafNoise | None = None  # on all sums, of which nothing else depends on rows
    generator: np.random.Generator = field(default_factory=secure_generator)

    @property
    def has_exact_sums(self) -> bool:
        return self.noise is None

    def grow(self, ask: Ask) -> None:
        """One tree for each output, without asking anybody."""
        number, options = self.first + len(self.trees), self.options
        if not (self._given and options.forest):  # whose trees all have the same
            self._given = self._derivatives()
        order = sample_rows(self.labels, self._orders[0], options.subsample, self.seed, number)
        splits = self.draws.splits(number)
        segments = self._part(splits, order)
        least, l2 = options.least_weight, options.penalty
        if self.noise is not None:  # which splits there are must not depend on rows
            least, l2 = -inf, options.penalty + self.noise.shrinkage
        group = []
        for output, own in enumerate(self._given):
            nodes = _count_nodes(splits, segments, self._sums(order, segments[len(splits) :], own), least, l2)
            group.append(self._finish_tree(output, nodes, (1.0, 1.0), l2, order))
        self.trees.append(group)

    def _derivatives(self) -> list[Derivatives]:
        if self.noise is None:
            return super()._derivatives()
        return clipped_derivatives(self.loss, self.scores, self.labels, self.noise)

    def _sums(self, order: RowNumbers, segments: Sequence[Segment], given: Derivatives) -> NDArray[np.float64]:
        """Σg and Σh of every node, from those of the leaves; with noise, each is the sum of its leaves'."""
        leaves = np.zeros((len(segments), 2), np.int64)
        kernels.sum_nodes(order, np.array(segments, np.int64), given.both, leaves)
        if self.noise is None:
            return np.asarray(_add_levels(leaves) * np.array(given.unit))
        noisy = self.noise.noisy(leaves, self.generator)
        noisy[:, 1] = np.maximum(noisy[:, 1], 0.0)
        return np.asarray(_add_levels(noisy))

    def _part(self, splits: Sequence[Choice], order: RowNumbers) -> list[Segment]:
        """Parts joined rows level by level; where those of each node lie."""
        router, segments = Router(self.blocks, self.indices), [(0, len(order))]
        while len(segments) <= 2 * len(splits):
            level = range(len(segments) // 2, len(segments))
            borders = router.part(order, {n: (segments[n], splits[n]) for n in level}, self._spare)
            for n in level:
                segments += [(segments[n][0], borders[n]), (borders[n], segments[n][1])]
        return segments


def _add_levels(leaves: NDArray[Any]) -> NDArray[Any]:
    """Sums of all nodes of a whole tree, level by level, from those of its last level."""
    levels = [leaves]
    while len(levels[0]) > 1:
        levels.insert(0, levels[0][::2] + levels[0][1::2])
    return np.concatenate(levels)


def _count_nodes(
    splits: Sequence[Choice], segments: Sequence[Segment], sums: NDArray[np.float64], least: float, l2: float
) -> list[Node]:
    """The nodes of a whole tree; those of which one side is too light are leaves."""
    g, h = sums.T.tolist()
    heavy = [weight >= least and (weight > 0 or least < 0) for weight in h]
    worth = [a * a / (b + l2) if b + l2 > 0 else 0.0 for a, b in zip(g, h, strict=True)]
    nodes = [Node(*segment, 0, a, b) for segment, a, b in zip(segments, g, h, strict=True)]
    for n, split in enumerate(splits):
        left = 2 * n + 1
        if heavy[left] and heavy[left + 1]:
            gain = max(0.0, worth[left] + worth[left + 1] - worth[n])
            nodes[n].left, nodes[n].choice = left, replace(split, gain=gain)
    return nodes
