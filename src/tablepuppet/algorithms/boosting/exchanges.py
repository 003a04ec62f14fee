"""Requests about boosted trees and their answers: what policies and a contract allow, and the sizes that make sense.

Sizes of answers follow from the part's rows and from the request.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from tablepuppet.algorithms.boosting import handlers, tree_checks
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.boosting.tree_checks import NUMBER, ONE_HOT, SETS, WHOLE, NewColumn, Objections, Outline
from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.algorithms.shape import Exchanges
from tablepuppet.exchanges.base import SCORING, TRAINING, NoCheck, Rules
from tablepuppet.exchanges.parts import enforce_holding, enforce_release
from tablepuppet.exchanges.prediction import check_asked_rows, count_scores
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.state import ClientState
from tablepuppet.protocol.base import LONGEST_TEXT, MOST_CATEGORIES, MOST_CLIENTS, MOST_COLUMNS
from tablepuppet.protocol.bounds import (
    Known,
    KnownPart,
    check_amounts,
    check_array,
    check_finite,
    check_range,
    is_number,
    require,
)
from tablepuppet.protocol.contract import Contract

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
    check_array(answer.kinds, "kinds", (None,), kinds="u")
    require(len(answer.kinds) <= MOST_COLUMNS, "kinds", f"are more than {MOST_COLUMNS:,}")
    require(bool(np.isin(answer.kinds, (NUMBER, ONE_HOT, *SETS)).all()), "kinds", "hold one that there is not")
    is_random = request.algorithm.is_random
    wanted = len(answer.kinds) if is_random or request.bins is not None else 0
    check_array(answer.has_missing, "has_missing", (wanted,), kinds="b")
    check_array(answer.sizes, "sizes", (len(answer.kinds) if is_random else 0,), kinds="i")
    require(bool(((answer.sizes >= 1) & (answer.sizes <= _CODES)).all()), "sizes", "are none of bins")
    sent = None if request.bins is None else [bins.size for bins in request.bins]
    require(not is_random or sent in (None, answer.sizes.tolist()), "sizes", "are not those of the bins that were sent")
    require(sent is None or len(answer.kinds) == len(sent), "kinds", "are not those of the bins that were sent")
    part = known.part(request)
    count = len(answer.right) if isinstance(request.before, str) else len(request.before)
    require(len(answer.right) == count, "right", "is not of the splits that were sent")
    for right in answer.right:
        check_array(right, "right", (_bytes(part),), kinds="u")
    part.width, part.kinds, part.keys = len(answer.kinds), answer.kinds, []
    part.splits, part.has_missing = Counter(), set()
    part.bins = None if request.bins is None else sum(bins.size for bins in request.bins)


def check_objections(request: trees.CheckTrees, answer: trees.TreeObjections, known: Known) -> None:
    found = answer.found
    check_array(found.tree, "found.tree", (None,), kinds="i")
    count = len(found.tree)
    for name, kinds in (("node", "i"), ("gain", "f"), ("key", "i")):
        check_array(getattr(found, name), f"found.{name}", (count,), kinds=kinds)
    for name in ("to_left", "is_void"):
        check_array(getattr(found, name), f"found.{name}", (count,), kinds="b")
    check_finite(found.gain, "found.gain")
    part = known.part(request)
    _learn(found.keys, "found.keys", request.check, part)
    for column in found.complete:
        require(0 <= column < len(request.check.columns), "found.complete", "names a column that is none of the part's")
    _against(found, request.check, part)


def _against(found: Objections, check: tree_checks.Check, part: KnownPart) -> None:
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


def _learn(keys: list[Any], name: str, check: tree_checks.Check | None, part: KnownPart) -> None:
    """Keys become known in the order in which both ends number them: the server's unions, then the client's own."""
    _bits_of(keys, name, part)
    if check is not None:
        _number([union.column for union in check.unions], part)
    for key in keys:
        count = part.splits[key.column]
        kind = NUMBER if part.kinds is None else int(part.kinds[key.column])
        if isinstance(key, NewColumn):
            require(key.kind == kind and not count, f"{name}.column", "is of another kind, or was told before")
            _number([key.column] * key.keys, part)
            part.has_missing.add(key.column)
            continue
        most = {NUMBER: _CODES - 1, ONE_HOT: tree_checks.FEW + 1}.get(kind)  # sets of categories may be many
        require(most is None or count < most, f"{name}.column", f"has more than {most} splits")
        _number([key.column], part)
        if key.is_missing:
            may_miss = kind == NUMBER and key.column not in part.has_missing
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
        check_array(values, "values", (int(np.count_nonzero(tree.left < 0)), part.bins, 2), kinds="i")


def check_revealed(request: trees.RevealKeys, answer: trees.RevealedKeys, known: Known) -> None:
    require(len(answer.keys) == len(request.keys), "keys", "are not those that were asked for")
    _bits_of(answer.keys, "keys", known.part(request))
    for asked, found in zip(request.keys, answer.keys, strict=True):
        require(found.column == asked.column, "keys.column", "is not that of the key that was asked for")
        is_whole = asked.border == WHOLE
        require(isinstance(found, NewColumn) == is_whole, "keys", "are not those that were asked for")


def check_splits(request: trees.ReleaseSplits, answer: trees.Splits, known: Known) -> None:
    require(len(answer.rules) == len(request.keys), "rules", "are not those that were asked for")
    for rule in answer.rules:
        require(rule.border is None or bool(np.isfinite(rule.border)), "rules.border", "is not finite")
        require(rule.feature >= 0 and rule.entry >= 0, "rules.feature", "is negative")
        short = all(len(text) <= LONGEST_TEXT for text in (*rule.left, *rule.known))
        require(short, "rules.left", "holds a text too long")


def check_bits(request: trees.AskRows, answer: trees.RowBits, known: Known) -> None:
    shape = (len(request.rules), (len(request.rows) + 8) // 8) if request.rules else (0, 0)
    check_array(answer.right, "right", shape, kinds="u")


def check_own_bits(request: trees.AskOwnRows, answer: trees.RowBits, known: Known) -> None:
    check_array(answer.right, "right", (None, None), kinds="u")
    require(answer.right.shape[1] in (0, (len(request.rows) + 8) // 8), "right", "does not have a bit for every row")


def _bytes(part: KnownPart) -> int | None:
    """Bytes that hold a bit for every row of a part, the one that does not exist, and held-out rows."""
    return None if part.train is None or part.test is None else (part.train + 1 + part.test + 7) // 8


def _bits_of(keys: list[Any], name: str, part: KnownPart) -> None:
    """A bit for every row of the part, the one that does not exist, and held-out rows."""
    rows = _bytes(part)
    width = MOST_COLUMNS if part.width is None else part.width
    for key in keys:
        require(0 <= key.column < width, f"{name}.column", "is none of the part's")
        if isinstance(key, NewColumn):
            least = 2 if key.kind == NUMBER else 1
            is_byte = key.size >= least and tree_checks.digits_of(key.kind, key.size) <= 8
            require(is_byte, f"{name}.size", f"is below {least}, or more than a byte tells apart")
            check_array(key.digits, f"{name}.digits", (tree_checks.digits_of(key.kind, key.size), rows), kinds="u")
        else:
            check_array(key.right, f"{name}.right", (rows,), kinds="u")


def _enforce_sketch(job: JobUnderContract, request: trees.SketchFeatures) -> None:
    job.policy.check_masked(1)
    job.policy.check_release("the owners of a table agree on bins through the server")
    job.check_model_kind(are_trees=True)
    job.part(request.part).count("sketch", 1)


def _enforce_start(job: JobUnderContract, request: trees.StartTrees) -> None:
    contract = job.agreed
    part, training = job.part(request.part), job.training
    if msgspec.to_builtins(request.algorithm) != training.algorithm:
        raise breach("the algorithm is not the one that was agreed on")
    earlier = 1 if isinstance(request.before, str) else len(request.before)  # a held part is as large as it was
    if earlier > training.earlier_splits:
        raise breach("it speaks of more splits of earlier trees than were agreed on")
    if not isinstance(request.before, str) and request.before:
        _check_agreed_splits(contract, part.block.place, request.before)
    job.check_peers(part, request.peers)
    _enforce_leaves(contract, request)
    if request.bins is not None and not part.block.is_shared:
        raise breach("a table with one owner is put in bins by that owner")
    part.count("start trees", 1)
    part.exchanges, part.most_checks = Exchanges(request.algorithm.trees), request.algorithm.most_checks


def _enforce_leaves(contract: Contract, request: trees.StartTrees) -> None:
    """Under feature privacy, refuses trees without the agreed noise, or with bits of all splits unless agreed."""
    if contract.prediction_privacy.mode == "local":
        raise breach("trees have no noise")
    if contract.feature_privacy is None:
        return
    if algorithm_of(request.algorithm).why_not_private(request.algorithm) is not None:
        raise breach("what was agreed to be noised has no noise")
    if not contract.allow_reconstruction and request.algorithm.max_splits is None:
        raise breach("bits of all splits tell rows, and the job does not say allow_reconstruction")


def _check_start_request(own: ClientState, request: trees.StartTrees) -> None:
    check_range(request.block, "block", 0, MOST_CLIENTS)
    require(all(sign in (-1, 0, 1) for sign in request.signs), "signs", "hold what is no sign")
    for bins in request.bins or ():
        check_range(bins.size, "bins", 1, _CODES)
        if isinstance(bins, tree_checks.NumberBins):
            check_array(bins.borders, "bins.borders", (None,))
            check_finite(bins.borders, "bins.borders")
            require(bool((bins.borders[1:] > bins.borders[:-1]).all()), "bins.borders", "are not ascending")
        else:
            assert isinstance(bins, tree_checks.CategoryBins)
            require(len(set(bins.categories)) == len(bins.categories), "bins.categories", "name one category twice")


def _enforce_checks(job: JobUnderContract, request: Any) -> None:
    part = job.started_part(request.part)
    if job.training.algorithm["splits"] == "random" and not isinstance(request, trees.RevealKeys):
        raise breach("splits are drawn, and no trees are checked")
    part.count("check trees", part.most_checks)


def _check_trees_request(own: ClientState, request: trees.CheckTrees | trees.SumTrees) -> None:
    part, check = own.part(request), request.check
    grown = handlers.require_trees(part)
    check_array(check.columns, "check.columns", (len(grown.bins),), kinds="b")
    most = grown.request.outputs
    require(len(check.trees) <= most, "check.trees", f"are {len(check.trees)} where there are {most} outputs")
    for union in check.unions:
        require(0 <= union.column < len(grown.bins), "check.unions.column", "is none of the part's")
        check_array(union.rows, "check.unions.rows", (None, None), kinds="u")
        require(len(union.rows) <= _CODES, "check.unions.rows", f"are more than {_CODES}")
    for outline in check.trees:
        _check_outline(outline, 2 * grown.request.algorithm.most_leaves, len(grown.train))


_OF_NODES = (("asks", "b"), ("gain", "f"), ("block", "i"), ("key", "i"), ("to_left", "b"))


def _check_outline(outline: Outline, most: int, rows: int) -> None:
    """A tree no deeper than agreed, and sums of no more pairs than it has rows and cells."""
    nodes = len(outline.left) if outline.left.ndim == 1 else 0
    check_array(outline.left, "check.trees.left", (None,), kinds="i")
    require(0 < nodes <= most, "check.trees.left", f"has {nodes:,} nodes where at most {most:,} are due")
    for name, kind in _OF_NODES:
        check_array(getattr(outline, name), f"check.trees.{name}", (nodes,), kinds=kind)
    check_finite(outline.gain, "check.trees.gain")
    check_array(outline.least, "check.trees.least", (nodes, 3))
    check_array(outline.bounds, "check.trees.bounds", (nodes if len(outline.bounds) else 0, 2))
    require(all(0 < u < math.inf for u in outline.unit), "check.trees.unit", "is not a positive number")
    cells = int(np.count_nonzero(outline.left < 0))
    require(outline.pairs is not None, "check.trees.pairs", "are missing")
    assert outline.pairs is not None
    require(outline.pairs.counts.size == rows, "check.trees.pairs", f"are not of {rows:,} rows")
    size, others = outline.pairs.cells.size, {outline.pairs.g.size, outline.pairs.h.size}
    require(size <= rows * cells, "check.trees.pairs", f"are {size:,} where there are {rows * cells:,}")
    require(others == {size}, "check.trees.pairs", "have sums of other pairs")


def _check_keys_request(own: ClientState, request: trees.RevealKeys) -> None:
    grown = handlers.require_trees(own.part(request))
    require(len(request.keys) <= sum(b.size for b in grown.bins), "keys", "are more than there can be")
    for key in request.keys:
        require(0 <= key.column < len(grown.bins), "keys.column", "is none of the part's")
        bins = grown.bins[key.column]
        if bins.kind == NUMBER or key.border == WHOLE:
            is_border = key.border == WHOLE or 1 <= key.border < bins.size
            require(is_border and not key.left, "keys.border", "is none of the column's")
        else:
            is_inside = all(0 <= code < bins.size for code in key.left) and len(set(key.left)) == len(key.left)
            require(is_inside and key.border == -1, "keys.left", "holds what is no category of the column")


def _check_agreed_splits(contract: Contract, place: Any, rules: Sequence[trees.SplitRule]) -> None:
    if trees.splits_name(rules) not in {block.model for block in contract.blocks if block.place == place}:
        raise breach("the splits are not those that were agreed on")


def _check_rows_request(own: ClientState, request: trees.AskRows) -> None:
    check_asked_rows(own, request)
    for rule in request.rules:
        require(rule.border is None or bool(np.isfinite(rule.border)), "rules.border", "is not finite")


def _enforce_end(job: JobUnderContract, request: trees.ReleaseSplits | trees.HoldSplits) -> None:
    (enforce_holding if isinstance(request, trees.HoldSplits) else enforce_release)(job, request, are_trees=True)


def _enforce_rows(job: JobUnderContract, request: trees.AskRows | trees.AskOwnRows) -> None:
    if isinstance(request, trees.AskRows):
        _check_agreed_splits(job.agreed, job.blocks(request.scan, request.columns)[0].place, request.rules)
    count_scores(job, request)


_training = partial(Rules, TRAINING)
_of_trees = partial(_training, enforce=_enforce_checks)
_of_end = partial(
    _training, enforce=_enforce_end, check_request=NoCheck("keys are looked up among those that the part knows")
)
_of_rows = partial(Rules, SCORING, enforce=_enforce_rows)

_sketch = _training(enforce=_enforce_sketch, check_answer=check_sketches)(handlers.sketch_features)
_start = _training(
    enforce=_enforce_start, check_request=_check_start_request, check_answer=check_started, leaves_state=True
)(handlers.start_trees)
_check = _of_trees(check_request=_check_trees_request, check_answer=check_objections)(handlers.check_trees)
_sum = _of_trees(check_request=_check_trees_request, check_answer=check_sums)(handlers.sum_trees)
_reveal = _of_trees(check_request=_check_keys_request, check_answer=check_revealed)(handlers.reveal_keys)
_release = _of_end(check_answer=check_splits)(handlers.release_splits)
_hold = _of_end()(handlers.hold_splits)
_ask = _of_rows(check_request=_check_rows_request, check_answer=check_bits)(handlers.ask_rows)
_ask_own = _of_rows(check_request=check_asked_rows, check_answer=check_own_bits)(handlers.ask_own_rows)
