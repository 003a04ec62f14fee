"""What answers about boosted trees must be (rules.py): sizes follow from the part's rows and from what was asked."""

from __future__ import annotations

from typing import Any

import numpy as np

from tablepuppet import protocol as m
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.protocol.rules import (
    LONGEST_TEXT,
    MOST_CATEGORIES,
    MOST_COLUMNS,
    Known,
    answered_by,
    array,
    finite,
    require,
)

_BYTES = frozenset("u")
_WHOLE = frozenset("i")
_TRUTHS = frozenset("b")


@answered_by(trees.SketchFeatures, trees.FeatureSketches)
def _sketches(request: trees.SketchFeatures, answer: trees.FeatureSketches, known: Known) -> None:
    require(len(answer.columns) <= MOST_COLUMNS, "columns", f"are more than {MOST_COLUMNS:,}")
    for column in answer.columns:
        if isinstance(column, trees.NumberSketch):
            array(column.values, "columns.values", (None,))
            require(len(column.values) <= request.bins, "columns.values", f"are more than the {request.bins} asked for")
            finite(column.values, "columns.values")
            count = len(column.values)
        else:
            count = len(column.categories)
            require(count <= MOST_CATEGORIES, "columns.categories", f"are more than {MOST_CATEGORIES:,}")
            require(
                all(len(c) <= LONGEST_TEXT for c in column.categories), "columns.categories", "hold a text too long"
            )
        array(column.weights, "columns.weights", (count,))
        finite(column.weights, "columns.weights")
        require(bool((column.weights >= 0).all()), "columns.weights", "hold a negative number")


@answered_by(trees.StartTrees, trees.TreesStarted)
def _started(request: trees.StartTrees, answer: trees.TreesStarted, known: Known) -> None:
    array(answer.kinds, "kinds", (None,), kinds=_BYTES)
    require(len(answer.kinds) <= MOST_COLUMNS, "kinds", f"are more than {MOST_COLUMNS:,}")
    require(bool((answer.kinds <= 2).all()), "kinds", "hold one that there is not")
    wanted = 0 if request.bins is None else len(request.bins)
    array(answer.has_missing, "has_missing", (wanted,), kinds=_TRUTHS)
    require(request.bins is None or len(answer.kinds) == wanted, "kinds", "are not those of the bins that were sent")
    require(answer.limit is None or answer.limit >= 0, "limit", "is negative")
    part = known.part(request)
    if part is not None:
        part.width = len(answer.kinds)


@answered_by(trees.CheckTrees, trees.TreeObjections)
def _objections(request: trees.CheckTrees, answer: trees.TreeObjections, known: Known) -> None:
    found = answer.found
    array(found.tree, "tree", (None,), kinds=_WHOLE)
    count = len(found.tree)
    for name, kinds in (("node", _WHOLE), ("gain", frozenset("f")), ("key", _WHOLE)):
        array(getattr(found, name), name, (count,), kinds=kinds)
    for name in ("to_left", "is_void"):
        array(getattr(found, name), name, (count,), kinds=_TRUTHS)
    finite(found.gain, "gain")
    require(bool((found.gain >= 0).all()), "gain", "holds a negative number")
    sizes = np.array([len(tree.left) for tree in request.check.trees], np.int64)
    inside = (found.tree >= 0) & (found.tree < len(sizes))
    require(bool(inside.all()), "tree", "is none that was asked about")
    nodes = (found.node >= 0) & (found.node < sizes[found.tree]) if count else np.ones(0, np.bool_)
    require(bool(nodes.all()), "node", "is none that was asked about")
    _keys(found.keys, request, known)


@answered_by(trees.SumTrees, trees.TreeSums)
def _sums(request: trees.SumTrees, answer: trees.TreeSums, known: Known) -> None:
    trees = request.check.trees
    require(len(answer.values) == len(trees), "values", f"are of {len(answer.values)} trees where {len(trees)} are due")
    for values, tree in zip(answer.values, trees, strict=True):
        array(values, "values", (int(np.count_nonzero(tree.left < 0)), None, 2), kinds=_WHOLE)


@answered_by(trees.RevealKeys, trees.RevealedKeys)
def _revealed(request: trees.RevealKeys, answer: trees.RevealedKeys, known: Known) -> None:
    require(len(answer.keys) == len(request.keys), "keys", "are not those that were asked for")
    _keys(answer.keys, request, known)


@answered_by(trees.ReleaseSplits, trees.Splits)
def _splits(request: trees.ReleaseSplits, answer: trees.Splits, known: Known) -> None:
    require(len(answer.rules) == len(request.keys), "rules", "are not those that were asked for")
    for rule in answer.rules:
        require(rule.border is None or bool(np.isfinite(rule.border)), "rules.border", "is not finite")
        require(rule.feature >= 0 and rule.entry >= 0, "rules.feature", "is negative")
        short = all(len(text) <= LONGEST_TEXT for text in (*rule.left, *rule.known))
        require(short, "rules.left", "holds a text too long")


@answered_by(trees.HoldSplits, m.Done)
def _held(request: trees.HoldSplits, answer: m.Done, known: Known) -> None:
    """There is nothing in it."""


@answered_by(trees.AskRows, trees.RowBits)
def _bits(request: trees.AskRows, answer: trees.RowBits, known: Known) -> None:
    shape = (len(request.rules), (len(request.rows) + 7) // 8) if request.rules else (0, 0)
    array(answer.right, "right", shape, kinds=_BYTES)


@answered_by(trees.AskOwnRows, trees.RowBits)
def _own_bits(request: trees.AskOwnRows, answer: trees.RowBits, known: Known) -> None:
    array(answer.right, "right", (None, None), kinds=_BYTES)
    require(answer.right.shape[1] in (0, (len(request.rows) + 7) // 8), "right", "does not have a bit for every row")


def _keys(keys: list[Any], request: Any, known: Known) -> None:
    """A bit for every row of the part, the one that does not exist, and held-out rows."""
    part = known.part(request)
    rows = None if part is None or part.train is None else (part.train + 1 + part.test + 7) // 8
    for key in keys:
        array(key.right, "keys.right", (rows,), kinds=_BYTES)
        width = MOST_COLUMNS if part is None or part.width is None else part.width
        require(0 <= key.column < width, "keys.column", "is none of the part's")
