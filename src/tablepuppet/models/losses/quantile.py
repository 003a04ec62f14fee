"""Pinball loss: a model of it predicts the label's `quantile`, its median by default.

It has a kink and no second derivative: ADMM minimises it exactly, by its proximal map; sgd follows subgradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import JobError
from tablepuppet.models.losses.base import LabelFacts, Loss
from tablepuppet.models.metrics import COVERAGE, NUMBER, PINBALL, Metric


@dataclass(frozen=True, slots=True)
class Quantile(Loss):
    """q·(y − a) where y ≥ a, (1 − q)·(a − y) elsewhere."""

    name: ClassVar[str] = "quantile"
    model: ClassVar[str] = "quantile"
    options: ClassVar[tuple[str, ...]] = ("quantile",)
    metrics: ClassVar[tuple[Metric, ...]] = (PINBALL, COVERAGE, *NUMBER)
    is_smooth: ClassVar[bool] = False
    epochs: ClassVar[Mapping[str, int]] = {"proximal map": 300, "gradient": 30}

    quantile: float = 0.5
    spread: float = 1.0  # between the quartiles of the labels: ADMM's ρ and the steps of sgd are in its units

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise JobError("quantile must lie between 0 and 1: 0.5 is the median")

    @classmethod
    def of(cls, label: LabelFacts, **options: float) -> Quantile:
        if label.values is None or label.shares is None:
            return cls(**options)
        low, high = (_weighted_quantile(label.values, label.shares, q) for q in (0.25, 0.75))
        return cls(**options, spread=(high - low) or 1.0)

    @property
    def bound(self) -> float:
        return 1.0 / self.spread

    def slope_change(self, move: float) -> float:
        return 1.0

    def best_constant(self, labels: Array, weights: Array) -> Array:
        order = np.argsort(labels, kind="stable")
        return np.array([_weighted_quantile(labels[order], weights[order], self.quantile)])

    def value(self, scores: Array, labels: Array) -> Array:
        error = labels - scores[:, 0]
        return np.maximum(self.quantile * error, (self.quantile - 1.0) * error)

    def gradient(self, scores: Array, labels: Array) -> Array:
        return np.where(labels[:, None] > scores, -self.quantile, 1.0 - self.quantile)

    def curvature(self, scores: Array, labels: Array) -> Array:
        return np.zeros_like(scores)

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        y = labels[:, None]
        return np.maximum(centre - (1.0 - self.quantile) / rho, np.minimum(centre + self.quantile / rho, y))


def _weighted_quantile(ascending: Array, weights: Array, quantile: float) -> float:
    heavy = np.cumsum(weights)
    place = int(np.searchsorted(heavy, quantile * heavy[-1]))
    return float(ascending[min(place, len(ascending) - 1)])
