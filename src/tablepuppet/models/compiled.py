"""The losses of losses.py as compiled loops (numba), for joined tables of many rows.

Same interface, same results to rounding. Exponentials and logarithms are polynomials that the
compiler turns into vector instructions, accurate to an ulp or two; proximal maps iterate on a few
hundred rows at a time, which never leave the first-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tablepuppet.models.elementary import exp, log1p_exp
from tablepuppet.models.jit import kernel
from tablepuppet.models.losses import Array, Logistic, Softmax

_CHUNK = 256  # rows that a proximal map iterates on together
_STEPS = 60
_CLOSE = 1e-6  # a Newton step this small leaves an error of its square


@dataclass(frozen=True, slots=True)
class CompiledLogistic(Logistic):
    """Logistic, compiled; a ρ per row takes the plain way."""

    def value(self, scores: Array, labels: Array) -> Array:
        out = np.empty(len(scores))
        _logistic_value(scores.reshape(-1), labels, out)
        return out

    def gradient(self, scores: Array, labels: Array) -> Array:
        out = np.empty((len(scores), 1))
        _logistic_gradient(scores.reshape(-1), labels, out.reshape(-1))
        return out

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


@dataclass(frozen=True, slots=True)
class CompiledSoftmax(Softmax):
    """Softmax, compiled; the value under other targets than the classes, and a ρ per row, take the plain way."""

    def probabilities(self, scores: Array) -> Array:
        out = np.empty(scores.shape)
        _softmax(scores, out)
        return out

    def value(self, scores: Array, labels: Array) -> Array:
        if self.targets is not None:
            return Softmax.value(self, scores, labels)
        out = np.empty(len(scores))
        _softmax_value(scores, labels, out)
        return out

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        if isinstance(rho, np.ndarray):
            return Softmax.proximal(self, centre, rho, labels, start)
        out = np.array(start, np.float64, order="C")
        targets = np.eye(self.classes) if self.targets is None else np.ascontiguousarray(self.targets)
        _softmax_proximal(centre, rho, labels, targets, out)
        return out


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
def _logistic_curvature(a: Array, out: Array) -> None:
    for j in range(len(a)):
        p = 1.0 / (1.0 + exp(-a[j]))
        out[j] = p * (1.0 - p)


@kernel
def _logistic_proximal(centre: Array, rho: float, labels: Array, u: Array) -> None:
    """Newton on g(u) = σ(u) − y + ρ(u − v), which cannot cycle and needs no bracket.

    g rises, is convex below 0 and concave above. g(0) tells on which side its root lies; there
    Newton may overshoot once, towards 0, where it is stopped; from then on it is monotone.
    """
    x = np.empty(_CHUNK)
    for first in range(0, len(u), _CHUNK):
        rows = min(_CHUNK, len(u) - first)
        v, y = centre[first : first + rows], labels[first : first + rows]
        x[:rows] = u[first : first + rows]
        for _ in range(_STEPS):
            far = 0
            for j in range(rows):
                is_above = 0.5 - y[j] - rho * v[j] < 0.0
                old = max(x[j], 0.0) if is_above else min(x[j], 0.0)
                p = 1.0 / (1.0 + exp(-old))
                new = old - (p - y[j] + rho * (old - v[j])) / (p * (1.0 - p) + rho)
                new = max(new, 0.0) if is_above else min(new, 0.0)
                far += abs(new - old) > _CLOSE
                x[j] = new
            if far == 0:
                break
        u[first : first + rows] = x[:rows]


# -- softmax -------------------------------------------------------------------------------
# A chunk of rows lies transposed, classes by rows, so that every inner loop runs over rows.


@kernel
def _exponentials(x: Array, p: Array, top: Array, total: Array) -> None:
    """p = eˣ / Σ eˣ per column, and max x and Σ e^(x − max x)."""
    classes, rows = x.shape
    for j in range(rows):
        top[j] = x[0, j]
    for c in range(1, classes):
        for j in range(rows):
            top[j] = max(top[j], x[c, j])
    total[:] = 0.0
    for c in range(classes):
        for j in range(rows):
            p[c, j] = exp(x[c, j] - top[j])
        for j in range(rows):
            total[j] += p[c, j]
    for c in range(classes):
        for j in range(rows):
            p[c, j] /= total[j]


@kernel
def _softmax_value(a: Array, labels: Array, out: Array) -> None:
    classes = a.shape[1]
    x, p = np.zeros((classes, _CHUNK)), np.empty((classes, _CHUNK))
    top, total = np.empty(_CHUNK), np.empty(_CHUNK)
    for first in range(0, len(a), _CHUNK):
        rows = min(_CHUNK, len(a) - first)
        for j in range(rows):
            for c in range(classes):
                x[c, j] = a[first + j, c]
        _exponentials(x, p, top, total)
        for j in range(rows):
            out[first + j] = np.log(total[j]) + top[j] - a[first + j, int(labels[first + j])]


@kernel
def _softmax(a: Array, out: Array) -> None:
    """eᵃ / Σ eᵃ per row."""
    classes = a.shape[1]
    x, p = np.zeros((classes, _CHUNK)), np.empty((classes, _CHUNK))
    top, total = np.empty(_CHUNK), np.empty(_CHUNK)
    for first in range(0, len(a), _CHUNK):
        rows = min(_CHUNK, len(a) - first)
        for j in range(rows):
            for c in range(classes):
                x[c, j] = a[first + j, c]
        _exponentials(x, p, top, total)
        for j in range(rows):
            for c in range(classes):
                out[first + j, c] = p[c, j]


@kernel
def _softmax_proximal(centre: Array, rho: float, labels: Array, targets: Array, u: Array) -> None:
    """Newton with the Hessian ρI + diag(p) − ppᵀ, inverted by Sherman–Morrison.

    Where the slope at the end of a step points back by more than a tenth of the slope at its start,
    the step overshot: it is taken again at half its size.
    """
    classes = u.shape[1]
    wide, narrow = np.zeros((7, classes, _CHUNK)), np.zeros((7, _CHUNK))
    x, v, t, p, slope, step, base = wide[0], wide[1], wide[2], wide[3], wide[4], wide[5], wide[6]
    top, total, descent, size = narrow[0], narrow[1], narrow[2], narrow[3]
    along, scale, largest = narrow[4], narrow[5], narrow[6]
    for first in range(0, len(u), _CHUNK):
        rows = min(_CHUNK, len(u) - first)
        for j in range(rows):
            row = targets[int(labels[first + j])]
            for c in range(classes):
                x[c, j], v[c, j], t[c, j] = u[first + j, c], centre[first + j, c], row[c]
        step[...] = 0.0
        base[...] = x
        descent[:] = np.inf
        for _ in range(_STEPS):
            _exponentials(x, p, top, total)
            largest[:] = 0.0
            for c in range(classes):
                for j in range(_CHUNK):
                    slope[c, j] = p[c, j] - t[c, j] + rho * (x[c, j] - v[c, j])
                for j in range(_CHUNK):
                    largest[j] -= step[c, j] * slope[c, j]
            for j in range(_CHUNK):
                size[j] = 0.5 * size[j] if largest[j] > 0.1 * descent[j] else 1.0
            along[:] = 0.0
            scale[:] = 1.0
            for c in range(classes):
                for j in range(_CHUNK):
                    ratio = p[c, j] / (p[c, j] + rho)
                    along[j] += ratio * slope[c, j]
                    scale[j] -= ratio * p[c, j]
            for j in range(_CHUNK):
                along[j] /= scale[j]
            _newton_steps(x, base, step, p, slope, along, size, descent, rho)
            largest[:] = 0.0
            for c in range(classes):
                for j in range(_CHUNK):
                    largest[j] = max(largest[j], abs(step[c, j]))
            far = 0
            for j in range(rows):
                far += largest[j] > _CLOSE
            if far == 0:
                break
        for j in range(rows):
            for c in range(classes):
                u[first + j, c] = x[c, j]


@kernel
def _newton_steps(
    x: Array, base: Array, step: Array, p: Array, slope: Array, along: Array, size: Array, descent: Array, rho: float
) -> None:
    """The next Newton step from x where the last one was good (size 1); half of the last one elsewhere."""
    classes = len(x)
    for j in range(_CHUNK):
        descent[j] = 0.0 if size[j] == 1.0 else descent[j]
    for c in range(classes):
        for j in range(_CHUNK):
            new = (slope[c, j] + p[c, j] * along[j]) / (p[c, j] + rho)
            step[c, j] = new if size[j] == 1.0 else step[c, j]
        for j in range(_CHUNK):
            base[c, j] = x[c, j] if size[j] == 1.0 else base[c, j]
        for j in range(_CHUNK):
            descent[j] += step[c, j] * slope[c, j] if size[j] == 1.0 else 0.0
        for j in range(_CHUNK):
            x[c, j] = base[c, j] - size[j] * step[c, j]
