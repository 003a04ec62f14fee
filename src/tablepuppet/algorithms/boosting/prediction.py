"""Scores of a boosted model: one round, one bit per row and split; then every joined row walks down the trees.

In: a model and the joined rows of a query. Out: a score per joined row and output. A joined row without a row in some
table (an outer join found none, or its owner is away) is one whose values there are all missing. Bits of a block are
(splits, rows + 1), the last row being the one that does not exist. Effects of a feature follow from the same bits,
changed, and ask no owner for more. Of a block whose owners hold its splits only totals are known here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.algorithm import Root
from tablepuppet.algorithms.boosting.messages import (
    AskOwnRows,
    AskRows,
    GrownBlock,
    GrownTrees,
    RowBits,
    SplitRule,
    Tree,
)
from tablepuppet.arrays import JOINED_ROWS_PER_SHARD, Array, RowNumbers, pieces
from tablepuppet.errors import JobError, ModelError
from tablepuppet.join.mapping import Part
from tablepuppet.owner.part_store import check_splits
from tablepuppet.prediction.model import BlockModel, Model
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.transport.link import Link

if TYPE_CHECKING:
    import pandas as pd

Bits = NDArray[np.uint8]
Value = float | str | None  # None: missing
_NAMES = 8  # categories that a line of text names


def _request_bits(model: Model, part: Part, rows: RowNumbers, job: str) -> Message:
    """A request for the bits of some rows of a part, and of one that does not exist."""
    block, columns = model.blocks[part.block], list(part.columns)
    if block.is_held:
        return AskOwnRows(job=job, scan=part.scan, columns=columns, rows=rows, model=model.id, name=block.name)
    return AskRows(job=job, scan=part.scan, columns=columns, rows=rows, rules=list(block.splits))


def ask_bits(
    model: Model, parts: Sequence[tuple[Part, RowNumbers, slice]], sizes: Sequence[int], link: Link, job: str
) -> list[Bits]:
    """By block: (splits, rows + 1) bits; the last row is the one that does not exist."""
    requests = [(part.client, _request_bits(model, part, rows, job)) for part, rows, _ in parts]
    answers: list[RowBits] = link.ask_each(requests, "evaluation")
    keys = splits_of(model)
    found = [np.ones((keys[b], size + 1), np.uint8) for b, size in enumerate(sizes)]
    for own, block in zip(found, model.blocks, strict=True):  # a table of which nobody is there to answer
        for number, rule in enumerate(block.splits):
            own[number] = not rule.null_left
    for (part, rows, place), answer in zip(parts, answers, strict=True):
        right = answer.right
        if right.shape != (keys[part.block], (len(rows) + 8) // 8 if keys[part.block] else 0):
            raise ModelError(f"client {part.client} does not answer every split of its part of the model")
        if keys[part.block]:
            bits = np.unpackbits(right, axis=1, count=len(rows) + 1)
            found[part.block][:, place] = bits[:, :-1]
            found[part.block][:, -1] = bits[:, -1]
    return found


def splits_of(model: Model) -> list[int]:
    most = [0] * len(model.blocks)
    for tree in (t for group in model.trees for t in group):
        for node in tree.splits:
            block = tree.block[node]
            most[block] = max(most[block], tree.key[node] + 1, tree.missing[node] + 1)
    return most


def tree_scores(model: Model, bits: Sequence[Bits], numbers: Sequence[RowNumbers], rows: int) -> Array:
    """The score of every joined row; `numbers` are its rows in each block, −1 where it has none."""
    scores = np.tile(model.encoded_intercept, (rows, 1)).astype(np.float64)
    add_trees(model.trees, bits, numbers, scores)
    return scores


def add_trees(
    trees: Sequence[Sequence[Tree]], bits: Sequence[Bits], numbers: Sequence[RowNumbers], scores: Array
) -> None:
    """Adds the values of trees, one after the other, to the scores of joined rows."""
    for some in pieces(len(scores), JOINED_ROWS_PER_SHARD):
        own = [p[some] for p in numbers]
        for group in trees:
            for output, tree in enumerate(group):
                scores[some, output] += _values(tree, bits, own, some.stop - some.start)


def read_grown_trees(given: Any) -> GrownTrees:
    """The trees to extend: of a result, a model, or the folder that one was saved to."""
    if isinstance(given, str | Path):
        from tablepuppet.prediction.saved import load  # here: it is built on models

        given = load(given)
    model = getattr(given, "model", given)
    if not isinstance(model, Model) or model.spec.kind != "boosted":
        raise ModelError("warm_start goes on with boosted trees: give a result, a model, or the folder of one")
    blocks = [
        GrownBlock(b.name, list(b.features), list(b.splits), count, b.is_held)
        for b, count in zip(model.blocks, splits_of(model), strict=True)
    ]
    return GrownTrees(model.id, model.encoded_intercept.tolist(), [list(g) for g in model.trees], blocks)


def check_columns(block: BlockModel, columns: Sequence[ColumnInfo]) -> None:
    check_splits(block.features, columns, block.splits)


def _values(tree: Tree, bits: Sequence[Bits], numbers: Sequence[RowNumbers], count: int) -> Array:
    """A tree's value for each of some joined rows."""
    values = np.empty(count)
    inside: dict[int, NDArray[np.intp]] = {0: np.arange(count)}
    for node, left in enumerate(tree.left):
        rows = inside.pop(node)
        if left < 0:
            values[rows] = tree.value[node]
            continue
        right = _right_side(tree, node, bits, numbers[tree.block[node]][rows])
        inside[left], inside[left + 1] = rows[~right], rows[right]
    return values


def _right_side(tree: Tree, node: int, bits: Sequence[Bits], own: RowNumbers) -> NDArray[np.bool_]:
    """Which joined rows, by their rows of the split's block, go right; −1 finds the row that does not exist."""
    block = bits[tree.block[node]]
    right: NDArray[np.bool_] = block[tree.key[node]][own].astype(np.bool_)
    if tree.missing[node] >= 0:
        right = np.where(block[tree.missing[node]][own].astype(np.bool_), not tree.to_left[node], right)
    return right


def root_sums(model: Model, bits: Sequence[Bits], numbers: Sequence[RowNumbers], rows: int) -> list[Root]:
    """The first split of each tree of one output: Σh on its two sides, of these joined rows and of training."""
    scores, found = np.tile(model.encoded_intercept, (rows, 1)).astype(np.float64), []
    for group in model.trees:
        (tree,) = group
        if tree.left[0] >= 0 and not model.blocks[tree.block[0]].is_held:
            right = _right_side(tree, 0, bits, numbers[tree.block[0]])
            weights = np.clip(np.nan_to_num(model.loss.curvature(scores, np.zeros(rows))[:, 0]), 0, model.loss.bound)
            sides = (float(weights[~right].sum()), float(weights[right].sum()))
            feature, left = model.blocks[tree.block[0]].splits[tree.key[0]].feature, tree.left[0]
            found.append(Root(tree.block[0], feature, sides, (tree.cover[left], tree.cover[left + 1])))
        add_trees([group], bits, numbers, scores)
    return found


def tree_text(model: Model, number: int, output: int = 0) -> str:
    """A tree in words: a line a node, the right side under "yes". Splits that stay with their owners are not shown."""
    if not 0 <= number < len(model.trees) or not 0 <= output < model.outputs:
        has = f"{len(model.trees)} of {model.outputs} output(s) each" if model.trees else 'none; see model="boosted"'
        raise ModelError(f"there is no such tree; the model has {has}")
    tree = model.trees[number][output]
    lines: list[str] = []
    below = [(0, 0, "")]
    while below:
        node, depth, answer = below.pop()
        left = tree.left[node]
        said = (
            f"{tree.value[node]:+.6g}" if left < 0 else f"{_question(model, tree, node)} (gain {tree.gain[node]:.4g})"
        )
        lines.append("  " * depth + answer + said)
        if left >= 0:
            below += [(left, depth + 1, "no:  "), (left + 1, depth + 1, "yes: ")]
    return "\n".join(lines)


def _question(model: Model, tree: Tree, node: int) -> str:
    """The question that rows on the right answer with yes."""
    block = model.blocks[tree.block[node]]
    if block.is_held:
        return f"split {tree.key[node]} of {block.name}, which its owners hold?"
    rule = block.splits[tree.key[node]]
    feature = block.features[rule.feature] + (f"[{rule.entry}]" if rule.entry else "")
    if not rule.is_number:
        names = rule.left[:_NAMES] + ["…"] * (len(rule.left) > _NAMES) + ["missing"] * rule.null_left
        return f"{feature} is none of {', '.join(names)}?"
    if rule.border is None:
        return f"{feature} is missing?"
    has_missing = tree.missing[node] >= 0 and not tree.to_left[node]
    return f"{feature} > {rule.border:.6g}" + (" or missing?" if has_missing else "?")


def set_feature(model: Model, block: int, bits: Bits, feature: int, value: Value) -> Bits:
    """The bits once a feature has one value in all rows."""
    changed = bits.copy()
    for number, rule in enumerate(model.blocks[block].splits):
        if rule.feature == feature:
            changed[number, :-1] = _goes_right(rule, value)
    return changed


def part_feature(model: Model, block: int, feature: int) -> Model:
    """The model whose trees ask one more block, the last, for this feature: its rows may be others than the block's."""
    held = model.blocks[block]
    if held.is_held:
        raise ModelError(f'the splits of {held.name} stay with their owners; ask for importance by="table"')
    own = {(block, key) for key, rule in enumerate(held.splits) if rule.feature == feature}

    def part(tree: Tree) -> Tree:
        asked = zip(tree.block, tree.key, strict=True)
        return replace(tree, block=[len(model.blocks) if node in own else node[0] for node in asked])

    return replace(model, trees=tuple(tuple(map(part, group)) for group in model.trees))


def usual_values(model: Model, block: int, feature: int, points: int) -> Sequence[Value]:
    """Values between the borders of a number, or the categories of a text; none where there are no borders."""
    held = model.blocks[block]
    rules = [rule for rule in held.splits if rule.feature == feature]
    if not rules:
        raise ModelError(f"no tree asks for {held.features[feature]}, so predictions do not depend on it")
    if not rules[0].is_number:
        return sorted({text for rule in rules for text in (*rule.left, *rule.known)})[:points]
    borders = np.unique([rule.border for rule in rules if rule.border is not None])
    if not len(borders):
        return []
    steps = np.diff(borders)
    beyond = float(steps.mean()) if len(steps) else max(1.0, abs(float(borders[0])))
    between = [borders[0] - beyond / 2, *(borders[:-1] + steps / 2), borders[-1] + beyond / 2]
    kept = np.unique(np.linspace(0, len(between) - 1, min(points, len(between))).round().astype(int))
    return [float(between[k]) for k in kept]


def _goes_right(rule: SplitRule, value: Value) -> bool:
    if isinstance(value, str) if rule.is_number else isinstance(value, float):
        raise JobError(f"the feature is a {'number' if rule.is_number else 'text'}, and values have another type")
    if rule.is_number:
        return value is None if rule.border is None else value is None or cast("float", value) > rule.border
    if value is None:
        return not rule.null_left
    return not (value in rule.left or (rule.other_left and value not in rule.known))


def tree_importance(model: Model) -> "pd.DataFrame":
    """Columns table, feature, importance (Σ gain), splits (how many); NaN where splits stay with their owner."""
    import pandas as pd  # here, not above: most runs never need it, and it takes 40 MB and a third of a second

    sums = [np.full((len(block.features), 2), np.nan if block.is_held else 0.0) for block in model.blocks]
    for tree in (t for group in model.trees for t in group):
        for node in tree.splits:
            block = model.blocks[tree.block[node]]
            if not block.is_held:
                sums[tree.block[node]][block.splits[tree.key[node]].feature] += tree.gain[node], 1
    rows = [
        (block.table, feature, *own)
        for block, sides in zip(model.blocks, sums, strict=True)
        for feature, own in zip(block.features, sides.tolist(), strict=True)
    ]
    frame = pd.DataFrame(rows, columns=["table", "feature", "importance", "splits"])
    return frame.sort_values("importance", ascending=False, kind="stable", ignore_index=True)
