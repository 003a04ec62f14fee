"""A loss whose rows count more or less: w·ℓ(a; y), with one weight per row.

In: a loss and the weights of the rows that it is called with. Out: a loss. A sum over rows, and everything an
algorithm does with it, is then that of a table in which a row of weight 2 occurs twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.losses.base import Derivatives, Loss

_NONE = 1e-30  # a weight that no weight above 0 is below


@dataclass(frozen=True, slots=True, eq=False)
class Weighted(Loss):
    """w·ℓ."""

    plain: Loss
    weights: Array

    @property
    def outputs(self) -> int:
        return self.plain.outputs

    @property
    def bound(self) -> float:
        return self.plain.bound * float(self.weights.max(initial=0.0))

    def slope_change(self, move: float) -> float:
        return self.plain.slope_change(move) * float(self.weights.max(initial=0.0))

    @property
    def is_quadratic(self) -> bool:  # type: ignore[override]
        return self.plain.is_quadratic

    @property
    def is_smooth(self) -> bool:  # type: ignore[override]
        return self.plain.is_smooth

    @property
    def curvature_needs_labels(self) -> bool:  # type: ignore[override]
        return self.plain.curvature_needs_labels

    def value(self, scores: Array, labels: Array) -> Array:
        return self.weights * self.plain.value(scores, labels)

    def total(self, scores: Array, labels: Array) -> float:
        return float(self.weights @ self.plain.value(scores, labels))

    def gradient(self, scores: Array, labels: Array) -> Array:
        return self.weights[:, None] * self.plain.gradient(scores, labels)

    def curvature(self, scores: Array, labels: Array) -> Array:
        return self.weights[:, None] * self.plain.curvature(scores, labels)

    def parabola(self, scores: Array, labels: Array) -> Array:
        return self.weights[:, None] * self.plain.parabola(scores, labels)

    def derivatives(self, scores: Array, labels: Array, *, wants_curvature: bool) -> Derivatives:
        _, gradient, curvature = self.plain.derivatives(scores, labels, wants_curvature=wants_curvature)
        across, total = self.weights[:, None], self.total(scores, labels)
        return total, across * gradient, None if curvature is None else across * curvature

    def hessian_product(self, scores: Array, labels: Array, vectors: Array) -> Array:
        return self.weights[:, None, None] * self.plain.hessian_product(scores, labels, vectors)

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        """argmin w·ℓ(u) + ρ/2 ‖u − c‖² = argmin ℓ(u) + (ρ/w)/2 ‖u − c‖²; without weight, c itself."""
        return self.plain.proximal(centre, rho / np.maximum(self.weights, _NONE)[:, None], labels, start)
