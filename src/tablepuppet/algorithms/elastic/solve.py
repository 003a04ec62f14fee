"""min over θ of gᵀθ + ½ c (θ − y)ᵀ D (θ − y) + λ‖θ‖₁ + ½ β‖θ‖², some entries of θ bound to a sign.

In: a block's slope g at y and its curvature D. Out: the minimum, with exact zeros. Sweeps of coordinate descent find
which entries are zero; given those and the signs of the others, the minimum is the solution of a linear system, which
is tried after every sweep and followed up to the first entry that would change its sign.
"""

from __future__ import annotations

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.penalty import Penalty

_SWEEPS = 400
_EXACT = 1e-11  # of the largest slope: what the optimality conditions may miss


def solve(matrix: Array, scale: float, slope: Array, centre: Array, start: Array, penalty: Penalty) -> Array:
    """The minimum, one column for every output; `start`: where to begin."""
    curved = scale * matrix
    columns = [
        _minimise(curved, slope[:, k] - curved @ centre[:, k], start[:, k], penalty) for k in range(slope.shape[1])
    ]
    return np.stack(columns, axis=1) if columns else np.zeros_like(slope)


def solve_diagonal(diagonal: Array, scale: float, slope: Array, centre: Array, penalty: Penalty) -> Array:
    """The same where D is a diagonal: in closed form."""
    curved = scale * diagonal[:, None]
    return penalty.shrunk(curved * centre - slope, curved)


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
