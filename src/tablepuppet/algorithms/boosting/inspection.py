"""What a feature does in boosted trees: the gain of its splits, and their bits once it is set to a value or shuffled.

In: a model, and the bits of a block, (splits, rows + 1), the last row being the one that does not exist. Out: the same
bits changed, which asks no owner for more than an evaluation does. Of a block whose owners hold its splits only totals
are known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from tablepuppet.algorithms.boosting.messages import SplitRule
from tablepuppet.algorithms.boosting.prediction import Bits
from tablepuppet.errors import JobError, ModelError
from tablepuppet.prediction.model import Model

if TYPE_CHECKING:
    import pandas as pd

Value = float | str | None  # None: missing


def set_feature(model: Model, block: int, bits: Bits, feature: int, value: Value) -> Bits:
    """The bits once a feature has one value in all rows."""
    changed = bits.copy()
    for number, rule in enumerate(model.blocks[block].splits):
        if rule.feature == feature:
            changed[number, :-1] = _goes_right(rule, value)
    return changed


def shuffle_feature(model: Model, block: int, bits: Bits, feature: int | None, rng: np.random.Generator) -> Bits:
    """The bits once a feature, or with None the whole block, is shuffled among rows."""
    order = np.append(rng.permutation(bits.shape[1] - 1), bits.shape[1] - 1)
    held = model.blocks[block]
    if feature is not None and held.is_held:
        raise ModelError(f'the splits of {held.name} stay with their owners; ask for importance by="table"')
    changed = bits.copy()
    rules = slice(None) if feature is None else [k for k, rule in enumerate(held.splits) if rule.feature == feature]
    changed[rules] = bits[rules][:, order]
    return changed


def usual_values(model: Model, block: int, feature: int, points: int) -> Sequence[Value]:
    """Values between the borders of a number, or the categories of a text; none where borders say nothing."""
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


def tree_importance(model: Model) -> pd.DataFrame:
    """Columns table, feature, importance (Σ gain), splits (how many); NaN where splits stay with their owner."""
    import pandas as pd  # here, not above: most runs never need it, and it takes 40 MB and a third of a second

    gain = [np.zeros(len(block.features)) for block in model.blocks]
    count = [np.zeros(len(block.features)) for block in model.blocks]
    for tree in (t for group in model.trees for t in group):
        for node in tree.splits:
            block = model.blocks[tree.block[node]]
            if not block.is_held:
                feature = block.splits[tree.key[node]].feature
                gain[tree.block[node]][feature] += tree.gain[node]
                count[tree.block[node]][feature] += 1
    rows = []
    for number, block in enumerate(model.blocks):
        for place, feature_name in enumerate(block.features):
            held = np.nan if block.is_held else 0.0
            figures = (gain[number][place] + held, count[number][place] + held)
            rows.append((block.table, feature_name, *figures))
    frame = pd.DataFrame(rows, columns=["table", "feature", "importance", "splits"])
    return frame.sort_values("importance", ascending=False, kind="stable", ignore_index=True)
