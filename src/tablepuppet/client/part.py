"""A client's share of a block: its rows, its model, and what rounds change in it.

And what a server may make a client compute: models and options that fit this machine, or a refusal before anything is
allocated or begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tablepuppet import protocol as m
from tablepuppet.algorithms.base import Figures, PartSetup
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.client.masked_sums import Sealing, SealState
from tablepuppet.errors import TransportError
from tablepuppet.memory import memory_limit
from tablepuppet.models.features import Features
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.masks import MaskKey
from tablepuppet.tables.statistics import Statistics

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
    figures: Figures = field(default_factory=Figures)  # what the server half wants to know of the algorithm's start
    sealing: Sealing | None = None  # where summands leave under masks
    encoders: tuple[m.Encoder, ...] = ()
    started: m.StartPart[AlgorithmOptions] | None = None
    ids: dict[int, list[str]] = field(default_factory=dict)  # the names in columns of ids, which nobody else knows
    trees: Any = None  # what boosted trees are grown from
    batches_left: NDArray[np.int64] | None = None  # that each row may still be in

    @property
    def theta(self) -> Any:
        """The parameters that are evaluated and released."""
        return self.kept.theta if self.kept is not None and self.kept.is_restored else self.state.theta

    def sealed(self, partial: m.Partial, kind: str) -> m.Message:
        """A summand as it may leave."""
        return partial if self.sealing is None else self.sealing.seal(partial, kind)

    def meet(self, peers: Sequence[MaskKey]) -> None:
        """The block's parts are known, and sums among them can be masked."""
        if self.sealing is None:
            raise TransportError("masks need a key of this part, which was not asked for")
        self.sealing.meet(peers)

    def checkpoint(self, asked: dict[str, int]) -> Checkpoint[Any]:
        """All that rounds have changed; `asked`: how often the contract was made use of."""
        private = None if self.setup is None else self.setup.private
        taken, showings = (0, 0) if private is None else private.counts
        seal = None if self.sealing is None else self.sealing.state
        return Checkpoint(self.state, self.kept, seal, taken, showings, self.shown, asked)

    def restore(self, found: Checkpoint[Any]) -> None:
        """Goes on where a checkpoint was made."""
        self.state, self.kept, self.shown = found.state, found.kept, found.shown
        if self.setup is not None and self.setup.private is not None:
            self.setup.private.counts = (found.taken, found.showings)
        if self.sealing is not None and found.seal is not None:
            self.sealing.restore(found.seal)


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
    asked: dict[str, int] = {}


_MOST_OUTPUTS = 10_000  # classes
_LARGEST_OPTION = 1_000_000  # steps, vectors kept: of an algorithm's options
_COPIES = 16  # arrays of the size of predictions or parameters that training holds


def check_outputs(outputs: int, rows: int) -> None:
    """Refuses more outputs a row than any label has, or than memory holds."""
    if not 1 <= outputs <= _MOST_OUTPUTS:
        raise TransportError(f"a model of {outputs:,} outputs is refused; 1 to {_MOST_OUTPUTS:,} are allowed")
    _check_bytes(8 * rows * outputs, "predictions")


def check_model(spec: ModelSpec, width: int, outputs: int) -> None:
    """Refuses layers that memory does not hold."""
    sizes = (width, *spec.hidden, outputs)
    _check_bytes(8 * sum((before + 1) * after for before, after in pairwise(sizes)), "parameters")


def check_options(options: Any) -> None:
    """Refuses options that would keep this machine busy for ever."""
    for name in getattr(options, "__struct_fields__", ()):
        value = getattr(options, name)
        if isinstance(value, int) and value > _LARGEST_OPTION:
            raise TransportError(f"{name} = {value:,} is refused; at most {_LARGEST_OPTION:,} is allowed")


def _check_bytes(size: int, what: str) -> None:
    most = memory_limit() // 2 // _COPIES
    if size > most:
        raise TransportError(f"{what} of {size:,} bytes are more than this client has memory for")
