"""Loss: all that depends on which loss ℓ(a; y) is minimised.

A loss defines the labels it takes, its value and derivatives, its proximal map and its best constant. It also defines
the link from scores to predictions, the metrics of its models and the noise its labels may carry. Scores `a` are (rows,
outputs); labels are one number per row (a class number where the label has classes). Every method takes all rows at
once.

A loss of one output needs `value`, `gradient` and `curvature`; the rest follows from them or from its declarations.
docs/extending.md explains how to add one.

`Separable`: a loss whose sums over a join need no joined row, ℓ(a; y) = u·φ(a − s) + v·a + c, where u, s, v, c follow
from y. The score is a sum over tables, a = h₁ + … + h_M. A square, an exponential and the terms of a Fourier series
turn that sum into products, which are summed up along the join's tree (join/factorised/). A loss says by `separate`
which core φ it has. Losses with kinks have none, nor have losses of several outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Literal, Self

import msgspec
import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.metrics import Metric, Moment, Sums, metrics_of, sums_of
from tablepuppet.privacy.labels import Channel

Function = Callable[[Array], Array]


class Square(msgspec.Struct, frozen=True):
    """φ(a) = ½ a²."""


class Exponential(msgspec.Struct, frozen=True):
    """φ(a) = e^{rate·a}."""

    rate: float = 1.0


class Analytic(msgspec.Struct, frozen=True):
    """φ is even, φ″ fades away from 0, and φ is analytic near the real line: the sum of a short Fourier series."""

    value: Function
    slope: Function
    curvature: Function
    strip: float  # how far from the real line the nearest pole lies: π of the logistic function


Core = Square | Exponential | Analytic


class Separable(msgspec.Struct, frozen=True, eq=False):
    """u·φ(a − s) + v·a + c: a number for each row of the label table; None: u = 1, and s, v or c = 0."""

    core: Core
    scale: Array | None = None  # u, at least 0
    shift: Array | None = None  # s
    linear: Array | None = None  # v
    constant: Array | None = None  # c


STEPS = 60  # more than a bisection to machine precision needs
EXACT = 1e-10
_NO_WEIGHT = 1e-30  # no weight above 0 is below it
Derivatives = tuple[float, Array, Array | None]
Task = Literal["number", "binary", "classes"]
LabelNoise = Literal["unbiased labels", "targets", "refused"]


class LabelFacts(msgspec.Struct, frozen=True, eq=False):
    """Facts about the training labels for making a loss; a loaded model's loss has only the classes."""

    classes: int = 0  # 0: the label is a number
    values: Array | None = None  # different labels, ascending
    shares: Array | None = None  # of joined rows that have each
    targets: Array | None = None  # of classes that went through randomised response: what to fit instead of one-hot


class Loss(ABC):
    """One loss."""

    __slots__ = ()

    name: ClassVar[str]
    model: ClassVar[str]  # model="…" trains a linear model with this loss
    task: ClassVar[Task] = "number"  # the kind of label it needs
    options: ClassVar[tuple[str, ...]] = ()  # fields that a job may set
    metrics: ClassVar[tuple[Metric, ...]]  # by default those of the task
    is_quadratic: ClassVar[bool] = False  # the curvature is `bound` everywhere
    is_smooth: ClassVar[bool] = True  # False: algorithms that need second derivatives refuse it
    curvature_needs_labels: ClassVar[bool] = True
    slope_tells_curvature: ClassVar[bool] = False  # of a label as it is: `curvature_of_slopes`
    is_in_label_units: ClassVar[bool]  # a score is an estimate of the label itself; by default that of a number is
    label_noise: ClassVar[LabelNoise] = "refused"  # "unbiased labels": the loss is linear in y, but for what has no a
    searches_constant: ClassVar[bool] = False  # training begins at a subspace search's result, not at best_constant
    diverged: ClassVar[float] = inf  # an objective that no model reaches but one that diverges
    epochs: ClassVar[Mapping[str, int]] = {}  # more than for other losses, by what of it an algorithm uses

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "metrics"):
            cls.metrics = metrics_of(cls.task)
        if not hasattr(cls, "is_in_label_units"):
            cls.is_in_label_units = cls.task == "number"

    @classmethod
    def of(cls, label: LabelFacts, **options: float) -> Self:
        return cls(**options)

    @property
    def outputs(self) -> int:
        """d_c, the number of scores per row."""
        return 1

    @property
    def caution(self) -> float:
        """The factor of the curvature in boosted trees."""
        return 1.0

    @property
    @abstractmethod
    def bound(self) -> float:
        """An upper bound of the curvature; where there is none, the largest to be expected."""

    @property
    def typical_curvature(self) -> float:
        """In whose units ADMM's ρ begins."""
        return self.bound

    def slope_change(self, move: float) -> float:
        """The largest change of ∂ℓ/∂a if a moves by `move`; infinite where nothing bounds it."""
        return self.bound * move

    def wrong_labels(self, labels: Array) -> str | None:
        """Explains why labels are outside the loss's domain, with the remedy; None: they are inside. Shows no label."""
        return None

    def best_constant(self, labels: Array, weights: Array) -> Array:
        """argmin_b Σ w ℓ(b; y)."""
        return newton_constant(self, labels, weights)

    def typical_slope(self, labels: Array, shares: Array) -> float:
        """The root mean square of ∂ℓ/∂a at the best constant; feature privacy derives its clips from it."""
        slopes = self.gradient(np.full((len(labels), 1), self.best_constant(labels, shares)[0]), labels)[:, 0]
        return float(np.sqrt(shares @ (slopes * slopes)))

    @abstractmethod
    def value(self, scores: Array, labels: Array) -> Array:
        """ℓ per row."""

    @abstractmethod
    def gradient(self, scores: Array, labels: Array) -> Array:
        """∂ℓ/∂a, (rows, outputs); of a loss with a kink, any subgradient."""

    @abstractmethod
    def curvature(self, scores: Array, labels: Array) -> Array:
        """The diagonal of ∂²ℓ/∂a², or a matrix above it by which Newton's steps are scaled; never negative."""

    def parabola(self, scores: Array, labels: Array) -> Array | float:
        """The curvature of a parabola that touches ℓ at a row's score and lies above it everywhere, (rows, 1)."""
        return self.bound

    def total(self, scores: Array, labels: Array) -> float:
        """Σ ℓ over the rows."""
        return float(self.value(scores, labels).sum())

    def derivatives(self, scores: Array, labels: Array, *, wants_curvature: bool) -> Derivatives:
        """Σ ℓ over the rows, and of each row ∂ℓ/∂a and, if wanted, the diagonal of ∂²ℓ/∂a²."""
        curvature = self.curvature(scores, labels) if wants_curvature else None
        return self.total(scores, labels), self.gradient(scores, labels), curvature

    def hessian_product(self, scores: Array, labels: Array, vectors: Array) -> Array:
        """(∂²ℓ/∂a²) v of each row, for vectors of shape (rows, vectors, outputs)."""
        return np.asarray(vectors * self.curvature(scores, labels)[:, :, None])

    def pairs(self, scores: Array, labels: Array) -> Array:
        """∂²ℓ/∂a_a∂a_b of each row, for a ≤ b."""
        rows, outputs = scores.shape
        unit = np.broadcast_to(np.eye(outputs), (rows, outputs, outputs))
        first, second = np.triu_indices(outputs)
        return self.hessian_product(scores, labels, unit)[:, first, second]

    def summed_products(self, scores: Array, labels: Array, vectors: Array) -> tuple[Array, Array]:
        """Σ uᵀ (∂²ℓ/∂a²) v over rows, for all pairs of a row's vectors (rows, vectors, outputs); and Σ (∂²ℓ/∂a²) v."""
        curved = self.hessian_product(scores, labels, vectors)
        return np.tensordot(vectors, curved, ((0, 2), (0, 2))), np.asarray(curved.sum(axis=0))

    def summed_hessian(self, scores: Array, labels: Array, steps: Array, weights: Array | None = None) -> Array:
        """Eᵀ (Σ w ∂²ℓ/∂a²) E over the rows, for steps E of shape (outputs, steps); without weights, w is 1."""
        rows = len(scores)
        same = np.ascontiguousarray(np.broadcast_to(steps.T, (rows, *steps.T.shape)))
        curved = self.hessian_product(scores, labels, same)
        return np.asarray(np.tensordot(np.ones(rows) if weights is None else weights, curved, 1) @ steps)

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        """argmin_u ℓ(u; y) + ρ/2 ‖u − centre‖²; ρ is one number, or a column of one per row."""
        return newton_proximal(self, centre, rho, labels, start)

    def separate(self, labels: Array) -> Separable | None:
        """The loss in a form whose sums over a join need no joined row; None: it has none."""
        return None

    def predict(self, scores: Array) -> Array:
        """The prediction of each row: a number, or the number of a class."""
        return scores[:, 0] if self.task == "number" else np.asarray(scores[:, 0] > 0)

    def probabilities(self, scores: Array) -> Array | None:
        """Of each class, (rows, classes); None: scores are not probabilities of anything."""
        return None

    def mean(self, sums: Mapping[str, Any], *, is_noisy: bool) -> float:
        """The mean loss, from sums over rows (`tally`); `is_noisy`: of labels that their owners made noisy."""
        return float(sums["loss"] / sums["rows"])

    def tally(
        self,
        scores: Array,
        labels: Array,
        channel: Channel | None,
        total: float | None = None,
        moment: Moment = Moment.EPOCH,
    ) -> Sums:
        """Sums over some rows, of which the objective and all metrics but those of ranks are made (metrics.py).

        `total`: Σ ℓ, where it is known. If owners made the labels noisy, the sums are unbiased estimates of those with
        true labels.
        """
        sums: Sums = {"rows": len(labels), "loss": self.total(scores, labels) if total is None else total}
        for part in sums_of(self.metrics, moment):
            sums |= part(self, scores, labels, channel)
        return sums


def _of_plain(name: str) -> Any:
    return property(lambda own: getattr(own.plain, name))


@dataclass(frozen=True, slots=True, eq=False)
class Weighted(Loss):
    """w·ℓ(a; y), with one weight for each row that it is called with: a row of weight 2 counts as two rows."""

    plain: Loss
    weights: Array

    outputs, is_quadratic, is_smooth, curvature_needs_labels = map(
        _of_plain, ("outputs", "is_quadratic", "is_smooth", "curvature_needs_labels")
    )

    def of_rows(self, rows: slice) -> "Weighted":
        return Weighted(self.plain, self.weights[rows])

    @property
    def bound(self) -> float:
        return self.plain.bound * float(self.weights.max(initial=0.0))

    def slope_change(self, move: float) -> float:
        return self.plain.slope_change(move) * float(self.weights.max(initial=0.0))

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

    def pairs(self, scores: Array, labels: Array) -> Array:
        return self.weights[:, None] * self.plain.pairs(scores, labels)

    def summed_hessian(self, scores: Array, labels: Array, steps: Array, weights: Array | None = None) -> Array:
        whole = self.weights if weights is None else self.weights * weights
        return self.plain.summed_hessian(scores, labels, steps, whole)

    def proximal(self, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
        """argmin w·ℓ(u) + ρ/2 ‖u − c‖² = argmin ℓ(u) + (ρ/w)/2 ‖u − c‖²; without weight, c itself."""
        return self.plain.proximal(centre, rho / np.maximum(self.weights, _NO_WEIGHT)[:, None], labels, start)

    def tally(
        self,
        scores: Array,
        labels: Array,
        channel: Channel | None,
        total: float | None = None,
        moment: Moment = Moment.EPOCH,
    ) -> Sums:
        """Metrics count every row alike; the objective does not."""
        whole = self.total(scores, labels) if total is None else total
        sums = self.plain.tally(scores, labels, channel, moment=moment)
        return sums | {"weighted": whole, "weight": float(self.weights.sum())}


@np.errstate(over="ignore", invalid="ignore")
def newton_constant(loss: Loss, labels: Array, weights: Array) -> Array:
    """The best constant of a convex loss of one output: Newton steps, and halves of a bracket where those leave it."""
    low, high, b = -inf, inf, 0.0
    for step in range(2 * STEPS):
        scores = np.full((len(labels), 1), b)
        slope = float(weights @ loss.gradient(scores, labels)[:, 0])
        low, high = (b if slope <= 0 else low), (b if slope >= 0 else high)
        curvature = float(weights @ loss.curvature(scores, labels)[:, 0])
        new = b - slope / curvature if curvature > 0 else inf
        if not low <= new <= high:
            new = 0.5 * (low + high) if high - low < inf else b - np.sign(slope) * 2.0**step
        if abs(new - b) <= EXACT * (1.0 + abs(b)):
            break
        b = new
    return np.array([b])


@np.errstate(over="ignore", invalid="ignore")
def newton_proximal(loss: Loss, centre: Array, rho: float | Array, labels: Array, start: Array) -> Array:
    """The proximal map of a convex loss of one output: Newton steps, and halves of a bracket where those leave it.

    g(u) = ℓ'(u) + ρ(u − centre) rises by at least ρ: its root lies within |ℓ'(centre)|/ρ of the centre.
    """
    away = loss.gradient(centre, labels) / rho
    reach = np.where(np.isfinite(away), np.abs(away) * (1.0 + 1e-14) + 1e-14 * np.abs(centre), inf)
    low, high = np.where(away > 0, centre - reach, centre), np.where(away < 0, centre + reach, centre)
    u = np.clip(start.astype(np.float64), low, high)
    is_settled, before = np.zeros(u.shape, np.bool_), np.full_like(u, inf)
    for step in range(2 * STEPS):
        slope = loss.gradient(u, labels) + rho * (u - centre)
        low, high = np.where(slope <= 0, u, low), np.where(slope >= 0, u, high)
        move = -slope / (loss.curvature(u, labels) + rho)
        if step % 3 == 2:  # three Newton steps that converge gain far more than this; others grow longer
            move *= np.where(np.abs(slope) <= 0.01 * before, 1.0, 2.0 ** (step // 3 + 1))
            before = np.abs(slope)
        # Where a derivative overflows, one end of the bracket is open: look for it at growing distances.
        beyond = np.where(np.isfinite(low), low + np.abs(low) + 1.0, high - np.abs(high) - 1.0)
        middle = np.where(np.isfinite(low) & np.isfinite(high), 0.5 * (low + high), beyond)
        new = np.where((u + move >= low) & (u + move <= high), u + move, middle)
        new = np.where(is_settled, u, new)
        is_settled |= np.abs(new - u) <= EXACT * (1.0 + np.abs(new))
        u = new
        if is_settled.all():
            break
    return u
