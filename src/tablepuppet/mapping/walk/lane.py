"""A walk over one lane of joined rows, shard by shard: expand, an algorithm's step, collapse.

In: joined rows, the borders of the lane's shards, and each block's values. Out: what the lane collapsed to each block,
and the sums that its steps gave. A shard's row numbers are made ready once, for all values that are moved by them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tablepuppet.arrays import Array, Triangles
from tablepuppet.mapping.walk.collapse import LaneSums, SharedTotals
from tablepuppet.mapping.walk.gather_scatter import Place
from tablepuppet.models.losses.weighted import Weighted

if TYPE_CHECKING:
    from tablepuppet.mapping.rows.joined import JoinedRows


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


def walk_lane(
    rows: JoinedRows,
    lane: Lane,
    work: Work,
    values: Sequence[Array],
    columns: Sequence[Array],
    wholes: SharedTotals | None = None,
) -> LaneResult:
    """Values are summed over blocks, columns are not; sums of blocks in order go to the wholes, where there are any."""
    collapsed = LaneSums(rows.indices, rows.moves, rows.all_rows, lane[0][0], lane[-1][1], wholes)
    totals: list[Sums] = []
    for start, stop in lane:
        places = [p.place(rows.moves, start, stop) for p in rows.indices]
        shard = _shard(rows, values, columns, places, start, stop, work.writes)
        outcome, sums = work.step(shard, **_weighted(shard, work.given))
        totals.append(sums)
        signals = outcome[: work.signals]
        if work.own:
            signals = [_less(rows, signal, work.own, values, places) for signal in signals]
        collapsed.add(signals, places, start, stop)
    return collapsed.collapsed, add_sums(totals)


def _shard(
    rows: JoinedRows,
    values: Sequence[Array],
    columns: Sequence[Array],
    places: Sequence[Place],
    start: int,
    stop: int,
    writes: Collection[str],
) -> Shard:
    moves, size, owner = rows.moves, stop - start, rows.label_index
    state = {name: kept[start:stop] for name, kept in rows.state.items()}
    for name, kept in state.items():
        kept.flags.writeable = name in writes
    expanded = rows.indices[0].expand(moves, values[0], places[0], size)
    scores = expanded.copy() if isinstance(places[0], slice) else expanded  # the step's to overwrite
    for p, v, place in zip(rows.indices[1:], values[1:], places[1:], strict=True):
        p.expand_add(moves, scores, v, place)
    beside = [p.expand(moves, v, w, size) for p, v, w in zip(rows.indices, columns, places, strict=bool(columns))]
    known = [place for p, place in zip(rows.indices, places, strict=True) if p is owner]

    def of_label_rows(per_row: Array) -> Array:
        place = known[0] if known else owner.place(moves, start, stop)
        return owner.expand(moves, per_row[:, None], place, size)[:, 0]

    weights = None if rows.weights is None else of_label_rows(rows.weights)
    return Shard(scores, beside, state, partial(of_label_rows, rows.labels), weights)


def _less(rows: JoinedRows, signal: Signal, own: float, values: Sequence[Array], places: Sequence[Place]) -> Signal:
    """A signal, less `own` times each block's own values."""
    assert isinstance(signal, np.ndarray)
    return [
        signal - own * p.expand(rows.moves, v, place, len(signal))
        for p, v, place in zip(rows.indices, values, places, strict=True)
    ]


def _weighted(shard: Shard, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if shard.weights is None or "loss" not in given:
        return given
    return {**given, "loss": Weighted(given["loss"], shard.weights)}
