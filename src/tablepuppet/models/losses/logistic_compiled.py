"""The logistic loss as compiled loops (numba), for joined tables of many rows.

Same interface, same results to rounding. Exponentials and logarithms are polynomials that the
compiler turns into vector instructions, accurate to an ulp or two; proximal maps iterate on a few
hundred rows at a time, which never leave the first-level cache. ADMM's step is in logistic_dual.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.elementary import exp, log1p_exp
from tablepuppet.models.jit import kernel
from tablepuppet.models.lane_view import LaneView
from tablepuppet.models.losses.base import Derivatives
from tablepuppet.models.losses.logistic import Logistic
from tablepuppet.models.losses.logistic_dual import logistic_dual

CHUNK = 256  # rows that a proximal map iterates on together
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
    x = np.empty(CHUNK)
    for first in range(0, len(u), CHUNK):
        rows = min(CHUNK, len(u) - first)
        x[:rows] = u[first : first + rows]
        _solve_logistic(x, centre[first : first + rows], labels[first : first + rows], rows, rho)
        u[first : first + rows] = x[:rows]
