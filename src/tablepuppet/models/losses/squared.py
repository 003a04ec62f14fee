"""Squared error: ½(a − y)²."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.losses.base import LabelNoise, Loss


@dataclass(frozen=True, slots=True)
class Squared(Loss):
    """½(a − y)²."""

    name: ClassVar[str] = "squared"
    model: ClassVar[str] = "linear"
    is_quadratic: ClassVar[bool] = True
    curvature_needs_labels: ClassVar[bool] = False
    label_noise: ClassVar[LabelNoise] = "unbiased labels"

    searches_constant: ClassVar[bool] = True

    @property
    def bound(self) -> float:
        return 1.0

    def best_constant(self, labels: Array, weights: Array) -> Array:
        return np.array([weights @ labels / max(float(weights.sum()), 1e-300)])

    def typical_slope(self, labels: Array, shares: Array) -> float:
        """At the best constant the slope is the label's distance from its mean."""
        return float(np.sqrt(shares @ (labels - shares @ labels) ** 2))

    def value(self, scores: Array, labels: Array) -> Array:
        residual = scores[:, 0] - labels
        return np.asarray(0.5 * residual * residual)

    def gradient(self, scores: Array, labels: Array) -> Array:
        return scores - labels[:, None]

    def curvature(self, scores: Array, labels: Array) -> Array:
        return np.ones_like(scores)

    def hessian_product(self, scores: Array, labels: Array, vectors: Array) -> Array:
        return vectors

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        return np.asarray((labels[:, None] + rho * centre) / (1.0 + rho))

    def mean(self, sums: Mapping[str, Any], *, is_noisy: bool) -> float:
        """Of noisy labels, from the sum of squared errors, which is without bias."""
        return float(0.5 * sums["squared"] / sums["rows"] if is_noisy else sums["loss"] / sums["rows"])
