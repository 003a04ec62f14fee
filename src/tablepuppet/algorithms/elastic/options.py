"""Options of elastic, and what it sends its parts besides the messages that all algorithms share."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.arrays import Array
from tablepuppet.protocol.base import FieldDisclosure, FieldDisclosures, Update


class Elastic(AlgorithmOptions, frozen=True, tag="elastic"):
    """Accelerated proximal steps, for penalties with kinks: l1, and signs.

    `tolerance`: the step in the objective's own metric, relative to the objective, below which it ends.

    >>> Elastic(tolerance=1e-8)
    Elastic(tolerance=1e-08)
    """

    name: ClassVar[str] = "elastic"
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        self._check(0 <= self.tolerance < inf, "tolerance must not be negative or infinite")

    @property
    def sends_second_moments(self) -> bool:
        return True


class ElasticUpdate(Update, frozen=True):
    """Y and the collapsed curvature (None where the client can know it) at θ + momentum (θ − θ before).

    → Predictions | Partial | Masked
    """

    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("signal", "signals", is_per_row=True),
        FieldDisclosure("curvature", "curvatures", is_per_row=True),
    )
    signal: Array
    curvature: Array | None
    bound: float  # the curvature per joined row where `curvature` is None
    total: float  # the curvature of all joined rows
    scale: float  # what the curvature of one block is multiplied by to bound that of all of them
    momentum: float
    coefficients: Array | None  # (1,): whether the last proposal is the model now
