"""A walk over one lane of joined rows, shard by shard: expand, an algorithm's step, collapse.

In: joined rows, the borders of the lane's shards, and each block's values. Out: what the lane collapsed to each block,
and the sums that its steps gave. A shard's row numbers are made ready once, for all values that are moved by them.

Collapse gives for each signal and block an array per row (n_i, k). A lane sums the rows of an unsorted block on its
own, and lanes are added up in order. Rows of a block in order hardly ever occur in two of them: lanes write these
straight into the whole, all but the first of their rows, which is added in order, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Moved, PerRow, Triangles, floats
from tablepuppet.mapping.rows.index import RowIndex
from tablepuppet.mapping.walk.gather_scatter import Place, empty_sums, loops
from tablepuppet.models.compiler import is_installed, wins
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
    values: Sequence[PerRow],
    columns: Sequence[Array],
    shared_totals: SharedTotals | None = None,
) -> LaneResult:
    """Values are summed over blocks, columns are not; sums of blocks in order go to `shared_totals`, if any."""
    collapsed = LaneSums(rows, lane[0][0], lane[-1][1], shared_totals)
    totals: list[Sums] = []
    for start, stop in lane:
        places = [p.place(rows.gather_scatter, start, stop) for p in rows.indices]
        shard = _shard(rows, values, columns, places, start, stop, work.writes)
        outcome, sums = work.step(shard, **_weighted(shard, work.given))
        totals.append(sums)
        signals = outcome[: work.signals]
        if work.own:
            signals = [_less(rows, signal, work.own, values, places) for signal in signals]
        collapsed.add(signals, places, start, stop)
    return collapsed.collapsed, add_sums(totals)


def walk_shard(rows: JoinedRows, work: Work, per_row: Sequence[PerRow], columns: Sequence[Array]) -> Pass:
    """The same for few joined rows, one shard, without what shares work out."""
    stop = rows.rows
    values = [p.arrange(v) for p, v in zip(rows.indices, per_row, strict=True)]
    columns = [np.asarray(p.arrange(v)) for p, v in zip(rows.indices, columns, strict=False)]
    places = [p.place(rows.gather_scatter, 0, stop) for p in rows.indices]
    shard = _shard(rows, values, columns, places, 0, stop, work.writes)
    outcome, sums = work.step(shard, **_weighted(shard, work.given))
    signals = outcome[: work.signals]
    if work.own:
        signals = [_less(rows, signal, work.own, values, places) for signal in signals]
    found = []
    for signal in signals:
        totals = []
        for i, (p, place) in enumerate(zip(rows.indices, places, strict=True)):
            given = _columns(signal[i] if isinstance(signal, list) else signal)
            total = empty_sums(p.rows, sum(c.shape[1] for c in given), rows.all_rows)
            _collapse(rows, p, total, 0, given, place, 0)
            totals.append(total)
        found.append(totals)
    return Pass(found, sums)


def _shard(
    rows: JoinedRows,
    values: Sequence[PerRow],
    columns: Sequence[Array],
    places: Sequence[Place],
    start: int,
    stop: int,
    writes: Collection[str],
) -> Shard:
    gather_scatter, size, owner = rows.gather_scatter, stop - start, rows.label_index
    state = {name: kept[start:stop] for name, kept in rows.state.items()}
    for name, kept in state.items():
        kept.flags.writeable = name in writes
    expanded = rows.indices[0].expand(gather_scatter, values[0], places[0], size)
    is_view = isinstance(places[0], slice) and not isinstance(values[0], Moved)
    scores = expanded.copy() if is_view else expanded  # the step's to overwrite
    for p, v, place in zip(rows.indices[1:], values[1:], places[1:], strict=True):
        p.expand_add(gather_scatter, scores, v, place)
    beside = [
        p.expand(gather_scatter, v, w, size) for p, v, w in zip(rows.indices, columns, places, strict=bool(columns))
    ]
    known = [place for p, place in zip(rows.indices, places, strict=True) if p is owner]

    def of_label_rows(per_row: NDArray[Any]) -> Array:
        place = known[0] if known else owner.place(gather_scatter, start, stop)
        return floats(owner.expand(gather_scatter, per_row[:, None], place, size)[:, 0])

    weights = None if rows.weights is None else of_label_rows(rows.weights)
    return Shard(scores, beside, state, partial(of_label_rows, rows.labels), weights)


def _less(rows: JoinedRows, signal: Signal, own: float, values: Sequence[PerRow], places: Sequence[Place]) -> Signal:
    """A signal, less `own` times each block's own values."""
    assert isinstance(signal, np.ndarray)
    return [
        signal - own * p.expand(rows.gather_scatter, v, place, len(signal))
        for p, v, place in zip(rows.indices, values, places, strict=True)
    ]


def _weighted(shard: Shard, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if shard.weights is None or "loss" not in given:
        return given
    return {**given, "loss": Weighted(given["loss"], shard.weights)}


_PIECE = 1024  # joined rows of Triangles that are written out at a time: they stay in the cache
Collapsed = list[list[tuple[int, Array]]]  # by signal and block: from which row on something is to be added


class SharedTotals:
    """For each signal the sums per row of the blocks whose rows come in order; all lanes write into them."""

    def __init__(self, indices: Sequence[RowIndex], joined_rows: int) -> None:
        self.arrays: list[list[Array | None]] = []
        self._indices, self._joined_rows = indices, joined_rows
        self._lock = threading.Lock()

    def of(self, widths: Sequence[Sequence[int]]) -> list[list[Array | None]]:
        """The arrays, made by the first lane that knows how wide they are."""
        with self._lock:
            if not self.arrays:
                self.arrays = [
                    [
                        empty_sums(p.rows, width, self._joined_rows) if p.is_sorted else None
                        for p, width in zip(self._indices, own, strict=True)
                    ]
                    for own in widths
                ]
            return self.arrays


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """Where a lane adds up one signal for one block."""

    base: int  # row of `out`'s first entry
    out: Array
    shared: int = 0  # the joined row up to which the lane's rows go to `edge` instead
    low: int = 0  # the row of `edge`
    edge: Array | None = None

    @property
    def collapsed(self) -> tuple[int, Array]:
        """What is still to be added to the whole."""
        return (self.base, self.out) if self.edge is None else (self.low, self.edge)


class LaneSums:
    """What one lane collapses."""

    def __init__(
        self,
        rows: JoinedRows,
        start: int,
        stop: int,
        shared_totals: SharedTotals | None,
    ) -> None:
        self._rows, self._indices = rows, rows.indices
        self._start, self._stop, self._shared_totals = start, stop, shared_totals
        self._targets: list[list[_Target]] = []

    def add(self, signals: Sequence[Signal], places: Sequence[Place], start: int, stop: int) -> None:
        """A shard's signals; `places` are its joined rows' rows in each block."""
        shown = [s if isinstance(s, list) else [s] * len(self._indices) for s in signals]
        by_block = [[_columns(s) for s in own] for own in shown]
        if not self._targets:
            self._targets = self._open([[sum(c.shape[1] for c in s) for s in own] for own in by_block])
        for targets, own in zip(self._targets, by_block, strict=True):
            for p, target, columns, place in zip(self._indices, targets, own, places, strict=True):
                self._add(p, target, columns, place, start, stop)

    @property
    def collapsed(self) -> Collapsed:
        return [[target.collapsed for target in own] for own in self._targets]

    def _open(self, widths: list[list[int]]) -> list[list[_Target]]:
        shared_totals = None if self._shared_totals is None else self._shared_totals.of(widths)
        return [
            [
                self._target(p, width, None if shared_totals is None else shared_totals[k][i])
                for i, (p, width) in enumerate(zip(self._indices, own, strict=True))
            ]
            for k, own in enumerate(widths)
        ]

    def _target(self, p: RowIndex, width: int, whole: Array | None) -> _Target:
        low, high = p.span(self._start, self._stop)
        if whole is None:
            return _Target(low, empty_sums(high - low, width, self._rows.moved_rows))
        if p.index is None or not self._start:
            return _Target(0, whole, edge=whole[:0])
        shared = int(np.searchsorted(p.index[self._start : self._stop], low, side="right"))
        return _Target(0, whole, self._start + shared, low, np.zeros((1, width)))

    def _add(
        self, p: RowIndex, target: _Target, columns: tuple[Column, ...], place: Place, start: int, stop: int
    ) -> None:
        middle = min(max(start, target.shared), stop)
        if middle > start and target.edge is not None:
            first = tuple(c[: middle - start] for c in columns)
            gather_scatter = self._rows.gather_scatter
            there = p.place(gather_scatter, start, middle)
            _collapse(self._rows, p, target.edge, target.low, first, there, start)
            columns, place = tuple(c[middle - start :] for c in columns), p.place(gather_scatter, middle, stop)
        if middle < stop:
            _collapse(self._rows, p, target.out, target.base, columns, place, middle)


def _collapse(
    rows: JoinedRows,
    p: RowIndex,
    out: Array,
    base: int,
    columns: tuple[Column, ...],
    place: Place,
    start: int,
) -> None:
    """Adds columns of joined rows from `start` on; triangles behind them as they are made."""
    if not columns:  # this block gets nothing of the signal
        return
    last = columns[-1]
    if not isinstance(last, Triangles):
        p.collapse_add(rows.gather_scatter, out, base, cast(tuple[Array, ...], columns), place)
        return
    whole = tuple(c for c in columns if isinstance(c, np.ndarray))
    count = len(last.z)
    if p.index is not None and wins(rows.moved_rows, is_dear=True) and is_installed():
        before = np.ascontiguousarray(np.concatenate([last.z[:, :0], *whole], axis=1))
        index = p.index[start : start + count]
        loops().add_triangles(out, base, index, before, last.scale * last.z, last.z)
        return
    for first in range(0, count, _PIECE):
        some = slice(first, min(first + _PIECE, count))
        piece = (*(c[some] for c in whole), last[some].written_out())
        here = p.place(rows.gather_scatter, start + some.start, start + some.stop)
        p.collapse_add(rows.gather_scatter, out, base, piece, here)


def _columns(signal: Columns) -> tuple[Column, ...]:
    return signal if isinstance(signal, tuple) else (signal,)
