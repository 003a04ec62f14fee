"""Answers in training: a part's model is made, takes the algorithm's steps, is measured, and released or held."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import asdict, astuple, replace

from tablepuppet import protocol as m
from tablepuppet.algorithms.base import PartSetup
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.private import PrivateGradient
from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.client import row_rules
from tablepuppet.client.answers.contract import reads, tells_label, unknowns
from tablepuppet.client.ids import held_encoders
from tablepuppet.client.owner import Shown, start_name
from tablepuppet.client.state import ClientState, Kept, Part, check_model, check_options, check_outputs
from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.models.linear import LinearModel, Model
from tablepuppet.models.neural import NeuralModel
from tablepuppet.privacy.gaussian import secure_generator
from tablepuppet.privacy.masks import honest_parts
from tablepuppet.tables.encoding import start_theta, start_weights
from tablepuppet.tables.part_store import BlockPart

Start = m.StartPart[AlgorithmOptions]


def start_part(own: ClientState, request: Start) -> m.Started:
    part = own.part(request)
    if part.train is None or part.test is None:
        raise TransportError("a part must be encoded before it is trained")
    check_outputs(request.outputs, part.train.rows)
    check_model(request.model, part.train.width, request.outputs)
    check_options(request.algorithm)
    given = part.request.multiplicity if request.multiplicity is None else request.multiplicity
    one = np.broadcast_to(np.float64(1.0), part.train.rows)  # takes no memory
    multiplicity = one if given is None else given.astype(np.float64)
    weights = multiplicity if request.weights is None else request.weights[:, 0]
    if request.signs and len(request.signs) != part.train.width:
        raise TransportError(f"{len(request.signs)} signs were sent for {part.train.width} columns")
    if len(multiplicity) != part.train.rows:
        raise TransportError(f"multiplicities of {len(multiplicity)} rows were sent for {part.train.rows}")
    if len(weights) != part.train.rows:
        raise TransportError(f"{len(weights)} weights were sent for {part.train.rows} rows")
    _check_rows(request, float(multiplicity.sum()))
    if request.multiplicity is not None:
        row_rules.check_fold(own, part.request, multiplicity)
    before = part.state if request.continues else None
    start = None if before is None else before.theta
    if request.starts:
        start = _given_start(own, part, request)
    part.options, part.started, part.kept, part.batches_left = request.algorithm, request, None, None
    model = _model(own, part, request)
    part.setup = PartSetup(
        model=model,
        multiplicity=multiplicity,
        weights=weights,
        outputs=request.outputs,
        blocks=request.blocks,
        clients=request.clients,
        joined_rows=request.joined_rows,
        share=request.share,
        l2=request.l2,
        l1=request.l1,
        signs=tuple(request.signs),
        l2_by_output=np.array(request.l2_by_output) if request.l2_by_output else None,
        seed=request.seed,
        unit=request.model.unit,
        start=start,
        before=before,
        private=None if request.privacy is None else PrivateGradient(request.privacy, secure_generator()),
    )
    if request.peers:
        part.meet(request.peers)
    else:
        part.sealing = None
    _check_shares(part, request)
    own.owner.features(own.tables.use(request.job, part.request.scan).table, request, multiplicity)
    part.state, part.figures = algorithm_of(part.options).start(part.setup, part.options)
    is_zero = request.model.is_linear and not request.spread and (start is None or not start.any())
    values = None if is_zero else _shown(own, part, model.predict(part.state.theta, None, 0))
    entropy = secrets.randbits(63) if part.setup.is_private else 0
    is_told = part.sealing is None or part.figures.is_public
    figures = asdict(part.figures) if is_told else {}
    return m.Started(values=values, figures=figures, width=model.width, entropy=entropy)


def _given_start(own: ClientState, part: Part, request: Start) -> m.Array:
    """θ of the weights that were agreed on; what it predicts leaves before anything is learned here."""
    given, opened = own.contracts.start_of(request), part.request
    theta = start_theta(given, part.encoders, request.outputs)
    if theta.any():
        name = start_name(_expressions(own, part), given)
        told = Shown(*_behind(own, part), numbers=request.outputs, name=name)
        own.owner.begins(told, partial(unknowns, own, opened.job, opened.scan, opened.columns))
    return theta


def _check_rows(request: Start, own: float) -> None:
    """The number of joined rows says how many batches an epoch has: at least this part's own take part."""
    if request.joined_rows < own:
        raise PolicyError(
            "the request is outside its contract: this table's rows alone have more joined rows than said"
        )


def _check_shares(part: Part, request: Start) -> None:
    """A share of noise leaves in a masked sum only, with so many others that a minority of them may be left out."""
    if request.privacy is None or request.privacy.summed_over == 1:
        return
    clients = [] if part.sealing is None else [peer.client for peer in part.sealing.peers]
    is_due = request.privacy.summed_over == honest_parts(clients)
    if not is_due or request.algorithm.samples_at_clients or request.privacy.hides_predictions:
        raise PolicyError(
            "the request is outside its contract: a share of the noise is added to masked sums over three clients or "
            "more, such that it is enough without a minority of them, and here it would not be"
        )


def _model(own: ClientState, part: Part, request: Start) -> Model:
    spec, opened = request.model, part.request
    assert part.train is not None
    assert part.test is not None
    if spec.is_linear:
        clips = request.privacy is not None and request.privacy.clips
        start = (request.seed, request.block, tuple(request.spread)) if request.spread else None
        return LinearModel(part.train, part.test, request.outputs, part.train.row_norms() if clips else None, start)
    module = own.module(spec, part.train.width, request.outputs, request.name, request.seed + request.block)
    train = np.zeros(part.train.rows, np.bool_) if opened.train_rows is None else opened.train_rows < 0
    missing = (train, opened.test_rows < 0)
    given = (module, spec, part.train, part.test, request.outputs)
    return NeuralModel.of(*given, missing=missing, stream=request.seed + request.part)


def take_step(own: ClientState, request: Any) -> m.Message:
    part = own.started(request)
    assert part.setup is not None
    if part.kept is not None and part.kept.is_restored:
        raise TransportError("training is over: the part's best parameters were restored")
    if part.sealing is not None and isinstance(request, m.Combined):
        part.sealing.rescale(request.scales)
    algorithm = algorithm_of(part.options)
    if not isinstance(request, (*algorithm.requests, m.Combined, m.Move)):
        raise TransportError(f"a {type(request).__name__} does not belong to algorithm {algorithm.name}")
    _count_batch(own, part, request)
    part.state, answer = algorithm.step(part.setup, part.options, part.state, request)
    if isinstance(answer, m.Partial):
        return part.sealed(answer, "training")
    if isinstance(answer, m.Predictions):
        return replace(answer, values=_shown(own, part, answer.values))
    return answer


def _count_batch(own: ClientState, part: Part, request: Any) -> None:
    """In an epoch a row is in no more batches than it has joined rows, however many there are said to be."""
    epochs = own.contracts.epochs(part.request.job, part.request.part)
    if epochs is None or not hasattr(request, "next_rows"):
        return
    assert part.setup is not None
    if part.batches_left is None:
        most = epochs * part.setup.multiplicity  # and what Poisson samples may have more, or the epoch after the last
        most = most + (8.0 * np.sqrt(most) + 20.0 if part.setup.is_private else 1.0)
        part.batches_left = most.astype(np.min_scalar_type(int(most.max(initial=0))))  # small: look-ups are far apart
    every = request.next_rows is None
    rows = np.arange(len(part.batches_left)) if every else request.next_rows.astype(np.intp)  # as look-ups want them
    left = part.batches_left.take(rows)
    if not left.all():
        raise PolicyError(
            "the request is outside its contract: in an epoch a row is in no more batches than it has joined rows"
        )
    left -= 1  # a row that is named twice is predicted once
    part.batches_left[rows] = left


def multiply_gram(own: ClientState, request: m.MultiplyGram) -> m.Message:
    part = own.started(request)
    assert part.setup is not None
    if part.setup.is_private:
        raise PolicyError("exact second moments are not sent while gradients are private")
    if not isinstance(part.setup.model, LinearModel):
        raise TransportError("only a linear model has a Gram matrix")
    product = part.setup.model.train.gram_product(part.setup.weights, request.vector)
    return part.sealed(m.Partial(values=[product]), "gram")


def send_figures(own: ClientState, request: m.SendFigures) -> m.Message:
    part = own.started(request)
    return part.sealed(m.Partial(values=[np.array(astuple(part.figures), np.float64)]), "figure")


def seal(own: ClientState, request: m.Seal) -> m.Masked:
    part = own.part(request)
    if part.sealing is None:
        raise TransportError("this part's sums are not masked")
    return part.sealing.again(request.scales)


def evaluate(own: ClientState, request: m.Evaluate) -> m.Evaluation:
    part = own.started(request)
    assert part.setup is not None
    theta, model, private = part.theta, part.setup.model, part.setup.private
    _count_shown(own, part, 1 + request.train)
    test, train = model.predict_test(theta), model.predict(theta) if request.train else None
    if private is not None:  # a row may be among both, in different joined rows
        test, train = private.shown(test), None if train is None else private.shown(train)
    absolute = float(np.abs(theta).sum()) if part.setup.l1 else None
    ridged = None if part.setup.l2_by_output is None else float(np.vdot(theta, part.setup.l2_by_output * theta))
    norm = float(np.vdot(theta, theta))
    return m.Evaluation(test=test, train=train, norm=norm, absolute=absolute, ridged=ridged)


def _shown(own: ClientState, part: Part, predictions: m.Array) -> m.Array:
    """Predictions of train rows as they may leave."""
    assert part.setup is not None
    _count_shown(own, part)
    return predictions if part.setup.private is None else part.setup.private.shown(predictions)


def _count_shown(own: ClientState, part: Part, times: int = 1) -> None:
    """Counts the exact numbers that leave of each row; the owner may say that it is enough."""
    assert part.setup is not None
    assert part.train is not None
    is_noisy = part.setup.private is not None and part.setup.private.privacy.hides_predictions
    after = part.shown + (0 if is_noisy else times * part.setup.outputs)
    if not is_noisy and limits_predictions(own, part):
        own.owner.predictions(shown(own, part, after), count_unknowns(own, part))
    part.shown = after


def limits_predictions(own: ClientState, part: Part) -> bool:
    """Whether exact predictions of a part end before they tell a row."""
    contract = own.contracts.contract(part.request.job)
    forbids = contract is not None and contract.feature_privacy is not None and not contract.allow_reconstruction
    return own.owner.limits_predictions(forbids)


def count_unknowns(own: ClientState, part: Part) -> int:
    """How many exact numbers of a row are enough to know its features; counted once, best while its rows are here."""
    if part.unknowns is None:
        opened = part.request
        part.unknowns = unknowns(own, opened.job, opened.scan, opened.columns)
    return part.unknowns


def shown(own: ClientState, part: Part, numbers: int) -> Shown:
    """The exact numbers of each row that left a part."""
    return Shown(*_behind(own, part), numbers=numbers, name=f"{part.request.job} {part.request.part}")


def _behind(own: ClientState, part: Part) -> tuple[str, tuple[str, ...]]:
    """The table and the columns that a part's features are made of."""
    job, scan = part.request.job, part.request.scan
    return own.tables.use(job, scan).table, reads(own, job, scan, part.request.columns)


def _expressions(own: ClientState, part: Part) -> list[str]:
    every = own.tables.expressions(part.request.job, part.request.scan)
    return [every[c] for c in part.request.columns]


def keep(own: ClientState, request: m.Keep) -> m.Done:
    part = own.started(request)
    part.kept = Kept(part.state.theta)
    return m.Done()


def restore(own: ClientState, request: m.Restore) -> m.Done:
    part = own.started(request)
    if part.kept is None:
        raise TransportError("no parameters were kept that could be restored")
    part.kept = replace(part.kept, is_restored=True)
    return m.Done()


def release(own: ClientState, request: m.Release) -> m.Parameters:
    part = own.started(request)
    _count_trained(own, part)
    return m.Parameters(values=part.theta)


def hold_part(own: ClientState, request: m.HoldPart) -> m.Done:
    part = own.started(request)
    assert part.started is not None
    asker = own.asker(request.job)
    held = BlockPart(
        askers=() if asker is None else (asker, *request.readers),
        model=request.model,
        name=part.started.name,
        features=tuple(request.features),
        encoders=held_encoders(part.encoders, part.ids),
        theta=np.asarray(part.theta, np.float64),
        outputs=part.started.outputs,
        spec=part.started.model,
        uses=(own.tables.reads(request.job, part.request.scan, part.request.columns),),
    )
    own.part_store.hold(held, request.block)
    _count_trained(own, part)
    return m.Done()


def _count_trained(own: ClientState, part: Part) -> None:
    """Writes down a model whose scores the owner trained it for."""
    assert part.started is not None
    table, columns = _behind(own, part)
    if tells_label(own, part.request.job, columns):
        return
    encoders, spec, start = held_encoders(part.encoders, part.ids), part.started.model, ""
    if spec.is_linear and encoders:
        start = start_name(_expressions(own, part), start_weights(encoders, part.theta))
    own.owner.trained(table, (encoders, spec, part.started.outputs), part.theta, start)
