"""Sealing: a client's summands leave under masks, so that the server can read nothing but the sum of all clients.

In: the arrays that one part adds to its block's sum. Out: a `Masked` answer (privacy/masks.py) at the scale that the
block's parts agreed on, or, where there is none yet or a value does not fit, only how large the arrays are; the server
then names a scale that fits everybody's (server.py), and asks for the same summands once more: `Seal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import TransportError
from tablepuppet.privacy.masks import MaskKey, Masks, check_key, exponent_of, mask_key, new_private, to_integers
from tablepuppet.protocol.steps import Masked, Partial

_ROUGH, _STEP = ("counts", "moments"), 16  # leaves 40 of a sum's bits and more


class SealState(msgspec.Struct, frozen=True):
    """What a checkpoint keeps: the key, the masks that were used, the scales in force, and summands not yet summed."""

    private: bytes
    counter: int = 0
    scales: dict[str, list[int]] = {}  # by what is summed: E of each array
    kind: str = ""
    pending: list[Array] = []


@dataclass
class Sealing:
    """One part's masks."""

    job: str
    client: str
    part: int
    shared: bytes = field(repr=False)
    state: SealState = field(default_factory=lambda: SealState(new_private()), repr=False)
    peers: Sequence[MaskKey] = ()
    _masks: Masks | None = field(default=None, repr=False)

    def offer(self) -> MaskKey:
        """What the other parts need to know."""
        return mask_key(self.state.private, self.shared, self.job, self.client, self.part)

    def meet(self, peers: Sequence[MaskKey]) -> None:
        """The keys of all parts of the block, this one's among them; all of them must be clients'."""
        for peer in peers:
            check_key(peer, self.shared, self.job)
        self.peers, self._masks = peers, None

    def restore(self, state: SealState) -> None:
        """Goes on where a checkpoint was made, with the key of then."""
        self.state, self._masks = state, None

    @property
    def masks(self) -> Masks:
        if self._masks is None:
            self._masks = Masks.among(self.peers, self.state.private, self.shared, self.job, self.part)
        return self._masks

    def seal(self, partial: Partial, kind: str) -> Masked | Partial:
        """The summands under masks; of numbers that are none (a run that diverges) just that."""
        values = list(partial.values)
        if not values:  # a block without numbers has no second moments
            return partial
        if not all(np.isfinite(v).all() for v in values):
            return Partial(values=[np.full_like(v, np.nan) for v in values])
        self.state = msgspec.structs.replace(self.state, kind=kind, pending=values)
        return self._masked()

    def seal_integers(self, values: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """Whole numbers under masks; they need no scale."""
        counter = self.state.counter
        self.state = msgspec.structs.replace(self.state, counter=counter + 1)  # used up, whatever follows
        joined = self.masks.masked(np.concatenate([v.ravel() for v in values]), counter)
        parts = np.split(joined, np.cumsum([v.size for v in values])[:-1])
        return [part.reshape(v.shape) for part, v in zip(parts, values, strict=True)]

    def again(self, scales: list[int]) -> Masked:
        """The same summands at another scale, and under other masks."""
        if not self.state.pending:
            raise TransportError("there is no sum under way to be sealed")
        self._scale(self.state.kind, scales)
        return self._masked()

    def rescale(self, scales: list[int]) -> None:
        """The scale of the next sum in training."""
        if scales:
            self._scale("training", scales)

    def _masked(self) -> Masked:
        state = self.state
        self.state = msgspec.structs.replace(state, counter=state.counter + 1)  # used up, whatever follows
        own = [_size(v, state.kind) for v in state.pending]
        kinds: list[Any] = [v.dtype.str for v in state.pending]
        scales = state.scales.get(state.kind, [])[: len(own)]
        if len(scales) < len(own) or any(e > scale for e, scale in zip(own, scales, strict=True)):
            return Masked(values=[], exponents=own, scales=[], kinds=kinds)
        integers = [to_integers(v, e, self.masks.parties) for v, e in zip(state.pending, scales, strict=True)]
        joined = self.masks.masked(np.concatenate([i.ravel() for i in integers]), state.counter)
        parts = np.split(joined, np.cumsum([i.size for i in integers])[:-1])
        values = [part.reshape(i.shape) for part, i in zip(parts, integers, strict=True)]
        return Masked(values=values, exponents=own, scales=scales, kinds=kinds)

    def _scale(self, kind: str, scales: list[int]) -> None:
        self.state = msgspec.structs.replace(self.state, scales=self.state.scales | {kind: list(scales)})


def _size(values: Array, kind: str) -> int:
    """The power of two that a client tells of an array: of sums of statistics, a client's own, only roughly."""
    exponent = exponent_of(values)
    return exponent if kind not in _ROUGH else -(-exponent // _STEP) * _STEP
