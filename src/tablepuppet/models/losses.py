"""The losses ℓ(a; y): value, gradient, curvature and proximal map, all rows at once.

Scores `a` are (rows, outputs); labels are one number per row (a class number for softmax).
½-squared, logistic and softmax share one interface, so that no algorithm knows which it
minimises. Proximal maps are Newton iterations in one (logistic) or d_c (softmax) variables
per row, safeguarded, never gradient loops (docs/algorithms.md, z-step).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tablepuppet.arrays import Array

_STEPS = 60  # more than a bisection to machine precision needs
_EXACT = 1e-10
COMPILED_FROM = 1 << 22  # joined rows from which compiled kernels are worth loading
_PRODUCT = 512  # numbers from 1 to 2 whose product is certain to be finite


Derivatives = tuple[float, Array, Array | None]


class Loss(Protocol):
    """One loss: what every algorithm needs to know about it."""

    @property
    def outputs(self) -> int:
        """d_c, the number of scores per row."""

    @property
    def bound(self) -> float:
        """An upper bound of the curvature: 1 squared, ¼ logistic, ½ softmax."""

    @property
    def is_quadratic(self) -> bool: ...

    def value(self, scores: Array, labels: Array) -> Array:
        """ℓ per row."""

    def total(self, scores: Array, labels: Array) -> float:
        """Σ ℓ over the rows."""

    def gradient(self, scores: Array, labels: Array) -> Array:
        """∂ℓ/∂a."""

    def curvature(self, scores: Array) -> Array:
        """The diagonal of ∂²ℓ/∂a²."""

    def derivatives(self, scores: Array, labels: Array, *, wants_curvature: bool) -> Derivatives:
        """Σ ℓ over the rows, and of each row ∂ℓ/∂a and, if wanted, the diagonal of ∂²ℓ/∂a²."""

    def hessian_product(self, scores: Array, vectors: Array) -> Array:
        """(∂²ℓ/∂a²) v of each row, for vectors of shape (rows, vectors, outputs)."""

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        """argmin_u ℓ(u; y) + ρ/2 ‖u − centre‖²; ρ is one number, or a column of one per row."""


@runtime_checkable
class Fused(Protocol):
    """A loss of one output whose ADMM z-step and dual step (algorithms/admm/server.py) is one pass over joined rows."""

    def dual_step(self, view: Any, intercept: float, before: float, rho: float, relax: float) -> Array:
        """‖a − z‖², ‖u⁺ − u + b⁻ − b‖², ‖a‖², ‖z‖², ‖λ⁺‖²; the view's u becomes u⁺, and its signal is collapsed."""


class OneByOne:
    """Derivatives of a loss, each by its own function."""

    __slots__ = ()

    def total(self: Loss, scores: Array, labels: Array) -> float:
        return float(self.value(scores, labels).sum())

    def derivatives(self: Loss, scores: Array, labels: Array, *, wants_curvature: bool) -> Derivatives:
        curvature = self.curvature(scores) if wants_curvature else None
        return self.total(scores, labels), self.gradient(scores, labels), curvature


@dataclass(frozen=True, slots=True)
class Squared(OneByOne):
    """½(a − y)²."""

    outputs: int = 1
    bound: float = 1.0
    is_quadratic: bool = True

    def value(self, scores: Array, labels: Array) -> Array:
        residual = scores[:, 0] - labels
        return np.asarray(0.5 * residual * residual)

    def gradient(self, scores: Array, labels: Array) -> Array:
        return scores - labels[:, None]

    def curvature(self, scores: Array) -> Array:
        return np.ones_like(scores)

    def hessian_product(self, scores: Array, vectors: Array) -> Array:
        return vectors

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        return np.asarray((labels[:, None] + rho * centre) / (1.0 + rho))


@dataclass(frozen=True, slots=True)
class Logistic(OneByOne):
    """log(1 + eᵃ) − y·a with y in {0, 1} (or debiased, any real number)."""

    outputs: int = 1
    bound: float = 0.25
    is_quadratic: bool = False

    def value(self, scores: Array, labels: Array) -> Array:
        a = scores[:, 0]
        return np.asarray(np.maximum(a, 0.0) + np.log1p(np.exp(-np.abs(a))) - labels * a)

    def total(self, scores: Array, labels: Array) -> float:
        e, _ = _smaller(scores)
        return _total(scores, labels, e)

    def gradient(self, scores: Array, labels: Array) -> Array:
        return _rising(scores, _smaller(scores)[1]) - labels[:, None]

    def curvature(self, scores: Array) -> Array:
        _, p = _smaller(scores)
        return np.asarray(p - p * p)

    def derivatives(self, scores: Array, labels: Array, *, wants_curvature: bool) -> Derivatives:
        e, p = _smaller(scores)
        gradient = _rising(scores, p)
        gradient -= labels[:, None]
        return _total(scores, labels, e), gradient, p - p * p if wants_curvature else None

    def hessian_product(self, scores: Array, vectors: Array) -> Array:
        return np.asarray(vectors * self.curvature(scores)[:, :, None])

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        # g(u) = σ(u) − y + ρ(u − v) rises, is convex below 0 and concave above. g(0) tells on which
        # side its root lies; there Newton overshoots at most once, towards 0, where it is stopped,
        # and is monotone from then on.
        y = labels[:, None]
        is_above = 0.5 - y - rho * centre < 0
        low, high = np.where(is_above, 0.0, -np.inf), np.where(is_above, np.inf, 0.0)
        u = np.clip(start, low, high)
        for _ in range(_STEPS):
            p = sigmoid(u)
            new = np.clip(u - (p - y + rho * (u - centre)) / (p * (1.0 - p) + rho), low, high)
            away = float(np.abs(new - u).max(initial=0.0))
            u = new
            if away < _EXACT:
                break
        return u


@dataclass(frozen=True, slots=True)
class Softmax(OneByOne):
    """log Σ_c e^{a_c} − t·a, with t the target row of the label's class.

    `targets` is the identity for exact labels, and the debiasing matrix for labels that went
    through randomised response.
    """

    classes: int
    targets: Array | None = field(default=None, compare=False)
    bound: float = 0.5
    is_quadratic: bool = False

    @property
    def outputs(self) -> int:
        return self.classes

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

    def curvature(self, scores: Array) -> Array:
        p = self.probabilities(scores)
        return np.asarray(p * (1.0 - p))

    def hessian_product(self, scores: Array, vectors: Array) -> Array:
        p = self.probabilities(scores)[:, None, :]
        weighted = vectors * p
        return np.asarray(weighted - weighted.sum(axis=2, keepdims=True) * p)

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        # Newton with the Hessian ρI + diag(p) − ppᵀ, inverted by Sherman–Morrison; a row whose
        # objective would rise halves its step.
        target = self._target(labels)
        u = start.copy()
        best = self._envelope(u, centre, rho, target)
        for _ in range(_STEPS):
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
            if float(np.abs(step).max(initial=0.0)) < _EXACT:
                break
        return u

    def _envelope(self, u: Array, centre: Array, rho: float | Array, target: Array) -> Array:
        top = u.max(axis=1, initial=-np.inf)
        total = top + np.log(np.exp(u - top[:, None]).sum(axis=1))
        away = u - centre
        return np.asarray(total - (target * u).sum(axis=1) + 0.5 * (rho * away * away).sum(axis=1))


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
    """Σ log(1 + eᵃ) − y·a, with e = e^−|a|: the logarithms of a few hundred rows are one of their product."""
    a = scores[:, 0]
    powers = (1.0 + e[:, 0]) if len(a) else np.ones(1)
    first = np.arange(0, len(powers), _PRODUCT)
    logarithms = np.log(np.multiply.reduceat(powers, first)).sum()
    return float(logarithms + np.maximum(a, 0.0).sum() - labels @ a)


def softmax(a: Array) -> Array:
    """eᵃ / Σ eᵃ per row."""
    e = np.exp(a - a.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(e / e.sum(axis=1, keepdims=True))
