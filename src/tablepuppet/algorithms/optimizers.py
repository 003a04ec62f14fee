"""First-order optimisers as pure functions: momentum and Adam after the (summed) gradient."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Moments(msgspec.Struct, frozen=True):
    """What an optimiser remembers of earlier gradients."""

    step: int
    first: Array
    second: Array | None

    @classmethod
    def zero(cls, theta: Array, optimizer: Literal["sgd", "adam"]) -> Moments:
        return cls(0, np.zeros_like(theta), np.zeros_like(theta) if optimizer == "adam" else None)


def descend(
    theta: Array, gradient: Array, moments: Moments, learning_rate: float, momentum: float
) -> tuple[Array, Moments]:
    """One step against the gradient, as torch.optim.SGD and torch.optim.Adam take it."""
    step = moments.step + 1
    if moments.second is None:
        first = gradient if step == 1 else momentum * moments.first + gradient
        return theta - learning_rate * first, Moments(step, first, None)
    beta1, beta2, tiny = momentum or 0.9, 0.999, 1e-8
    first = beta1 * moments.first + (1 - beta1) * gradient
    second = beta2 * moments.second + (1 - beta2) * gradient * gradient
    denominator = np.sqrt(second / (1 - beta2**step)) + tiny
    return theta - learning_rate / (1 - beta1**step) * first / denominator, Moments(step, first, second)
