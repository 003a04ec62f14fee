"""ADMM's θ-step by a first-order method on the client's own rows: of a neural model, and of any model under privacy.

    min_θ  (1/N) Σ_k [Y_kᵀ f(θ) + ½ Mρ G_k ‖f(θ)‖²] + ½ pull ‖θ − anchor‖²

    one client   anchor 0, pull β (the penalty)
    several      anchor w − u_q, pull ρ_u,  u_q ← u_q + θ_q − w,  inner rounds

Rows pass in batches of the client's own choice, which nobody else learns; the optimiser's memory lives on from one call
to the next. Under feature privacy the gradients of samples are clipped and noised (`LocalStep`), as many as the ledger
counts, from the agreed w and without u_q; the penalty is added after the noise.

Then the client half of neural models. The server half is that of linear models (server.py), but the reported model is
the last iterate: a combination of networks is no network.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from tablepuppet.algorithms.admm.options import Admm, AdmmUpdate
from tablepuppet.algorithms.base import Answer, PartSetup, squared_norm
from tablepuppet.algorithms.numerics.optimizers import Moments, Optimizer, Rule, descend, sensitivity
from tablepuppet.algorithms.private import PrivateGradient
from tablepuppet.arrays import Array
from tablepuppet.models.linear import Model
from tablepuppet.models.modules import one_torch_thread
from tablepuppet.models.neural import NeuralModel
from tablepuppet.protocol.base import Combined, Partial, Predictions

_BATCHES = 64  # an epoch, where the user did not choose their size
_STEPS = 32  # an outer round has at least
_BATCH = (64, 4096)


def descend_locally(
    setup: PartSetup,
    options: Admm,
    theta: Array,
    moments: Moments,
    signal: Array,
    factor: float,
    *,
    learning_rate: float,
    pull: float,
    anchor: Array,
) -> tuple[Array, Moments]:
    """θ after some epochs, starting where it stands."""
    model, rows = setup.model, len(setup.multiplicity)
    assert isinstance(model, NeuralModel)
    size, epochs = local_epochs(rows, setup.clients, options)
    descent = Rule(options.local_optimizer)
    quadratic = factor * setup.multiplicity
    with one_torch_thread():
        for _ in range(epochs):
            order = np.random.default_rng((setup.seed, moments.step)).permutation(rows)
            signals, squares = signal[order], quadratic[order]  # at once: a batch has few rows
            for start in range(0, rows, size):
                here = slice(start, start + size)
                batch = order[here]
                slope = model.slope(theta, signals[here], squares[here], batch, moments.step)
                slope *= rows / (len(batch) * setup.joined_rows)
                slope += pull * (theta - anchor)
                theta, moments = descend(theta, slope, moments, learning_rate, descent, setup.unit)
    return theta, moments


def local_epochs(rows: int, clients: int, options: Admm) -> tuple[int, int]:
    """The rows of a batch, and the epochs of a call: two in an outer round, more for a small table; the inner rounds of
    a consensus share them."""
    size = options.local_batch_size or min(max(rows // _BATCHES, _BATCH[0]), _BATCH[1])
    batches, shared = -(-rows // size), options.inner_rounds if clients > 1 else 1
    usual = max(1, -(-max(_STEPS, 2 * batches) // (max(1, batches) * shared)))
    return size, options.local_epochs or usual


@dataclass(frozen=True, slots=True, eq=False)
class LocalStep:
    """argmin_θ (1/N) Σ_k [Y_kᵀ h_k + ½ q_k ‖h_k‖²] + ½ β ‖θ‖², approached by noisy gradients.

    Where a block has several clients, each takes a few steps from the agreed θ, on its own rows' mean loss; the sum of
    what they reach, each times its part's share of the joined rows, is agreed next. There is no dual variable: it would
    sum up the noise of all rounds.
    """

    model: Model
    private: PrivateGradient
    signal: Array  # Y
    quadratic: Array  # q = MρG
    joined_rows: float  # N, or the part's share of it
    l2: float
    unit: float = 1.0  # of the label

    def solve(
        self, theta: Array, moments: Moments, learning_rate: float, optimizer: Optimizer, *, fades: bool = False
    ) -> tuple[Array, Moments]:
        """θ after the client's local steps; what an optimiser makes of noisy gradients costs no privacy.

        `fades`: the learning rate falls to 0 with the noisy gradients that are left of the run's.
        """
        if not self.joined_rows:
            return theta, moments  # no row of the part is trained on
        privacy, descent = self.private.privacy, Rule(optimizer)
        for _ in range(privacy.steps):
            rows = self.private.sample(len(self.signal))
            h = self.model.predict(theta, rows, moments.step)
            slope = self.signal[rows] + self.quadratic[rows, None] * h
            total = self.private.gradient(self.model, theta, slope, rows, moments.step)
            gradient = total / (privacy.rate * self.joined_rows) + self.l2 * theta
            rate = learning_rate * self.private.remaining if fades else learning_rate
            theta, moments = descend(theta, gradient, moments, rate, descent, self.unit)
        return theta, moments


class NeuralAdmmState(msgspec.Struct, frozen=True):
    """A part's reported parameters (w where a block has several clients), its own, and the θ-step under way."""

    theta: Array
    iterate: Array  # θ_q
    gap: Array  # u_q
    moments: Moments
    signal: Array
    factor: float = 0.0
    union_rho: float = 0.0
    inner: int = 0
    outer: int = 0  # outer rounds so far


def client_start(setup: PartSetup, options: Admm) -> NeuralAdmmState:
    theta = setup.model.initial()
    zero = np.zeros_like(theta)
    return NeuralAdmmState(theta, theta, zero, Moments.zero(theta, options.local_optimizer), np.zeros((0, 0)))


def mean_curvature(setup: PartSetup) -> float:
    """The mean diagonal of the part's share of the Gauss–Newton matrix: the scale of ρ_u."""
    return sensitivity(setup) / max(1, setup.model.width)


def client_step(
    setup: PartSetup, options: Admm, state: NeuralAdmmState, message: AdmmUpdate | Combined
) -> tuple[NeuralAdmmState, Answer]:
    """The θ-step: at once for a single client, in inner rounds otherwise."""
    replace = msgspec.structs.replace
    if isinstance(message, Combined):
        agreed = message.values[0]
        if setup.is_private:
            state = replace(state, theta=agreed, iterate=agreed, inner=state.inner + 1)
        else:
            state = replace(state, theta=agreed, gap=state.gap + state.iterate - agreed, inner=state.inner + 1)
        if state.inner >= options.inner_rounds:
            return state, _predict(setup, state)
        return _propose(setup, options, state)
    state = replace(state, outer=state.outer + 1)
    if setup.clients == 1:
        state = replace(state, signal=message.signal, factor=message.factor)
        theta, moments = _solve(setup, options, state, setup.l2, np.zeros_like(state.iterate))
        state = replace(state, theta=theta, iterate=theta, moments=moments, signal=np.zeros((0, 0)))
        return state, _predict(setup, state)
    gap = state.gap * (state.union_rho / message.union_rho)  # u is scaled by ρ_u
    gap = gap.astype(state.theta.dtype)
    state = replace(state, signal=message.signal, factor=message.factor, union_rho=message.union_rho, gap=gap, inner=0)
    return _propose(setup, options, state)


def _propose(setup: PartSetup, options: Admm, state: NeuralAdmmState) -> tuple[NeuralAdmmState, Answer]:
    """θ_q of this inner round; θ_q + u_q is sent, under privacy the part's share of θ_q."""
    iterate, moments = _solve(setup, options, state, state.union_rho, state.theta - state.gap)
    sent = setup.share * iterate if setup.is_private else iterate + state.gap
    return msgspec.structs.replace(state, iterate=iterate, moments=moments), Partial(values=[sent])


def _solve(
    setup: PartSetup, options: Admm, state: NeuralAdmmState, pull: float, anchor: Array
) -> tuple[Array, Moments]:
    """min (1/N) l(θ) + ½ pull ‖θ − anchor‖², from where the part's own θ stands."""
    slowing = float(np.sqrt(state.outer))
    if not setup.is_private:
        given = (state.iterate, state.moments, state.signal, state.factor)
        rate = options.first_local_rate / slowing
        return descend_locally(setup, options, *given, learning_rate=rate, pull=pull, anchor=anchor)
    assert setup.private is not None
    quadratic = state.factor * setup.multiplicity
    rows = setup.share * setup.joined_rows
    step = LocalStep(setup.model, setup.private, state.signal, quadratic, rows, setup.l2, setup.unit)
    rate = setup.private.privacy.learning_rate / slowing
    return step.solve(state.iterate, state.moments, rate, options.local_optimizer)


def _predict(setup: PartSetup, state: NeuralAdmmState) -> Predictions:
    return Predictions(values=setup.model.predict(state.theta), products=np.array([squared_norm(state.theta)]))
