"""ε of releases: privacy loss distributions of dp-accounting, and the noise that keeps within an ε.

In: how often Gaussian mechanisms ran on the same rows, with which noise, under which sampling. Out: ε at δ, or σ.
Nothing here draws.

A base row moves its own table's sum by at most C, and other tables' sums through each of its joined rows. Let a batch
contain m ~ Bin(κ, q) of its κ joined rows. All sums then move by at most s(m) = (1/σ² + (m·partners)²)^½ in
units of their noise. This is a mixture of Gaussians over m, and an upper bound for rows with fewer joined rows.
"""

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tablepuppet.errors import PrivacyError

if TYPE_CHECKING:
    import dp_accounting

_LARGEST_NOISE, _LEAST_NOISE = 1e6, 0.05
_COARSE = 1e-3
_NOISE_TOLERANCE = 1e-3  # how far above the least noise the chosen one may lie
_ORDERS = (*range(2, 64), 80, 96, 128, 192, 256, 512)
_RARE = 1e-14  # more joined rows in a batch than this likely count as all of them


class Mechanism(NamedTuple):
    """`steps` sums with noise, each over a Poisson sample that each of a row's `joined` rows is in with probability."""

    noise: float  # σ: the row's own table's sum moves by 1/σ
    steps: int
    probability: float = 1.0
    joined: int = 1
    partners: float = 0.0  # how far other tables' sums move for each joined row in the sample, in units of their noise

    def moved(self, joined: int) -> float:
        """s(m): how far all sums move, in units of their noise."""
        return math.hypot(1.0 / self.noise, joined * self.partners)

    def scaled(self, noise: float) -> "Mechanism":
        return self._replace(noise=noise * self.noise, partners=self.partners / noise)


def participation(rate: float, cap: int) -> float:
    """p = 1 − (1 − q)^κ: a base row is in a Poisson(q) batch of joined rows if any of its κ joined rows is.

    >>> participation(0.1, 2)
    0.18999999999999995
    """
    return float(-((1.0 - rate) ** cap) + 1.0)


def gaussian_event(mechanism: Mechanism) -> "dp_accounting.DpEvent":
    """The mechanism as dp-accounting knows it; where other tables move, as if it were as far as it usually is."""
    import dp_accounting

    mean = mechanism.joined * mechanism.probability
    usual = min(mechanism.joined, math.ceil(mean + 2.0 * math.sqrt(mean)))
    probability = participation(mechanism.probability, mechanism.joined)
    step: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(1.0 / mechanism.moved(usual))
    if probability < 1.0:
        step = dp_accounting.PoissonSampledDpEvent(probability, step)
    return dp_accounting.SelfComposedDpEvent(step, mechanism.steps)


@lru_cache(maxsize=256)
def composed_epsilon(mechanisms: tuple[Mechanism, ...], delta: float, interval: float = 1e-4) -> float:
    """ε at δ of the composition of all mechanisms, each of which saw the same row; the row is there, or zero.

    From above; a coarser `interval` is faster and looser.

    >>> round(composed_epsilon((Mechanism(1.0, 1000, 0.01),), 1e-5), 3)
    1.828
    """
    taken = tuple(m for m in mechanisms if m.steps)
    if all(m.probability >= 1.0 for m in taken):
        return _gaussian_epsilon(taken, delta, 1.0)
    return float(_losses(taken, delta, interval).get_epsilon_for_delta(delta))


@lru_cache(maxsize=256)
def replacement_epsilon(mechanisms: tuple[Mechanism, ...], delta: float, interval: float = 1e-4) -> float:
    """ε at δ where any other row may replace the row: one is removed, and the other is added.

    Both steps are (ε, δ₀)-DP; composed they are (2ε, (1 + e^ε) δ₀). Without sampling, all sums move twice as far.
    """
    taken = tuple(m for m in mechanisms if m.steps)
    if all(m.probability >= 1.0 for m in taken):
        return _gaussian_epsilon(taken, delta, 0.5)
    losses = _losses(taken, delta, interval)
    single = float(losses.get_epsilon_for_delta(delta))
    for _ in range(60):
        at = delta / (1.0 + math.exp(single))
        found = float(losses.get_epsilon_for_delta(at))
        if found <= single:
            return 2.0 * single
        single = found * (1.0 + 1e-3)
    return math.inf


def _gaussian_epsilon(mechanisms: tuple[Mechanism, ...], delta: float, share: float) -> float:
    """ε of mechanisms that do not sample, with a share of their noise: Gaussians of noise σ_i are one of noise
    (Σ 1/σ_i²)^−½, known exactly. With next to no noise it is huge, without a warning."""
    if not mechanisms:
        return 0.0
    import dp_accounting  # takes a second to load: only jobs that claim something pay it
    import numpy as np

    noise = share / math.sqrt(sum(m.steps * m.moved(m.joined) ** 2 for m in mechanisms))
    with np.errstate(all="ignore"):
        return float(dp_accounting.get_epsilon_gaussian(noise, delta))


@lru_cache(maxsize=8)
def _losses(mechanisms: tuple[Mechanism, ...], delta: float, interval: float) -> Any:
    """The privacy loss distribution of all of them; the work grows with ε over the interval."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    steps = sum(m.steps for m in mechanisms)
    is_mixed = any(m.partners and m.probability < 1.0 for m in mechanisms)
    coarse = is_mixed * 0.025 / math.sqrt(steps)  # a mixture takes a root for every point; ε grows by about steps·grid²
    given = {"value_discretization_interval": max(interval, coarse, 5e-5 * _rough(mechanisms, delta))}
    total: Any = None
    for mechanism in mechanisms:
        if mechanism.partners and mechanism.probability < 1.0:
            one = pld.from_mixture_gaussian_mechanism(1.0, *_mixture(mechanism), **given)
        else:
            probability = participation(mechanism.probability, mechanism.joined)
            noise = 1.0 / mechanism.moved(mechanism.joined)
            one = pld.from_gaussian_mechanism(noise, sampling_prob=probability, **given)
        composed = one.self_compose(mechanism.steps)
        total = composed if total is None else total.compose(composed)
    return total


def _mixture(mechanism: Mechanism) -> tuple[list[float], list[float]]:
    """How far sums move, and how likely: of each number of joined rows in a batch; very many count as all."""
    from scipy.stats import binom

    most = min(mechanism.joined, int(binom.isf(_RARE, mechanism.joined, mechanism.probability)) + 1)
    counts = [*range(most), mechanism.joined]
    likely = [float(binom.pmf(m, mechanism.joined, mechanism.probability)) for m in range(most)]
    likely.append(max(0.0, 1.0 - sum(likely)))
    moved = [mechanism.moved(m) if m else 0.0 for m in counts]
    kept = [(s, p) for s, p in zip(moved, likely, strict=True) if p > 0.0]
    return [s for s, _ in kept], [p for _, p in kept]


def gaussian_noise(epsilon: float, delta: float, steps: int, probability: float) -> float:
    """The least σ with which `steps` sampled Gaussian mechanisms stay within (ε, δ), to a thousandth and from above."""
    return composed_noise(epsilon, delta, (Mechanism(1.0, steps, probability),))


@lru_cache(maxsize=256)
def rough_noise(epsilon: float, delta: float, mechanisms: tuple[Mechanism, ...]) -> float:
    """About how many times the noise is enough, in a tenth of a second. A server and its clients ask the same."""
    low, high = _LEAST_NOISE, _LARGEST_NOISE
    while high - low > 1e-2 * high:
        middle = math.sqrt(low * high)
        exceeds = _rough(tuple(m.scaled(middle) for m in mechanisms), delta) > epsilon
        low, high = (middle, high) if exceeds else (low, middle)
    return high


@lru_cache(maxsize=256)
def composed_noise(epsilon: float, delta: float, mechanisms: tuple[Mechanism, ...]) -> float:
    """The factor by which the noise of the mechanisms, all of them on the same rows, is just enough.

    Rényi's bound takes a tenth of a second and starts the search. A few privacy loss distributions near the answer then
    decide.
    """

    def of(noise: float) -> tuple[Mechanism, ...]:
        return tuple(m.scaled(noise) for m in mechanisms)

    def exact(noise: float) -> float:
        return composed_epsilon(of(noise), delta, _COARSE)

    high = rough_noise(epsilon, delta, mechanisms)
    while exact(high) > epsilon:
        if high >= _LARGEST_NOISE or not any(m.partners for m in mechanisms):
            steps = sum(m.steps for m in mechanisms)
            raise PrivacyError(
                f"no noise keeps {steps:,} steps within ε = {epsilon:g} at δ = {delta:g}; take fewer epochs or larger ε"
            )
        high *= 1.25
    low = high
    while exact(low) <= epsilon and low > _LEAST_NOISE:
        low, high = max(0.8 * low, _LEAST_NOISE), low
    while high - low > _NOISE_TOLERANCE * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if exact(middle) > epsilon else (low, middle)
    return high


def _rough(mechanisms: tuple[Mechanism, ...], delta: float) -> float:
    """ε by Rényi divergences, in milliseconds: an upper bound, where other tables do not move."""
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(orders=_ORDERS)
    for mechanism in mechanisms:
        accountant.compose(gaussian_event(mechanism))
    return float(accountant.get_epsilon(delta))
