"""What is done to joined rows in a walk: what a step sees and gives, what a lane gives, what comes of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tablepuppet.arrays import Array, Triangles


@dataclass(frozen=True, eq=False)
class Shard:
    """What an algorithm's join step sees of some joined rows."""

    scores: Array  # Σ_i expand_i(v_i), the step's to overwrite
    columns: Sequence[Array]  # expand_i of each block's further columns
    state: Mapping[str, Array]  # the algorithm's own joined values, writable where the walk says so
    read_labels: Callable[[], Array]
    weights: Array | None = None  # of the rows; None: all one

    @cached_property
    def labels(self) -> Array:
        """Looked up when a step asks for them."""
        return self.read_labels()


Sums = dict[str, Any]
Lane = Sequence[tuple[int, int]]  # the borders of its shards
LaneResult = tuple[list[list[tuple[int, Array]]], Sums]  # collapsed signals by block, each from some row on; sums
Column = Array | Triangles
Columns = Array | tuple[Column, ...]  # (rows, k), whole or as arrays side by side
Signal = Columns | list[Columns]  # to be collapsed to every block, or what each of them gets
JoinStep = Callable[..., tuple[Sequence[Signal], Sums]]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What is done to joined rows in a walk."""

    step: JoinStep
    signals: int = 0  # that are collapsed
    writes: tuple[str, ...] = ()  # state that is overwritten
    given: Mapping[str, Any] = field(default_factory=dict)  # to the step
    own: float = 0.0  # times a block's own values is taken off what its rows get
    fused: Callable[..., Sums] | None = None  # does the step and all around it for a whole lane


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """The outcome of one walk over all joined rows."""

    signals: list[list[Array]]  # signals[s][i]: the s-th signal, collapsed to block i
    sums: Sums


def add_sums(parts: Sequence[Sums]) -> Sums:
    """Sums of the same names, added in order."""
    total: Sums = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total
