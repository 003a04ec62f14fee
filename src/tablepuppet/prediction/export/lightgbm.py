"""A boosted model as LightGBM's text format, for pooled rows.

In: a model whose splits are all released. Out: the text, and how strings are numbered. LightGBM sends a missing
category right at every split. To let it go left too, 0 stands for "missing", and a last number for any unknown
category. The model's constant is in the leaves of the first trees.
"""

from collections.abc import Sequence

import numpy as np

from tablepuppet.algorithms.boosting.messages import SplitRule, Tree
from tablepuppet.errors import ModelError
from tablepuppet.prediction.model import Model

_OBJECTIVES = {
    "squared": "regression",
    "logistic": "binary sigmoid:1",
    "softmax": "multiclass num_class:{outputs}",
    "poisson": "poisson",
    "gamma": "gamma",
    "huber": "huber",
    "quantile": "quantile",
}
_CATEGORY, _DEFAULT_LEFT, _NAN = 1, 2, 8  # bits of a decision
_EVERY = 1.7976931348623157e308  # a border that every number is below


# The columns of the joined table: a number's codes are None, a string's the numbers of its categories.
_Features = dict[str, dict[str, int] | None]


def to_lightgbm(model: Model) -> tuple[str, _Features]:
    """The text, and by feature in the order of the model: None for numbers, for strings the number of each category.

    A missing string is 0, and any other than those named is one more than the last.
    """
    if not model.trees:
        raise ModelError(
            "LightGBM's format holds boosted trees alone; save other models with to_sklearn() or to_onnx()"
        )
    held = [block.name for block in model.blocks if block.is_held]
    if held:
        raise ModelError(f"the splits of {', '.join(held)} stay with their owners; train with release=True to export")
    features, places = _features(model)
    every = features.values()
    infos = ["[-1e308:1e308]" if codes is None else ":".join(map(str, range(len(codes) + 2))) for codes in every]
    objective = _OBJECTIVES[model.loss.name].format(outputs=model.outputs)
    lines = [
        "tree",
        "version=v4",
        f"num_class={model.outputs}",
        f"num_tree_per_iteration={model.outputs}",
        "label_index=0",
        f"max_feature_idx={len(features) - 1}",
        f"objective={objective}",
        f"feature_names={' '.join(name.replace(' ', '_') for name in features)}",
        f"feature_infos={' '.join(infos)}",
        "",
    ]
    count = 0
    for number, group in enumerate(model.trees):
        for output, tree in enumerate(group):
            constant = float(model.encoded_intercept[output]) if number == 0 else 0.0
            lines += [f"Tree={count}", *_tree(model, tree, list(every), places, constant), "", ""]
            count += 1
    lines += ["end of trees", "", "feature_importances:", "", "parameters:", "end of parameters", ""]
    lines += ["pandas_categorical:null", ""]
    return "\n".join(lines), features


def _features(model: Model) -> tuple[_Features, dict[tuple[int, int, int], int]]:
    """All columns, and their places by block, feature and entry."""
    found: _Features = {}
    places: dict[tuple[int, int, int], int] = {}
    for number, block in enumerate(model.blocks):
        for feature, name in enumerate(block.features):
            own = [rule for rule in block.splits if rule.feature == feature]
            entries = sorted({rule.entry for rule in own}) or [0]
            for entry in entries:
                rules = [rule for rule in own if rule.entry == entry]
                strings = sorted({text for rule in rules for text in (*rule.left, *rule.known)})
                codes = None if all(r.is_number for r in rules) else {s: k for k, s in enumerate(strings, 1)}
                places[number, feature, entry] = len(found)
                found[name if entries == [0] else f"{name}[{entry}]"] = codes
    return found, places


def _tree(
    model: Model,
    tree: Tree,
    every: Sequence[dict[str, int] | None],
    places: dict[tuple[int, int, int], int],
    constant: float,
) -> list[str]:
    inner = tree.splits
    leaves = [n for n, left in enumerate(tree.left) if left < 0]
    numbers = {n: k for k, n in enumerate(inner)} | {n: -1 - k for k, n in enumerate(leaves)}
    feature, threshold, decision = [], [], []
    sets: list[list[int]] = []
    for n in inner:
        rule = model.blocks[tree.block[n]].splits[tree.key[n]]
        place = places[tree.block[n], rule.feature, rule.entry]
        feature.append(place)
        codes = every[place]
        if codes is None:
            threshold.append(_EVERY if rule.border is None else rule.border)
            goes_left = tree.missing[n] >= 0 and tree.to_left[n]
            decision.append(_NAN | (_DEFAULT_LEFT if goes_left else 0))
        else:
            threshold.append(float(len(sets)))
            decision.append(_CATEGORY)
            sets.append(_bits(rule, codes))
    bounds = np.cumsum([0, *(len(words) for words in sets)]).tolist()
    categories = [f"cat_boundaries={_row(bounds)}", f"cat_threshold={_row([w for words in sets for w in words])}"]
    return [
        f"num_leaves={len(leaves)}",
        f"num_cat={len(sets)}",
        f"split_feature={_row(feature)}",
        f"split_gain={_row([tree.gain[n] for n in inner])}",
        f"threshold={_row(threshold)}",
        f"decision_type={_row(decision)}",
        f"left_child={_row([numbers[tree.left[n]] for n in inner])}",
        f"right_child={_row([numbers[tree.left[n] + 1] for n in inner])}",
        f"leaf_value={_row([tree.value[n] + constant for n in leaves])}",
        f"leaf_weight={_row([tree.cover[n] for n in leaves])}",
        f"leaf_count={_row([1] * len(leaves))}",
        f"internal_value={_row([0] * len(inner))}",
        f"internal_weight={_row([tree.cover[n] for n in inner])}",
        f"internal_count={_row([1] * len(inner))}",
        *(categories if sets else []),
        "is_linear=0",
        "shrinkage=1",
    ]


def _bits(rule: SplitRule, codes: dict[str, int]) -> list[int]:
    """The set of numbers that go left, 32 a word."""
    left = {codes[text] for text in rule.left}
    if rule.null_left:
        left.add(0)
    if rule.other_left:
        left |= {len(codes) + 1, *(code for text, code in codes.items() if text not in rule.known)}
    words = [0] * ((len(codes) + 2 + 31) // 32)
    for code in left:
        words[code // 32] |= 1 << (code % 32)
    return words


def _row(values: Sequence[float]) -> str:
    return " ".join(repr(v) for v in values)
