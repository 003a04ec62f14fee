"""What travels for newton: what a user can choose, and the messages of a round."""

from __future__ import annotations

from math import inf
from typing import ClassVar

import numpy as np

from tablepuppet.algorithms.base import Figures
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.arrays import Array
from tablepuppet.protocol.base import FieldDisclosure, FieldDisclosures, Update
from tablepuppet.protocol.bounds import require


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


class NewtonUpdate(Update, frozen=True):
    """Y and the collapsed curvature (None where the client can know it). → Predictions | Partial | Masked

    The curvature is `bound` times a row's weight, or, of rows that are in one joined row each, follows from Y.
    """

    keeps_trail: ClassVar[bool] = True
    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("signal", "signals", is_per_row=True),
        FieldDisclosure("curvature", "curvatures", is_per_row=True),
    )
    signal: Array
    curvature: Array | None
    bound: float  # the curvature per joined row where `curvature` is None and does not follow from Y
    coefficients: Array | None
    follows: bool = False  # whether the curvature does

    def check(self, outputs: int, clients: int) -> None:
        is_slope = not self.follows or not (np.abs(self.signal) > 1.0).any()
        require(is_slope, "signal", "has slopes that no curvature follows from")


class BasisUpdate(Update, frozen=True):
    """Y of several models, and where each stands among the directions so far. → Predictions | Partial | Masked"""

    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("signal", "signals", is_per_row=True),)
    signal: Array  # a column for each model
    points: Array  # (directions, models)
    ridges: list[float]  # l2 of each model
    bound: float  # the curvature per joined row


class NewtonFigures(Figures, frozen=True):
    """How many parts have features that span the constant: their encoders say so already."""

    is_public: ClassVar[bool] = True
    spans_constant: float = 0.0
