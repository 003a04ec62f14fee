"""ADMM's client half for linear models: the θ-step in closed form.

    one client   (Mρ Tᵀ diag(G) T + NβI) θ = −TᵀY        factored once; by products where a block is wide
    several      θ_q = argmin (1/N) l_q(θ) + ρ_u/2 ‖θ − w + u_q‖²,  u_q ← u_q + θ_q − w,  inner rounds
                 or, with `union="exact"`, TᵀY and once Tᵀ diag(G) T to the coordinator, who solves

Under feature privacy the θ-step is approached by clipped and noised gradients instead, from the agreed w and without
u_q (`LocalStep`). The server's half is in server.py.
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np

from tablepuppet.algorithms.admm.neural import LocalStep
from tablepuppet.algorithms.admm.options import Admm, AdmmUpdate
from tablepuppet.algorithms.base import Answer, PartSetup
from tablepuppet.algorithms.numerics.linear_systems import WIDE, Products, Spectrum
from tablepuppet.algorithms.numerics.optimizers import Moments
from tablepuppet.algorithms.numerics.subspace import Trail
from tablepuppet.arrays import Array
from tablepuppet.models.linear import LinearModel
from tablepuppet.protocol.base import Combined, Done, Move, Partial, Predictions

_EXACT = 1e-8  # residual of a wide block's θ-step


class AdmmState(msgspec.Struct, frozen=True):
    """A part's own iterate and the trail of the reported model; w, u where a block has several clients."""

    trail: Trail
    iterate: Array
    consensus: Array  # w
    gap: Array  # u
    values: Array  # eigenvalues of Tᵀ diag(G) T; none for a wide block
    vectors: Array
    right: Array  # −Tᵀ Y of this outer round; under privacy Y itself
    factor: float = 0.0
    union_rho: float = 0.0
    inner: int = 0
    has_sent_moments: bool = False

    @property
    def theta(self) -> Array:
        return self.trail.theta


def client_start(setup: PartSetup, options: Admm) -> AdmmState:
    assert isinstance(setup.model, LinearModel)
    theta = setup.initial
    zero = np.zeros_like(theta)
    if setup.is_private or _is_wide(setup, options):
        spectrum = Spectrum(np.zeros(0), np.zeros((0, 0)))
    else:
        spectrum = Spectrum.of(setup.model.train.gram(setup.multiplicity))
    return AdmmState(Trail(theta, zero, [], []), theta, theta, zero, spectrum.values, spectrum.vectors, zero)


def mean_curvature(setup: PartSetup) -> float:
    """The mean diagonal of the part's share of XᵀX/N: the natural scale of ρ_u."""
    assert isinstance(setup.model, LinearModel)
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
    right = message.signal if setup.is_private else -setup.model.gradient(state.iterate, message.signal)
    if setup.clients == 1 and setup.is_private:
        noisy = _local(setup, replace(state, right=right, factor=message.factor), state.iterate)
        return _predict(setup, options, state, noisy)
    if setup.clients == 1:
        ridge = setup.joined_rows * setup.l2
        iterate = _solve(setup, options, state, message.factor, ridge, right)
        return _predict(setup, options, state, iterate)
    if options.union == "exact":
        moments = [] if state.has_sent_moments else [(state.vectors * state.values) @ state.vectors.T]
        return replace(state, has_sent_moments=True), Partial(values=[-right, *moments])
    gap = state.gap * (state.union_rho / message.union_rho)  # u is scaled by ρ_u
    state = replace(state, right=right, factor=message.factor, union_rho=message.union_rho, gap=gap, inner=0)
    return _propose(setup, options, state)


def _is_wide(setup: PartSetup, options: Admm) -> bool:
    """Whether the θ-step is solved by products; the exact union step needs the matrix."""
    assert isinstance(setup.model, LinearModel)
    return setup.model.train.width > WIDE and (setup.clients == 1 or options.union == "consensus")


def _solve(setup: PartSetup, options: Admm, state: AdmmState, scale: float, ridge: float, right: Array) -> Array:
    """(scale·Tᵀ diag(G) T + ridge·I)⁻¹ right."""
    model, weights = setup.model, setup.multiplicity
    assert isinstance(model, LinearModel)
    if not _is_wide(setup, options):
        return Spectrum(state.values, state.vectors).solve(scale, ridge, right)
    products = Products(partial(model.train.gram_product, weights), model.train.gram_diagonal(weights))
    return products.solve(scale, ridge, right, state.iterate, to=_EXACT)


def _adopt(setup: PartSetup, options: Admm, state: AdmmState, agreed: Array) -> tuple[AdmmState, Answer]:
    """The coordinator's word: the block's exact θ, or w of an inner round."""
    if options.union == "exact":
        return _predict(setup, options, state, agreed)
    gap = state.gap if setup.is_private else state.gap + state.iterate - agreed
    state = msgspec.structs.replace(state, consensus=agreed, gap=gap, inner=state.inner + 1)
    if state.inner >= options.inner_rounds:
        return _predict(setup, options, state, agreed)
    return _propose(setup, options, state)


def _propose(setup: PartSetup, options: Admm, state: AdmmState) -> tuple[AdmmState, Answer]:
    """θ_q = argmin (1/N) l_q(θ) + ρ_u/2 ‖θ − w + u_q‖²; θ_q + u_q is sent, under privacy the part's share of θ_q."""
    if setup.is_private:
        return state, Partial(values=[setup.share * _local(setup, state, state.consensus)])
    right = state.right / setup.joined_rows + state.union_rho * (state.consensus - state.gap)
    iterate = _solve(setup, options, state, state.factor / setup.joined_rows, state.union_rho, right)
    return msgspec.structs.replace(state, iterate=iterate), Partial(values=[iterate + state.gap])


def _local(setup: PartSetup, state: AdmmState, start: Array) -> Array:
    """The θ-step by clipped and noised gradients (`LocalStep`)."""
    assert setup.private is not None
    quadratic = state.factor * setup.multiplicity
    rows = setup.share * setup.joined_rows
    step = LocalStep(setup.model, setup.private, state.right, quadratic, rows, setup.l2)
    rate = setup.private.privacy.learning_rate
    theta, _ = step.solve(start, Moments.zero(start, "sgd"), rate, "sgd", fades=True)
    return theta


def _predict(setup: PartSetup, options: Admm, state: AdmmState, iterate: Array) -> tuple[AdmmState, Answer]:
    """h of the new iterate, seen from the reported model: the next direction of that one's search."""
    if options.averages:
        trail = state.trail.towards(iterate - state.theta)
        values = setup.model.predict(trail.direction)
    else:
        trail = msgspec.structs.replace(state.trail, theta=iterate)
        values = setup.model.predict(iterate)
    answer = Predictions(values=values, products=trail.products())
    return msgspec.structs.replace(state, trail=trail, iterate=iterate), answer
