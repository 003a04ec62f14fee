"""ε of what is released: privacy loss distributions of dp-accounting, and the noise that keeps within an ε.

In: how often Gaussian mechanisms ran on the same rows, with which noise, under which sampling. Out: ε at δ, or σ.
Nothing here draws.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tablepuppet.errors import PrivacyError

if TYPE_CHECKING:
    import dp_accounting

_LARGEST_NOISE, _LEAST_NOISE = 1e4, 0.05
_COARSE = 1e-3
_CLOSE = 1e-3  # how far above the least noise the chosen one may lie
_ORDERS = (*range(2, 64), 80, 96, 128, 192, 256, 512)


class Mechanism(NamedTuple):
    """`steps` sums with noise σ, each over a Poisson sample that a row is in with some probability."""

    noise: float
    steps: int
    probability: float = 1.0


def participation(rate: float, cap: int) -> float:
    """p = 1 − (1 − q)^κ: a base row is in a Poisson(q) batch of joined rows if any of its κ joined rows is.

    >>> participation(0.1, 2)
    0.18999999999999995
    """
    return float(-((1.0 - rate) ** cap) + 1.0)


def gaussian_event(mechanism: Mechanism) -> dp_accounting.DpEvent:
    """The mechanism as dp-accounting knows it."""
    import dp_accounting

    step: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(mechanism.noise)
    if mechanism.probability < 1.0:
        step = dp_accounting.PoissonSampledDpEvent(mechanism.probability, step)
    return dp_accounting.SelfComposedDpEvent(step, mechanism.steps)


def gaussian_epsilon(noise: float, steps: int, probability: float, delta: float, interval: float = 1e-4) -> float:
    """ε at δ of `steps` sampled Gaussian mechanisms, from above; a coarser `interval` is faster and looser.

    >>> round(gaussian_epsilon(1.0, 1000, 0.01, 1e-5), 3)
    1.828
    """
    return composed_epsilon((Mechanism(noise, steps, probability),), delta, interval)


@lru_cache(maxsize=256)
def composed_epsilon(mechanisms: tuple[Mechanism, ...], delta: float, interval: float = 1e-4) -> float:
    """ε at δ of all the mechanisms together, each of which saw the same row."""
    import dp_accounting  # takes a second to load: only jobs that claim something pay it
    from dp_accounting import pld

    taken = [m for m in mechanisms if m.steps]
    if not taken:
        return 0.0
    if all(m.probability >= 1.0 for m in taken):  # Gaussians of noise σ_i are one of noise (Σ 1/σ_i²)^−½, known exactly
        precision = sum(m.steps / m.noise**2 for m in taken)
        return float(dp_accounting.get_epsilon_gaussian(1.0 / math.sqrt(precision), delta))
    # The work grows with ε over the interval.
    accountant = pld.PLDAccountant(value_discretization_interval=max(interval, 5e-5 * _rough(taken, delta)))
    for mechanism in taken:
        accountant.compose(gaussian_event(mechanism))
    return float(accountant.get_epsilon(delta))


def gaussian_noise(epsilon: float, delta: float, steps: int, probability: float) -> float:
    """The least σ with which `steps` sampled Gaussian mechanisms stay within (ε, δ), to a thousandth and from above."""
    return composed_noise(epsilon, delta, ((steps, probability),))


@lru_cache(maxsize=64)
def composed_noise(epsilon: float, delta: float, runs: tuple[tuple[int, float], ...]) -> float:
    """The least σ for all the runs (steps, probability) on the same rows together.

    Rényi's bound, which takes milliseconds, says where to look; privacy loss distributions, a few of them and none far
    from the answer, say what is enough.
    """

    def of(noise: float) -> list[Mechanism]:
        return [Mechanism(noise, steps, probability) for steps, probability in runs]

    def exact(noise: float) -> float:
        return composed_epsilon(tuple(of(noise)), delta, _COARSE)

    high = _least(lambda noise: _rough(of(noise), delta) > epsilon)
    if exact(high) > epsilon:
        steps = sum(s for s, _ in runs)
        raise PrivacyError(
            f"no noise keeps {steps:,} steps within ε = {epsilon:g} at δ = {delta:g}; take fewer epochs or larger ε"
        )
    low = high
    while exact(low) <= epsilon and low > _LEAST_NOISE:
        low, high = max(0.8 * low, _LEAST_NOISE), low
    while high - low > _CLOSE * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if exact(middle) > epsilon else (low, middle)
    return high


def _least(exceeds: object) -> float:
    """The least noise that does not exceed, roughly; the largest there is, if all do."""
    assert callable(exceeds)
    low, high = _LEAST_NOISE, _LARGEST_NOISE
    while high - low > 1e-2 * high:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


def _rough(mechanisms: list[Mechanism], delta: float) -> float:
    """ε by Rényi divergences: an upper bound, in milliseconds."""
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(orders=_ORDERS)
    for mechanism in mechanisms:
        accountant.compose(gaussian_event(mechanism))
    return float(accountant.get_epsilon(delta))
