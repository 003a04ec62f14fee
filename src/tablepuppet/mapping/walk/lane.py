"""A walk over one lane of joined rows, shard by shard: expand, an algorithm's step, collapse.

In: joined rows, the borders of the lane's shards, and each block's values. Out: what the lane collapsed to each block,
and the sums that its steps gave. A shard's row numbers are made ready once, for all values that are moved by them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.mapping.walk.collapse import LaneSums, SharedTotals
from tablepuppet.mapping.walk.gather_scatter import Place
from tablepuppet.mapping.walk.work import Lane, LaneResult, Shard, Signal, Sums, Work, add_sums
from tablepuppet.models.losses.weighted import Weighted

if TYPE_CHECKING:
    from tablepuppet.mapping.rows.joined import JoinedRows


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
