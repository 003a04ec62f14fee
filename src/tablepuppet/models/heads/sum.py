"""The sum: score = Σ_i h_i, with k_i = d_c; the paper's model, and what every algorithm trains.

Runs do not call it: a walk over joined rows adds blocks up as it expands them, without writing them out side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.heads.base import PullBack
from tablepuppet.models.heads.spec import HeadSpec


@dataclass(frozen=True)
class SumHead:
    """Σ_i h_i."""

    spec: HeadSpec

    def initial(self) -> Array:
        return np.zeros(0)

    def spread(self, block: int) -> list[float]:
        return [0.0] * self.spec.widths[block]

    def combine(self, own: Array, h: Sequence[Array]) -> Array:
        return np.asarray(self.spec.unit * sum(h[1:], start=h[0]))

    def differentiate(self, own: Array, h: Sequence[Array]) -> tuple[Array, PullBack]:
        def pull_back(residual: Array) -> tuple[list[Array], Array]:
            return [self.spec.unit * residual] * len(h), np.zeros(0)

        return self.combine(own, h), pull_back
