"""First-order optimisers as pure functions, after the (summed) gradient: the steps of torch.optim.

And how strongly a block's predictions depend on its parameters, for models without a Gram matrix: a step's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec
import numpy as np

from tablepuppet.algorithms.base import PartSetup
from tablepuppet.arrays import Array

Optimizer = Literal["sgd", "adam", "adamw"]


@dataclass(frozen=True, slots=True)
class Rule:
    """How a step is taken."""

    optimizer: Optimizer = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0


rule_of = cache(Rule)  # a step of few rows takes hardly longer than to make one


class Moments(msgspec.Struct, frozen=True):
    """What an optimiser remembers of earlier gradients."""

    step: int
    first: Array
    second: Array | None

    @classmethod
    def zero(cls, theta: Array, optimizer: Optimizer | None) -> Moments:
        return cls(0, np.zeros_like(theta), None if optimizer in ("sgd", None) else np.zeros_like(theta))


def descend(
    theta: Array, gradient: Array, moments: Moments, learning_rate: float, rule: Rule, unit: float = 1.0
) -> tuple[Array, Moments]:
    """One step against the gradient, as torch.optim.SGD, Adam and AdamW take it.

    Weight decay shrinks θ itself under AdamW, and adds to the gradient otherwise. The steps of Adam have a length that
    does not depend on the gradient's: they are so many units of the label, in which θ and gradients are measured.
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
