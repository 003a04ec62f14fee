"""What a user can choose about newton."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from tablepuppet.algorithms.options import AlgorithmOptions


class Newton(AlgorithmOptions, frozen=True, tag="newton"):
    """Block-preconditioned Newton with subspace search: nothing to tune (docs/algorithms.md).

    `memory`: how many earlier directions are kept for the search; `tolerance`: the relative gain below which it ends.

    >>> Newton(tolerance=1e-6)
    Newton(tolerance=1e-06)
    """

    name: ClassVar[str] = "newton"
    memory: int = 8  # fewer stall where tables correlate: docs/decisions/0006
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        self._check(0 <= self.memory <= 16, "memory must lie in 0..16")
        self._check(0 <= self.tolerance < inf, "tolerance must not be negative or infinite")

    @property
    def sends_second_moments(self) -> bool:
        return True
