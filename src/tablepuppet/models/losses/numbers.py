"""Losses of a label that is a number: squared, Huber, pinball, Poisson and gamma."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf
from typing import Any, ClassVar, Self

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import JobError
from tablepuppet.models.losses.base import Exponential, LabelFacts, LabelNoise, Loss, Separable, Square
from tablepuppet.models.metrics import COVERAGE, DEVIANCE, MAE, NUMBER, PINBALL, R2, RMSE, Metric

_TINY = 1e-10  # lower bound of a mean of counts or amounts


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

    def separate(self, labels: Array) -> Separable:
        return Separable(Square(), shift=labels)

    def mean(self, sums: Mapping[str, Any], *, is_noisy: bool) -> float:
        """Of noisy labels, from the sum of squared errors, which is without bias."""
        return float(0.5 * sums["squared"] / sums["rows"] if is_noisy else sums["loss"] / sums["rows"])


@dataclass(frozen=True, slots=True)
class Huber(Loss):
    """½r² where |r| ≤ δ, δ(|r| − δ/2) beyond, with r = a − y: outliers pull no harder than δ."""

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


@dataclass(frozen=True, slots=True)
class Quantile(Loss):
    """q·(y − a) where y ≥ a, (1 − q)·(a − y) elsewhere: a model of it predicts the label's quantile.

    It has a kink and no second derivative: ADMM minimises it exactly, by its proximal map; sgd follows subgradients.
    """

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
    def of(cls, label: LabelFacts, **options: float) -> "Quantile":
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


@dataclass(frozen=True, slots=True)
class _LogLink(Loss):
    """Half the deviance of labels that are not negative; the prediction is eᵃ, and the curvature has no bound."""

    metrics: ClassVar[tuple[Metric, ...]] = (DEVIANCE, RMSE, MAE, R2)  # counts are often 0: no MAPE
    is_in_label_units: ClassVar[bool] = False

    largest: float = 1.0
    mean_label: float = 1.0

    @classmethod
    def of(cls, label: LabelFacts, **options: float) -> Self:
        if label.values is None or label.shares is None or not len(label.values):
            return cls()
        mean = float(label.shares @ label.values)
        return cls(max(float(label.values[-1]), _TINY), max(mean, _TINY))

    def slope_change(self, move: float) -> float:
        return inf

    def best_constant(self, labels: Array, weights: Array) -> Array:
        mean = float(weights @ labels) / max(float(weights.sum()), 1e-300)
        return np.array([np.log(max(mean, _TINY))])

    def predict(self, scores: Array) -> Array:
        return _exp(scores[:, 0])


@dataclass(frozen=True, slots=True)
class Poisson(_LogLink):
    """Counts and rates, eᵃ − y·a + y log y − y with y ≥ 0.

    The curvature eᵃ reaches `largest`, the largest label, if predictions equal the labels.
    """

    name: ClassVar[str] = "poisson"
    model: ClassVar[str] = "poisson"
    curvature_needs_labels: ClassVar[bool] = False
    label_noise: ClassVar[LabelNoise] = "unbiased labels"

    @property
    def caution(self) -> float:
        return exp(0.7)  # eᵃ grows by so much where a leaf adds 0.7, as LightGBM and XGBoost have it

    @property
    def bound(self) -> float:
        return self.largest

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

    def value(self, scores: Array, labels: Array) -> Array:
        a, counted = scores[:, 0], np.maximum(labels, 0.0)  # labels that carry noise may be below 0
        return np.asarray(_exp(a) - labels * a + counted * np.log(np.where(counted > 0, counted, 1.0)) - counted)

    def gradient(self, scores: Array, labels: Array) -> Array:
        return np.asarray(_exp(scores) - labels[:, None])

    def curvature(self, scores: Array, labels: Array) -> Array:
        return _exp(scores)

    def separate(self, labels: Array) -> Separable:
        return Separable(Exponential(), linear=-labels, constant=self.value(np.zeros((len(labels), 1)), labels) - 1.0)


@dataclass(frozen=True, slots=True)
class Gamma(_LogLink):
    """Amounts whose spread grows with their mean, y·e⁻ᵃ + a − log y − 1 with y > 0.

    The curvature y·e⁻ᵃ is 1 if predictions equal the labels, and `largest` over the mean at the best constant.
    """

    name: ClassVar[str] = "gamma"
    model: ClassVar[str] = "gamma"

    @property
    def bound(self) -> float:
        return self.largest / self.mean_label

    @property
    def typical_curvature(self) -> float:
        return 1.0

    def wrong_labels(self, labels: Array) -> str | None:
        below = int(np.count_nonzero(labels <= 0))
        if not below:
            return None
        return f'{below:,} of them are not above 0, and model="gamma" takes amounts; use model="poisson" or "linear"'

    def value(self, scores: Array, labels: Array) -> Array:
        return np.asarray(labels * _exp(-scores[:, 0]) + scores[:, 0] - np.log(labels) - 1.0)

    def gradient(self, scores: Array, labels: Array) -> Array:
        return np.asarray(1.0 - labels[:, None] * _exp(-scores))

    def curvature(self, scores: Array, labels: Array) -> Array:
        return np.asarray(labels[:, None] * _exp(-scores))

    def separate(self, labels: Array) -> Separable:
        ones = np.ones_like(labels)
        return Separable(Exponential(-1.0), scale=labels, linear=ones, constant=-np.log(labels) - 1.0)


def _exp(a: Array) -> Array:
    """eᵃ; infinite where it overflows, which a line search steps back from."""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(a))
