"""Proximal steps: options, messages, and the client's half, which finds the next proposal for its block.

g = T_iᵀY_i/N at y = θ + m (θ − θ before),  D = (T_iᵀdiag(W_i)T_i − v vᵀ/W)/N,  v = T_iᵀW_i
θ⁺ = argmin gᵀθ + ½ c (θ − y)ᵀ D (θ − y) + λ‖θ‖₁ + ½ β‖θ‖²;  sends T_i θ⁺

The minimum has exact zeros. Sweeps of coordinate descent find which entries are zero. Given those and the signs of the
others, the minimum solves a linear system. That solution is tried after every sweep and followed up to the first entry
that would change its sign.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from tablepuppet.algorithms.base import Answer, Figures, PartSetup
from tablepuppet.algorithms.numerics.linear_systems import WIDE
from tablepuppet.algorithms.options import AlgorithmOptions, Tolerance
from tablepuppet.arrays import Array
from tablepuppet.models.linear import LinearModel
from tablepuppet.models.spec import Penalty
from tablepuppet.protocol.base import Combined, Discloses, Done, Move, Partial, Predictions, Update


class Elastic(AlgorithmOptions, frozen=True, tag="elastic"):
    """Accelerated proximal steps, for penalties with kinks: l1, and signs.

    `tolerance`: the step in the objective's own metric, relative to the objective, below which it ends.

    >>> Elastic(tolerance=1e-8)
    Elastic(tolerance=1e-08)
    """

    name: ClassVar[str] = "elastic"
    tolerance: Tolerance = 1e-12

    @property
    def sends_second_moments(self) -> bool:
        return True


class ElasticUpdate(Update, frozen=True):
    """Take a proximal step from derivatives Y and curvatures at θ + momentum (θ − θ before).

    → Predictions | Partial | Masked
    """

    signal: Annotated[Array, Discloses("signals", is_per_row=True)]
    curvature: Annotated[Array | None, Discloses("curvatures", is_per_row=True)]
    bound: float  # the curvature per joined row where `curvature` is None
    total: float  # the curvature of all joined rows
    scale: float  # factor on the curvature of one block that bounds that of all of them
    momentum: float
    coefficients: Array | None  # (1,): whether the last proposal is the model now


_SWEEPS = 400
_EXACT = 1e-11  # error of the optimality conditions, relative to the largest slope


def solve(matrix: Array, scale: float, slope: Array, centre: Array, start: Array, penalty: Penalty) -> Array:
    """The minimum, one column for every output; `start`: where to begin."""
    curved = scale * matrix
    columns = [
        _minimise(curved, slope[:, k] - curved @ centre[:, k], start[:, k], penalty) for k in range(slope.shape[1])
    ]
    return np.stack(columns, axis=1) if columns else np.zeros_like(slope)


def _minimise(matrix: Array, linear: Array, start: Array, penalty: Penalty) -> Array:
    """min linearᵀθ + ½ θᵀ matrix θ + the penalty."""
    theta, diagonal = start.copy(), np.ascontiguousarray(np.diag(matrix))
    slope = linear + matrix @ theta  # of the smooth part but for β
    close = _EXACT * max(float(np.abs(linear).max(initial=0.0)), penalty.l1)
    for _ in range(_SWEEPS):
        _sweep(matrix, diagonal, theta, slope, penalty)
        if _solve_active(matrix, linear, theta, penalty):
            slope = linear + matrix @ theta
            if _gap(theta, slope, penalty) <= close:
                break
        slope = linear + matrix @ theta
    return theta


def _sweep(matrix: Array, diagonal: Array, theta: Array, slope: Array, penalty: Penalty) -> None:
    """Every entry once at its own minimum; θ and the slope are moved."""
    lower, upper = penalty.bounds(len(theta))
    for j in range(len(theta)):
        own, curved = theta[j], diagonal[j]
        towards = curved * own - slope[j]
        ridge = curved + penalty.l2
        size = abs(towards) - penalty.l1
        new = 0.0 if size <= 0.0 or ridge <= 0.0 else (size if towards > 0 else -size) / ridge
        new = min(max(new, lower[j]), upper[j])
        if new != own:
            theta[j] = new
            slope += matrix[:, j] * (new - own)


def _solve_active(matrix: Array, linear: Array, theta: Array, penalty: Penalty) -> bool:
    """θ moves to the minimum over entries that are not zero, or up to where the first of them would change its sign.
    Whether it got there."""
    active = np.flatnonzero(theta)
    if not len(active):
        return True
    signs = np.sign(theta[active])
    hessian = matrix[np.ix_(active, active)] + penalty.l2 * np.eye(len(active))
    right = -(linear[active] + penalty.l1 * signs)
    try:
        target = np.linalg.solve(hessian, right)
    except np.linalg.LinAlgError:
        return False
    if not np.isfinite(target).all() or np.abs(hessian @ target - right).max() > 1e-8 * (1e-300 + np.abs(right).max()):
        return False
    move = target - theta[active]
    crosses = target * signs <= 0 if penalty.l1 > 0 or penalty.signs else np.zeros(len(active), np.bool_)
    if not crosses.any():
        theta[active] = target
        return True
    reach = -theta[active][crosses] / move[crosses]
    first = int(np.flatnonzero(crosses)[np.argmin(reach)])
    theta[active] += float(reach.min()) * move
    theta[active[first]] = 0.0
    return False


def _gap(theta: Array, slope: Array, penalty: Penalty) -> float:
    """By how much the optimality conditions are missed."""
    lower, upper = penalty.bounds(len(theta))
    total = slope + penalty.l2 * theta
    at = np.abs(total + penalty.l1 * np.sign(theta))
    rising, falling = -total - penalty.l1, total - penalty.l1  # how far above, or below, zero an entry would go
    pulls = np.maximum(np.where(upper > 0, rising, -np.inf), np.where(lower < 0, falling, -np.inf))
    return float(np.where(theta != 0, at, np.maximum(pulls, 0.0)).max(initial=0.0))


_NONE = np.zeros((0, 0))


class ElasticState(msgspec.Struct, frozen=True):
    """θ, θ before it, the proposed θ, and the block's curvature if it is constant."""

    theta: Array
    before: Array
    proposed: Array
    matrix: Array | None = None  # D, or (d, 1): its diagonal; empty where the coordinator holds it


def client_start(setup: PartSetup, options: Elastic) -> tuple[ElasticState, Figures]:
    theta = setup.initial
    return ElasticState(theta, theta, theta), Figures()


def client_step(
    setup: PartSetup, options: Elastic, state: ElasticState, message: ElasticUpdate | Move | Combined
) -> tuple[ElasticState, Answer | Done]:
    """Takes the last proposal, if it was good, and makes the next."""
    replace = msgspec.structs.replace
    if isinstance(message, Combined):
        return _predict(setup, replace(state, proposed=message.values[0]), 0.0)
    if message.coefficients is not None and message.coefficients[0] > 0:
        state = replace(state, theta=state.proposed, before=state.theta)
    if isinstance(message, Move):
        return state, Done()
    slope = setup.linear.gradient(state.theta, message.signal) / setup.joined_rows
    is_known = message.curvature is None and state.matrix is not None
    weights = message.bound * setup.weights if message.curvature is None else message.curvature[:, 0]
    if setup.clients > 1:
        if is_known:
            return state, Partial(values=[slope])
        moments = _moments(setup.linear, weights, setup.joined_rows)
        return (replace(state, matrix=_NONE) if message.curvature is None else state), Partial(values=[slope, *moments])
    matrix = state.matrix
    if not is_known or matrix is None:
        matrix = centre_moments(_moments(setup.linear, weights, setup.joined_rows), message.total / setup.joined_rows)
        state = replace(state, matrix=matrix) if message.curvature is None else state
    proposed, length = propose(state.theta, state.before, slope, matrix, message.scale, message.momentum, setup.penalty)
    return _predict(setup, replace(state, proposed=proposed), length)


def _moments(model: LinearModel, weights: Array, rows: int) -> list[Array]:
    """Tᵀdiag(W)T/N and TᵀW/N; of a wide block only a diagonal that bounds it."""
    if model.width > WIDE:
        entries = model.train.dense.shape[1] + len(model.train.codes)  # of a row: (Σ of k numbers)² ≤ k Σ of squares
        return [entries * model.train.gram_diagonal(weights)[:, None] / rows]
    return [model.train.gram(weights) / rows, model.gradient(np.zeros((model.width, 1)), weights[:, None]) / rows]


def centre_moments(moments: Sequence[Array], total: float) -> Array:
    """D: the curvature of a block where the best intercept follows it."""
    matrix, *sums = moments
    return np.asarray(matrix - sums[0] @ sums[0].T / total) if sums else matrix


def propose(
    theta: Array, before: Array, slope: Array, matrix: Array, scale: float, momentum: float, penalty: Penalty
) -> tuple[Array, float]:
    """θ⁺, and (θ⁺ − y)ᵀ D (θ⁺ − y)."""
    centre = theta + momentum * (theta - before)
    if matrix.shape[1] == 1 < len(matrix):  # a diagonal: in closed form
        found = penalty.shrunk(scale * matrix * centre - slope, scale * matrix)
        return found, float(np.vdot(found - centre, matrix * (found - centre)))
    found = solve(matrix, scale, slope, centre, theta, penalty)
    return found, float(np.vdot(found - centre, matrix @ (found - centre)))


def _predict(setup: PartSetup, state: ElasticState, length: float) -> tuple[ElasticState, Answer]:
    products = np.array([float(np.vdot(state.proposed, state.proposed)), setup.penalty.value(state.proposed), length])
    return state, Predictions(values=setup.model.predict(state.proposed), products=products)
