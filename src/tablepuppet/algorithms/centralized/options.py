"""What a user can choose about the centralised baseline."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from tablepuppet.algorithms.options import AlgorithmOptions


class Centralized(AlgorithmOptions, frozen=True, tag="centralized"):
    """The baseline: pool all rows, materialise the join, minimise F on it. For comparison where pooling is allowed."""

    name: ClassVar[str] = "centralized"
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        self._check(0 <= self.tolerance < inf, "tolerance must not be negative or infinite")
