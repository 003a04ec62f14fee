"""ADMM: options, messages, and the client's half, for all models: its part's θ-step, at once or in inner rounds.

    one client   θ = argmin (1/N) l(θ) + ½ β ‖θ‖²
    several      θ_q = argmin (1/N) l_q(θ) + ρ_u/2 ‖θ − w + u_q‖²,  u_q ← u_q + θ_q − w,  inner rounds
                 or, with `union="exact"`, TᵀY and once Tᵀ diag(G) T to the coordinator, who solves

A linear model's step is a linear system, factored once, or solved by products where a block is wide. Networks, and all
models under feature privacy, descend: then from the agreed w and without u_q. The reported model of linear
blocks is the best combination of iterates; a combination of networks is no network, and theirs is the last iterate. The
server's half is in server.py.

Descent is a first-order method on the client's own rows:

    min_θ  (1/N) Σ_k [Y_kᵀ f(θ) + ½ Mρ G_k ‖f(θ)‖²] + ½ pull ‖θ − anchor‖²

Rows pass in batches of the client's own choice, which nobody else learns; the optimiser's memory lives on from one call
to the next. Under feature privacy the gradients of samples are clipped and noised (`LocalStep`), as many as the ledger
counts; the penalty is added after the noise.
"""

from functools import partial
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta

from tablepuppet.algorithms.base import Answer, Figures, PartSetup, PrivateGradient, squared_norm
from tablepuppet.algorithms.numerics.linear_systems import WIDE, Products, Spectrum
from tablepuppet.algorithms.numerics.optimizers import Moments, Optimizer, Rule, descend, sensitivity
from tablepuppet.algorithms.numerics.subspace import Trail
from tablepuppet.algorithms.options import AlgorithmOptions, Count, Memory, Positive, Tolerance
from tablepuppet.arrays import Array, pieces
from tablepuppet.models.linear import LinearModel
from tablepuppet.models.modules import one_torch_thread
from tablepuppet.models.neural import Model, NeuralModel
from tablepuppet.protocol.base import Combined, Discloses, Done, Move, Partial, Predictions, Update
from tablepuppet.protocol.bounds import require


class Admm(AlgorithmOptions, frozen=True, tag="admm"):
    """Alternating direction method of multipliers (RFL-ADMM-V, RFL-ADMM; docs/algorithms.md).

    - `rho`: the penalty in units of the loss curvature; None: 0.4, and 1 for networks. `adapt`: tune it, for linear
      models.
    - `relax`: over-relaxation; `variant`: "sharing", or "published" for the paper's update, which may diverge.
    - `union`: how the clients of one table agree; `inner_rounds`: rounds for it.
    - `memory`: earlier iterates that the reported model combines; `tolerance`: the relative gain at which it ends.
    - `local_epochs`, `local_batch_size`, `local_optimizer`, `local_learning_rate`: how a client solves the θ-step of a
      network; None: two epochs and at least 32 steps, at 0.01 in units of the label's spread, falling as 1/√round.

    >>> Admm(rho=0.5)
    Admm(rho=0.5)
    """

    name: ClassVar[str] = "admm"
    rho: Positive | None = None
    adapt: bool = True
    relax: Annotated[float, Meta(gt=0.0, lt=2.0)] = 1.6
    variant: Literal["sharing", "published"] = "sharing"
    union: Literal["consensus", "exact"] = "consensus"
    inner_rounds: Count = 10
    memory: Memory = 8  # fewer stall where tables correlate: docs/decisions/0006
    tolerance: Tolerance = 1e-8
    local_epochs: Count | None = None
    local_batch_size: Count | None = None
    local_optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    local_learning_rate: Positive | None = None

    def start_rho(self, is_linear: bool = True) -> float:
        """ρ to begin with, in units of the loss curvature."""
        if self.rho is not None:
            return self.rho
        return 0.4 if is_linear else 1.0

    @property
    def first_local_rate(self) -> float:
        """The learning rate of the first round's local steps."""
        return 0.01 if self.local_learning_rate is None else self.local_learning_rate

    @property
    def averages(self) -> bool:
        """Whether the reported model is the best combination of iterates instead of the last one."""
        return self.variant == "sharing" and self.memory > 0

    @property
    def sends_second_moments(self) -> bool:
        return self.union == "exact"

    @property
    def samples_at_clients(self) -> bool:
        return True

    def for_kinks(self) -> "Admm":
        """Without the search over past iterates."""
        return msgspec.structs.replace(self, memory=0)

    def for_private_run(self) -> "Admm":
        return msgspec.structs.replace(self, memory=0, adapt=False, tolerance=0.0, relax=1.0)


class VflAdmm(Admm, frozen=True, tag="vfl-admm"):
    """The same on expanded blocks, a row of every table for each joined row: a baseline."""

    name: ClassVar[str] = "vfl-admm"


class AdmmUpdate(Update, frozen=True):
    """Solve your part of ADMM from the derivatives Y of all training rows. → Predictions | Partial | Masked"""

    keeps_trail: ClassVar[bool] = True
    signal: Annotated[Array, Discloses("signals", is_per_row=True)]
    factor: float  # Mρ
    union_rho: float  # ρ_u of the consensus rounds
    coefficients: Array | None  # of the last step of the reported model

    def check(self, outputs: int, clients: int) -> None:
        require(self.union_rho > 0 or clients == 1, "union_rho", "is not positive")


class AdmmFigures(Figures, frozen=True):
    """The mean diagonal of XᵀX/N, or of a network's Gauss–Newton matrix: the scale of ρ_u."""

    curvature: float = 0.0


_BATCHES = 64  # an epoch, where the user did not choose their size
_STEPS = 32  # an outer round has at least
_BATCH = (64, 4096)


def local_epochs(rows: int, clients: int, options: Admm) -> tuple[int, int]:
    """The rows of a batch, and the epochs of a call: two in an outer round, more for a small table; the inner rounds of
    a consensus share them."""
    size = options.local_batch_size or min(max(rows // _BATCHES, _BATCH[0]), _BATCH[1])
    batches, shared = -(-rows // size), options.inner_rounds if clients > 1 else 1
    usual = max(1, -(-max(_STEPS, 2 * batches) // (max(1, batches) * shared)))
    return size, options.local_epochs or usual


class LocalStep(msgspec.Struct, frozen=True, eq=False):
    """argmin_θ (1/N) Σ_k [Y_kᵀ h_k + ½ q_k ‖h_k‖²] + ½ β ‖θ‖², approached by noisy gradients.

    If a block has several clients, each takes a few steps from the agreed θ, on its own rows' mean loss. The next
    agreed θ is the mean of their results, weighted by each part's share of the joined rows. There is no dual variable:
    it would sum up the noise of all rounds.
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
        """θ after the client's local steps; the optimiser only processes noisy gradients, which costs no privacy.

        `fades`: the learning rate falls to 0 with the noisy gradients that are left of the run's.
        """
        if not self.joined_rows:
            return theta, moments  # no row of the part is trained on
        privacy, rule = self.private.privacy, Rule(optimizer)
        for _ in range(privacy.steps):
            rows = self.private.sample(len(self.signal))
            h = self.model.predict(theta, rows, moments.step)
            slope = self.signal[rows] + self.quadratic[rows, None] * h
            total = self.private.gradient(self.model, theta, slope, rows, moments.step)
            gradient = total / (privacy.rate * self.joined_rows) + self.l2 * theta
            rate = learning_rate * self.private.remaining if fades else learning_rate
            theta, moments = descend(theta, gradient, moments, rate, rule, self.unit)
        return theta, moments


_EXACT = 1e-8  # residual of a wide block's θ-step


class AdmmState(msgspec.Struct, frozen=True):
    """A part's own iterate and the trail of the reported model; w, u where a block has several clients."""

    trail: Trail
    iterate: Array  # θ_q
    consensus: Array  # w
    gap: Array  # u_q
    moments: Moments  # of steps that descend
    values: Array  # eigenvalues of Tᵀ diag(G) T; none where θ is not solved for by them
    vectors: Array
    signal: Array  # of this outer round: −TᵀY where a linear system is solved, else Y itself
    factor: float = 0.0
    union_rho: float = 0.0
    inner: int = 0
    outer: int = 0  # outer rounds so far
    has_sent_moments: bool = False

    @property
    def theta(self) -> Array:
        return self.trail.theta


def client_start(setup: PartSetup, options: Admm) -> tuple[AdmmState, AdmmFigures]:
    theta = setup.initial
    zero, nothing = np.zeros_like(theta), np.zeros((0, 0))
    spectrum = Spectrum(np.zeros(0), nothing)
    if isinstance(setup.model, LinearModel) and not setup.is_private and not _is_wide(setup.model, setup, options):
        spectrum = Spectrum.of(setup.model.train.gram(setup.multiplicity))
    moments = Moments.zero(theta, "sgd" if isinstance(setup.model, LinearModel) else options.local_optimizer)
    solver = (moments, spectrum.values, spectrum.vectors)
    figures = AdmmFigures(1.0 if setup.is_private else mean_curvature(setup))
    return AdmmState(Trail(theta, zero, [], []), theta, theta, zero, *solver, signal=nothing), figures


def mean_curvature(setup: PartSetup) -> float:
    """The mean diagonal of the part's share of XᵀX/N, or of a network's Gauss–Newton matrix: the scale of ρ_u."""
    if not isinstance(setup.model, LinearModel):
        return sensitivity(setup) / max(1, setup.model.width)
    diagonal = setup.model.train.gram_diagonal(setup.multiplicity)
    return float(diagonal.mean()) / setup.joined_rows if len(diagonal) else 0.0


def client_step(
    setup: PartSetup, options: Admm, state: AdmmState, message: AdmmUpdate | Move | Combined
) -> tuple[AdmmState, Answer | Done]:
    """The θ-step: at once for a single client, in inner rounds otherwise."""
    replace = msgspec.structs.replace
    if isinstance(message, Combined):
        return _adopt(setup, options, state, message.values[0])
    if message.coefficients is not None:
        state = replace(state, trail=state.trail.move(message.coefficients, options.memory))
    if isinstance(message, Move):
        return state, Done()
    is_solved = isinstance(setup.model, LinearModel) and not setup.is_private
    signal = -setup.model.gradient(state.iterate, message.signal) if is_solved else message.signal
    state = replace(state, signal=signal, factor=message.factor, outer=state.outer + 1, inner=0)
    if setup.clients == 1:
        theta, moments = _solve(setup, options, state, setup.l2, None)
        state = replace(state, iterate=theta, moments=moments, signal=np.zeros((0, 0)))
        return _predict(setup, options, state, theta)
    if options.union == "exact":
        gram = [] if state.has_sent_moments else [(state.vectors * state.values) @ state.vectors.T]
        return replace(state, has_sent_moments=True), Partial(values=[-signal, *gram])
    gap = state.gap * (state.union_rho / message.union_rho)  # u is scaled by ρ_u
    state = replace(state, union_rho=message.union_rho, gap=gap.astype(state.theta.dtype, copy=False))
    return _propose(setup, options, state)


def _adopt(setup: PartSetup, options: Admm, state: AdmmState, agreed: Array) -> tuple[AdmmState, Answer]:
    """The coordinator's word: the block's exact θ, or w of an inner round."""
    replace = msgspec.structs.replace
    if options.union == "exact":
        return _predict(setup, options, replace(state, iterate=agreed), agreed)
    if setup.is_private:
        state = replace(state, iterate=agreed)
    else:
        state = replace(state, gap=state.gap + state.iterate - agreed)
    state = replace(state, consensus=agreed, inner=state.inner + 1)
    if state.inner < options.inner_rounds:
        return _propose(setup, options, state)
    if isinstance(setup.model, LinearModel):  # a network continues from its own
        state = replace(state, iterate=agreed)
    return _predict(setup, options, state, agreed)


def _propose(setup: PartSetup, options: Admm, state: AdmmState) -> tuple[AdmmState, Answer]:
    """θ_q of this inner round; θ_q + u_q is sent, under privacy the part's share of θ_q."""
    iterate, moments = _solve(setup, options, state, state.union_rho, state.consensus - state.gap)
    sent = setup.share * iterate if setup.is_private else iterate + state.gap
    return msgspec.structs.replace(state, iterate=iterate, moments=moments), Partial(values=[sent])


def _solve(
    setup: PartSetup, options: Admm, state: AdmmState, pull: float, anchor: Array | None
) -> tuple[Array, Moments]:
    """argmin (1/N) l(θ) + ½ pull ‖θ − anchor‖², from where the part's own θ stands; no anchor: 0."""
    is_linear = isinstance(setup.model, LinearModel)
    if is_linear and not setup.is_private:
        return _solve_linear(setup, options, state, pull, anchor), state.moments
    if setup.private is None or not setup.is_private:
        return _descend(setup, options, state, pull, anchor)
    quadratic, rows = state.factor * setup.multiplicity, setup.share * setup.joined_rows
    step = LocalStep(setup.model, setup.private, state.signal, quadratic, rows, setup.l2, setup.unit)
    optimizer = "sgd" if is_linear else options.local_optimizer
    rate = setup.private.privacy.learning_rate / (1.0 if is_linear else float(np.sqrt(state.outer)))
    return step.solve(state.iterate, state.moments, rate, optimizer, fades=is_linear)


def _descend(
    setup: PartSetup, options: Admm, state: AdmmState, pull: float, anchor: Array | None
) -> tuple[Array, Moments]:
    """θ of a network after some epochs by batches of all rows, starting where it stands."""
    model, rows, theta, moments = setup.model, len(state.signal), state.iterate, state.moments
    assert isinstance(model, NeuralModel)
    size, epochs = local_epochs(rows, setup.clients, options)
    quadratic, rule = state.factor * setup.multiplicity, Rule(options.local_optimizer)
    learning_rate = options.first_local_rate / float(np.sqrt(state.outer))
    with one_torch_thread():
        for _ in range(epochs):
            order = np.random.default_rng((setup.seed, moments.step)).permutation(rows)
            signals, squares = state.signal[order], quadratic[order]  # at once: a batch has few rows
            for here in pieces(rows, size):
                batch = order[here]
                slope = model.slope(theta, signals[here], squares[here], batch, moments.step)
                slope *= rows / (len(batch) * setup.joined_rows)
                slope += pull * (theta if anchor is None else theta - anchor)
                theta, moments = descend(theta, slope, moments, learning_rate, rule, setup.unit)
    return theta, moments


def _solve_linear(setup: PartSetup, options: Admm, state: AdmmState, pull: float, anchor: Array | None) -> Array:
    """(factor·Tᵀ diag(G) T + N·pull·I)⁻¹ (−TᵀY + N·pull·anchor); divided by N where there is an anchor."""
    model, rows = setup.model, setup.joined_rows
    assert isinstance(model, LinearModel)
    scale, ridge, right = state.factor, rows * pull, state.signal
    if anchor is not None:
        scale, ridge, right = state.factor / rows, pull, state.signal / rows + pull * anchor
    if not _is_wide(model, setup, options):
        return Spectrum(state.values, state.vectors).solve(scale, ridge, right)
    weights = setup.multiplicity
    products = Products(partial(model.train.gram_product, weights), model.train.gram_diagonal(weights))
    return products.solve(scale, ridge, right, state.iterate, to=_EXACT)


def _is_wide(model: LinearModel, setup: PartSetup, options: Admm) -> bool:
    """Whether the θ-step is solved by products; the exact union step needs the matrix."""
    return model.train.width > WIDE and (setup.clients == 1 or options.union == "consensus")


def _predict(setup: PartSetup, options: Admm, state: AdmmState, theta: Array) -> tuple[AdmmState, Answer]:
    """h of the new θ; of linear blocks seen from the reported model: the next direction of that one's search."""
    is_linear = isinstance(setup.model, LinearModel)
    if is_linear and options.averages:
        trail = state.trail.towards(theta - state.theta)
        values = setup.model.predict(trail.direction)
    else:
        trail = msgspec.structs.replace(state.trail, theta=theta)
        values = setup.model.predict(theta)
    products = trail.products() if is_linear else np.array([squared_norm(theta)])
    return msgspec.structs.replace(state, trail=trail), Predictions(values=values, products=products)
