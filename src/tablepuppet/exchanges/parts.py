"""A part from its features to its end: they are encoded; between rounds it is measured, and its best parameters are
kept; after the last they are released or held.

All clients of a block share its encoders. A baseline in one process may pool the encoded features.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from msgspec.structs import replace

from tablepuppet.arrays import Array, Codes
from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.exchanges.base import TRAINING, Rules
from tablepuppet.exchanges.steps import check_predictions
from tablepuppet.memory import trim_heap
from tablepuppet.owner import releases, row_rules
from tablepuppet.owner.enforcement import JobUnderContract, breach
from tablepuppet.owner.part_store import BlockPart
from tablepuppet.owner.state import ClientState, Kept, Part
from tablepuppet.owner.tokens import held_encoders, known_ids
from tablepuppet.protocol import bounds
from tablepuppet.protocol.base import Amount, Discloses, Done, Message, PartRequest, Place
from tablepuppet.protocol.bounds import Known, WrongError, check_array, check_finite, require
from tablepuppet.protocol.columns import Encoder, IdEncoder, NumberEncoder
from tablepuppet.sources.encoding import encode, encoded_width, start_weights, without_rare
from tablepuppet.sources.statistics import existing_rows


class EncodeFeatures(PartRequest, frozen=True):
    """Encode the part's features like this, as all clients of the block do. → Encoded"""

    encoders: Annotated[list[Encoder], Discloses("encoders")]


class Encoded(Message, frozen=True):
    width: Place


class RevealFeatures(PartRequest, frozen=True):
    """Send the encoded features of all rows: the centralised baseline only. → RevealedFeatures"""

    as_codes: bool = False  # texts as codes of their categories, not as columns of zeros and ones


class RevealedFeatures(Message, frozen=True):
    train: Annotated[Array, Discloses("features", is_per_row=True)]
    test: Annotated[Array, Discloses("features", is_per_row=True)]
    train_codes: tuple[Codes, ...] = ()
    test_codes: tuple[Codes, ...] = ()
    row_width: int = 0  # columns that a row stands for, where texts come as codes


def check_encoders(encoders: Sequence[Encoder], due: int) -> None:
    bounds.check_length(encoders, "encoders", due)
    for one in encoders:
        if isinstance(one, NumberEncoder):
            check_array(one.mean, "encoders.mean", (None,))
            for name in ("mean", "scale", "fill"):
                check_array(getattr(one, name), f"encoders.{name}", (one.mean.size,))
                check_finite(getattr(one, name), f"encoders.{name}")
            require(not (one.scale < 0).any(), "encoders.scale", "is negative")
        elif isinstance(one, IdEncoder):
            if one.tokens is not None:
                check_array(one.tokens, "encoders.tokens", (one.count,), kinds="i")
                bounds.check_ascending(one.tokens, "encoders.tokens")
        else:
            bounds.check_distinct(one.categories, "encoders.categories", "category")


def _check_encoded(request: EncodeFeatures, answer: Encoded, known: Known) -> None:
    due = sum(map(encoded_width, request.encoders))
    require(answer.width == due, "width", f"is {answer.width:,} where these encoders make {due:,} columns")
    known.part(request).width = due


@Rules(
    TRAINING,
    enforce=lambda job, request: job.part(request.part).count("encode", 1),
    check_request=lambda own, request: check_encoders(request.encoders, len(own.part(request).request.columns)),
    check_answer=_check_encoded,
    leaves_state=True,
)
def _encode_features(own: ClientState, request: EncodeFeatures) -> Encoded:
    part = own.part(request)
    opened = part.request
    pairs = [own.scan(opened).column(c) for c in opened.columns]
    columns, infos = [c for c, _ in pairs], [i for _, i in pairs]
    # Under noise no row's place may depend on how many others have its name
    least = 1 if own.hides_features(opened.job) else row_rules.least_of(own, opened, opened.train_rows)
    named = zip(request.encoders, pairs, strict=True)
    rows = existing_rows(opened.train_rows, opened.multiplicity)
    common = [without_rare(encoder, *pair, rows, least) for encoder, pair in named]
    encoders = known_ids(own, opened, pairs, common, part.ids)
    part.train = encode(columns, infos, opened.train_rows, encoders)
    part.test = encode(columns, infos, opened.test_rows, encoders)
    part.encoders = tuple(request.encoders)
    same = [p for (job, _), p in own.parts.items() if job == opened.job and p.request.scan == opened.scan]
    if all(p.train is not None for p in same):  # training continues with features alone
        del columns, pairs, named
        for each in same:
            if releases.limits_predictions(own, each):
                releases.count_unknowns(own, each)
        own.scan(opened).release()
    trim_heap()  # before training: Arrow's pool would keep the memory of encoding
    return Encoded(width=part.train.width)


def _enforce_pooling(job: JobUnderContract, request: RevealFeatures) -> None:
    job.policy.check_release("a model that is fitted at the server is known there")
    if not job.training.is_pooled:
        raise breach("features are not pooled")
    job.part(request.part).count("pool", 1)


def _check_revealed(request: RevealFeatures, answer: RevealedFeatures, known: Known) -> None:
    part = known.part(request)
    width = None if request.as_codes else part.width
    for name, rows in (("train", part.train), ("test", part.test)):
        check_array(getattr(answer, name), name, (rows, width))
        check_finite(getattr(answer, name), name)


@Rules(TRAINING, enforce=_enforce_pooling, check_answer=_check_revealed)
def _reveal_features(own: ClientState, request: RevealFeatures) -> RevealedFeatures:
    part = own.part(request)
    if not own.may_reveal:
        raise PolicyError("features are never pooled; a baseline that pools them runs in process only")
    if part.train is None or part.test is None:
        raise TransportError("a part must be encoded before its features can be pooled")
    if not request.as_codes:
        return RevealedFeatures(train=part.train.to_dense(), test=part.test.to_dense())
    codes = (part.train.codes, part.test.codes)
    return RevealedFeatures(part.train.dense, part.test.dense, *codes, row_width=part.train.width)


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
        uses=(own.scan(part.request).reads(part.request.columns),),
    )
    own.part_store.hold(held, request.block)
    _record_model(own, part)
    return Done()


def _record_model(own: ClientState, part: Part) -> None:
    """Writes down a model whose scores the owner trained it for."""
    assert part.started is not None
    scan = own.scan(part.request)
    columns = releases.reads(scan, part.request.columns)
    if own.policy.allow_reconstruction is not None or releases.tells_label(own, part.request.job, columns):
        return
    encoders, spec = held_encoders(part.encoders, part.ids), part.started.model
    names = [releases.score_name((encoders, spec, part.started.outputs), part.theta)]
    if spec.is_linear and encoders:  # another training may begin with them
        weights = start_weights(encoders, part.theta)
        names.append(releases.start_name([scan.expressions[c] for c in part.request.columns], weights))
    own.releases.record_scores(scan.table, *names)
