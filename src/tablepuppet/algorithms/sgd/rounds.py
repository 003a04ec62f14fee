"""Mini-batch gradient descent pushed down to tables (RFL-SGD-V, RFL-SGD).

    server       r = ∂ℓ/∂a on a batch B of joined rows,  Y_i = collapse_i(r)   Eq. SGD-Y-formula
    client       ∇ = T_iᵀ Y_i / |B| + βθ_i                                     Eq. sgd-client-side
    coordinator  sums the partial gradients of a block's clients               Eq. SGD-horizontal

One message carries Y of this batch and the row numbers of the next. So a batch costs one round trip, or two if a table
has several clients. Full batches without momentum are gradient descent on the materialised join, to rounding. In order:
options, messages, the server's half, the client's half.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta

from tablepuppet.algorithms import base
from tablepuppet.algorithms.base import Answer, BlockAnswer, BlockUpdate, Figures, PartSetup, Problem, Server
from tablepuppet.algorithms.numerics import optimizers
from tablepuppet.algorithms.numerics.optimizers import Moments, Rule, clip_gradient, descend
from tablepuppet.algorithms.numerics.search import best_intercept
from tablepuppet.algorithms.options import AlgorithmOptions, Positive, Tolerance
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.models.linear import LinearModel
from tablepuppet.models.losses import Loss
from tablepuppet.protocol.base import Combined, Count, Discloses, Partial, Predictions, Update
from tablepuppet.protocol.bounds import require


class Sgd(AlgorithmOptions, frozen=True, tag="sgd"):
    """Mini-batch gradient descent (RFL-SGD-V, RFL-SGD; docs/algorithms.md).

    - `learning_rate`, `optimizer`: None for both is Adam under a cosine schedule (under feature privacy, plain descent
      for linear models); otherwise plain descent. Without a rate, training starts at the best constant, and Adam's
      steps are in units of the label's spread. Plain descent then takes the reciprocal of a bound on the curvature (for
      networks, of its estimate at the start).
    - `momentum`, `weight_decay`: as in torch.optim; `tolerance`: the relative gain at which it ends.
    - `schedule`, `decay`: how the rate changes with every batch; `warmup_epochs`: of linear increase before.
    - `clip_norm`: a bound on each block's gradient, after its clients' shares are summed.

    >>> Sgd(learning_rate=0.1, momentum=0.9)
    Sgd(learning_rate=0.1, momentum=0.9)
    """

    name: ClassVar[str] = "sgd"
    learning_rate: Positive | None = None
    optimizer: Literal["sgd", "adam", "adamw"] | None = None
    momentum: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    weight_decay: Annotated[float, Meta(ge=0.0)] = 0.0
    schedule: Literal["constant", "linear", "cosine", "exponential"] | None = None
    decay: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.9  # factor of an exponential schedule, each epoch
    warmup_epochs: Annotated[float, Meta(ge=0.0)] = 0.0
    clip_norm: Annotated[float, Meta(gt=0.0)] | None = None
    tolerance: Tolerance = 0.0

    def resolve_defaults(self, *, is_linear: bool, is_private: bool) -> "Sgd":
        """The same, with an optimiser and a schedule where the user left them open; noise wants steps that fade out."""
        is_open = self.optimizer is None and self.learning_rate is None and not (is_linear and is_private)
        optimizer, schedule = ("adam", "cosine") if is_open else ("sgd", "linear" if is_private else "constant")
        return msgspec.structs.replace(self, optimizer=self.optimizer or optimizer, schedule=self.schedule or schedule)

    @property
    def rule(self) -> Rule:
        return Rule(self.optimizer or "sgd", self.momentum, self.weight_decay)

    def for_private_run(self) -> "Sgd":
        return msgspec.structs.replace(self, tolerance=0.0)


class VflSgd(Sgd, frozen=True, tag="vfl-sgd"):
    """The same on expanded blocks, a row of every table for each joined row: a baseline."""

    name: ClassVar[str] = "vfl-sgd"


class SgdUpdate(Update, frozen=True):
    """Step by the derivatives Y of the last batch; predict the rows of the next. → Predictions | Partial | Masked"""

    signal: Annotated[Array | None, Discloses("signals", is_per_row=True)]  # None: nothing to learn yet
    count: Count  # joined rows in the last batch
    learning_rate: float
    next_rows: RowNumbers | None  # None: all

    def check(self, outputs: int, clients: int) -> None:
        require(self.signal is None or self.count > 0, "count", "is 0, and there is a signal")


class SgdFigures(Figures, frozen=True):
    """Of linear models the largest eigenvalue of Tᵀ diag(w) T / N, of networks the trace of the Gauss–Newton matrix."""

    curvature: float = 0.0


def join_step(shard: Any, *, loss: Loss, intercept: Array) -> tuple[Sequence[Array], dict[str, Any]]:
    """r = ∂ℓ/∂a."""
    residual = loss.gradient(shard.scores + intercept, shard.labels)
    return (residual,), {"residual": residual.sum(axis=0), "squares": float(np.vdot(residual, residual))}


def learning_rate_at(peak: float, step: int, steps: int, epochs: int, options: Sgd) -> float:
    """The learning rate of batch number `step`, where an epoch has `steps` batches.

    >>> [learning_rate_at(1.0, step, 2, 2, Sgd(schedule="linear")) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    warmup = options.warmup_epochs * steps
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    epoch = step / steps
    if options.schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * epoch / epochs))
    if options.schedule == "linear":
        return peak * (1.0 - epoch / epochs)
    if options.schedule == "exponential":
        return float(peak * options.decay ** math.floor(epoch))
    return peak


@dataclass
class SgdServer(Server):
    """The server's half: batches, the intercept, the learning rate."""

    problem: Problem
    options: Sgd

    def __post_init__(self) -> None:
        loss, joined = self.problem.loss, self.problem.joined
        self.intercept = np.zeros(loss.outputs)
        size = self.problem.batch_size
        self._size = joined.rows if size is None or size >= joined.rows else size
        self._moments = Moments.zero(self.intercept, self.options.optimizer)
        trained = self.problem.head
        own = np.zeros(0) if trained is None else trained.own
        self._noise = optimizers.noise_edge(self.problem)
        self._head_moments = Moments.zero(own, self.options.optimizer)
        self._step = 0
        self._epoch_order: tuple[int, Any] = (-1, None)
        self._learning_rate = self._peak = self.options.learning_rate or 0.0
        self._shares = [1.0] * self.problem.blocks  # of the learning rate: under noise, small tables take small steps
        self._batch: tuple[Any, list[RowNumbers] | None] = (joined, None)
        self._values: list[Array] = []
        self._generator = np.random.default_rng()  # of Poisson samples: see `sample_from`

    @property
    def _is_full(self) -> bool:
        return self._size == self.problem.joined.rows

    def rounds_per_epoch(self) -> int:
        return -(-self.problem.joined.rows // self._size)

    def sample_from(self, entropy: Sequence[int]) -> None:
        """Poisson samples come from the clients' chance: a resumed run repeats them, and outsiders cannot."""
        self._generator = np.random.default_rng(list(entropy))

    def begin(self, predictions: list[Array], figures: Sequence[SgdFigures]) -> None:
        if self.options.learning_rate is None:
            # power iteration approaches the eigenvalue from below
            bound = self.problem.loss.bound * (1.0 + 1.1 * sum(f.curvature for f in figures)) + max(self.problem.ridges)
            is_wider = self.problem.head is not None
            linear, neural = (0.01, 0.01) if self.problem.is_private else (0.02, 0.01) if is_wider else (0.05, 0.03)
            adaptive = linear if self.problem.is_linear else neural
            self._peak = 1.0 / bound if self.options.optimizer == "sgd" else adaptive
            if self.problem.private_rates and self.options.optimizer == "sgd":
                self._peak = max(self.problem.private_rates)
                self._shares = [rate / self._peak for rate in self.problem.private_rates]
        is_begun = self.problem.is_private or self.options.learning_rate is None
        if (self.problem.has_intercept and is_begun) or self.problem.is_centred:
            # The best constant for the labels alone: it looks at no feature. Under privacy it stays.
            self.intercept = best_intercept(self.problem, self.problem.zeros())
        self._batch = self._next_batch()
        self._values = predictions

    def opening(self) -> list[BlockUpdate] | None:
        return None if self._is_full else self._updates(None, None, 0)

    def join_step(self) -> list[BlockUpdate]:
        joined, rows = self._batch
        done = joined.run(join_step, self._values, signals=1, loss=self.problem.loss, intercept=self.intercept)
        if self._noise is not None and self.problem.head is not None:
            square = done.sums["squares"] / (joined.rows * self.problem.loss.outputs)
            self._noise.see(square, done.sums["lengths"] / joined.rows)
            self.problem.head.penalties = [(weights, np.zeros(len(weights))) for weights in self._noise.weights]
        self._learning_rate = learning_rate_at(
            self._peak, self._step, self.rounds_per_epoch(), self.problem.epochs, self.options
        )
        if self.problem.has_intercept and not self.problem.is_private:
            gradient = clip_gradient(done.sums["residual"] / joined.rows, self.options.clip_norm)
            free = Rule(self.options.rule.optimizer, self.options.rule.momentum)
            self.intercept, self._moments = descend(
                self.intercept, gradient, self._moments, self._learning_rate, free, self.problem.unit
            )
        if self.problem.head is not None and len(self.problem.head.own):
            slope = done.sums["head"] / joined.rows + self.problem.head_l2 * self.problem.head.own
            self.problem.head.own, self._head_moments = descend(
                self.problem.head.own,
                clip_gradient(slope, self.options.clip_norm),
                self._head_moments,
                self._learning_rate,
                self.options.rule,
            )
        self._step += 1
        self._batch = self._next_batch()
        # Under privacy a sum is divided by the mean size of a batch: the number of drawn rows stays hidden.
        return self._updates(done.signals[0], rows, self._size if self.problem.is_private else joined.rows)

    def _updates(self, signals: list[Array] | None, rows: list[RowNumbers] | None, count: int) -> list[BlockUpdate]:
        """Y of the batch that was, and the rows of the batch that comes."""
        coming = self._batch[1]
        return [
            BlockUpdate(
                SgdUpdate,
                {"signal": None if signals is None else signals[i]},
                {"count": count, "learning_rate": self._learning_rate * self._shares[i]},
                rows=None if rows is None else rows[i],
                next_rows=None if coming is None else coming[i],
                wants_rows=True,
            )
            for i in range(self.problem.blocks)
        ]

    def _next_batch(self) -> tuple[Any, list[RowNumbers] | None]:
        """Joined rows without replacement within an epoch: a permutation from (seed, epoch).

        Under privacy, a Poisson sample: each joined row independently, and so that nobody outside can know it.
        """
        if self._is_full:
            return self.problem.joined, None
        if self.problem.is_private:
            size = int(self._generator.binomial(self.problem.joined.rows, self._size / self.problem.joined.rows))
            drawn = self._generator.choice(self.problem.joined.rows, size, replace=False, shuffle=False)
            batch, rows = self.problem.joined.take(np.sort(drawn))
            return batch, rows
        epoch, place = divmod(self._step, self.rounds_per_epoch())
        if self._epoch_order[0] != epoch:
            self._epoch_order = (-1, None)  # before the next one comes: it is as long as the joined table
            count = self.problem.joined.rows
            order = np.arange(count, dtype=np.int32 if count < 2**31 else np.int64)
            np.random.default_rng((self.problem.seed, epoch)).shuffle(order)
            self._epoch_order = (epoch, order)
        chosen = self._epoch_order[1][place * self._size : (place + 1) * self._size]
        batch, rows = self.problem.joined.take(chosen.astype(np.int64))
        return batch, rows

    def absorb(self, answers: Sequence[BlockAnswer]) -> None:
        self._values = [a.values for a in answers]
        if self._is_full and self.problem.is_linear:  # a neural model may have predicted under dropout
            self.predictions = self._values

    def residuals(self) -> dict[str, float]:
        return {"learning_rate": self._learning_rate}


class SgdState(msgspec.Struct, frozen=True):
    """A part's parameters, its optimiser's memory, and the rows of the batch under way."""

    theta: Array
    moments: Moments
    rows: RowNumbers | None
    learning_rate: float = 0.0
    divisor: float = 1.0  # of the sum that comes back


def client_start(setup: PartSetup, options: Sgd) -> tuple[SgdState, SgdFigures]:
    theta = setup.model.initial()
    is_told = isinstance(setup.model, LinearModel) or setup.is_private
    figures = SgdFigures(0.0 if is_told else optimizers.sensitivity(setup))
    return SgdState(theta, Moments.zero(theta, options.optimizer), None), figures


def client_step(
    setup: PartSetup, options: Sgd, state: SgdState, message: SgdUpdate | Combined
) -> tuple[SgdState, Answer]:
    """The partial gradient; then, once it is summed over the block, the step and new predictions."""
    if isinstance(message, SgdUpdate):
        if message.signal is not None:
            drawn = state.moments.step  # the masks under which this batch was predicted
            if setup.private is None:
                total = setup.model.gradient(state.theta, message.signal, state.rows, drawn)
            else:
                total = setup.private.gradient(setup.model, state.theta, message.signal, state.rows, drawn)
            # A share of noise lies on a grid that masks keep; a division would leave the grid.
            divisor = float(message.count) if setup.private is not None and setup.private.is_shared else 1.0
            gradient = total if divisor > 1.0 else total / message.count
            state = msgspec.structs.replace(
                state, rows=message.next_rows, learning_rate=message.learning_rate, divisor=divisor
            )
            if setup.clients > 1:
                return state, Partial(values=[gradient])
            state = _descend(setup, options, state, gradient)
        else:
            state = msgspec.structs.replace(state, rows=message.next_rows)
    else:
        gradient = (message.values[0] / state.divisor).astype(state.theta.dtype, copy=False)
        state = _descend(setup, options, state, gradient)
    predictions = setup.model.predict(state.theta, state.rows, state.moments.step)
    return state, Predictions(values=predictions, products=np.array([base.squared_norm(state.theta)]))


def _descend(setup: PartSetup, options: Sgd, state: SgdState, gradient: Array) -> SgdState:
    slope = clip_gradient(gradient + setup.decay * state.theta, options.clip_norm)
    theta, moments = descend(state.theta, slope, state.moments, state.learning_rate, options.rule, setup.unit)
    return msgspec.structs.replace(state, theta=theta, moments=moments)
