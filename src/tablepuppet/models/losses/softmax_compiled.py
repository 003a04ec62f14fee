"""Softmax as compiled loops (numba): the same contract as softmax.py.

A chunk of rows lies transposed, classes by rows, so that every inner loop runs over rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.jit import exp, kernel
from tablepuppet.models.losses.base import Derivatives
from tablepuppet.models.losses.logistic_compiled import CLOSE, PROXIMAL_CHUNK, STEPS
from tablepuppet.models.losses.softmax import Softmax


@dataclass(frozen=True, slots=True)
class CompiledSoftmax(Softmax):
    """Softmax, compiled; the value under other targets than the classes, and a ρ per row, take the plain way."""

    def _sums(self, scores: Array) -> tuple[Array, Array]:
        """Probabilities, and log Σ eᵃ."""
        probabilities, total = np.empty(scores.shape), np.empty(len(scores))
        _softmax(scores, probabilities, total)
        return probabilities, total

    def probabilities(self, scores: Array) -> Array:
        return self._sums(scores)[0]

    def value(self, scores: Array, labels: Array) -> Array:
        if self.targets is not None:
            return Softmax.value(self, scores, labels)
        return self._sums(scores)[1] - scores[np.arange(len(scores)), labels.astype(np.intp)]

    def derivatives(self, scores: Array, labels: Array, *, wants_curvature: bool) -> Derivatives:
        if self.targets is not None or wants_curvature:
            return Softmax.derivatives(self, scores, labels, wants_curvature=wants_curvature)
        gradient, value = self._sums(scores)
        place = np.arange(len(scores)), labels.astype(np.intp)
        value -= scores[place]
        gradient[place] -= 1.0
        return float(value.sum()), gradient, None

    def hessian_product(self, scores: Array, labels: Array, vectors: Array) -> Array:
        out = np.empty(vectors.shape)
        _softmax_hessian(self.probabilities(scores), vectors, out)
        return out

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        if isinstance(rho, np.ndarray):
            return Softmax.proximal(self, centre, rho, labels, start)
        out = np.array(start, np.float64, order="C")
        targets = np.eye(self.classes) if self.targets is None else np.ascontiguousarray(self.targets)
        _softmax_proximal(centre, rho, labels, targets, out)
        return out


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
def _softmax(a: Array, out: Array, total_out: Array) -> None:
    """eᵃ / Σ eᵃ per row, and log Σ eᵃ."""
    classes = a.shape[1]
    x, p = np.zeros((classes, PROXIMAL_CHUNK)), np.empty((classes, PROXIMAL_CHUNK))
    top, total = np.empty(PROXIMAL_CHUNK), np.empty(PROXIMAL_CHUNK)
    for first in range(0, len(a), PROXIMAL_CHUNK):
        rows = min(PROXIMAL_CHUNK, len(a) - first)
        for j in range(rows):
            for c in range(classes):
                x[c, j] = a[first + j, c]
        _exponentials(x, p, top, total)
        for j in range(rows):
            total_out[first + j] = np.log(total[j]) + top[j]
            for c in range(classes):
                out[first + j, c] = p[c, j]


@kernel
def _softmax_hessian(p: Array, vectors: Array, out: Array) -> None:
    """p∘v − (p·v) p of each row's vectors."""
    for j in range(len(p)):
        for k in range(vectors.shape[1]):
            along = 0.0
            for c in range(p.shape[1]):
                along += p[j, c] * vectors[j, k, c]
            for c in range(p.shape[1]):
                out[j, k, c] = p[j, c] * (vectors[j, k, c] - along)


@kernel
def _softmax_proximal(centre: Array, rho: float, labels: Array, targets: Array, u: Array) -> None:
    """Newton with the Hessian ρI + diag(p) − ppᵀ, inverted by Sherman–Morrison.

    Where the slope at the end of a step points back by more than a tenth of the slope at its start,
    the step overshot: it is taken again at half its size.
    """
    classes = u.shape[1]
    wide, narrow = np.zeros((7, classes, PROXIMAL_CHUNK)), np.zeros((7, PROXIMAL_CHUNK))
    x, v, t, p, slope, step, base = wide[0], wide[1], wide[2], wide[3], wide[4], wide[5], wide[6]
    top, total, descent, size = narrow[0], narrow[1], narrow[2], narrow[3]
    along, scale, largest = narrow[4], narrow[5], narrow[6]
    for first in range(0, len(u), PROXIMAL_CHUNK):
        rows = min(PROXIMAL_CHUNK, len(u) - first)
        for j in range(rows):
            row = targets[int(labels[first + j])]
            for c in range(classes):
                x[c, j], v[c, j], t[c, j] = u[first + j, c], centre[first + j, c], row[c]
        step[...] = 0.0
        base[...] = x
        descent[:] = np.inf
        for _ in range(STEPS):
            _exponentials(x, p, top, total)
            largest[:] = 0.0
            for c in range(classes):
                for j in range(PROXIMAL_CHUNK):
                    slope[c, j] = p[c, j] - t[c, j] + rho * (x[c, j] - v[c, j])
                for j in range(PROXIMAL_CHUNK):
                    largest[j] -= step[c, j] * slope[c, j]
            for j in range(PROXIMAL_CHUNK):
                size[j] = 0.5 * size[j] if largest[j] > 0.1 * descent[j] else 1.0
            along[:] = 0.0
            scale[:] = 1.0
            for c in range(classes):
                for j in range(PROXIMAL_CHUNK):
                    ratio = p[c, j] / (p[c, j] + rho)
                    along[j] += ratio * slope[c, j]
                    scale[j] -= ratio * p[c, j]
            for j in range(PROXIMAL_CHUNK):
                along[j] /= scale[j]
            _newton_steps(x, base, step, p, slope, along, size, descent, rho)
            largest[:] = 0.0
            for c in range(classes):
                for j in range(PROXIMAL_CHUNK):
                    largest[j] = max(largest[j], abs(step[c, j]))
            far = 0
            for j in range(rows):
                far += largest[j] > CLOSE
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
    for j in range(PROXIMAL_CHUNK):
        descent[j] = 0.0 if size[j] == 1.0 else descent[j]
    for c in range(classes):
        for j in range(PROXIMAL_CHUNK):
            new = (slope[c, j] + p[c, j] * along[j]) / (p[c, j] + rho)
            step[c, j] = new if size[j] == 1.0 else step[c, j]
        for j in range(PROXIMAL_CHUNK):
            base[c, j] = x[c, j] if size[j] == 1.0 else base[c, j]
        for j in range(PROXIMAL_CHUNK):
            descent[j] += step[c, j] * slope[c, j] if size[j] == 1.0 else 0.0
        for j in range(PROXIMAL_CHUNK):
            x[c, j] = base[c, j] - size[j] * step[c, j]
