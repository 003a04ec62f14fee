"""The logistic loss as compiled loops (numba), for joined tables of many rows.

Same interface, same results to rounding. Exponentials and logarithms are polynomials that the
compiler turns into vector instructions, accurate to an ulp or two; proximal maps iterate on a few
hundred rows at a time, which never leave the first-level cache.

ADMM's z-step and dual step (algorithms/admm/server.py) go over a view of joined rows, as in squared_compiled.py. Loops
are cut so that each writes few arrays: then the compiler can tell that they do not overlap, and uses vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.models.compiler import LaneView
from tablepuppet.models.jit import CHUNK, collapse, exp, exp_single, expand, kernel, log1p_exp, summing
from tablepuppet.models.losses.base import Derivatives
from tablepuppet.models.losses.logistic import Logistic
from tablepuppet.models.losses.squared_compiled import NORMS, State

PROXIMAL_CHUNK = 256  # rows that a proximal map iterates on together
STEPS = 60
CLOSE = 1e-6  # a Newton step this small leaves an error of its square


@dataclass(frozen=True, slots=True)
class CompiledLogistic(Logistic):
    """Logistic, compiled; a ρ per row takes the plain way."""

    def dual_step(self, view: LaneView, intercept: float, before: float, rho: float, relax: float) -> Array:
        return logistic_dual(view, intercept, before, rho, relax)

    def value(self, scores: Array, labels: Array) -> Array:
        out = np.empty(len(scores))
        _logistic_value(scores.reshape(-1), labels, out)
        return out

    def total(self, scores: Array, labels: Array) -> float:
        return float(self.value(scores, labels).sum())

    def gradient(self, scores: Array, labels: Array) -> Array:
        out = np.empty((len(scores), 1))
        _logistic_gradient(scores.reshape(-1), labels, out.reshape(-1))
        return out

    def derivatives(self, scores: Array, labels: Array, *, wants_curvature: bool) -> Derivatives:
        value, gradient, curvature = np.empty(len(scores)), np.empty((len(scores), 1)), np.empty((len(scores), 1))
        _logistic_derivatives(scores.reshape(-1), labels, value, gradient.reshape(-1), curvature.reshape(-1))
        return float(value.sum()), gradient, curvature if wants_curvature else None

    def curvature(self, scores: Array, labels: Array) -> Array:
        out = np.empty((len(scores), 1))
        _logistic_curvature(scores.reshape(-1), out.reshape(-1))
        return out

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        if isinstance(rho, np.ndarray):
            return Logistic.proximal(self, centre, rho, labels, start)
        out = np.array(start, np.float64, order="C")
        _logistic_proximal(centre.reshape(-1), rho, labels, out.reshape(-1))
        return out


@kernel
def _logistic_value(a: Array, y: Array, out: Array) -> None:
    for j in range(len(a)):
        out[j] = log1p_exp(a[j]) - y[j] * a[j]


@kernel
def _logistic_gradient(a: Array, y: Array, out: Array) -> None:
    for j in range(len(a)):
        out[j] = 1.0 / (1.0 + exp(-a[j])) - y[j]


@kernel
def _logistic_derivatives(a: Array, y: Array, value: Array, gradient: Array, curvature: Array) -> None:
    for j in range(len(a)):
        value[j] = log1p_exp(a[j]) - y[j] * a[j]
        e = exp(-abs(a[j]))
        p = (1.0 if a[j] >= 0.0 else e) / (1.0 + e)
        gradient[j] = p - y[j]
        curvature[j] = p * (1.0 - p)


@kernel
def _logistic_curvature(a: Array, out: Array) -> None:
    for j in range(len(a)):
        p = 1.0 / (1.0 + exp(-a[j]))
        out[j] = p * (1.0 - p)


@kernel
def _solve_logistic(x: Array, v: Array, y: Array, rows: int, rho: float) -> None:
    """Newton on g(x) = σ(x) − y + ρ(x − v), which cannot cycle and needs no bracket.

    g rises, is convex below 0 and concave above. g(0) tells on which side its root lies; there
    Newton may overshoot once, towards 0, where it is stopped; from then on it is monotone.
    """
    for _ in range(STEPS):
        far = 0
        for j in range(rows):
            is_above = 0.5 - y[j] - rho * v[j] < 0.0
            old = max(x[j], 0.0) if is_above else min(x[j], 0.0)
            p = 1.0 / (1.0 + exp(-old))
            new = old - (p - y[j] + rho * (old - v[j])) / (p * (1.0 - p) + rho)
            new = max(new, 0.0) if is_above else min(new, 0.0)
            far += abs(new - old) > CLOSE
            x[j] = new
        if far == 0:
            break


@kernel
def _logistic_proximal(centre: Array, rho: float, labels: Array, u: Array) -> None:
    x = np.empty(PROXIMAL_CHUNK)
    for first in range(0, len(u), PROXIMAL_CHUNK):
        rows = min(PROXIMAL_CHUNK, len(u) - first)
        x[:rows] = u[first : first + rows]
        _solve_logistic(x, centre[first : first + rows], labels[first : first + rows], rows, rho)
        u[first : first + rows] = x[:rows]


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
