"""The client's half of proximal steps: the next proposal for its block.

g = T_iᵀY_i/N at y = θ + m (θ − θ before),  D = (T_iᵀdiag(W_i)T_i − v vᵀ/W)/N,  v = T_iᵀW_i
θ⁺ = argmin gᵀθ + ½ c (θ − y)ᵀ D (θ − y) + λ‖θ‖₁ + ½ β‖θ‖²;  sends T_i θ⁺
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tablepuppet.algorithms.base import Answer, PartSetup
from tablepuppet.algorithms.elastic.options import Elastic, ElasticUpdate
from tablepuppet.algorithms.elastic.solve import solve, solve_diagonal
from tablepuppet.algorithms.numerics.conjugate import WIDE
from tablepuppet.arrays import Array
from tablepuppet.models.linear import LinearModel
from tablepuppet.models.penalty import Penalty
from tablepuppet.protocol import Combined, Done, Move, Partial, Predictions

_NONE = np.zeros((0, 0))


class ElasticState(msgspec.Struct, frozen=True):
    """θ, θ before it, what is proposed, and the curvature of the block where that does not change."""

    theta: Array
    before: Array
    proposed: Array
    matrix: Array | None = None  # D, or (d, 1): its diagonal; empty where the coordinator holds it


def client_start(setup: PartSetup) -> ElasticState:
    theta = setup.initial
    return ElasticState(theta, theta, theta)


def client_step(
    setup: PartSetup, options: Elastic, state: ElasticState, message: ElasticUpdate | Move | Combined
) -> tuple[ElasticState, Answer | Done]:
    """Takes the last proposal, if it was good, and makes the next."""
    replace = msgspec.structs.replace
    assert isinstance(setup.model, LinearModel)
    if isinstance(message, Combined):
        return _predicted(setup, replace(state, proposed=message.values[0]), 0.0)
    if message.coefficients is not None and message.coefficients[0] > 0:
        state = replace(state, theta=state.proposed, before=state.theta)
    if isinstance(message, Move):
        return state, Done()
    slope = setup.model.gradient(state.theta, message.signal) / setup.joined_rows
    is_known = message.curvature is None and state.matrix is not None
    weights = message.bound * setup.weights if message.curvature is None else message.curvature[:, 0]
    if setup.clients > 1:
        if is_known:
            return state, Partial(values=[slope])
        moments = _moments(setup.model, weights, setup.joined_rows)
        return (replace(state, matrix=_NONE) if message.curvature is None else state), Partial(values=[slope, *moments])
    matrix = state.matrix
    if not is_known or matrix is None:
        matrix = centred(_moments(setup.model, weights, setup.joined_rows), message.total / setup.joined_rows)
        state = replace(state, matrix=matrix) if message.curvature is None else state
    proposed, length = propose(state.theta, state.before, slope, matrix, message.scale, message.momentum, setup.penalty)
    return _predicted(setup, replace(state, proposed=proposed), length)


def _moments(model: LinearModel, weights: Array, rows: int) -> list[Array]:
    """Tᵀdiag(W)T/N and TᵀW/N; of a wide block only a diagonal that bounds it."""
    if model.width > WIDE:
        entries = model.train.dense.shape[1] + len(model.train.codes)  # of a row: (Σ of k numbers)² ≤ k Σ of squares
        return [entries * model.gram_diagonal(weights)[:, None] / rows]
    return [model.gram(weights) / rows, model.gradient(np.zeros((model.width, 1)), weights[:, None]) / rows]


def centred(moments: Sequence[Array], total: float) -> Array:
    """D: the curvature of a block where the best intercept follows it."""
    matrix, *sums = moments
    return np.asarray(matrix - sums[0] @ sums[0].T / total) if sums else matrix


def propose(
    theta: Array, before: Array, slope: Array, matrix: Array, scale: float, momentum: float, penalty: Penalty
) -> tuple[Array, float]:
    """θ⁺, and (θ⁺ − y)ᵀ D (θ⁺ − y)."""
    centre = theta + momentum * (theta - before)
    if matrix.shape[1] == 1 < len(matrix):
        found = solve_diagonal(matrix[:, 0], scale, slope, centre, penalty)
        return found, float(np.vdot(found - centre, matrix * (found - centre)))
    found = solve(matrix, scale, slope, centre, theta, penalty)
    return found, float(np.vdot(found - centre, matrix @ (found - centre)))


def _predicted(setup: PartSetup, state: ElasticState, length: float) -> tuple[ElasticState, Answer]:
    products = np.array([float(np.vdot(state.proposed, state.proposed)), setup.penalty.value(state.proposed), length])
    return state, Predictions(values=setup.model.predict(state.proposed), products=products)
