"""Poisson loss of counts and rates: half the deviance, eᵃ − y·a + y log y − y. The prediction is eᵃ.

The curvature eᵃ has no bound; `largest`, the largest label, is what it has where predictions are like the labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf
from typing import ClassVar

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.losses.base import LabelFacts, LabelNoise, Loss
from tablepuppet.models.metrics import DEVIANCE, MAE, R2, RMSE, Metric

_TINY = 1e-10


@dataclass(frozen=True, slots=True)
class Poisson(Loss):
    """eᵃ − y·a + y log y − y with y ≥ 0."""

    name: ClassVar[str] = "poisson"
    model: ClassVar[str] = "poisson"
    metrics: ClassVar[tuple[Metric, ...]] = (DEVIANCE, RMSE, MAE, R2)  # counts are often 0: no MAPE
    curvature_needs_labels: ClassVar[bool] = False
    is_in_label_units: ClassVar[bool] = False
    label_noise: ClassVar[LabelNoise] = "unbiased labels"

    largest: float = 1.0
    mean_label: float = 1.0

    @classmethod
    def of(cls, label: LabelFacts, **options: float) -> Poisson:
        if label.values is None or label.shares is None or not len(label.values):
            return cls()
        mean = float(label.shares @ label.values)
        return cls(max(float(label.values[-1]), _TINY), max(mean, _TINY))

    @property
    def caution(self) -> float:
        return exp(0.7)  # eᵃ grows by so much where a leaf adds 0.7, as LightGBM and XGBoost have it

    @property
    def bound(self) -> float:
        return self.largest

    def slope_change(self, move: float) -> float:
        return inf

    @property
    def typical_curvature(self) -> float:
        return self.mean_label

    def wrong_labels(self, labels: Array) -> str | None:
        below = int(np.count_nonzero(labels < 0))
        if below:
            return f'{below:,} of them are below 0, and model="poisson" takes counts and rates; use model="linear"'
        if len(labels) and not labels.any():
            return "all of them are 0; there is nothing to learn"
        return None

    def best_constant(self, labels: Array, weights: Array) -> Array:
        mean = float(weights @ labels) / max(float(weights.sum()), 1e-300)
        return np.array([np.log(max(mean, _TINY))])

    def value(self, scores: Array, labels: Array) -> Array:
        a, counted = scores[:, 0], np.maximum(labels, 0.0)  # labels that carry noise may be below 0
        return np.asarray(_exp(a) - labels * a + counted * np.log(np.where(counted > 0, counted, 1.0)) - counted)

    def gradient(self, scores: Array, labels: Array) -> Array:
        return np.asarray(_exp(scores) - labels[:, None])

    def curvature(self, scores: Array, labels: Array) -> Array:
        return _exp(scores)

    def predict(self, scores: Array) -> Array:
        return _exp(scores[:, 0])


def _exp(a: Array) -> Array:
    """eᵃ; infinite where it overflows, which a line search steps back from."""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(a))
