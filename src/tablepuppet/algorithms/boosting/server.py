"""The server's half: grows trees from known keys, lets clients check them, and repairs nodes until nobody objects. The
trees are those of the exact algorithm, level by level.

A round is one `Check` to every part and `Objections` of every block back. Whoever asks (rounds.py) knows which rows
each part of a block holds, and adds up their sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.fixed_point import Derivatives, Labels, derivatives
from tablepuppet.algorithms.boosting.known_blocks import Choice, KnownBlock
from tablepuppet.algorithms.boosting.messages import Tree
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.rows import BlockIndex, Router, add_leaves, sample_columns, sample_rows
from tablepuppet.algorithms.boosting.tree import GrowingTree, Growth, Node, TreeRows, as_tree
from tablepuppet.algorithms.boosting.tree_checks import Check, Objections, Outline
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.models.losses import Loss

Columns = list[NDArray[np.bool_]]  # by block: which may be used
Plan = tuple[Outline, list[int]]  # the outline of a tree, and the numbers of its nodes
Ask = Callable[[list[list[Check]]], list[Objections]]  # checks by block and part; objections by block


class HeldRows(msgspec.Struct, frozen=True, eq=False):
    """Joined rows that are held out: their row numbers per block, and their scores so far, output by output."""

    indices: Sequence[BlockIndex]
    scores: Array


class _Better(msgspec.Struct):
    """The objections to one node: the best split, and whether its own is not even a candidate."""

    best: Choice | None = None
    is_void: bool = False


@dataclass(eq=False)
class BoostingServer:
    """All trees of a run."""

    options: Boosting
    loss: Loss
    labels: Labels
    indices: Sequence[BlockIndex]
    blocks: Sequence[KnownBlock]
    starts: Sequence[list[int]]  # of each block's parts among its rows
    scores: Array  # (joined rows, outputs), to begin with; each output's lie side by side
    held: Sequence[HeldRows] = ()
    seed: int = 0
    first: int = 0  # trees that there were before
    trees: list[list[Tree]] = field(default_factory=list)  # by tree, then output

    def __post_init__(self) -> None:
        count = len(self.scores)
        dtype = np.int32 if count < 2**31 else np.int64
        self._orders: list[RowNumbers] = [np.empty(count, dtype) for _ in range(self.loss.outputs)]
        self._spare: RowNumbers = np.empty(count, dtype)
        options, is_bound = self.options, any(sign for block in self.blocks for sign in block.signs)
        rules = options.rules
        rules[7] *= 1 if self.loss.task == "number" else 2.0  # rows of a class say less than those of a number
        rules[[1, 8]] *= 1.0 if self.labels.noise is None else self.labels.noise.excess
        self._growth = Growth(options.levels, rules, options.leaf_limit, is_bound)
        self._given: list[Derivatives] = []  # of the last tree; all trees of a forest have the same

    @property
    def has_exact_sums(self) -> bool:
        """Whether sums of leaves carry no noise, so that more may depend on their rows."""
        return True

    def grow(self, ask: Ask) -> None:
        """One tree for each output."""
        number = self.first + len(self.trees)
        options = self.options
        if not (options.forest and self._given):
            self._given = self._derivatives()
        columns = sample_columns([len(b.kinds) for b in self.blocks], options.feature_fraction, self.seed, number)
        rows = sample_rows(self.labels, self._orders[0], options.subsample, self.seed, number)
        orders = [order[: len(rows)] for order in self._orders]
        for order in orders[1:]:
            order[...] = rows
        growing = [
            GrowingTree(self._growth, TreeRows(self.blocks, self.indices, columns, order, self._spare), given)
            for given, order in zip(self._given, orders, strict=True)
        ]
        for tree in growing:
            tree.grow([0])
        self._mend(growing, columns, ask)
        ends = [(tree.nodes, tree.given.unit, options.penalty, tree.order) for tree in growing]
        self.trees.append([self._finish_tree(output, *end) for output, end in enumerate(ends)])

    def _derivatives(self) -> list[Derivatives]:
        return derivatives(self.loss, self.scores, self.labels, self.options.bits, self._given)

    def _mend(self, growing: Sequence[GrowingTree], columns: Columns, ask: Ask) -> None:
        """Until nobody objects."""
        roots: list[list[int]] = [[0] for _ in growing]
        while True:
            plans = [tree.make_outline(own) for tree, own in zip(growing, roots, strict=True)]
            if not any(numbers for _, numbers in plans):
                return
            checks = self._checks(growing, plans, columns)
            if not any(checks):
                return
            answers = ask(checks)
            for tree, (_, numbers) in zip(growing, plans, strict=True):
                for number in numbers:
                    tree.nodes[number].is_checked = True
            found = self._by_node(answers, plans)
            for block, answer in zip(self.blocks, answers, strict=True):
                block.learn(answer.keys)
                block.complete.update(answer.complete)
            changed = [number for number, answer in enumerate(answers) if answer.keys]
            for tree in growing:
                tree.forget_sums(changed)
            roots = [_mend_nodes(tree, better) for tree, better in zip(growing, found, strict=True)]

    def _checks(self, growing: Sequence[GrowingTree], plans: Sequence[Plan], columns: Columns) -> list[list[Check]]:
        """The request to every part of every block; none to a block that cannot object to the trees."""
        asked = [not block.is_complete(own) for block, own in zip(self.blocks, columns, strict=True)]
        checks: list[list[Check]] = [[] for _ in self.blocks]
        if not any(asked):
            return checks
        for block, known in enumerate(self.blocks):
            if asked[block]:
                unions, known.unions = known.unions, []
                checks[block] = [Check(columns[block], unions, []) for _ in self.starts[block]]
        cell = np.empty(len(self.scores), np.int16)
        for tree, (outline, numbers) in zip(growing, plans, strict=True):
            if not numbers:
                continue
            cells = tree.mark_cells(outline, numbers, cell)
            for block, (index, starts) in enumerate(zip(self.indices, self.starts, strict=True)):
                if not asked[block]:
                    continue
                own = replace(outline, key=np.where(outline.block == block, outline.key, -1).astype(np.int32))
                for part, pairs in enumerate(index.pairs(starts, (cell, cells), tree.given, self._spare)):
                    checks[block][part].trees.append(replace(own, pairs=pairs))
        return checks

    def _by_node(self, answers: Sequence[Objections], plans: Sequence[Plan]) -> list[dict[int, _Better]]:
        """By tree and node: the best that any block objected."""
        found: list[dict[int, _Better]] = [{} for _ in plans]
        asked = [(place, numbers) for place, (_, numbers) in enumerate(plans) if numbers]
        for block, answer in enumerate(answers):
            columns = (answer.tree, answer.node, answer.gain, answer.key, answer.to_left, answer.is_void)
            for tree, node, gain, key, to_left, is_void in zip(*(c.tolist() for c in columns), strict=True):
                place, numbers = asked[tree]
                better = found[place].setdefault(numbers[node], _Better())
                better.is_void |= is_void
                choice = Choice(gain, block, key, to_left)
                if key >= 0 and choice.comes_before(better.best):
                    better.best = choice
        return found

    def _finish_tree(
        self, output: int, nodes: Sequence[Node], unit: tuple[float, float], l2: float, order: RowNumbers
    ) -> Tree:
        """The tree; its values are added to all scores."""
        for node in nodes if self.has_exact_sums else ():
            node.g += self.labels.excess(output, order[node.start : node.stop]) / unit[0] if node.left < 0 else 0.0
        tree, numbers = as_tree(nodes, unit, l2, self.options.rate)
        leaves = [k for k, left in enumerate(tree.left) if left < 0]
        segments = [(nodes[numbers[k]].start, nodes[numbers[k]].stop) for k in leaves]
        add_leaves(order, segments, [tree.value[k] for k in leaves], self.scores[:, output])
        self._spread(output, tree, order)
        return tree

    def _spread(self, output: int, tree: Tree, rows: RowNumbers) -> None:
        """Adds a tree's values to the scores of joined rows that are none of its own."""
        if len(rows) < len(self.scores):
            others = np.ones(len(self.scores), np.bool_)
            others[rows] = False
            left_out = np.flatnonzero(others).astype(rows.dtype)
            self._route(tree, left_out, self.indices, self.scores[:, output], is_held=False)
        for side in self.held:
            everyone = np.arange(len(side.scores), dtype=np.int32)
            self._route(tree, everyone, side.indices, side.scores[:, output], is_held=True)

    def finish(self) -> None:
        """Frees everything that only a further tree would need."""
        self._orders, self._spare, self._given = [], self._spare[:0].copy(), []

    def cut(self, trees: int, starts: Sequence[Array]) -> None:
        """Forgets all but the first trees; scores, which begin with `starts`, are added up anew."""
        del self.trees[trees:]
        sides = [(self.indices, self.scores, False), *((h.indices, h.scores, True) for h in self.held)]
        for (indices, scores, is_held), start in zip(sides, starts, strict=True):
            scores[...] = start
            for group in self.trees:
                for output, tree in enumerate(group):
                    rows = np.arange(len(scores), dtype=self._spare.dtype)
                    self._route(tree, rows, indices, scores[:, output], is_held=is_held)

    def _route(
        self, tree: Tree, rows: RowNumbers, indices: Sequence[BlockIndex], scores: Array, *, is_held: bool
    ) -> None:
        """Adds a tree's values to the scores of joined rows that it was not grown on, level by level."""
        spare, router = np.empty_like(rows), Router(self.blocks, indices, is_held)
        level = {0: (0, len(rows))}
        while level:
            leaves = [n for n in level if tree.left[n] < 0]
            add_leaves(rows, [level[n] for n in leaves], [tree.value[n] for n in leaves], scores)
            level = router.part_level(rows, tree, level, spare)


def _mend_nodes(tree: GrowingTree, better: dict[int, _Better]) -> list[int]:
    """Gives the topmost nodes with objections their better splits and grows the tree below; the nodes to check next."""
    forced: dict[int, Choice] = {}
    again = []
    for number in sorted(better):
        if tree.nodes[number].is_gone:
            continue
        best = better[number].best
        tree.undo(number)
        if better[number].is_void:  # others were asked whether they have more than a gain that nobody has
            known = tree.best([number], sets=False)[0]
            best = known if known is not None and known.comes_before(best) else best
            again.append(number)
        if best is not None:
            forced[number] = best
    tree.grow(list(forced), forced)
    if tree.growth.leaves is not None:
        return tree.find_unchecked(again)
    split = [tree.nodes[v].left for v in forced if v not in again]
    return [*again, *(n for left in split for n in (left, left + 1))]
