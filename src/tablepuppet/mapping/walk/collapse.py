"""Sums of joined rows' signals per row of a block, lane by lane.

In: what a step made of a shard. Out: for each signal and block an array per row (n_i, k). A lane sums the rows of an
unsorted block on its own, and lanes are added up in order. Rows of a block in order hardly ever occur in two of them:
lanes write these straight into the whole, all but the first of their rows, which is added in order, too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array, Triangles
from tablepuppet.mapping.rows.index import RowIndex
from tablepuppet.mapping.walk.gather_scatter import GatherScatter, Place, empty_sums, loops
from tablepuppet.mapping.walk.work import Column, Columns, Signal
from tablepuppet.models.compiler import is_installed, wins

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
        indices: Sequence[RowIndex],
        moves: GatherScatter,
        joined_rows: int,
        start: int,
        stop: int,
        wholes: SharedTotals | None,
    ) -> None:
        self._indices, self._moves, self._joined_rows = indices, moves, joined_rows
        self._start, self._stop, self._wholes = start, stop, wholes
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
        wholes = None if self._wholes is None else self._wholes.of(widths)
        return [
            [
                self._target(p, width, None if wholes is None else wholes[k][i])
                for i, (p, width) in enumerate(zip(self._indices, own, strict=True))
            ]
            for k, own in enumerate(widths)
        ]

    def _target(self, p: RowIndex, width: int, whole: Array | None) -> _Target:
        low, high = p.span(self._start, self._stop)
        if whole is None:
            return _Target(low, empty_sums(high - low, width, self._joined_rows))
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
            self._collapse(p, target.edge, target.low, first, p.place(self._moves, start, middle), start)
            columns, place = tuple(c[middle - start :] for c in columns), p.place(self._moves, middle, stop)
        if middle < stop and columns:
            self._collapse(p, target.out, target.base, columns, place, middle)

    def _collapse(
        self, p: RowIndex, out: Array, base: int, columns: tuple[Column, ...], place: Place, start: int
    ) -> None:
        """Adds columns of joined rows from `start` on; triangles behind them as they are made."""
        whole = tuple(c for c in columns if isinstance(c, np.ndarray))
        last = columns[-1] if columns else None
        if not isinstance(last, Triangles):
            p.collapse_add(self._moves, out, base, whole, place)
            return
        rows = len(last.z)
        if p.index is not None and is_installed() and wins(self._joined_rows, is_dear=True):
            before = np.ascontiguousarray(np.concatenate(whole, axis=1))
            index = p.index[start : start + rows]
            loops().add_triangles(out, base, index, before, last.scale * last.z, last.z)
            return
        for first in range(0, rows, _PIECE):
            some = slice(first, min(first + _PIECE, rows))
            piece = (*(c[some] for c in whole), last[some].written_out())
            p.collapse_add(self._moves, out, base, piece, p.place(self._moves, start + some.start, start + some.stop))


def _columns(signal: Columns) -> tuple[Column, ...]:
    return signal if isinstance(signal, tuple) else (signal,)
