"""First-order optimisers as pure functions, after the (summed) gradient: the steps of torch.optim."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np

from tablepuppet.algorithms.options import Sgd
from tablepuppet.arrays import Array

Optimizer = Literal["sgd", "adam", "adamw"]


class Moments(msgspec.Struct, frozen=True):
    """What an optimiser remembers of earlier gradients."""

    step: int
    first: Array
    second: Array | None

    @classmethod
    def zero(cls, theta: Array, optimizer: Optimizer | None) -> Moments:
        return cls(0, np.zeros_like(theta), None if optimizer in ("sgd", None) else np.zeros_like(theta))


def descend(
    theta: Array, gradient: Array, moments: Moments, learning_rate: float, options: Sgd, unit: float = 1.0
) -> tuple[Array, Moments]:
    """One step against the gradient, as torch.optim.SGD, Adam and AdamW take it.

    Weight decay shrinks θ itself under AdamW, and adds to the gradient otherwise. The steps of Adam have a length that
    does not depend on the gradient's: they are so many units of the label, in which θ and gradients are measured.
    """
    step = moments.step + 1
    if options.weight_decay and options.optimizer == "adamw":
        theta = theta * (1.0 - learning_rate * options.weight_decay)
    elif options.weight_decay:
        gradient = gradient + options.weight_decay * theta
    if moments.second is None:
        first = gradient if step == 1 else options.momentum * moments.first + gradient
        return theta - learning_rate * first, Moments(step, first, None)
    beta1, beta2, tiny = options.momentum or 0.9, 0.999, 1e-8 * unit
    first = beta1 * moments.first + (1 - beta1) * gradient
    second = beta2 * moments.second + (1 - beta2) * gradient * gradient
    denominator = np.sqrt(second / (1 - beta2**step)) + tiny
    return theta - unit * learning_rate / (1 - beta1**step) * first / denominator, Moments(step, first, second)


def clipped(gradient: Array, clip_norm: float | None) -> Array:
    """The gradient, shortened to a norm, as torch.nn.utils.clip_grad_norm_ does."""
    if clip_norm is None:
        return gradient
    return gradient * min(1.0, clip_norm / (float(np.linalg.norm(gradient)) + 1e-6))


def scheduled(peak: float, step: int, steps: int, epochs: int, options: Sgd) -> float:
    """The learning rate of batch number `step`, where an epoch has `steps` batches.

    >>> [scheduled(1.0, step, 2, 2, Sgd(schedule="linear")) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    warmup = options.warmup_epochs * steps
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    epoch = step / steps
    if options.schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * epoch / epochs))
    if options.schedule == "linear":
        return peak * (1.0 - epoch / epochs)
    if options.schedule == "exponential":
        return float(peak * options.decay ** math.floor(epoch))
    return peak
