"""Huber loss: squared error up to `delta`, absolute error beyond it, so that outliers pull no harder than that."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import JobError
from tablepuppet.models.losses.base import Loss


@dataclass(frozen=True, slots=True)
class Huber(Loss):
    """½r² where |r| ≤ δ, δ(|r| − δ/2) beyond, with r = a − y."""

    name: ClassVar[str] = "huber"
    model: ClassVar[str] = "huber"
    options: ClassVar[tuple[str, ...]] = ("delta",)

    delta: float = 1.0  # in units of the label

    def __post_init__(self) -> None:
        if not 0 < self.delta < inf:
            raise JobError("delta must be above 0 and finite: the error, in units of the label, that is an outlier's")

    @property
    def bound(self) -> float:
        return 1.0

    def slope_change(self, move: float) -> float:
        return min(move, 2.0 * self.delta)

    def value(self, scores: Array, labels: Array) -> Array:
        size = np.abs(scores[:, 0] - labels)
        inside = np.minimum(size, self.delta)
        return np.asarray(inside * (size - 0.5 * inside))

    def gradient(self, scores: Array, labels: Array) -> Array:
        return np.clip(scores - labels[:, None], -self.delta, self.delta)

    def curvature(self, scores: Array, labels: Array) -> Array:
        """1 inside; outside, where it is 0, that of the parabola which touches the loss there and lies above it."""
        return np.asarray(self.delta / np.maximum(np.abs(scores - labels[:, None]), self.delta))

    def parabola(self, scores: Array, labels: Array) -> Array:
        return self.curvature(scores, labels)

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        away = centre - labels[:, None]
        return centre - np.clip(away / (1.0 + rho), -self.delta / rho, self.delta / rho)
