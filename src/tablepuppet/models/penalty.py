"""Penalty: what a block's parameters cost, λ‖θ‖₁ + ½ β‖θ‖², and which signs they may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array

L2 = 1e-4  # of a job that does not say


@dataclass(frozen=True, slots=True)
class Penalty:
    """One block's."""

    l2: float = 0.0
    l1: float = 0.0
    signs: tuple[int, ...] = ()  # of each encoded column: 1, −1, or 0 for any; empty: any

    def value(self, theta: Array) -> float:
        return self.l1 * float(np.abs(theta).sum()) + 0.5 * self.l2 * float(np.vdot(theta, theta))

    def bounds(self, width: int) -> tuple[Array, Array]:
        """The least and the largest value of each column's parameters."""
        signs = np.array(self.signs or (0,) * width)
        return np.where(signs > 0, 0.0, -np.inf), np.where(signs < 0, 0.0, np.inf)

    def shrunk(self, towards: Array, curved: Array) -> Array:
        """argmin ½ curved θ² − towards θ + the penalty, entry by entry."""
        lower, upper = self.bounds(len(towards))
        size = np.maximum(np.abs(towards) - self.l1, 0.0)
        ridge = np.broadcast_to(curved + self.l2, size.shape)
        found = np.divide(np.copysign(size, towards), ridge, out=np.zeros_like(size), where=ridge > 0)
        return np.clip(found, lower[:, None], upper[:, None])


def l2_of(l2: float | Mapping[str, float], block: str, table: str) -> float:
    """β of a block: one for all, or by the name of the block or of its table."""
    return l2 if isinstance(l2, int | float) else l2.get(block, l2.get(table, L2))
