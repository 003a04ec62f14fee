"""Softmax loss of any number of classes: log Σ_c e^{a_c} − a_y."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import ClassVar

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.losses.base import Derivatives, LabelFacts, LabelNoise, Loss, Task
from tablepuppet.models.metrics import CLASSES, Metric


@dataclass(frozen=True, slots=True)
class Softmax(Loss):
    """log Σ_c e^{a_c} − t·a, with t the target row of the label's class.

    `targets` is the identity for exact labels, and the debiasing matrix for labels that went
    through randomised response.
    """

    name: ClassVar[str] = "softmax"
    model: ClassVar[str] = "softmax"
    task: ClassVar[Task] = "classes"
    metrics: ClassVar[tuple[Metric, ...]] = CLASSES
    curvature_needs_labels: ClassVar[bool] = False
    label_noise: ClassVar[LabelNoise] = "targets"
    searches_constant: ClassVar[bool] = True
    diverged: ClassVar[float] = 1e6
    epochs: ClassVar[Mapping[str, int]] = {"curvature": 30}

    classes: int
    targets: Array | None = field(default=None, compare=False)

    @classmethod
    def of(cls, label: LabelFacts, **options: float) -> "Softmax":
        return cls(label.classes, label.targets)

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def caution(self) -> float:
        return self.classes / max(1, self.classes - 1)  # as LightGBM has it: the trees of other classes move, too

    @property
    def bound(self) -> float:
        return 0.5

    def slope_change(self, move: float) -> float:
        return min(0.5 * move, sqrt(2.0))

    def best_constant(self, labels: Array, weights: Array) -> Array:
        shares = weights / max(float(weights.sum()), 1e-300)
        targets = np.eye(self.classes) if self.targets is None else self.targets
        classes = np.bincount(labels.astype(np.intp), shares, self.classes) @ targets
        return np.asarray(np.log(np.maximum(classes, 1e-12)))

    def typical_slope(self, labels: Array, shares: Array) -> float:
        """At the best constant the slope is the target's distance from its mean."""
        classes = np.bincount(labels.astype(np.intp), weights=shares, minlength=self.classes)
        targets = np.eye(self.classes) if self.targets is None else self.targets
        mean = classes @ targets
        return float(np.sqrt(classes @ (targets * targets).sum(axis=1) - mean @ mean))

    def probabilities(self, scores: Array) -> Array:
        return softmax(scores)

    def value(self, scores: Array, labels: Array) -> Array:
        return _normalise(scores)[1] - self._along_target(scores, labels)

    def gradient(self, scores: Array, labels: Array) -> Array:
        return self._less_target(softmax(scores), labels)

    def curvature(self, scores: Array, labels: Array) -> Array:
        p = softmax(scores)
        return np.asarray(p * (1.0 - p))

    def derivatives(self, scores: Array, labels: Array, *, wants_curvature: bool) -> Derivatives:
        p, value = _normalise(scores)
        curvature = np.asarray(p * (1.0 - p)) if wants_curvature else None
        return float((value - self._along_target(scores, labels)).sum()), self._less_target(p, labels), curvature

    def hessian_product(self, scores: Array, labels: Array, vectors: Array) -> Array:
        p = softmax(scores)
        return np.asarray(p[:, None, :] * (vectors - vectors @ p[:, :, None]))

    def pairs(self, scores: Array, labels: Array) -> Array:
        """p_a (δ_ab − p_b)."""
        p = np.ascontiguousarray(softmax(scores).T)
        out = np.empty((self.classes * (self.classes + 1) // 2, len(scores)))
        first = 0
        for number, own in enumerate(p):
            inside = out[first : first + self.classes - number]
            np.multiply(p[number:], -own, out=inside)
            inside[0] += own
            first += len(inside)
        return out.T

    def summed_hessian(self, scores: Array, labels: Array, steps: Array, weights: Array | None = None) -> Array:
        """Eᵀ (diag(Σ w p) − Σ w p pᵀ) E."""
        p = softmax(scores)
        weighted, along = p if weights is None else weights[:, None] * p, p @ steps
        return np.asarray((steps.T * weighted.sum(axis=0)) @ steps - (weighted @ steps).T @ along)

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        from tablepuppet.models.losses import softmax_kernels  # here: it loads the compiler

        out = np.array(start, np.float64, order="C")
        targets = np.eye(self.classes) if self.targets is None else np.ascontiguousarray(self.targets)
        each = np.ascontiguousarray(np.broadcast_to(np.reshape(rho, -1), len(out)), np.float64)
        softmax_kernels.proximal(np.ascontiguousarray(centre), each, labels, targets, out)
        return out

    def _along_target(self, scores: Array, labels: Array) -> Array:
        """t·a of each row."""
        codes = labels.astype(np.intp)
        if self.targets is not None:
            return np.asarray((self.targets[codes] * scores).sum(axis=1))
        return np.asarray(scores[np.arange(len(codes)), codes])

    def _less_target(self, p: Array, labels: Array) -> Array:
        """p − t, in place."""
        codes = labels.astype(np.intp)
        if self.targets is not None:
            p -= self.targets[codes]
        else:
            p[np.arange(len(codes)), codes] -= 1.0
        return p

    def predict(self, scores: Array) -> Array:
        return np.asarray(scores.argmax(axis=1))


def softmax(a: Array) -> Array:
    return _normalise(a)[0]


def _normalise(a: Array) -> tuple[Array, Array]:
    """eᵃ / Σ eᵃ per row, and log Σ eᵃ. Classes lie in rows on the way: NumPy runs along long axes fast."""
    x = np.array(a.T, np.float64, order="C")
    top = x.max(axis=0)
    x -= top
    np.exp(x, out=x)
    total = x.sum(axis=0)
    x /= total
    return np.ascontiguousarray(x.T), np.log(total) + top
