"""What als and its parts send each other besides the messages that all algorithms share."""

from __future__ import annotations

from typing import ClassVar

from tablepuppet.algorithms.base import Figures
from tablepuppet.arrays import Array
from tablepuppet.protocol.base import Message, Stage, Telling, Tells


class AlsUpdate(Message, frozen=True):
    """The gradient and the curvature of the loss by h of each row, given the other tables. → Predictions | Partial"""

    stage: ClassVar[Stage] = "step"
    tells: ClassVar[Telling] = (
        Tells("signal", "signals", is_per_row=True),
        Tells("curvature", "curvatures", is_per_row=True),
    )
    job: str
    part: int
    signal: Array  # (n, K): Σ_j ∂ℓ/∂h
    curvature: Array  # (n, K(K+1)/2): Σ_j of the upper triangle of ∂²ℓ/∂h²


class AlsFigures(Figures, frozen=True):
    """How many parts have one text column and nothing else: their encoders say so already."""

    is_public: ClassVar[bool] = True
    has_one_category: float = 0.0
