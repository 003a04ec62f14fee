"""Softmax loss of any number of classes: log Σ_c e^{a_c} − a_y."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import ClassVar

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.losses.base import EXACT, STEPS, LabelFacts, LabelNoise, Loss, Task
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
    is_costly: ClassVar[bool] = True
    curvature_needs_labels: ClassVar[bool] = False
    label_noise: ClassVar[LabelNoise] = "targets"
    searches_constant: ClassVar[bool] = True
    diverged: ClassVar[float] = 1e6
    epochs: ClassVar[Mapping[str, int]] = {"curvature": 30}

    classes: int
    targets: Array | None = field(default=None, compare=False)

    @classmethod
    def of(cls, label: LabelFacts, **options: float) -> Softmax:
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

    def _target(self, labels: Array) -> Array:
        codes = labels.astype(np.intp)
        if self.targets is not None:
            return np.asarray(self.targets[codes])
        target = np.zeros((len(codes), self.classes))
        target[np.arange(len(codes)), codes] = 1.0
        return target

    def probabilities(self, scores: Array) -> Array:
        """eᵃ / Σ eᵃ per row."""
        return softmax(scores)

    def value(self, scores: Array, labels: Array) -> Array:
        top = scores.max(axis=1, initial=-np.inf)
        total = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
        if self.targets is not None:
            return np.asarray(total - (self._target(labels) * scores).sum(axis=1))
        codes = labels.astype(np.intp)
        return np.asarray(total - scores[np.arange(len(codes)), codes])

    def gradient(self, scores: Array, labels: Array) -> Array:
        p = self.probabilities(scores)
        if self.targets is not None:
            return p - self._target(labels)
        codes = labels.astype(np.intp)
        p[np.arange(len(codes)), codes] -= 1.0
        return p

    def curvature(self, scores: Array, labels: Array) -> Array:
        p = self.probabilities(scores)
        return np.asarray(p * (1.0 - p))

    def hessian_product(self, scores: Array, labels: Array, vectors: Array) -> Array:
        p = self.probabilities(scores)[:, None, :]
        weighted = vectors * p
        return np.asarray(weighted - weighted.sum(axis=2, keepdims=True) * p)

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        # Newton with the Hessian ρI + diag(p) − ppᵀ, inverted by Sherman–Morrison; a row whose
        # objective would rise halves its step.
        target = self._target(labels)
        u = start.copy()
        best = self._envelope(u, centre, rho, target)
        for _ in range(STEPS):
            p = softmax(u)
            slope = p - target + rho * (u - centre)
            inverse = 1.0 / (p + rho)
            along = inverse * p
            scale = (along * slope).sum(axis=1) / (1.0 - (along * p).sum(axis=1))
            step = inverse * slope + along * scale[:, None]
            size = np.ones((len(u), 1))
            for _ in range(30):
                value = self._envelope(u - size * step, centre, rho, target)
                rises = value > best + 1e-12 * (1.0 + np.abs(best))
                if not rises.any():
                    break
                size[rises] *= 0.5
            u = u - size * step
            best = value
            if float(np.abs(step).max(initial=0.0)) < EXACT:
                break
        return u

    def predict(self, scores: Array) -> Array:
        return np.asarray(scores.argmax(axis=1))

    def compiled(self) -> Loss:
        from tablepuppet.models.losses.softmax_compiled import CompiledSoftmax  # needs numba

        return CompiledSoftmax(self.classes, self.targets)

    def _envelope(self, u: Array, centre: Array, rho: float | Array, target: Array) -> Array:
        top = u.max(axis=1, initial=-np.inf)
        total = top + np.log(np.exp(u - top[:, None]).sum(axis=1))
        away = u - centre
        return np.asarray(total - (target * u).sum(axis=1) + 0.5 * (rho * away * away).sum(axis=1))


def softmax(a: Array) -> Array:
    """eᵃ / Σ eᵃ per row."""
    e = np.exp(a - a.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(e / e.sum(axis=1, keepdims=True))
