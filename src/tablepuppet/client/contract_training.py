"""The stages of training under a contract: the algorithm, the model, the noise and how often each step is taken.

In: a job under way, its contract and a request of a training stage. Out: nothing, or a refusal; what was asked is
counted. How often an algorithm may ask follows from its declaration (algorithms/shape.py, `Exchanges`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from tablepuppet import protocol as m
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.algorithms.shape import Exchanges, RunShape
from tablepuppet.client.contract_terms import (
    JobUnderContract,
    PartUnderContract,
    check_model_kind,
    check_splits,
    count_request,
    opened_part,
    refused,
    scan_of,
    started_part,
    training_of,
)
from tablepuppet.models.spec import l2_of
from tablepuppet.privacy.accounting import composed_epsilon
from tablepuppet.protocol.contract import Contract, Training

_ONCE = ("start", "encode", "summed statistics 0", "summed statistics 1")  # what a part is asked for all its models


def agreed_start(job: JobUnderContract, request: m.StartPart[Any]) -> tuple[dict[str, list[float]], ...]:
    """The weights that a part's training was agreed to begin with."""
    place = job.parts[request.part].block.place
    blocks = () if job.contract is None else job.contract.blocks
    return next((block.start for block in blocks if (block.place, block.name) == (place, request.name)), ())


def _start(job: JobUnderContract, contract: Contract, request: m.StartPart[Any]) -> None:
    part = opened_part(job, request.part)
    training = _agreed_training(contract, part, request)
    if request.algorithm.sends_second_moments and not training.sends_second_moments:
        raise refused("second moments do not leave")
    _start_privacy(contract, request)
    if (request.weights is not None) and not training.has_weights:
        raise refused("joined rows count alike, and weights were sent")
    if request.multiplicity is not None and contract.folds is None:
        raise refused("all rows take part as often as they are joined, and no folds were agreed on")
    if request.starts and not agreed_start(job, request):
        raise refused("it begins with weights, and none were agreed on")
    if request.continues and contract.fits == 1:
        raise refused("one model is trained, from the start")
    for counted in (request.weights, request.multiplicity):
        if counted is None:
            continue
        rows = np.atleast_1d(counted)
        weighed = int(np.count_nonzero(rows.any(axis=tuple(range(1, rows.ndim)))))
        if weighed < min(job.minimum_rows, len(rows)):
            raise refused(f"at least {job.minimum_rows:,} rows count, and the weights leave fewer")
    if training.most_rows is not None and request.joined_rows > training.most_rows:
        raise refused(f"at most {training.most_rows:,} joined rows were agreed on")
    count_request(part, "start", contract.fits)
    part.asked = Counter({name: count for name, count in part.asked.items() if name in _ONCE})
    run = RunShape(
        epochs=training.epochs,
        rows=request.joined_rows,
        batch_size=training.batch(request.joined_rows),
        is_linear=training.model.is_linear,
        is_private=contract.feature_privacy is not None,
        has_head=bool(request.spread),
    )
    is_batched = run.batch_size is not None and run.batch_size < request.joined_rows
    part.epochs = training.epochs if is_batched else None
    part.exchanges = algorithm_of(request.algorithm).exchanges(request.algorithm, run)
    part.requests = tuple(algorithm_of(request.algorithm).requests)


def _start_privacy(contract: Contract, request: m.StartPart[Any]) -> None:
    """Noise that was agreed on is added, by an algorithm that has a private form."""
    privacy = request.privacy
    is_local = contract.prediction_privacy.mode == "local"
    clips = privacy is not None and privacy.clips
    if clips != (contract.feature_privacy is not None):
        raise refused("gradients are noised as agreed, or not at all")
    if is_local != (privacy is not None and privacy.hides_predictions):
        raise refused("predictions are noised as agreed, or not at all")
    has_form = algorithm_of(request.algorithm).why_not_private(request.algorithm) is None
    if privacy is not None and (not has_form or (clips and privacy.noise <= 0)):
        raise refused("what was agreed to be noised has no noise")
    agreed = contract.feature_privacy
    if privacy is not None and privacy.summed_over != 1 and (agreed is None or not agreed.shared_noise):
        raise refused("each client adds all of the noise, and no share of it")
    if privacy is not None and not 0 < privacy.prediction_bound < np.inf:
        raise refused("under noise, predictions leave within bounds")


def _step(job: JobUnderContract, contract: Contract, request: Any) -> None:
    part = started_part(job, request.part)
    assert part.exchanges is not None
    if not isinstance(request, part.requests):
        raise refused(f"{type(request).__name__} is of another algorithm")
    count_request(part, "step", part.exchanges.steps + 1)  # an opening, or a small block's second step


def _combine(job: JobUnderContract, contract: Contract, request: m.Combined) -> None:
    part = started_part(job, request.part)
    assert part.exchanges is not None
    count_request(part, "combine", part.asked["step"] * part.exchanges.inner)


def _settle(job: JobUnderContract, contract: Contract, request: m.Move) -> None:
    part = started_part(job, request.part)
    count_request(part, "settle", part.asked["step"] + 1)


def _figure(job: JobUnderContract, contract: Contract, request: m.SendFigures) -> None:
    count_request(started_part(job, request.part), "figure", 1)


def _second_moments(job: JobUnderContract, contract: Contract, request: m.MultiplyGram) -> None:
    part = started_part(job, request.part)
    assert part.exchanges is not None
    count_request(part, "second moments", part.exchanges.power_rounds)


def _evaluate(job: JobUnderContract, contract: Contract, request: m.Evaluate) -> None:
    part = started_part(job, request.part)
    assert part.exchanges is not None
    count_request(part, "evaluate", part.exchanges.evaluations)
    if request.train:  # the last time also after the best epoch was restored
        count_request(part, "evaluate train", part.exchanges.evaluations if part.exchanges.evaluates_train else 1)


def _keep(job: JobUnderContract, contract: Contract, request: Any) -> None:
    count_request(started_part(job, request.part), "keep", training_of(contract).epochs + 1)


def _sketch(job: JobUnderContract, contract: Contract, request: trees.SketchFeatures) -> None:
    check_model_kind(contract, True)
    part = opened_part(job, request.part)
    if request.bins != training_of(contract).algorithm["bins"]:
        raise refused("as many values leave to agree on bins by as bins were agreed on")
    count_request(part, "sketch", 1)


def _start_trees(job: JobUnderContract, contract: Contract, request: trees.StartTrees) -> None:
    part, training = opened_part(job, request.part), training_of(contract)
    if msgspec.to_builtins(request.algorithm) != training.algorithm:
        raise refused("the algorithm is not the one that was agreed on")
    earlier = 1 if isinstance(request.before, str) else len(request.before)  # a held part is as large as it was
    if earlier > training.earlier_splits:
        raise refused("it speaks of more splits of earlier trees than were agreed on")
    if not isinstance(request.before, str) and request.before:
        check_splits(contract, part.block.place, request.before)
    _check_leaves(contract, request)
    is_shared = sum(block.name == part.block.name for block in contract.blocks) > 1
    if request.bins is not None and not is_shared and scan_of(contract, part.block.scan).clients == 1:
        raise refused("a table with one owner is put in bins by that owner")
    count_request(part, "start trees", 1)
    part.exchanges, part.most_checks = Exchanges(request.algorithm.trees), request.algorithm.most_checks


def _check_leaves(contract: Contract, request: trees.StartTrees) -> None:
    """Under feature privacy splits are drawn between bounds that were agreed on, and the model costs what was."""
    agreed = contract.feature_privacy
    if agreed is None or contract.prediction_privacy.mode == "local":
        if request.spends or request.bounds is not None or contract.prediction_privacy.mode == "local":
            raise refused("trees have no noise")
        return
    if algorithm_of(request.algorithm).why_not_private(request.algorithm) is not None or not request.spends:
        raise refused("what was agreed to be noised has no noise")
    if request.bounds is None or not {b for b in request.bounds if b} <= {*agreed.bounds.values()}:
        raise refused("borders lie between bounds that were agreed on")
    if sum(mechanism.steps for mechanism in request.spends) < request.algorithm.trees:
        raise refused("each tree is a release, and fewer are counted")
    if agreed.epsilon is not None and composed_epsilon(request.spends, agreed.delta) > agreed.epsilon * (1 + 1e-3):
        raise refused("the model tells more of a row than the ε that was agreed on")
    if not contract.allow_reconstruction and request.algorithm.max_splits is None:
        raise refused("bits of all splits tell rows, and the job does not say allow_reconstruction")


def _check_trees(job: JobUnderContract, contract: Contract, request: Any) -> None:
    part = started_part(job, request.part)
    if training_of(contract).algorithm["splits"] == "random" and not isinstance(request, trees.RevealKeys):
        raise refused("splits are drawn, and no trees are checked")
    count_request(part, "check trees", part.most_checks)


def _release(job: JobUnderContract, contract: Contract, request: m.Release) -> None:
    if not training_of(contract).releases:
        raise refused("trained parameters stay here")
    check_model_kind(contract, isinstance(request, trees.ReleaseSplits))
    count_request(started_part(job, request.part), "release", 1)


def _hold(job: JobUnderContract, contract: Contract, request: m.HoldPart) -> None:
    check_model_kind(contract, isinstance(request, trees.HoldSplits))
    count_request(started_part(job, request.part), "hold", 1)


def _pool(job: JobUnderContract, contract: Contract, request: m.RevealFeatures) -> None:
    if not training_of(contract).is_pooled:
        raise refused("features are not pooled")
    count_request(opened_part(job, request.part), "pool", 1)


def _agreed_training(contract: Contract, part: PartUnderContract, request: m.StartPart[Any]) -> Training:
    """The training that a part is started for, if it was agreed on."""
    table = scan_of(contract, part.block.scan).table
    names = [block.name for block in contract.blocks if block.place == part.block.place]  # several, in a self-join
    for training in (training_of(contract), *contract.others):
        spec = msgspec.structs.replace(request.model, unit=training.model.unit)  # the label's unit is known since then
        given = (msgspec.to_builtins(request.algorithm), spec, request.l1)
        if given != (training.algorithm, training.model, training.l1) or (request.signs and not training.signs):
            continue
        more = training.l2_by_rows / max(1, request.joined_rows)
        for least in [l2_of(training.l2, name, table) for name in names]:
            if request.l2 == least + more and all(least <= one <= request.l2 for one in request.l2_by_output):
                return training
    raise refused("the algorithm and the model are not those that were agreed on")


TRAINING_CHECKS: dict[m.Stage, Callable[[JobUnderContract, Contract, Any], None]] = {
    "start": _start,
    "sketch": _sketch,
    "start trees": _start_trees,
    "check trees": _check_trees,
    "figure": _figure,
    "second moments": _second_moments,
    "step": _step,
    "combine": _combine,
    "settle": _settle,
    "evaluate": _evaluate,
    "keep": _keep,
    "release": _release,
    "hold": _hold,
    "pool": _pool,
}
