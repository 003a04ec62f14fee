"""A client's share of a block: its rows, its model, and what rounds change in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tablepuppet.algorithms.base import PartSetup
from tablepuppet.operators.sealing import Sealing, SealState
from tablepuppet.tables.features import Features
from tablepuppet.tables.statistics import Statistics
from tablepuppet.transport import messages as m

_State = TypeVar("_State")


@dataclass
class Part:
    """One share of a block, from its rows to its trained parameters."""

    request: m.OpenPart
    statistics: Sequence[Statistics] = ()  # of its own train rows
    train: Features | None = None
    test: Features | None = None
    setup: PartSetup | None = None
    options: Any = None
    state: Any = None
    kept: Kept | None = None
    shown: int = 0  # exact numbers that left of each row
    figure: float = 0.0  # what the server half wants to know of the algorithm's start
    sealing: Sealing | None = None  # where summands leave under masks
    encoders: tuple[m.Encoder, ...] = ()
    started: m.StartPart | None = None

    @property
    def theta(self) -> Any:
        """The parameters that are evaluated and released."""
        return self.kept.theta if self.kept is not None and self.kept.is_restored else self.state.theta

    def sealed(self, partial: m.Partial, kind: str) -> m.Message:
        """A summand as it may leave."""
        return partial if self.sealing is None else self.sealing.seal(partial, kind)


class Kept(Struct, frozen=True):
    """The best parameters so far; once they are restored, they are the part's own."""

    theta: NDArray[np.float64]
    is_restored: bool = False


class Checkpoint(Struct, Generic[_State], frozen=True):
    """All that rounds have changed in a part: the state of its algorithm, what it kept, and its masks."""

    state: _State
    kept: Kept | None = None
    seal: SealState | None = None
    taken: int = 0  # noisy gradients
    showings: int = 0  # noisy predictions
    shown: int = 0  # exact ones
