"""What proximal and its parts send each other besides the messages that all algorithms share."""

from __future__ import annotations

from typing import ClassVar

from tablepuppet.arrays import Array
from tablepuppet.protocol.base import Message, Stage, Telling, Tells


class ProximalUpdate(Message, frozen=True):
    """Y and the collapsed curvature (None where the client can know it) at θ + momentum (θ − θ before).

    → Predictions | Partial | Masked
    """

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
    total: float  # the curvature of all joined rows
    scale: float  # what the curvature of one block is multiplied by to bound that of all of them
    momentum: float
    coefficients: Array | None  # (1,): whether the last proposal is the model now
