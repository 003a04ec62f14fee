"""What newton and its parts send each other besides the messages that all algorithms share."""

from __future__ import annotations

from typing import ClassVar

from tablepuppet.algorithms.base import Figures
from tablepuppet.arrays import Array
from tablepuppet.protocol.base import Message, Stage, Telling, Tells


class NewtonUpdate(Message, frozen=True):
    """Y and the collapsed curvature (None where the client can know it). → Predictions | Partial | Masked"""

    stage: ClassVar[Stage] = "step"
    tells: ClassVar[Telling] = (
        Tells("signal", "signals", is_per_row=True),
        Tells("curvature", "curvatures", is_per_row=True),
    )
    job: str
    part: int
    signal: Array
    curvature: Array | None
    bound: float  # the curvature per joined row where `curvature` is None
    coefficients: Array | None


class NewtonFigures(Figures, frozen=True):
    """How many parts have features that span the constant: their encoders say so already."""

    is_public: ClassVar[bool] = True
    spans_constant: float = 0.0
