"""Two runs whose noisy sums are replaced by the same noise: what they add up exactly, and how far they are apart.

Every answer to a noisy question is noise alone, the same in both runs, so that both take the same path: whatever else
differs between them has left beside the noise. The sums that were meant to be sent are kept. Their distance, in units
of their noise, is that of two Gaussians, and its ε at δ is what a run tells in truth (Dong, Roth and Su, 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from tablepuppet.algorithms import base
from tablepuppet.algorithms.boosting import fixed_point
from tablepuppet.api import federation
from tablepuppet.arrays import Array
from tablepuppet.exchanges import start
from tablepuppet.owner import releases
from tablepuppet.privacy import gaussian
from tablepuppet.transport.link import LocalTransport


@dataclass
class Sums:
    """What a run would have noised."""

    values: list[Array] = field(default_factory=list)  # in units of their noise

    def keep(self, values: Array, deviation: float, generator: Any) -> Array:
        if deviation <= 0:
            return values
        self.values.append(np.asarray(values, np.float64) / deviation)
        return np.random.default_rng(len(self.values)).normal(0.0, deviation, values.shape)

    def distance(self, other: Sums) -> float:
        """μ: of all sums of the run."""
        assert [v.shape for v in self.values] == [v.shape for v in other.values]
        squares = [float(((a - b) ** 2).sum()) for a, b in zip(self.values, other.values, strict=True)]
        return math.sqrt(sum(squares))


def replace_noise(patch: pytest.MonkeyPatch) -> Sums:
    """From now on sums are kept, and noise leaves in their place; clients answer one after the other, and batches are
    the same in every run."""
    sums = Sums()
    patch.setattr(federation, "LocalTransport", partial(LocalTransport, threads=1))
    patch.setattr(releases, "secure_generator", lambda: np.random.default_rng(11))
    patch.setattr(start, "secrets", SimpleNamespace(randbits=lambda bits: 13))
    for module in (base, fixed_point, gaussian):
        patch.setattr(module, "noised", sums.keep)
    return sums


def run_both(runs: tuple[Callable[[], Any], Callable[[], Any]]) -> tuple[list[Any], float]:
    """What two runs give, and how far apart their sums are."""
    given, kept = [], []
    for run in runs:
        with pytest.MonkeyPatch.context() as patch:
            kept.append(replace_noise(patch))
            given.append(run())
    return given, kept[0].distance(kept[1])


def gaussian_epsilon(distance: float, delta: float) -> float:
    """ε at δ of two Gaussians of deviation one that are so far apart.

    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
    4.377
    """
    if distance == 0:
        return 0.0
    low, high = 0.0, 1000.0
    while high - low > 1e-4:
        epsilon = 0.5 * (low + high)
        beyond = norm.logcdf(-distance / 2 - epsilon / distance)
        found = norm.cdf(distance / 2 - epsilon / distance) - math.exp(min(700.0, epsilon + beyond))
        low, high = (epsilon, high) if found > delta else (low, epsilon)
    return high
