"""What travels for als: what a user can choose, and the messages of a round."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from tablepuppet.algorithms.base import Figures
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.arrays import Array
from tablepuppet.protocol.base import Amount, FieldDisclosure, FieldDisclosures, Update
from tablepuppet.protocol.bounds import require


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


class AlsUpdate(Update, frozen=True):
    """The gradient and the curvature of the loss by h of each row, given the other tables. → Predictions | Partial"""

    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("signal", "signals", is_per_row=True),
        FieldDisclosure("curvature", "curvatures", is_per_row=True),
    )
    signal: Array  # (n, K): Σ_j ∂ℓ/∂h
    curvature: Array  # (n, K(K+1)/2): Σ_j of the upper triangle of ∂²ℓ/∂h²
    ridge: list[Amount]  # (K): besides l2, on each parameter of an output

    def check(self, outputs: int, clients: int) -> None:
        require(len(self.ridge) == outputs, "ridge", f"is not {outputs} numbers")


class AlsFigures(Figures, frozen=True):
    """How many parts have one text column and nothing else: their encoders say so already."""

    is_public: ClassVar[bool] = True
    has_one_category: float = 0.0
