"""The losses of one output as compiled loops (numba), for joined tables of many rows.

Same interface, same results to rounding. Exponentials and logarithms are polynomials that the
compiler turns into vector instructions, accurate to an ulp or two; proximal maps iterate on a few
hundred rows at a time, which never leave the first-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tablepuppet.models.elementary import exp, log1p_exp
from tablepuppet.models.jit import kernel
from tablepuppet.models.losses import Array, Derivatives, Logistic, Squared

CHUNK = 256  # rows that a proximal map iterates on together
STEPS = 60
CLOSE = 1e-6  # a Newton step this small leaves an error of its square
_NEAR = 3e-4
_DUAL_SUMS = 5


@dataclass(frozen=True, slots=True)
class CompiledSquared(Squared):
    """½(a − y)²: NumPy is fast enough but for ADMM's step."""

    def dual_step(
        self, scores: Array, labels: Array, u: Array, intercept: float, before: float, rho: float, relax: float
    ) -> tuple[Array, Array]:
        signal, sums = np.empty((len(scores), 1)), np.zeros(_DUAL_SUMS)
        given = (intercept, before, rho, relax)
        _squared_dual(scores.reshape(-1), labels, u.reshape(-1), *given, signal.reshape(-1), sums)
        return signal, sums


@dataclass(frozen=True, slots=True)
class CompiledLogistic(Logistic):
    """Logistic, compiled; a ρ per row takes the plain way."""

    def dual_step(
        self, scores: Array, labels: Array, u: Array, intercept: float, before: float, rho: float, relax: float
    ) -> tuple[Array, Array]:
        signal, sums = np.empty((len(scores), 1)), np.zeros(_DUAL_SUMS)
        close = CLOSE if u.dtype == np.float64 else _NEAR  # what is left is less than the state can hold
        given = (intercept, before, rho, relax, close)
        _logistic_dual(scores.reshape(-1), labels, u.reshape(-1), *given, signal.reshape(-1), sums)
        return signal, sums

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

    def curvature(self, scores: Array) -> Array:
        out = np.empty((len(scores), 1))
        _logistic_curvature(scores.reshape(-1), out.reshape(-1))
        return out

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        if isinstance(rho, np.ndarray):
            return Logistic.proximal(self, centre, rho, labels, start)
        out = np.array(start, np.float64, order="C")
        _logistic_proximal(centre.reshape(-1), rho, labels, out.reshape(-1))
        return out


# -- squared -------------------------------------------------------------------------------


@kernel
def _squared_dual(
    a: Array, y: Array, u: Array, b: float, before: float, rho: float, relax: float, signal: Array, sums: Array
) -> None:
    shift = b - (1.0 - relax) * before
    last, new, dual = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK)
    for first in range(0, len(a), CHUNK):
        rows = min(CHUNK, len(a) - first)
        labels, scores = y[first : first + rows], a[first : first + rows]
        for j in range(rows):
            last[j] = u[first + j]
            centre = (last[j] - labels[j]) / rho + relax * scores[j] + (1.0 - relax) * last[j] + shift
            new[j] = (labels[j] + rho * centre) / (1.0 + rho)
            dual[j] = new[j] - labels[j]
            u[first + j] = new[j]
        _signal(scores, last, new, dual, b, before, rho, signal[first : first + rows], sums)


@kernel
def _signal(
    a: Array, last: Array, u: Array, dual: Array, b: float, before: float, rho: float, signal: Array, sums: Array
) -> None:
    """c = λ⁺ + ρ(a − z⁺) of some rows, and the sums by which ADMM judges itself."""
    primal, moved, of_scores, of_z, of_dual = 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(len(a)):
        z = u[j] - b
        gap = a[j] - z
        step = u[j] - last[j] + before - b
        primal += gap * gap
        moved += step * step
        of_scores += a[j] * a[j]
        of_z += z * z
        of_dual += dual[j] * dual[j]
        signal[j] = dual[j] + rho * gap
    sums[0] += primal
    sums[1] += moved
    sums[2] += of_scores
    sums[3] += of_z
    sums[4] += of_dual


# -- logistic ------------------------------------------------------------------------------


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
def _solve_logistic(x: Array, v: Array, y: Array, rows: int, rho: float, close: float) -> None:
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
            far += abs(new - old) > close
            x[j] = new
        if far == 0:
            break


@kernel
def _logistic_dual(
    a: Array,
    y: Array,
    u: Array,
    b: float,
    before: float,
    rho: float,
    relax: float,
    close: float,
    signal: Array,
    sums: Array,
) -> None:
    shift = b - (1.0 - relax) * before
    x, last, centre = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK)
    for first in range(0, len(a), CHUNK):
        rows = min(CHUNK, len(a) - first)
        labels, scores = y[first : first + rows], a[first : first + rows]
        for j in range(rows):
            last[j] = u[first + j]
            x[j] = last[j]
            dual = 1.0 / (1.0 + exp(-last[j])) - labels[j]
            centre[j] = dual / rho + relax * scores[j] + (1.0 - relax) * last[j] + shift
        _solve_logistic(x, centre, labels, rows, rho, close)
        for j in range(rows):
            u[first + j] = x[j]
            centre[j] = 1.0 / (1.0 + exp(-x[j])) - labels[j]  # now λ⁺
        _signal(scores, last, x, centre, b, before, rho, signal[first : first + rows], sums)


@kernel
def _logistic_proximal(centre: Array, rho: float, labels: Array, u: Array) -> None:
    x = np.empty(CHUNK)
    for first in range(0, len(u), CHUNK):
        rows = min(CHUNK, len(u) - first)
        x[:rows] = u[first : first + rows]
        _solve_logistic(x, centre[first : first + rows], labels[first : first + rows], rows, rho, CLOSE)
        u[first : first + rows] = x[:rows]
