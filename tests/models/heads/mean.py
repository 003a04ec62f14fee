"""A toy head: the mean of what the tables give. A test copies it into the package and adds its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.heads.base import HeadSpec, HeadTraits, PullBack


@dataclass(frozen=True)
class MeanHead:
    """Σ_i h_i / M."""

    spec: HeadSpec

    def initial(self) -> Array:
        return np.zeros(0)  # no parameters of its own

    def spread(self, block: int) -> list[float]:
        return [0.0] * self.spec.widths[block]  # tables begin at zero

    def combine(self, own: Array, h: Sequence[Array]) -> Array:
        return np.asarray(self.spec.unit * sum(h[1:], start=h[0]) / len(h))

    def differentiate(self, own: Array, h: Sequence[Array]) -> tuple[Array, PullBack]:
        def pull_back(residual: Array) -> tuple[list[Array], Array]:
            return [self.spec.unit * residual / len(h) for _ in h], np.zeros(0)

        return self.combine(own, h), pull_back


HEAD = HeadTraits(
    make=lambda spec, seed: MeanHead(spec),
    widths=lambda job, blocks, outputs: (outputs,) * blocks,
)
