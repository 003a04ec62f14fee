"""The client's half of alternating least squares: the step of its block, given all others.

    P δ = −(Xᵀ s + Θ R),    P = Σ_k (x_k x_kᵀ) ⊗ M_k + I ⊗ R,    R = N β I + diag(c),    Θ ← Θ + δ,    sends h = X Θ

A block with one client solves by itself. Of several clients each sends its share of the right side and of P's diagonal
blocks, then of products P d, all summed; the server runs the conjugate gradients (server.py) and sends δ.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tablepuppet.algorithms.als.normal import Conjugate, diagonal_blocks, products, solved_blocks
from tablepuppet.algorithms.als.options import Als, AlsFigures, AlsUpdate
from tablepuppet.algorithms.base import Answer, PartSetup, squared_norm
from tablepuppet.arrays import Array
from tablepuppet.models.features import Features
from tablepuppet.models.linear import LinearModel
from tablepuppet.protocol.base import Combined, Partial, Predictions


class AlsState(msgspec.Struct, frozen=True):
    """A part's parameters, and the curvature of its rows and the ridge while its clients agree on a step."""

    theta: Array
    curvature: Array | None = None
    ridge: Array | None = None


def client_start(setup: PartSetup, options: Als) -> tuple[AlsState, AlsFigures]:
    return AlsState(setup.model.initial()), AlsFigures(float(has_one_category(_features(setup))))


def has_one_category(features: Features) -> bool:
    """Whether a row has one entry: an id and nothing else."""
    return features.dense.shape[1] == 0 and len(features.codes) == 1


def client_step(
    setup: PartSetup, options: Als, state: AlsState, message: AlsUpdate | Combined
) -> tuple[AlsState, Answer]:
    features = _features(setup)
    if isinstance(message, AlsUpdate):
        ridge = setup.joined_rows * setup.l2 + np.array(message.ridge)
        right = -features.transpose_dot(message.signal) - ridge / setup.clients * state.theta
        blocks = diagonal_blocks(features, message.curvature)
        if setup.clients > 1:
            return AlsState(state.theta, message.curvature, ridge), Partial(values=[right, blocks])
        if has_one_category(features):
            return _move(setup, state, solved_blocks(blocks, ridge, right))
        solver = Conjugate(blocks, ridge, right, options.solver_tolerance, options.solver_steps)
        while not solver.is_done:
            multiplied = products(features, message.curvature, solver.direction)
            solver.advance(multiplied + ridge * solver.direction)
        return _move(setup, state, solver.step)
    given, is_step = message.values[0], len(message.values) == 1
    if is_step or state.curvature is None or state.ridge is None:
        return _move(setup, state, given)
    multiplied = products(features, state.curvature, given) + state.ridge / setup.clients * given
    return state, Partial(values=[multiplied, np.zeros((0, 0))])


def _move(setup: PartSetup, state: AlsState, step: Array) -> tuple[AlsState, Answer]:
    theta = state.theta + step
    squares = np.array([squared_norm(theta), *np.square(theta).sum(axis=0)])
    return AlsState(theta), Predictions(values=setup.model.predict(theta), products=squares)


def _features(setup: PartSetup) -> Features:
    assert isinstance(setup.model, LinearModel)
    return setup.model.train
