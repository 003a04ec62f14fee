"""ADMM's client half, for all models: its part's θ-step, at once or in inner rounds.

    one client   θ = argmin (1/N) l(θ) + ½ β ‖θ‖²
    several      θ_q = argmin (1/N) l_q(θ) + ρ_u/2 ‖θ − w + u_q‖²,  u_q ← u_q + θ_q − w,  inner rounds
                 or, with `union="exact"`, TᵀY and once Tᵀ diag(G) T to the coordinator, who solves

A linear model's step is a linear system, factored once, or solved by products where a block is wide. Networks, and all
models under feature privacy, descend (local.py): then from the agreed w and without u_q. The reported model of linear
blocks is the best combination of iterates; a combination of networks is no network, and theirs is the last iterate. The
server's half is in server.py.
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np

from tablepuppet.algorithms.admm.local import BatchStep, LocalStep
from tablepuppet.algorithms.admm.options import Admm, AdmmFigures, AdmmUpdate
from tablepuppet.algorithms.base import Answer, PartSetup, squared_norm
from tablepuppet.algorithms.numerics.linear_systems import WIDE, Products, Spectrum
from tablepuppet.algorithms.numerics.optimizers import Moments, sensitivity
from tablepuppet.algorithms.numerics.subspace import Trail
from tablepuppet.arrays import Array
from tablepuppet.models.linear import LinearModel
from tablepuppet.protocol.base import Combined, Done, Move, Partial, Predictions

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
    is_linear, start = isinstance(setup.model, LinearModel), (state.iterate, state.moments)
    if is_linear and not setup.is_private:
        return _solve_linear(setup, options, state, pull, anchor), state.moments
    quadratic = state.factor * setup.multiplicity
    slowing = 1.0 if is_linear else float(np.sqrt(state.outer))
    if setup.private is None or not setup.is_private:
        towards = np.zeros_like(state.iterate) if anchor is None else anchor
        batches = BatchStep(setup, options, state.signal, quadratic, pull, towards)
        return batches.solve(*start, options.first_local_rate / slowing)
    rows = setup.share * setup.joined_rows
    step = LocalStep(setup.model, setup.private, state.signal, quadratic, rows, setup.l2, setup.unit)
    optimizer = "sgd" if is_linear else options.local_optimizer
    return step.solve(*start, setup.private.privacy.learning_rate / slowing, optimizer, fades=is_linear)


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
