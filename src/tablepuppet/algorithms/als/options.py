"""What a user can choose about als."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from tablepuppet.algorithms.options import AlgorithmOptions


class Als(AlgorithmOptions, frozen=True, tag="als"):
    """Alternating least squares for factor heads: one table after the other, each exactly, given the others.

    `tolerance`: the relative gain of a sweep over all tables below which it ends; `solver_steps`, `solver_tolerance`:
    when the conjugate gradients of a table with more than one id column end.

    >>> Als(tolerance=1e-4)
    Als(tolerance=0.0001)
    """

    name: ClassVar[str] = "als"
    tolerance: float = 1e-6
    solver_steps: int = 50
    solver_tolerance: float = 1e-2

    def __post_init__(self) -> None:
        self._check(0 <= self.tolerance < inf, "tolerance must not be negative or infinite")
        self._check(self.solver_steps >= 1, "solver_steps must be at least 1")
        self._check(0 <= self.solver_tolerance < 1, "solver_tolerance must lie in [0, 1)")

    @property
    def sends_second_moments(self) -> bool:
        return True
