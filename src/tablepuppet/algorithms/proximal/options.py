"""Options of proximal."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from tablepuppet.algorithms.options import AlgorithmOptions


class Proximal(AlgorithmOptions, frozen=True, tag="proximal"):
    """Accelerated proximal steps, for penalties with kinks: l1, and signs.

    `tolerance`: the step in the objective's own metric, relative to the objective, below which it ends.

    >>> Proximal(tolerance=1e-8)
    Proximal(tolerance=1e-08)
    """

    name: ClassVar[str] = "proximal"
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        self._check(0 <= self.tolerance < inf, "tolerance must not be negative or infinite")

    @property
    def sends_second_moments(self) -> bool:
        return True
