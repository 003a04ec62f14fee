"""First-order optimisers as pure functions, after the (summed) gradient: the steps of torch.optim.

Also the size of a step for models without a Gram matrix: how strongly a block's predictions depend on its parameters.
And the shrinkage of factors where the user leaves it open (`NoiseEdge`).
"""

from math import sqrt
from typing import Literal

import msgspec
import numpy as np

from tablepuppet.algorithms.base import PartSetup, Problem
from tablepuppet.arrays import Array
from tablepuppet.models.heads.base import HeadSpec

Optimizer = Literal["sgd", "adam", "adamw"]


class Rule(msgspec.Struct, frozen=True):
    """How a step is taken."""

    optimizer: Optimizer = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0


class Moments(msgspec.Struct, frozen=True):
    """An optimiser's memory of earlier gradients."""

    step: int
    first: Array
    second: Array | None

    @classmethod
    def zero(cls, theta: Array, optimizer: Optimizer | None) -> "Moments":
        return cls(0, np.zeros_like(theta), None if optimizer in ("sgd", None) else np.zeros_like(theta))


def descend(
    theta: Array, gradient: Array, moments: Moments, learning_rate: float, rule: Rule, unit: float = 1.0
) -> tuple[Array, Moments]:
    """One step against the gradient, as torch.optim.SGD, Adam and AdamW take it.

    Weight decay shrinks θ itself under AdamW, and adds to the gradient otherwise. The length of Adam's steps does not
    depend on the gradient's. It is in units of the label, as θ and gradients are.
    """
    step = moments.step + 1
    if rule.weight_decay and rule.optimizer == "adamw":
        theta = theta * (1.0 - learning_rate * rule.weight_decay)
    elif rule.weight_decay:
        gradient = gradient + rule.weight_decay * theta
    if moments.second is None:
        first = gradient if step == 1 else rule.momentum * moments.first + gradient
        return theta - learning_rate * first, Moments(step, first, None)
    beta1, beta2, tiny = rule.momentum or 0.9, 0.999, 1e-8 * unit
    first = beta1 * moments.first + (1 - beta1) * gradient
    second = beta2 * moments.second + (1 - beta2) * gradient * gradient
    denominator = second / (1 - beta2**step)
    np.sqrt(denominator, out=denominator)
    denominator += tiny
    moved = unit * learning_rate / (1 - beta1**step) * first
    moved /= denominator
    return theta - moved, Moments(step, first, second)


def clip_gradient(gradient: Array, clip_norm: float | None) -> Array:
    """The gradient, shortened to a norm, as torch.nn.utils.clip_grad_norm_ does."""
    if clip_norm is None:
        return gradient
    return gradient * min(1.0, clip_norm / (float(np.linalg.norm(gradient)) + 1e-6))


def sensitivity(setup: PartSetup) -> float:
    """An estimate of (1/N) Σ_k w_k ‖∂h_k/∂θ‖², the trace of the block's Gauss–Newton matrix.

    With random signs ε, E‖Σ_k ε_k √w_k ∂h_k/∂θ‖² is just that sum (Hutchinson's estimator): one
    back-propagation instead of one per row.
    """
    theta = setup.model.initial()
    rows = len(setup.weights)
    total = 0.0
    for output in range(setup.outputs):
        signs = np.random.default_rng((setup.seed, output)).choice([-1.0, 1.0], rows)
        signal = np.zeros((rows, setup.outputs))
        signal[:, output] = signs * np.sqrt(setup.weights)
        gradient = setup.model.gradient(theta, signal)
        total += float(np.vdot(gradient, gradient))
    return total / setup.outputs / setup.joined_rows


_BATCHES = 40  # whose residuals and vectors count
_IDS = 0.6  # of E, where a row has one entry of many: measured


def noise_edge(problem: Problem) -> "NoiseEdge | None":
    """The shrinkage of a problem's factors; None: none, or the user's."""
    head = problem.head
    return None if head is None or head.head.spec.shrinkage is not None else NoiseEdge(head.head.spec, problem)


class NoiseEdge:
    """λ of every output, as batches show their residuals.

    Take ½ λ (‖v_i‖² + ‖v_k‖²) per joined row, and the matrix of mean residuals between two tables' parameters. The
    tables' vectors leave zero only if it has a singular value above λ; their length is the excess. Residuals of pure
    noise, σ strong, have singular values up to

        E = σ (√d_i + √d_k) / √N        (d: parameters of an output, here of the two widest tables; N: label rows)

    so λ = E while vectors are zero, and √(s² + E²) − s where vectors have a length product s. This shrinkage of
    singular values leaves the least error under noise (Gavish and Donoho, for d_i = d_k). Long vectors are shrunk
    little. σ and s follow the last batches, each entry of the vectors by itself. Classes, whose vectors grow the surer
    a model is, have λ = E throughout. Scores b are no vectors; l2 is all that shrinks them.
    """

    def __init__(self, spec: HeadSpec, problem: Problem) -> None:
        self._spec = spec
        each = zip(problem.rows, problem.widths, problem.entries, strict=True)
        widest = sorted((min(n, d), _IDS + (1.0 - _IDS) * min(1.0, m / max(1, d))) for n, d, m in each)[-2:]
        self._edge = sum(share * sqrt(d) for d, share in widest) / sqrt(max(1, problem.label_rows))
        self._is_quadratic = problem.loss.is_quadratic
        self._square, self._seen = 0.0, 0
        self._lengths = np.zeros((len(spec.widths), spec.widths[0]))
        self.weights: list[Array] = [np.zeros(width) for width in spec.widths]

    def see(self, square: float, lengths: Array) -> None:
        """Of a batch: the mean squares of ∂ℓ/∂score and of each output of each block."""
        self._seen += 1
        share = 1.0 / min(self._seen, _BATCHES)
        self._square += share * (square / self._spec.unit**2 - self._square)
        self._lengths += share * (lengths - self._lengths)
        edge = sqrt(self._square) * self._edge
        found = np.sqrt(np.prod(np.sort(self._lengths, axis=0)[-2:], axis=0))
        one = np.hypot(found, edge) - found if self._is_quadratic else np.full(len(found), edge)
        one[: self._spec.outputs] = 0.0
        self.weights = [one] * len(self._spec.widths)
