"""What sgd and its parts send each other besides the messages that all algorithms share."""

from __future__ import annotations

from typing import ClassVar

from tablepuppet.algorithms.base import Figures
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.protocol.base import Message, Stage, Telling, Tells


class SgdUpdate(Message, frozen=True):
    """Y of the last batch, and the rows whose predictions are wanted next. → Predictions | Partial | Masked"""

    stage: ClassVar[Stage] = "step"
    tells: ClassVar[Telling] = (Tells("signal", "signals", is_per_row=True),)
    job: str
    part: int
    signal: Array | None  # None: nothing to learn yet
    count: int  # joined rows in the last batch
    learning_rate: float
    next_rows: RowNumbers | None  # None: all


class SgdFigures(Figures, frozen=True):
    """Of linear models the largest eigenvalue of Tᵀ diag(w) T / N, of networks the trace of the Gauss–Newton matrix."""

    curvature: float = 0.0
