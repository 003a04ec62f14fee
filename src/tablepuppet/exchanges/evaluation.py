"""Between rounds and after the last: a part is measured, its best parameters are kept, and then released or held."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from msgspec.structs import replace

from tablepuppet.arrays import Array
from tablepuppet.errors import TransportError
from tablepuppet.exchanges.base import TRAINING, Rules
from tablepuppet.exchanges.steps import check_predictions
from tablepuppet.owner import releases
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.part_store import BlockPart
from tablepuppet.owner.state import ClientState, Kept, Part
from tablepuppet.owner.tokens import held_encoders
from tablepuppet.protocol.base import Amount, Discloses, Done, Message, PartRequest, Place
from tablepuppet.protocol.bounds import Known, WrongError, check_array, check_finite, require
from tablepuppet.sources.encoding import start_weights


class Evaluate(PartRequest, frozen=True):
    """Predict the part's test rows, and its train rows where asked. → Evaluation"""

    train: bool


class Evaluation(Message, frozen=True):
    test: Annotated[Array, Discloses("held-out predictions", is_per_row=True)]
    train: Annotated[Array | None, Discloses("predictions", is_per_row=True)]
    norm: Annotated[float, Discloses("norms")]  # ‖θ‖²
    absolute: Annotated[Amount | None, Discloses("norms")] = None  # ‖θ‖₁, where it is penalised
    ridged: Annotated[Amount | None, Discloses("norms")] = None  # Σ β θ², where each output has a β of its own


class Keep(PartRequest, frozen=True):
    """Remember the part's parameters: no others were better so far. → Done"""


class Restore(PartRequest, frozen=True):
    """Training is over, and the parameters kept last are the part's. → Done"""


class Release(PartRequest, frozen=True):
    """Send the trained parameters. → Parameters"""


class Parameters(Message, frozen=True):
    values: Annotated[Array, Discloses("parameters")]


class HoldPart(PartRequest, frozen=True):
    """Keep the trained parameters yourself, as your part of a model; they do not leave. → Done"""

    block: Place
    features: list[str]


def _enforce_evaluation(job: JobUnderContract, request: Evaluate) -> None:
    part = job.started_part(request.part)
    part.count("evaluate", part.allowed.evaluations)
    if request.train:  # the last time also after the best epoch was restored
        part.count("evaluate train", part.allowed.evaluations if part.allowed.evaluates_train else 1)


def _check_evaluation(request: Evaluate, answer: Evaluation, known: Known) -> None:
    part = known.part(request)
    check_predictions(answer.test, "test", part.test, part.outputs)
    require((answer.train is not None) == request.train, "train", "is not what was asked for")
    if answer.train is not None:
        check_predictions(answer.train, "train", part.train, part.outputs)
    if not np.isfinite(answer.norm):
        raise WrongError("norm", "is not finite", diverged=True)
    require(answer.norm >= 0, "norm", "is negative")
    part.norm = answer.norm


@Rules(TRAINING, enforce=_enforce_evaluation, check_answer=_check_evaluation)
def _evaluate(own: ClientState, request: Evaluate) -> Evaluation:
    part = own.started_part(request)
    assert part.setup is not None
    theta, model, private = part.theta, part.setup.model, part.setup.private
    releases.count_predictions(own, part, 1 + request.train)
    test, train = model.predict_test(theta), model.predict(theta) if request.train else None
    if private is not None:  # a row may be among both, in different joined rows
        test, train = private.disclose(test), None if train is None else private.disclose(train)
    absolute = float(np.abs(theta).sum()) if part.setup.l1 else None
    ridged = None if part.setup.l2_by_output is None else float(np.vdot(theta, part.setup.l2_by_output * theta))
    norm = float(np.vdot(theta, theta))
    return Evaluation(test=test, train=train, norm=norm, absolute=absolute, ridged=ridged)


def _enforce_keeping(job: JobUnderContract, request: Any) -> None:
    job.started_part(request.part).count("keep", job.training.epochs + 1)


@Rules(TRAINING, enforce=_enforce_keeping)
def _keep(own: ClientState, request: Keep) -> Done:
    part = own.started_part(request)
    part.kept = Kept(part.state.theta)
    return Done()


@Rules(TRAINING, enforce=_enforce_keeping)
def _restore(own: ClientState, request: Restore) -> Done:
    part = own.started_part(request)
    if part.kept is None:
        raise TransportError("no parameters were kept that could be restored")
    part.kept = replace(part.kept, is_restored=True)
    return Done()


def enforce_release(job: JobUnderContract, request: Any, *, are_trees: bool = False) -> None:
    job.policy.check_release("they are kept here")
    job.check_model_kind(are_trees)
    if not job.training.releases:
        raise breach("trained parameters stay here")
    job.started_part(request.part).count("release", 1)


def _check_parameters(request: Release, answer: Parameters, known: Known) -> None:
    part = known.part(request)
    check_finite(answer.values, "values")
    if part.is_linear and part.width is not None:
        check_array(answer.values, "values", (part.width, part.outputs))
    elif part.theta is not None:
        require(answer.values.size == part.theta, "values", f"are {answer.values.size:,} where {part.theta:,} are due")
    if part.norm is not None:
        square = float(np.vdot(answer.values, answer.values))
        is_same = abs(square - part.norm) <= 1e-3 * max(square, part.norm)  # float32 on the wire rounds them
        require(is_same, "values", "have another norm than at the last evaluation")


@Rules(TRAINING, enforce=enforce_release, check_answer=_check_parameters)
def _release(own: ClientState, request: Release) -> Parameters:
    part = own.started_part(request)
    _record_model(own, part)
    return Parameters(values=part.theta)


def enforce_holding(job: JobUnderContract, request: Any, *, are_trees: bool = False) -> None:
    job.check_model_kind(are_trees)
    job.started_part(request.part).count("hold", 1)


@Rules(TRAINING, enforce=enforce_holding)
def _hold_part(own: ClientState, request: HoldPart) -> Done:
    part = own.started_part(request)
    assert part.started is not None
    held = BlockPart(
        askers=own.askers(request.job),
        model=request.job,
        name=part.started.name,
        features=tuple(request.features),
        encoders=held_encoders(part.encoders, part.ids),
        theta=np.asarray(part.theta, np.float64),
        outputs=part.started.outputs,
        spec=part.started.model,
        uses=(own.tables.scan(request.job, part.request.scan).reads(part.request.columns),),
    )
    own.part_store.hold(held, request.block)
    _record_model(own, part)
    return Done()


def _record_model(own: ClientState, part: Part) -> None:
    """Writes down a model whose scores the owner trained it for."""
    assert part.started is not None
    table, columns = releases.table_and_columns(own, part)
    if own.policy.allow_reconstruction is not None or releases.tells_label(own, part.request.job, columns):
        return
    encoders, spec = held_encoders(part.encoders, part.ids), part.started.model
    names = [releases.score_name((encoders, spec, part.started.outputs), part.theta)]
    if spec.is_linear and encoders:  # another training may begin with them
        weights = start_weights(encoders, part.theta)
        names.append(releases.start_name(releases.feature_expressions(own, part), weights))
    own.releases.record_scores(table, *names)
