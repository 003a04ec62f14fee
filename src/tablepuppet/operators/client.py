"""The client operator: one client's answers to the server's typed requests.

The client is passive and trusts nobody: it decodes only whitelisted messages, checks every SQL
expression itself, and answers a wrong request with a Failure that holds no data. Receive, compute,
send (the paper's three functions) are one call: a frame in, a frame out.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms import clients as halves
from tablepuppet.algorithms.base import PartSetup
from tablepuppet.algorithms.options import Newton
from tablepuppet.algorithms.private import PrivateGradient
from tablepuppet.allocation import give_back
from tablepuppet.errors import JobError, PolicyError, TablePuppetError, TransportError
from tablepuppet.models.linear import LinearModel, Model
from tablepuppet.models.modules import Builder, build_module
from tablepuppet.models.neural import NeuralModel
from tablepuppet.models.spec import ModelSpec
from tablepuppet.operators.owner import Owner
from tablepuppet.operators.part import Checkpoint, Kept, Part
from tablepuppet.operators.sealing import Sealing
from tablepuppet.privacy.gaussian import secure_generator
from tablepuppet.privacy.policy import Policy
from tablepuppet.tables.account_file import AccountFile
from tablepuppet.tables.encoding import encode as encode_features
from tablepuppet.tables.labels import LabelNoise, Split, describe_labels, read_labels, read_weights
from tablepuppet.tables.parts import BlockPart, Shelf
from tablepuppet.tables.statistics import statistics, without_moments
from tablepuppet.tables.store import ClientTables
from tablepuppet.tables.summands import first_summands, names_only, second_summands
from tablepuppet.tables.tokens import job_key, key_of, tokens
from tablepuppet.transport import messages as m
from tablepuppet.transport.codec import Frame, Wire, decode, encode

if TYPE_CHECKING:
    from torch.nn import Module

log = logging.getLogger(__name__)


@dataclass
class Client:
    """Answers requests about its own tables."""

    name: str
    tables: ClientTables
    policy: Policy = field(default_factory=Policy)  # judges every request before it is answered
    may_reveal: bool = False  # whether the centralised baseline may pool encoded features
    modules: dict[str, Builder] = field(default_factory=dict)  # builders of torch modules that jobs may name
    key: bytes | None = field(default=None, repr=False)  # shared by the clients, never with the server
    secret: bytes = field(default_factory=partial(secrets.token_bytes, 32), repr=False)  # this owner's own
    order_key: bytes | None = field(default=None, repr=False)  # for the order of rows; None: the same key
    shelf: Shelf = field(default_factory=Shelf, repr=False)  # the parts of models that this owner holds
    account: AccountFile = field(default_factory=AccountFile)  # of what all jobs have spent
    _parts: dict[tuple[str, int], Part] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.owner = Owner(self.policy, self.account, is_in_process=self.may_reveal)

    def handle(self, frame: Frame) -> Frame:
        """Receive, compute, send."""
        answer: m.Message
        wire: Wire = "float64"
        try:
            wire = frame.wire
            with np.errstate(over="ignore", invalid="ignore"):  # the server notices a run that diverges
                answer = self.answer(decode(frame, m.REQUESTS))
        except TablePuppetError as error:
            answer = m.Failure(error=type(error).__name__, message=str(error))
        except Exception as error:  # a bug here must not show the server any data
            log.exception("client %s failed", self.name)
            answer = m.Failure(error="TransportError", message=f"internal error ({type(error).__name__}); see its log")
        return encode(answer, wire)

    def answer(self, message: Any) -> m.Message:
        """The answer to one request, if the owner's policy has nothing against it."""
        self.policy.check(message, self.tables.use)
        return _ANSWERS[type(message)](self, message)

    # -- what a checkpoint holds -----------------------------------------------------------

    def states(self, job: str) -> dict[int, Any]:
        """All that rounds have changed in each part, and its key for masks."""
        return {
            part: Checkpoint(
                held.state,
                held.kept,
                None if held.sealing is None else held.sealing.state,
                *((0, 0) if held.setup is None or held.setup.private is None else held.setup.private.counts),
                held.shown,
            )
            for (of, part), held in self._parts.items()
            if of == job and (held.state is not None or held.sealing is not None)
        }

    def draws_noise(self, job: str) -> bool:
        """Whether an answer can never be computed again as it was."""
        parts = [part for (of, _), part in self._parts.items() if of == job]
        return any(part.setup is not None and part.setup.private is not None for part in parts)

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """While inside, requests are those of a checkpoint: they release nothing new."""
        self.owner.is_restoring = True
        try:
            yield
        finally:
            self.owner.is_restoring = False

    def restore(self, job: str, frames: Mapping[int, Frame]) -> None:
        """Sets the parts' states, once the requests that opened and started them were answered again."""
        for number, frame in frames.items():
            part = self._parts[job, number]
            found = decode(frame, Checkpoint[type(part.state)])  # type: ignore[misc]
            part.state, part.kept, part.shown = found.state, found.kept, found.shown
            if part.setup is not None and part.setup.private is not None:
                part.setup.private.counts = (found.taken, found.showings)
            if part.sealing is not None and found.seal is not None:
                part.sealing.restore(found.seal)

    # -- schema, keys, labels --------------------------------------------------------------

    def describe_table(self, request: m.DescribeTable) -> m.Message:
        return replace(self.tables.describe(request.table), withholds=not self.policy.release_parameters)

    def open_scan(self, request: m.OpenScan) -> m.Message:
        answer = self.tables.open_scan(request)
        self.policy.check_scan(self.tables.use(request.job, request.scan))
        return answer

    def count_rows(self, request: m.CountRows) -> m.Message:
        return m.RowCount(rows=self.tables.scan(request.job, request.scan).num_rows)

    def send_keys(self, request: m.SendKeys) -> m.Message:
        order = self._shuffle(request) if request.order is not None else None
        table = self.tables.scan(request.job, request.scan)
        if request.tokens == "plain":
            keys = table.select([f"c{c}" for c in request.columns]) if request.columns else pa.table({})
            return m.Keys(rows=table.num_rows, columns=keys, order=order)
        key = job_key(self.key, request.job) if request.tokens == "hmac" else b""
        columns = {}
        for column, domain in zip(request.columns, request.domains, strict=True):
            values, info = self._column(request.job, request.scan, column)
            columns[f"c{column}"] = tokens(values, info, request.tokens, key, domain)
        give_back()
        return m.Keys(rows=table.num_rows, columns=pa.table(columns), order=order)

    def _shuffle(self, request: m.SendKeys) -> NDArray[np.int64] | None:
        """Puts the rows in the clients' order; what the server needs to merge it with other clients' orders."""
        wanted = request.order
        assert wanted is not None
        key = self.order_key if self.order_key is not None else key_of(self.key)
        given = (request.job, request.scan, key, wanted.seed, wanted.offset)
        return self.tables.shuffle(*given, wants_bits=wanted.is_shared)

    def describe_labels(self, request: m.DescribeLabels) -> m.Message:
        column, info = self._column(request.job, request.scan, request.column)
        return describe_labels(column, info, request.wants_classes)

    def send_labels(self, request: m.SendLabels) -> m.Message:
        column, info = self._column(request.job, request.scan, request.column)
        order = self.tables.order(request.job, request.scan)
        noise = None
        table = self.tables.use(request.job, request.scan).table
        if request.privacy is None:
            self.owner.plain_label(table)
        else:
            name = f"{self.tables.name(request.job, request.scan)} {info.name}"
            noise = LabelNoise(request.privacy, self.secret, name, partial(self.owner.label, table, request))
        where = [
            None if c is None else self._column(request.job, request.scan, c)[0]
            for c in (request.test_column, request.validation_column)
        ]
        fractions = (request.test_fraction, request.validation_fraction)
        sides = Split(request.offset, request.seed, *fractions, *where)
        return read_labels(column, info, request.classes, sides, order, noise)

    def send_weights(self, request: m.SendWeights) -> m.Message:
        return read_weights(*self._column(request.job, request.scan, request.column))

    def _column(self, job: str, scan: int, column: int) -> tuple[pa.ChunkedArray, m.ColumnInfo]:
        table = self.tables.scan(job, scan)
        return table.column(f"c{column}"), self.tables.columns(job, scan)[column]

    # -- features --------------------------------------------------------------------------

    def open_part(self, request: m.OpenPart) -> m.Message:
        part = self._parts[request.job, request.part] = Part(request)
        columns = [self._column(request.job, request.scan, c) for c in request.columns]
        weights = None if request.multiplicity is None else request.multiplicity.astype(np.float64)
        found = [statistics(column, info, request.train_rows, weights) for column, info in columns]
        part.statistics = found if request.wants_moments else [without_moments(s) for s in found]
        if not request.wants_key or self.key is None:
            return m.FeatureStatistics(columns=[] if request.wants_key else part.statistics)
        part.sealing = Sealing(request.job, self.name, request.part, self.key)
        return m.FeatureStatistics(columns=[names_only(s) for s in part.statistics], key=part.sealing.offer())

    def sum_statistics(self, request: m.SumStatistics) -> m.Message:
        part = self._part(request)
        if part.sealing is None:
            raise TransportError("masks need a key of this part, which was not asked for")
        part.sealing.meet(request.peers)
        summands = second_summands if request.is_second else first_summands
        values = summands(part.statistics, request.columns)
        return part.sealed(m.Partial(values=values), "moments" if request.is_second else "counts")

    def encode_features(self, request: m.EncodeFeatures) -> m.Message:
        part = self._part(request)
        opened = part.request
        pairs = [self._column(opened.job, opened.scan, c) for c in opened.columns]
        columns, infos = [c for c, _ in pairs], [i for _, i in pairs]
        part.train = encode_features(columns, infos, opened.train_rows, request.encoders)
        part.test = encode_features(columns, infos, opened.test_rows, request.encoders)
        part.encoders = tuple(request.encoders)
        return m.Encoded(width=part.train.width)

    def reveal_features(self, request: m.RevealFeatures) -> m.Message:
        part = self._part(request)
        if not self.may_reveal:
            raise PolicyError('features are never pooled; algorithm="centralized" runs in process only')
        if part.train is None or part.test is None:
            raise TransportError("a part must be encoded before its features can be pooled")
        return m.RevealedFeatures(train=part.train.to_dense(), test=part.test.to_dense())

    # -- training --------------------------------------------------------------------------

    def start_part(self, request: m.StartPart) -> m.Message:
        part = self._part(request)
        if part.train is None or part.test is None:
            raise TransportError("a part must be encoded before it is trained")
        given = part.request.multiplicity
        multiplicity = np.ones(part.train.rows) if given is None else given.astype(np.float64)
        weights = multiplicity if request.weights is None else request.weights[:, 0]
        if len(weights) != part.train.rows:
            raise TransportError(f"{len(weights)} weights were sent for {part.train.rows} rows")
        part.options, part.started = request.algorithm, request
        model = self._model(part, request)
        part.setup = PartSetup(
            model=model,
            multiplicity=multiplicity,
            weights=weights,
            outputs=request.outputs,
            blocks=request.blocks,
            clients=request.clients,
            joined_rows=request.joined_rows,
            l2=request.l2,
            seed=request.seed,
            private=None if request.privacy is None else PrivateGradient(request.privacy, secure_generator()),
        )
        if request.peers:
            if part.sealing is None:
                raise TransportError("masks need a key of this part, which was not asked for")
            part.sealing.meet(request.peers)
        else:
            part.sealing = None
        self.owner.features(self.tables.use(request.job, part.request.scan).table, request, multiplicity)
        part.state, part.figure = halves.start(part.setup, part.options)
        values = None if request.model.is_linear else self._shown(part, model.predict(part.state.theta, None, 0))
        entropy = secrets.randbits(63) if part.setup.is_private else 0
        is_told = part.sealing is None or isinstance(part.options, Newton)
        figure = part.figure if is_told else 0.0
        return m.Started(values=values, figure=figure, width=model.width, entropy=entropy)

    def _show(self, part: Part) -> None:
        """Counts the exact numbers that leave of each row."""
        assert part.setup is not None
        assert part.train is not None
        is_noisy = part.setup.private is not None and part.setup.private.privacy.prediction_bound > 0
        part.shown += 0 if is_noisy else part.setup.outputs
        self.owner.predictions(part.shown, part.train.width)

    def _shown(self, part: Part, predictions: m.Array) -> m.Array:
        """Predictions of train rows as they may leave."""
        assert part.setup is not None
        self._show(part)
        return predictions if part.setup.private is None else part.setup.private.shown(predictions)

    def _model(self, part: Part, request: m.StartPart) -> Model:
        spec, opened = request.model, part.request
        assert part.train is not None
        assert part.test is not None
        if spec.is_linear:
            clips = request.privacy is not None and request.privacy.clips
            return LinearModel(part.train, part.test, request.outputs, part.train.row_norms() if clips else None)
        module = self._module(spec, part.train.width, request.outputs, request.name, request.seed + request.block)
        train = np.zeros(part.train.rows, np.bool_) if opened.train_rows is None else opened.train_rows < 0
        missing = (train, opened.test_rows < 0)
        given = (module, spec, part.train, part.test, request.outputs)
        return NeuralModel.of(*given, missing=missing, stream=request.seed + request.part)

    def _module(self, spec: ModelSpec, width: int, outputs: int, name: str, seed: int = 0) -> Module:
        """A block's module; the user's own only if this client was given its builder."""
        if spec.kind == "module" and spec.module not in self.modules:
            raise JobError(
                f"this client knows no module {spec.module!r}, and code is never sent to a client; "
                "start it with the builder under that name"
            )
        return build_module(spec, width, outputs, seed=seed, name=name, builder=self.modules.get(spec.module))

    def multiply_gram(self, request: m.MultiplyGram) -> m.Message:
        setup = self._started(request).setup
        if setup is not None and setup.is_private:
            raise PolicyError("exact second moments are not sent while gradients are private")
        if setup is None or not isinstance(setup.model, LinearModel):
            raise TransportError("only a linear model has a Gram matrix")
        product = setup.model.train.gram_product(setup.weights, request.vector)
        return self._part(request).sealed(m.Partial(values=[product]), "gram")

    def send_figure(self, request: m.SendFigure) -> m.Message:
        part = self._started(request)
        return part.sealed(m.Partial(values=[np.array([part.figure])]), "figure")

    def seal(self, request: m.Seal) -> m.Message:
        part = self._part(request)
        if part.sealing is None:
            raise TransportError("this part's sums are not masked")
        return part.sealing.again(request.scales)

    def train(self, request: Any) -> m.Message:
        part = self._started(request)
        assert part.setup is not None
        if part.kept is not None and part.kept.is_restored:
            raise TransportError("training is over: the part's best parameters were restored")
        if part.sealing is not None and isinstance(request, m.Combined):
            part.sealing.rescale(request.scales)
        part.state, answer = halves.step(part.setup, part.options, part.state, request)
        if isinstance(answer, m.Partial):
            return part.sealed(answer, "training")
        if isinstance(answer, m.Predictions):
            return replace(answer, values=self._shown(part, answer.values))
        return answer

    def evaluate(self, request: m.Evaluate) -> m.Message:
        part = self._started(request)
        assert part.setup is not None
        theta, model = part.theta, part.setup.model
        private = part.setup.private
        self._show(part)
        test, train = model.predict_test(theta), model.predict(theta) if request.train else None
        if private is not None:
            test, train = private.shown(test), None if train is None else private.noised(train)
        return m.Evaluation(
            test=test,
            train=train,
            norm=float(np.vdot(theta, theta)),
        )

    def keep(self, request: m.Keep) -> m.Message:
        part = self._started(request)
        part.kept = Kept(part.state.theta)
        return m.Done()

    def restore_kept(self, request: m.Restore) -> m.Message:
        part = self._started(request)
        if part.kept is None:
            raise TransportError("no parameters were kept that could be restored")
        part.kept = replace(part.kept, is_restored=True)
        return m.Done()

    def release(self, request: m.Release) -> m.Message:
        part = self._started(request)
        self._trained(part)
        return m.Parameters(values=part.theta)

    def hold_part(self, request: m.HoldPart) -> m.Message:
        part = self._started(request)
        assert part.started is not None
        every = self.tables.expressions(request.job, part.request.scan)
        held = BlockPart(
            model=request.model,
            name=part.started.name,
            features=tuple(request.features),
            encoders=part.encoders,
            theta=np.asarray(part.theta, np.float64),
            outputs=part.started.outputs,
            spec=part.started.model,
            uses=(tuple(every[c] for c in part.request.columns),),
        )
        self.shelf.hold(held, request.block)
        self._trained(part)
        return m.Done()

    def _trained(self, part: Part) -> None:
        assert part.started is not None
        table = self.tables.use(part.request.job, part.request.scan).table
        self.owner.trained(table, (part.encoders, part.started.model, part.started.outputs), part.theta)

    # -- prediction ------------------------------------------------------------------------

    def score_rows(self, request: m.ScoreRows) -> m.Message:
        return self._score(request, request.encoders, request.theta, request.model, request.outputs)

    def score_own_rows(self, request: m.ScoreOwnRows) -> m.Message:
        part = self.shelf.find(request.model, request.name)
        every = self.tables.expressions(request.job, request.scan)
        infos = self.tables.columns(request.job, request.scan)
        part.check([every[c] for c in request.columns], [infos[c] for c in request.columns])
        return self._score(request, part.encoders, part.theta, part.spec, part.outputs)

    def _score(
        self, request: Any, encoders: Sequence[m.Encoder], theta: m.Array, spec: ModelSpec, outputs: int
    ) -> m.Scores:
        """h of the rows asked for."""
        pairs = [self._column(request.job, request.scan, c) for c in request.columns]
        features = encode_features([c for c, _ in pairs], [i for _, i in pairs], request.rows, encoders)
        table = self.tables.use(request.job, request.scan).table
        self.owner.scores(table, (encoders, spec, outputs), theta, features.width)
        if not spec.is_linear:
            module = self._module(spec, features.width, outputs, request.name)
            missing = request.rows < 0
            model = NeuralModel.of(module, spec, features, features, outputs, missing=(missing, missing), stream=0)
            return m.Scores(values=model.predict(theta.astype(spec.dtype)))
        if len(theta) != features.width:
            raise TransportError(f"the parameters are for {len(theta)} columns, and there are {features.width}")
        return m.Scores(values=features.dot(theta))

    def send_identifiers(self, request: m.SendIdentifiers) -> m.Message:
        table = self.tables.scan(request.job, request.scan)
        return m.Identifiers(columns=table.select([f"c{c}" for c in request.columns]))

    def close_job(self, request: m.CloseJob) -> m.Message:
        self.tables.close(request.job)
        self._parts = {key: part for key, part in self._parts.items() if key[0] != request.job}
        return m.Done()

    def _part(self, request: Any) -> Part:
        if (request.job, request.part) not in self._parts:
            raise TransportError(f"job {request.job} has no part {request.part} at this client")
        return self._parts[request.job, request.part]

    def _started(self, request: Any) -> Part:
        part = self._part(request)
        if part.setup is None:
            raise TransportError("a part must be started before it is trained")
        return part


# Requests that leave something behind at the client besides a part's state.
SETUP = (m.OpenScan, m.SendKeys, m.OpenPart, m.SumStatistics, m.EncodeFeatures, m.StartPart)

_ANSWERS: dict[type, Callable[[Client, Any], m.Message]] = {
    m.DescribeTable: Client.describe_table,
    m.OpenScan: Client.open_scan,
    m.CountRows: Client.count_rows,
    m.SendKeys: Client.send_keys,
    m.DescribeLabels: Client.describe_labels,
    m.SendLabels: Client.send_labels,
    m.SendWeights: Client.send_weights,
    m.OpenPart: Client.open_part,
    m.SumStatistics: Client.sum_statistics,
    m.EncodeFeatures: Client.encode_features,
    m.RevealFeatures: Client.reveal_features,
    m.StartPart: Client.start_part,
    m.SendFigure: Client.send_figure,
    m.MultiplyGram: Client.multiply_gram,
    m.Seal: Client.seal,
    m.SgdUpdate: Client.train,
    m.AdmmUpdate: Client.train,
    m.NewtonUpdate: Client.train,
    m.Move: Client.train,
    m.Combined: Client.train,
    m.Evaluate: Client.evaluate,
    m.Keep: Client.keep,
    m.Restore: Client.restore_kept,
    m.Release: Client.release,
    m.ScoreRows: Client.score_rows,
    m.ScoreOwnRows: Client.score_own_rows,
    m.HoldPart: Client.hold_part,
    m.SendIdentifiers: Client.send_identifiers,
    m.CloseJob: Client.close_job,
}
