"""ADMM's client half for neural models: the θ-step by a local solver, consensus where a block has several clients.

    one client   θ = argmin βR(θ) + (1/N) l(θ)                                        local.py
    several      θ_q = argmin (1/N) l_q(θ) + ρ_u/2 ‖θ − w + u_q‖²,  u_q ← u_q + θ_q − w,  inner rounds

Under feature privacy the local solver takes clipped and noised gradients of samples instead (LocalStep), as many as
the ledger counts, from the agreed w and without u_q; the penalty is added after the noise.

The server half is that of linear models (server.py), but the reported model is the last iterate: a
combination of networks is no network.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tablepuppet.algorithms.admm import local
from tablepuppet.algorithms.admm.local import LocalStep
from tablepuppet.algorithms.admm.options import Admm, AdmmUpdate
from tablepuppet.algorithms.base import Answer, PartSetup, squared_norm
from tablepuppet.algorithms.numerics.optimizers import Moments, sensitivity
from tablepuppet.arrays import Array
from tablepuppet.protocol.base import Combined, Partial, Predictions


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
        return local.solve(setup, options, *given, learning_rate=rate, pull=pull, anchor=anchor)
    assert setup.private is not None
    quadratic = state.factor * setup.multiplicity
    rows = setup.share * setup.joined_rows
    step = LocalStep(setup.model, setup.private, state.signal, quadratic, rows, setup.l2, setup.unit)
    rate = setup.private.privacy.learning_rate / slowing
    return step.solve(state.iterate, state.moments, rate, options.local_optimizer)


def _predict(setup: PartSetup, state: NeuralAdmmState) -> Predictions:
    return Predictions(values=setup.model.predict(state.theta), products=np.array([squared_norm(state.theta)]))
