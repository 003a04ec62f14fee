"""What admm and its parts send each other besides the messages that all algorithms share."""

from __future__ import annotations

from typing import ClassVar

from tablepuppet.algorithms.base import Figures
from tablepuppet.arrays import Array
from tablepuppet.protocol.base import Message, Stage, Telling, Tells


class AdmmUpdate(Message, frozen=True):
    """Y of all train rows, and the weight of G‖h‖²/2. → Predictions | Partial | Masked"""

    stage: ClassVar[Stage] = "step"
    tells: ClassVar[Telling] = (Tells("signal", "signals", is_per_row=True),)
    job: str
    part: int
    signal: Array
    factor: float  # Mρ
    union_rho: float  # ρ_u of the consensus rounds
    coefficients: Array | None  # of the last step of the reported model


class AdmmFigures(Figures, frozen=True):
    """The mean diagonal of XᵀX/N, or of a network's Gauss–Newton matrix: the scale of ρ_u."""

    curvature: float = 0.0
