"""ADMM's z-step and dual step (algorithms/admm/server.py) of the logistic loss over a view of joined rows, compiled.

In and out: as in squared_compiled.py. Loops are cut so that each writes few arrays: then the compiler can tell that
they do not overlap, and uses vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.models.compiled_lane import CHUNK, collapse, expand
from tablepuppet.models.elementary import exp, exp_single
from tablepuppet.models.jit import kernel, summing
from tablepuppet.models.lane_view import LaneView
from tablepuppet.models.losses.squared_compiled import NORMS, State

Singles = NDArray[np.float32]
_STEPS, _SINGLE_STEPS = 60, 12
_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_FARTHEST = 1e30  # which single precision can square no more, but hold
_ROUGH = np.float32(1e-3)  # a Newton step this small leaves an error of single precision
_CLOSE = {4: 3e-4, 8: 1e-6}  # by bytes of the state: a last step so small leaves less than the state can hold


def logistic_dual(view: LaneView, b: float, before: float, rho: float, relax: float) -> Array:
    """The step of the logistic loss: the five norms."""
    norms, u = np.zeros(NORMS), view.state["u"]
    _logistic(view.rows, view.source, view.target, u, b, before, rho, relax, _CLOSE[u.itemsize], norms)
    return norms


@kernel
def _logistic(
    rows: int,
    source: tuple[Any, ...],
    target: tuple[Any, ...],
    u: State,
    b: float,
    before: float,
    rho: float,
    relax: float,
    close: float,
    norms: Array,
) -> None:
    blocks, room, singles = np.empty((len(source[0]), CHUNK)), np.empty((5, CHUNK)), np.empty((4, CHUNK), np.float32)
    shift = b - (1.0 - relax) * before
    for first in range(0, rows, CHUNK):
        kept = u[first : min(first + CHUNK, rows)]
        n = len(kept)
        a, y, signal, centre, x = room[0, :n], room[1, :n], room[2, :n], room[3, :n], room[4, :n]
        expand(first, source, blocks, a, y)
        _centre(a, y, kept, shift, rho, relax, centre)
        _solve(x, centre, y, kept, rho, close, singles)
        _finish(a, x, centre, kept, signal, b, before, rho, norms)
        collapse(first, target, blocks, signal)


@kernel
def _centre(a: Array, y: Array, u: State, shift: float, rho: float, relax: float, centre: Array) -> None:
    """Where the proximal map is taken: â + b + λ/ρ with λ = σ(u) − y."""
    inverse = 1.0 / rho
    for j in range(len(u)):
        last = np.float64(u[j])
        dual = 1.0 / (1.0 + exp(-last)) - y[j]
        centre[j] = dual * inverse + relax * a[j] + (1.0 - relax) * last + shift


@kernel
def _solve(x: Array, v: Array, y: Array, start: State, rho: float, close: float, singles: Singles) -> None:
    """x with σ(x) − y + ρ(x − v) = 0: Newton steps in single precision, and a last one or two in double."""
    n = len(x)
    near, centre, labels, moved = singles[0, :n], singles[1, :n], singles[2, :n], singles[3, :n]
    for j in range(n):
        near[j] = start[j]
    for j in range(n):
        centre[j] = min(max(v[j], -_FARTHEST), _FARTHEST)
    for j in range(n):
        labels[j] = y[j]
    for _ in range(_SINGLE_STEPS):  # far from 0 they may never come to rest
        _step_single(near, centre, labels, np.float32(rho), moved)
        if _count_above(moved, _ROUGH) == _ZERO:
            break
    for j in range(n):
        x[j] = near[j]
    for _ in range(_STEPS):
        _step(x, v, y, rho, moved)
        if _count_above(moved, np.float32(close)) == _ZERO:
            break


@kernel
def _step(x: Array, v: Array, y: Array, rho: float, moved: Singles) -> None:
    """A Newton step on g(x) = σ(x) − y + ρ(x − v), which cannot cycle and needs no bracket.

    g rises, is convex below 0 and concave above. g(0) tells on which side its root lies; there
    Newton may overshoot once, towards 0, where it is stopped; from then on it is monotone.
    """
    for j in range(len(x)):
        is_above = 0.5 - y[j] - rho * v[j] < 0.0
        old = max(x[j], 0.0) if is_above else min(x[j], 0.0)
        p = 1.0 / (1.0 + exp(-old))
        new = old - (p - y[j] + rho * (old - v[j])) / (p * (1.0 - p) + rho)
        new = max(new, 0.0) if is_above else min(new, 0.0)
        moved[j] = abs(new - old)
        x[j] = new


@kernel
def _step_single(x: Singles, v: Singles, y: Singles, rho: np.float32, moved: Singles) -> None:
    """The same in single precision."""
    for j in range(len(x)):
        is_above = _HALF - y[j] - rho * v[j] < _ZERO
        old = max(x[j], _ZERO) if is_above else min(x[j], _ZERO)
        p = _ONE / (_ONE + exp_single(-old))
        new = old - (p - y[j] + rho * (old - v[j])) / (p * (_ONE - p) + rho)
        new = max(new, _ZERO) if is_above else min(new, _ZERO)
        moved[j] = abs(new - old)
        x[j] = new


@summing
def _count_above(values: Singles, limit: np.float32) -> np.float32:
    count = _ZERO
    for j in range(len(values)):
        count += _ONE if values[j] > limit else _ZERO
    return count


@summing
def _finish(
    a: Array, x: Array, centre: Array, u: State, signal: Array, b: float, before: float, rho: float, norms: Array
) -> None:
    """λ⁺ = ρ(v − x), for x is where the slope vanishes; c, and the norms."""
    primal, moved, of_scores, of_z, of_dual = 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(len(u)):
        last, new = np.float64(u[j]), x[j]
        u[j] = new
        dual, z = rho * (centre[j] - new), new - b
        gap, step = a[j] - z, new - last + before - b
        signal[j] = dual + rho * gap
        primal += gap * gap
        moved += step * step
        of_scores += a[j] * a[j]
        of_z += z * z
        of_dual += dual * dual
    norms += np.array([primal, moved, of_scores, of_z, of_dual])
