"""Logistic loss of two classes: log(1 + eᵃ) − y·a."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.losses.base import EXACT, STEPS, Analytic, Derivatives, LabelNoise, Loss, Separable, Task
from tablepuppet.models.metrics import BINARY, Metric

_PRODUCT = 512  # numbers from 1 to 2 whose product is certain to be finite


@dataclass(frozen=True, slots=True)
class Logistic(Loss):
    """log(1 + eᵃ) − y·a with y in {0, 1} (or debiased, any real number)."""

    name: ClassVar[str] = "logistic"
    model: ClassVar[str] = "logistic"
    task: ClassVar[Task] = "binary"
    metrics: ClassVar[tuple[Metric, ...]] = BINARY
    curvature_needs_labels: ClassVar[bool] = False
    slope_tells_curvature: ClassVar[bool] = True
    label_noise: ClassVar[LabelNoise] = "unbiased labels"
    searches_constant: ClassVar[bool] = True
    diverged: ClassVar[float] = 1e6

    @property
    def bound(self) -> float:
        return 0.25

    def slope_change(self, move: float) -> float:
        return min(0.25 * move, 1.0)

    def best_constant(self, labels: Array, weights: Array) -> Array:
        mean = float(weights @ labels) / max(float(weights.sum()), 1e-300)
        odds = np.clip(mean, 1e-12, 1.0 - 1e-12)  # labels that carry noise may have any mean
        return np.array([np.log(odds / (1.0 - odds))])

    def typical_slope(self, labels: Array, shares: Array) -> float:
        """At the best constant the slope is the label's distance from its mean."""
        return float(np.sqrt(shares @ (labels - shares @ labels) ** 2))

    def value(self, scores: Array, labels: Array) -> Array:
        a = scores[:, 0]
        return np.asarray(np.maximum(a, 0.0) + np.log1p(np.exp(-np.abs(a))) - labels * a)

    def total(self, scores: Array, labels: Array) -> float:
        e, _ = _smaller(scores)
        return _total(scores, labels, e)

    def gradient(self, scores: Array, labels: Array) -> Array:
        return _rising(scores, _smaller(scores)[1]) - labels[:, None]

    def curvature(self, scores: Array, labels: Array) -> Array:
        _, p = _smaller(scores)
        return np.asarray(p - p * p)

    def parabola(self, scores: Array, labels: Array) -> Array:
        """tanh(a/2) / 2a: ¼ at 0, and less the surer a row is (Jaakkola and Jordan)."""
        half = np.maximum(np.abs(scores) / 2.0, 1e-4)
        return np.asarray(np.tanh(half) / (4.0 * half))

    def derivatives(self, scores: Array, labels: Array, *, wants_curvature: bool) -> Derivatives:
        e, p = _smaller(scores)
        curvature = p - p * p if wants_curvature else None
        gradient = _rising(scores, p)
        gradient -= labels[:, None]
        return _total(scores, labels, e), gradient, curvature

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        # g(u) = σ(u) − y + ρ(u − v) rises, is convex below 0 and concave above. The sign of g(0) gives the side of its
        # root. There Newton overshoots at most once, towards 0, where it is stopped; from then on it is monotone.
        y = labels[:, None]
        is_above = 0.5 - y - rho * centre < 0
        low, high = np.where(is_above, 0.0, -np.inf), np.where(is_above, np.inf, 0.0)
        u = np.clip(start, low, high)
        for _ in range(STEPS):
            p = sigmoid(u)
            new = np.clip(u - (p - y + rho * (u - centre)) / (p * (1.0 - p) + rho), low, high)
            away = float(np.abs(new - u).max(initial=0.0))
            u = new
            if away < EXACT:
                break
        return u

    def separate(self, labels: Array) -> Separable:
        return Separable(_CORE, linear=0.5 - labels)

    def probabilities(self, scores: Array) -> Array:
        second = sigmoid(scores[:, 0])
        return np.column_stack([1.0 - second, second])


def curvature_of_slopes(slopes: Array) -> Array:
    """∂²ℓ/∂a² of single rows whose label is 0 or 1. Up to its sign, the slope is the probability p of the other class;
    the curvature is p (1 − p). Never negative, whatever is given.

    >>> Logistic().curvature(np.array([[0.7]]), np.zeros(1)).round(9) == curvature_of_slopes(
    ...     Logistic().gradient(np.array([[0.7]]), np.ones(1))
    ... ).round(9)
    array([[ True]])
    """
    p = np.abs(slopes)
    p -= p * p
    return np.maximum(p, 0.0, out=p)


def sigmoid(a: Array) -> Array:
    """1 / (1 + e⁻ᵃ), without overflow."""
    return _rising(a, _smaller(a)[1])


def _smaller(a: Array) -> tuple[Array, Array]:
    """e = e^−|a|, and the probability of the less likely class, e / (1 + e)."""
    e = np.abs(a)
    np.negative(e, out=e)
    np.exp(e, out=e)
    p = 1.0 + e
    return e, np.divide(e, p, out=p)


def _rising(a: Array, smaller: Array) -> Array:
    """1 / (1 + e⁻ᵃ): ½ ± (½ − the smaller probability), on the side of a."""
    p = 0.5 - smaller
    np.copysign(p, a, out=p)
    p += 0.5
    return p


def _total(scores: Array, labels: Array, e: Array) -> float:
    """Σ log(1 + eᵃ) − y·a, with e = e^−|a|; the logarithms of a few hundred rows are one of their product."""
    if not len(labels):
        return 0.0
    a, factors, even = scores[:, 0], 1.0 + e[:, 0], len(labels) // _PRODUCT * _PRODUCT
    products = np.append(factors[:even].reshape(_PRODUCT, -1).prod(axis=0), factors[even:].prod())
    return float(np.log(products).sum() + np.maximum(a, 0.0).sum() - labels @ a)


_CORE = Analytic(  # less a / 2, so that it is even
    lambda a: np.logaddexp(a / 2.0, -a / 2.0),
    lambda a: np.tanh(a / 2.0) / 2.0,
    lambda a: Logistic().curvature(a, a),
    strip=np.pi,
)
