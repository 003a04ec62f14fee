"""Requests about boosted trees: what policies and a contract allow, and the sizes that make sense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from tablepuppet.algorithms.boosting import answer_rules, handlers
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.boosting.tree_checks import NUMBER, WHOLE, CategoryBins, NumberBins, Outline
from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.algorithms.shape import Exchanges
from tablepuppet.exchanges.base import SCORING, TRAINING, NoCheck, Rules
from tablepuppet.exchanges.parts import enforce_holding, enforce_release
from tablepuppet.exchanges.prediction import check_asked_rows, count_scores
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.state import ClientState
from tablepuppet.protocol.base import MOST_CLIENTS
from tablepuppet.protocol.bounds import check_array, check_finite, check_range, require
from tablepuppet.protocol.contract import Contract

_CODES = 256  # of a column in bins


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
        if isinstance(bins, NumberBins):
            check_array(bins.borders, "bins.borders", (None,))
            check_finite(bins.borders, "bins.borders")
            require(bool((bins.borders[1:] > bins.borders[:-1]).all()), "bins.borders", "are not ascending")
        else:
            assert isinstance(bins, CategoryBins)
            require(len(set(bins.categories)) == len(bins.categories), "bins.categories", "name one category twice")


def _enforce_checks(job: JobUnderContract, request: Any) -> None:
    part = job.started_part(request.part)
    if job.training.algorithm["splits"] == "random" and not isinstance(request, trees.RevealKeys):
        raise breach("splits are drawn, and no trees are checked")
    part.count("check trees", part.most_checks)


def _check_trees_request(own: ClientState, request: trees.CheckTrees | trees.SumTrees) -> None:
    part, check = own.part(request), request.check
    grown = handlers.require_trees(part)
    check_array(check.columns, "check.columns", (len(grown.bins),), kinds=frozenset("b"))
    most = grown.request.outputs
    require(len(check.trees) <= most, "check.trees", f"are {len(check.trees)} where there are {most} outputs")
    for union in check.unions:
        require(0 <= union.column < len(grown.bins), "check.unions.column", "is none of the part's")
        check_array(union.rows, "check.unions.rows", (None, None), kinds=frozenset("u"))
        require(len(union.rows) <= _CODES, "check.unions.rows", f"are more than {_CODES}")
    for outline in check.trees:
        _check_outline(outline, 2 * grown.request.algorithm.most_leaves, len(grown.train))


_OF_NODES = (("asks", "b"), ("gain", "f"), ("block", "i"), ("key", "i"), ("to_left", "b"))


def _check_outline(outline: Outline, most: int, rows: int) -> None:
    """A tree no deeper than agreed, and sums of no more pairs than it has rows and cells."""
    nodes = len(outline.left) if outline.left.ndim == 1 else 0
    check_array(outline.left, "check.trees.left", (None,), kinds=frozenset("i"))
    require(0 < nodes <= most, "check.trees.left", f"has {nodes:,} nodes where at most {most:,} are due")
    for name, kind in _OF_NODES:
        check_array(getattr(outline, name), f"check.trees.{name}", (nodes,), kinds=frozenset(kind))
    check_finite(outline.gain, "check.trees.gain")
    check_array(outline.least, "check.trees.least", (nodes, 2))
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

_sketch = _training(enforce=_enforce_sketch, check_answer=answer_rules.check_sketches)(handlers.sketch_features)
_start = _training(
    enforce=_enforce_start,
    check_request=_check_start_request,
    check_answer=answer_rules.check_started,
    leaves_state=True,
)(handlers.start_trees)
_check = _of_trees(check_request=_check_trees_request, check_answer=answer_rules.check_objections)(handlers.check_trees)
_sum = _of_trees(check_request=_check_trees_request, check_answer=answer_rules.check_sums)(handlers.sum_trees)
_reveal = _of_trees(check_request=_check_keys_request, check_answer=answer_rules.check_revealed)(handlers.reveal_keys)
_release = _of_end(check_answer=answer_rules.check_splits)(handlers.release_splits)
_hold = _of_end()(handlers.hold_splits)
_ask = _of_rows(check_request=_check_rows_request, check_answer=answer_rules.check_bits)(handlers.ask_rows)
_ask_own = _of_rows(check_request=check_asked_rows, check_answer=answer_rules.check_own_bits)(handlers.ask_own_rows)
