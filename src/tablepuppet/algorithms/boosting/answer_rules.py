"""Checks of answers about boosted trees: sizes follow from the part's rows and from the request."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.boosting import tree_checks as parts
from tablepuppet.protocol.base import LONGEST_TEXT, MOST_CATEGORIES, MOST_COLUMNS
from tablepuppet.protocol.bounds import Known, KnownPart, check_amounts, check_array, check_finite, is_number, require

_BYTES = frozenset("u")
_WHOLE = frozenset("i")
_TRUTHS = frozenset("b")
_CODES = 256  # of a column in bins


def check_sketches(request: trees.SketchFeatures, answer: trees.FeatureSketches, known: Known) -> None:
    require(len(answer.columns) <= MOST_COLUMNS, "columns", f"are more than {MOST_COLUMNS:,}")
    part = known.part(request)
    if part.columns and all(info.kind != "vector" for info in part.columns):
        numbers = [isinstance(column, trees.NumberSketch) for column in answer.columns]
        require(numbers == [is_number(info) for info in part.columns], "columns", "are of other types than before")
    for column in answer.columns:
        if isinstance(column, trees.NumberSketch):
            check_array(column.values, "columns.values", (None,))
            require(len(column.values) <= _CODES, "columns.values", f"are more than {_CODES}")
            check_finite(column.values, "columns.values")
            count = len(column.values)
        else:
            count = len(column.categories)
            require(count <= MOST_CATEGORIES, "columns.categories", f"are more than {MOST_CATEGORIES:,}")
            short = all(len(c) <= LONGEST_TEXT for c in column.categories)
            require(short, "columns.categories", "hold a text too long")
            require(len(set(column.categories)) == count, "columns.categories", "name one category twice")
        check_amounts(column.weights, "columns.weights", (count,))


def check_started(request: trees.StartTrees, answer: trees.TreesStarted, known: Known) -> None:
    check_array(answer.kinds, "kinds", (None,), kinds=_BYTES)
    require(len(answer.kinds) <= MOST_COLUMNS, "kinds", f"are more than {MOST_COLUMNS:,}")
    require(
        bool(np.isin(answer.kinds, (parts.NUMBER, parts.ONE_HOT, *parts.SETS)).all()),
        "kinds",
        "hold one that there is not",
    )
    is_random = request.algorithm.is_random
    wanted = len(answer.kinds) if is_random or request.bins is not None else 0
    check_array(answer.has_missing, "has_missing", (wanted,), kinds=_TRUTHS)
    check_array(answer.sizes, "sizes", (len(answer.kinds) if is_random else 0,), kinds=_WHOLE)
    require(bool(((answer.sizes >= 1) & (answer.sizes <= _CODES)).all()), "sizes", "are none of bins")
    sent = None if request.bins is None else [bins.size for bins in request.bins]
    require(not is_random or sent in (None, answer.sizes.tolist()), "sizes", "are not those of the bins that were sent")
    require(sent is None or len(answer.kinds) == len(sent), "kinds", "are not those of the bins that were sent")
    part = known.part(request)
    count = len(answer.right) if isinstance(request.before, str) else len(request.before)
    require(len(answer.right) == count, "right", "is not of the splits that were sent")
    for right in answer.right:
        check_array(right, "right", (_bytes(part),), kinds=_BYTES)
    part.width, part.kinds, part.keys = len(answer.kinds), answer.kinds, []
    part.splits, part.has_missing = Counter(), set()
    part.bins = None if request.bins is None else sum(bins.size for bins in request.bins)


def check_objections(request: trees.CheckTrees, answer: trees.TreeObjections, known: Known) -> None:
    found = answer.found
    check_array(found.tree, "found.tree", (None,), kinds=_WHOLE)
    count = len(found.tree)
    for name, kinds in (("node", _WHOLE), ("gain", frozenset("f")), ("key", _WHOLE)):
        check_array(getattr(found, name), f"found.{name}", (count,), kinds=kinds)
    for name in ("to_left", "is_void"):
        check_array(getattr(found, name), f"found.{name}", (count,), kinds=_TRUTHS)
    check_finite(found.gain, "found.gain")
    part = known.part(request)
    _learn(found.keys, "found.keys", request.check, part)
    for column in found.complete:
        require(0 <= column < len(request.check.columns), "found.complete", "names a column that is none of the part's")
    _against(found, request.check, part)


def _against(found: parts.Objections, check: parts.Check, part: KnownPart) -> None:
    """Each objection is to a node that was asked about, once, and by a split that comes before the one it has."""
    if not len(found.tree):
        return
    sizes = np.array([len(tree.left) for tree in check.trees], np.int64)
    require(bool(((found.tree >= 0) & (found.tree < len(sizes))).all()), "found.tree", "is none that was asked about")
    require(bool(((found.node >= 0) & (found.node < sizes[found.tree])).all()), "found.node", "is none of its tree's")
    places = (np.cumsum(sizes) - sizes)[found.tree] + found.node
    require(len(np.unique(places)) == len(places), "found.node", "is objected to twice")
    asks, own, gain = (np.concatenate([getattr(t, n) for t in check.trees])[places] for n in ("asks", "key", "gain"))
    require(bool(asks.all()), "found.node", "is none that was asked about")
    has_split = found.key >= 0
    require(bool((found.key >= -1).all()), "found.key", "is none of the part's")
    require(bool((found.key < len(part.keys)).all()), "found.key", "is none of the part's")
    columns = [part.keys[key] for key in found.key[has_split].tolist()]
    require(bool(check.columns[columns].all()), "found.key", "is of a column that this tree may not use")
    require(bool((has_split | found.is_void).all()), "found.key", "is missing, and there is nothing else to object")
    require(bool((own[found.is_void] >= 0).all()), "found.is_void", "is said of a split that is not the part's own")
    better = found.gain[~found.is_void] >= gain[~found.is_void]
    require(bool(better.all()), "found.gain", "is less than that of the split that the node has")
    require(bool((found.gain[has_split] > 0).all()), "found.gain", "is not positive")


def _learn(keys: list[Any], name: str, check: parts.Check | None, part: KnownPart) -> None:
    """Keys become known in the order in which both ends number them: the server's unions, then the client's own."""
    _bits_of(keys, name, part)
    if check is not None:
        _number([union.column for union in check.unions], part)
    for key in keys:
        count = part.splits[key.column]
        kind = parts.NUMBER if part.kinds is None else int(part.kinds[key.column])
        if isinstance(key, parts.NewColumn):
            require(key.kind == kind and not count, f"{name}.column", "is of another kind, or was told before")
            _number([key.column] * key.keys, part)
            part.has_missing.add(key.column)
            continue
        most = {parts.NUMBER: _CODES - 1, parts.ONE_HOT: parts.FEW + 1}.get(kind)  # sets of categories may be many
        require(most is None or count < most, f"{name}.column", f"has more than {most} splits")
        _number([key.column], part)
        if key.is_missing:
            may_miss = kind == parts.NUMBER and key.column not in part.has_missing
            require(may_miss, f"{name}.is_missing", "is said of a column again, or of categories")
            part.has_missing.add(key.column)


def _number(columns: list[int], part: KnownPart) -> None:
    """Gives keys of these columns the next numbers."""
    part.keys += columns
    part.splits.update(columns)


def check_sums(request: trees.SumTrees, answer: trees.TreeSums, known: Known) -> None:
    asked = request.check.trees
    require(len(answer.values) == len(asked), "values", f"are of {len(answer.values)} trees where {len(asked)} are due")
    part = known.part(request)
    for values, tree in zip(answer.values, asked, strict=True):
        check_array(values, "values", (int(np.count_nonzero(tree.left < 0)), part.bins, 2), kinds=_WHOLE)


def check_revealed(request: trees.RevealKeys, answer: trees.RevealedKeys, known: Known) -> None:
    require(len(answer.keys) == len(request.keys), "keys", "are not those that were asked for")
    _bits_of(answer.keys, "keys", known.part(request))
    for asked, told in zip(request.keys, answer.keys, strict=True):
        require(told.column == asked.column, "keys.column", "is not that of the key that was asked for")
        is_whole = asked.border == parts.WHOLE
        require(isinstance(told, parts.NewColumn) == is_whole, "keys", "are not those that were asked for")


def check_splits(request: trees.ReleaseSplits, answer: trees.Splits, known: Known) -> None:
    require(len(answer.rules) == len(request.keys), "rules", "are not those that were asked for")
    for rule in answer.rules:
        require(rule.border is None or bool(np.isfinite(rule.border)), "rules.border", "is not finite")
        require(rule.feature >= 0 and rule.entry >= 0, "rules.feature", "is negative")
        short = all(len(text) <= LONGEST_TEXT for text in (*rule.left, *rule.known))
        require(short, "rules.left", "holds a text too long")


def check_bits(request: trees.AskRows, answer: trees.RowBits, known: Known) -> None:
    shape = (len(request.rules), (len(request.rows) + 7) // 8) if request.rules else (0, 0)
    check_array(answer.right, "right", shape, kinds=_BYTES)


def check_own_bits(request: trees.AskOwnRows, answer: trees.RowBits, known: Known) -> None:
    check_array(answer.right, "right", (None, None), kinds=_BYTES)
    require(answer.right.shape[1] in (0, (len(request.rows) + 7) // 8), "right", "does not have a bit for every row")


def _bytes(part: KnownPart) -> int | None:
    """Bytes that hold a bit for every row of a part, the one that does not exist, and held-out rows."""
    return None if part.train is None or part.test is None else (part.train + 1 + part.test + 7) // 8


def _bits_of(keys: list[Any], name: str, part: KnownPart) -> None:
    """A bit for every row of the part, the one that does not exist, and held-out rows."""
    rows = _bytes(part)
    width = MOST_COLUMNS if part.width is None else part.width
    for key in keys:
        require(0 <= key.column < width, f"{name}.column", "is none of the part's")
        if isinstance(key, parts.NewColumn):
            least = 2 if key.kind == parts.NUMBER else 1
            is_byte = key.size >= least and parts.digits_of(key.kind, key.size) <= 8
            require(is_byte, f"{name}.size", f"is below {least}, or more than a byte tells apart")
            check_array(key.digits, f"{name}.digits", (parts.digits_of(key.kind, key.size), rows), kinds=_BYTES)
        else:
            check_array(key.right, f"{name}.right", (rows,), kinds=_BYTES)
