"""Losses of a label with classes: logistic of two, log(1 + eᵃ) − y·a; softmax of any number, log Σ_c e^{a_c} − a_y."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import ClassVar

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.losses.base import (
    EXACT,
    STEPS,
    Analytic,
    Derivatives,
    LabelFacts,
    LabelNoise,
    Loss,
    Separable,
    Task,
)
from tablepuppet.models.metrics import BINARY, CLASSES, Metric

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
