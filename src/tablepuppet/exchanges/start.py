"""The start of training: makes a part's model, and sends the numbers that the server half needs."""

import secrets
from collections import Counter
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import asdict, astuple

from tablepuppet.algorithms.base import PartSetup
from tablepuppet.algorithms.noise import RunFacts
from tablepuppet.algorithms.registry import Options, algorithm_of
from tablepuppet.algorithms.shape import RunShape
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import PolicyError, TransportError
from tablepuppet.exchanges.base import TRAINING, Rules
from tablepuppet.exchanges.steps import check_predictions, check_summands
from tablepuppet.models.linear import LinearModel
from tablepuppet.models.neural import Model, NeuralModel
from tablepuppet.models.spec import ModelSpec, l2_of
from tablepuppet.owner import releases, row_rules
from tablepuppet.owner.enforcement import JobUnderContract, PartUnderContract, breach
from tablepuppet.owner.state import ClientState, Part, check_model, check_options, check_outputs
from tablepuppet.privacy.masks import MaskKey
from tablepuppet.protocol import base as messages
from tablepuppet.protocol.bounds import Known, check_amounts, check_array, require
from tablepuppet.protocol.contract import Contract, Training
from tablepuppet.sources.encoding import start_theta

_MOST_FIGURES = 100
FiguresByName = Annotated[dict[Annotated[str, Meta(max_length=200)], messages.Finite], Meta(max_length=_MOST_FIGURES)]


class StartPart(messages.PartRequest, frozen=True):
    """Make the part's model and start the algorithm's client half. → Started"""

    algorithm: Options
    model: ModelSpec
    block: Annotated[int, Meta(ge=0, le=messages.MOST_CLIENTS)]  # its number, which a neural model begins by
    name: str  # the block's
    outputs: int  # d_c, or the width that a head wants of the block
    blocks: Annotated[int, Meta(ge=1, le=messages.MOST_CLIENTS)]  # M
    clients: Annotated[int, Meta(ge=1, le=messages.MOST_CLIENTS)]  # how many parts the block has
    joined_rows: messages.Count  # N, training rows
    share: Annotated[float, Meta(ge=0.0, le=1.0 + 1e-9)]  # of those with rows of the block: how many are the part's
    l2: messages.Amount
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1 - messages.MOST_CLIENTS)]  # the block's number is added to it
    facts: RunFacts | None = None  # of a private run: the client computes its noise from them, by the contract
    # Of each train row, summed over its joined rows; None: their number
    weights: Annotated[Array | None, messages.Discloses("summed weights", is_per_row=True)] = None
    # Keys of all the block's parts, where summands leave under masks only
    peers: list[MaskKey] = msgspec.field(default_factory=list)
    # Of each output of a linear block before training, drawn from (seed, block); none: it begins at zero
    spread: list[messages.Amount] = msgspec.field(default_factory=list)
    l1: messages.Amount = 0.0
    # Of each encoded column's parameters; none: any
    signs: list[Annotated[int, Meta(ge=-1, le=1)]] = msgspec.field(default_factory=list)
    # Of a linear block under a head; none: l2 for all
    l2_by_output: list[messages.Amount] = msgspec.field(default_factory=list)
    # G over the folds that are trained on; None: all joined rows
    multiplicity: Annotated[RowNumbers | None, messages.Discloses("multiplicities", is_per_row=True)] = None
    starts: bool = False  # begin with the weights of the contract
    continues: bool = False  # begin with the parameters of the model before, of the same part


class Started(messages.Message, frozen=True):
    # Predictions of all train rows; None: all zero
    values: Annotated[Array | None, messages.Discloses("predictions", is_per_row=True)]
    # That the algorithm's server half wants; empty: none, or only in a masked sum (SendFigures)
    figures: Annotated[FiguresByName, messages.Discloses("figure")]
    width: Annotated[int, Meta(ge=0, le=2**31)]  # of θ
    # Under privacy: chance for the server's samples, which a journal can repeat and nobody foretell
    entropy: messages.Seed = 0


class SendFigures(messages.PartRequest, frozen=True):
    """Send the numbers that Started held back, as a summand. → Masked"""


class MultiplyGram(messages.PartRequest, frozen=True):
    """Send Tᵀ diag(G) T v, to bound the objective's curvature. → Partial | Masked"""

    vector: Array


_ONCE = ("start", "encode", "summed statistics 0", "summed statistics 1")  # asked of a part once, for all its models


def _enforce_start(job: JobUnderContract, request: StartPart) -> None:
    contract = job.agreed
    part = job.part(request.part)
    training = _find_training(job, part, request)
    if request.algorithm.sends_second_moments and not training.sends_second_moments:
        raise breach("second moments do not leave")
    job.check_peers(part, request.peers)
    if request.clients > 1:
        job.policy.check_release("the owners of a table agree on them through the server")
    options = request.algorithm
    job.policy.check_moments_of(options.sends_second_moments, options.name, request.clients)
    _enforce_noise(contract, request, training)
    if (request.weights is not None) and not training.has_weights:
        raise breach("joined rows count alike, and weights were sent")
    if request.multiplicity is not None and contract.folds is None:
        raise breach("all rows take part as often as they are joined, and no folds were agreed on")
    if request.starts and not job.start_of(request):
        raise breach("it begins with weights, and none were agreed on")
    if request.continues and contract.fits == 1:
        raise breach("one model is trained, from the start")
    for counted in (request.weights, request.multiplicity):
        if counted is None:
            continue
        rows = np.atleast_1d(counted)
        weighed = int(np.count_nonzero(rows.any(axis=tuple(range(1, rows.ndim)))))
        if weighed < min(job.minimum_rows, len(rows)):
            raise breach(f"at least {job.minimum_rows:,} rows count, and the weights leave fewer")
    if training.most_rows is not None and request.joined_rows > training.most_rows:
        raise breach(f"at most {training.most_rows:,} joined rows were agreed on")
    part.count("start", contract.fits)
    part.asked = Counter({name: count for name, count in part.asked.items() if name in _ONCE})
    run = RunShape(
        epochs=training.epochs if request.facts is None else request.facts.epochs,
        rows=request.joined_rows,
        batch_size=training.batch(request.joined_rows),
        is_linear=training.model.is_linear,
        is_private=contract.feature_privacy is not None,
        has_head=bool(request.spread),
    )
    is_batched = run.batch_size is not None and run.batch_size < request.joined_rows
    part.epochs = run.epochs if is_batched else None
    part.exchanges, part.training = algorithm_of(request.algorithm).exchanges(request.algorithm, run), training
    part.requests = tuple(algorithm_of(request.algorithm).requests)


def _enforce_noise(contract: Contract, request: StartPart, training: Training) -> None:
    """Noise that was agreed on is added, by an algorithm that has a private form."""
    facts = request.facts
    if contract.is_noisy != (facts is not None):
        raise breach("gradients and predictions are noised as agreed, or not at all")
    if facts is None:
        return
    if algorithm_of(request.algorithm).why_not_private(request.algorithm) is not None:
        raise breach("what was agreed to be noised has no noise")
    if facts.rows != request.joined_rows or not 0 < facts.epochs <= training.epochs:
        raise breach("noise is computed for another run than the one that begins")
    if request.block >= len(facts.blocks) or facts.blocks[request.block].name != request.name:
        raise breach("noise is computed for other blocks than those that were agreed on")


def _find_training(job: JobUnderContract, part: PartUnderContract, request: StartPart) -> Training:
    table = job.scan(part.block.scan).table
    names = [block.name for block in job.agreed.blocks if block.place == part.block.place]  # several, in a self-join
    for training in (job.training, *job.agreed.others):
        spec = msgspec.structs.replace(request.model, unit=training.model.unit)  # the label's unit is known since then
        given = (msgspec.to_builtins(request.algorithm), spec, request.l1)
        if given != (training.algorithm, training.model, training.l1) or (request.signs and not training.signs):
            continue
        more = training.l2_by_rows / max(1, request.joined_rows)
        for least in [l2_of(training.l2, name, table) for name in names]:
            if request.l2 == least + more and all(least <= one <= request.l2 for one in request.l2_by_output):
                return training
    raise breach("the algorithm and the model are not those that were agreed on")


def _check_start_request(own: ClientState, request: StartPart) -> None:
    spread = request.spread
    require(len(spread) in (0, request.outputs), "spread", f"has {len(spread)} numbers where {request.outputs} are due")
    ridges = request.l2_by_output
    require(len(ridges) in (0, request.outputs), "l2_by_output", f"has {len(ridges)} numbers for {request.outputs}")
    require(not ridges or request.model.is_linear, "l2_by_output", "belongs to linear blocks")
    part = own.part(request)
    if part.train is None:
        raise TransportError("a part must be encoded before it is trained")
    require(len(request.signs) in (0, part.train.width), "signs", f"are not of {part.train.width} columns")
    if request.multiplicity is not None:
        check_amounts(request.multiplicity, "multiplicity", (part.train.rows,))
    if request.weights is not None:
        check_amounts(request.weights, "weights", (part.train.rows, None))


def _check_started(request: StartPart, answer: Started, known: Known) -> None:
    part = known.part(request)
    part.outputs, part.is_linear, part.theta = request.outputs, request.model.is_linear, answer.width
    part.figures, part.vectors, part.products = answer.figures, None, None
    if part.is_linear and part.width is not None:
        require(answer.width == part.width, "width", f"is {answer.width:,} where the part has {part.width:,} columns")
    elif part.width is not None:
        most = _most_parameters(request, part.width)
        require(answer.width <= most, "width", f"is {answer.width:,}, more than such a model has ({most:,})")
    if answer.values is not None:
        check_predictions(answer.values, "values", part.train, part.outputs)


def _most_parameters(request: StartPart, width: int) -> int:
    """The most parameters of a neural block; the size of a user's own module is unknown here."""
    if request.model.kind == "module":
        return 2**31
    sizes = (width, *request.model.hidden, request.outputs)
    return sum((before + 1) * after for before, after in pairwise(sizes)) + request.outputs


@Rules(TRAINING, _enforce_start, _check_start_request, _check_started, leaves_state=True)
def _start_part(own: ClientState, request: StartPart) -> Started:
    part = own.part(request)
    assert part.train is not None
    check_outputs(request.outputs, part.train.rows)
    check_model(request.model, part.train.width, request.outputs)
    check_options(request.algorithm)
    given = part.request.multiplicity if request.multiplicity is None else request.multiplicity
    one = np.broadcast_to(np.float64(1.0), part.train.rows)  # takes no memory
    multiplicity = one if given is None else given.astype(np.float64)
    weights = multiplicity if request.weights is None else request.weights[:, 0]
    if request.joined_rows < float(multiplicity.sum()):  # which determine the batches of an epoch
        raise breach("this table's rows alone have more joined rows than said")
    if request.multiplicity is not None:
        row_rules.check_fold(own, part.request, multiplicity)
    before = part.state if request.continues else None
    start = None if before is None else before.theta
    if request.starts:
        start = _take_start(own, part, request)
    part.options, part.started, part.kept, part.batches_left = request.algorithm, request, None, None
    model = _make_model(own, part, request)
    if request.peers:
        part.meet(request.peers)
    else:
        part.sealing = None
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
        private=releases.plan_run_noise(own, part, request, multiplicity),
    )
    part.state, part.figures = algorithm_of(part.options).start(part.setup, part.options)
    is_zero = request.model.is_linear and not request.spread and (start is None or not start.any())
    values = None if is_zero else releases.release_predictions(own, part, model.predict(part.state.theta, None, 0))
    entropy = secrets.randbits(63) if part.setup.is_private else 0
    is_told = part.sealing is None or part.figures.is_public
    figures = asdict(part.figures) if is_told else {}
    return Started(values=values, figures=figures, width=model.width, entropy=entropy)


def _take_start(own: ClientState, part: Part, request: StartPart) -> Array:
    """θ of the weights that were agreed on; its predictions leave before anything is learned here."""
    given, opened = own.contracts.jobs[request.job].start_of(request), part.request
    theta = start_theta(given, part.encoders, request.outputs)
    if theta.any() and own.policy.allow_reconstruction is None and own.releases.limits_scores:
        # Weights not trained here count as one more model; where all predictions are counted, so are these.
        scan = own.scan(opened)
        name = releases.start_name([scan.expressions[c] for c in opened.columns], given)
        own.releases.charge_scores(scan, opened.columns, request.outputs, name, own.agreed(request.job))
    return theta


def _make_model(own: ClientState, part: Part, request: StartPart) -> Model:
    spec, opened = request.model, part.request
    assert part.train is not None
    assert part.test is not None
    if spec.is_linear:
        start = (request.seed, request.block, tuple(request.spread)) if request.spread else None
        norms = None if own.agreed(request.job).feature_privacy is None else part.train.row_norms()
        return LinearModel(part.train, part.test, request.outputs, norms, start, opened.has_absent)
    module = own.module(spec, part.train.width, request.outputs, request.name, request.seed + request.block)
    train = np.zeros(part.train.rows, np.bool_) if opened.train_rows is None else opened.train_rows < 0
    missing = (train, opened.test_rows < 0)
    infos = own.scan(opened).columns
    if any(infos[c].absent is not None for c in opened.columns):  # a row that was not found has features, too
        missing = (np.zeros_like(missing[0]), np.zeros_like(missing[1]))
    given = (module, spec, part.train, part.test, request.outputs)
    return NeuralModel.of(*given, missing=missing, stream=request.seed + request.part)


def _check_figure_sums(request: SendFigures, answer: messages.Partial | messages.Masked, known: Known) -> None:
    check_summands(answer, known.part(request), "figure", [(None,)])
    require(all(v.size <= _MOST_FIGURES for v in answer.values), "values", "are more numbers than figures")


@Rules(
    TRAINING,
    enforce=lambda job, request: job.started_part(request.part).count("figure", 1),
    check_answer=_check_figure_sums,
)
def _send_figures(own: ClientState, request: SendFigures) -> messages.Partial | messages.Masked:
    part = own.started_part(request)
    return part.sealed(messages.Partial(values=[np.array(astuple(part.figures), np.float64)]), "figure")


def _enforce_second_moments(job: JobUnderContract, request: MultiplyGram) -> None:
    job.policy.check_second_moments("a product with the second moments of features")
    part = job.started_part(request.part)
    part.count("second moments", part.allowed.power_rounds)


def _check_gram_request(own: ClientState, request: MultiplyGram) -> None:
    part = own.started_part(request)
    check_array(request.vector, "vector", (None if part.train is None else part.train.width, None))


@Rules(
    TRAINING,
    enforce=_enforce_second_moments,
    check_request=_check_gram_request,
    check_answer=lambda request, answer, known: check_summands(
        answer, known.part(request), "gram", [request.vector.shape]
    ),
)
def _multiply_gram(own: ClientState, request: MultiplyGram) -> messages.Partial | messages.Masked:
    part = own.started_part(request)
    assert part.setup is not None
    if part.setup.is_private:
        raise PolicyError("exact second moments are not sent while gradients are private")
    if not isinstance(part.setup.model, LinearModel):
        raise TransportError("only a linear model has a Gram matrix")
    product = part.setup.model.train.gram_product(part.setup.weights, request.vector)
    return part.sealed(messages.Partial(values=[product]), "gram")
