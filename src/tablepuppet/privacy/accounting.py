"""ε of what is released: privacy loss distributions of dp-accounting, and the noise that keeps within an ε.

In: how often a Gaussian mechanism ran, with which noise, under which sampling. Out: ε at δ, or σ. Nothing here draws.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from tablepuppet.errors import PrivacyError

if TYPE_CHECKING:
    import dp_accounting

_LARGEST_NOISE, _LEAST_NOISE = 1e4, 0.05
_COARSE = 1e-3


def participation(rate: float, cap: int) -> float:
    """p = 1 − (1 − q)^κ: a base row is in a Poisson(q) batch of joined rows if any of its κ joined rows is.

    >>> participation(0.1, 2)
    0.18999999999999995
    """
    return float(-((1.0 - rate) ** cap) + 1.0)


def gaussian_event(noise: float, steps: int, probability: float = 1.0) -> dp_accounting.DpEvent:
    """`steps` Gaussian mechanisms of noise σ, each on a Poisson sample of the rows."""
    import dp_accounting

    step: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise)
    if probability < 1.0:
        step = dp_accounting.PoissonSampledDpEvent(probability, step)
    return dp_accounting.SelfComposedDpEvent(step, steps)


@lru_cache(maxsize=256)
def gaussian_epsilon(noise: float, steps: int, probability: float, delta: float, interval: float = 1e-4) -> float:
    """ε at δ of `steps` sampled Gaussian mechanisms, from above; a coarser `interval` is faster and looser.

    >>> round(gaussian_epsilon(1.0, 1000, 0.01, 1e-5), 3)
    1.828
    """
    if steps == 0:
        return 0.0
    import dp_accounting  # takes a second to load: only jobs that claim something pay it
    from dp_accounting import pld, rdp

    if probability >= 1.0:  # k Gaussians of noise σ are one of noise σ/√k, whose ε is known exactly
        return float(dp_accounting.get_epsilon_gaussian(noise / math.sqrt(steps), delta))
    event = gaussian_event(noise, steps, probability)
    rough = rdp.RdpAccountant(orders=range(2, 64))
    rough.compose(event)
    # The work grows with ε over the interval.
    accountant = pld.PLDAccountant(value_discretization_interval=max(interval, 5e-5 * rough.get_epsilon(delta)))
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=64)
def gaussian_noise(epsilon: float, delta: float, steps: int, probability: float) -> float:
    """The least σ with which `steps` sampled Gaussian mechanisms stay within (ε, δ), to a thousandth and from above."""

    def exceeds(noise: float) -> bool:
        return gaussian_epsilon(noise, steps, probability, delta, _COARSE) > epsilon

    if exceeds(_LARGEST_NOISE):
        raise PrivacyError(
            f"no noise keeps {steps:,} steps within ε = {epsilon:g} at δ = {delta:g}; take fewer epochs or larger ε"
        )
    low, high = 0.0, 1.0
    while exceeds(high):
        low, high = high, 2.0 * high
    while high - low > 1e-3 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if middle < _LEAST_NOISE or exceeds(middle) else (low, middle)
    return high
