"""Joined rows as row numbers: expand and collapse, shard by shard.

The joined table exists only as p_i, one row number per block and joined row (docs/notation.md).
`expand` carries per-row values to joined rows, `collapse` sums joined values back to rows; they
are adjoint, which is the one law that every algorithm rests on.

All work over joined rows runs in shards small enough for a core's cache. Shards are grouped in
lanes; a lane is walked by one thread, and lanes are summed in order. Borders depend on N alone,
so the number of threads never changes a bit of the result.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from tablepuppet.transport.messages import Array, RowNumbers

SHARD = 1 << 15
LANES = 8


@dataclass(frozen=True, slots=True, eq=False)
class RowIndex:
    """p_i: the row of a block that each joined row comes from; −1 where an outer join found none."""

    rows: int  # n_i
    index: RowNumbers | None  # None: the identity
    is_sorted: bool = False
    is_partial: bool = False

    @classmethod
    def of(cls, index: RowNumbers, rows: int) -> RowIndex:
        """The most compact form of a mapping to `rows` rows."""
        if len(index) == rows and bool((index == np.arange(rows, dtype=index.dtype)).all()):
            return cls(rows, None, is_sorted=True)
        is_partial = bool(len(index)) and int(index.min()) < 0
        is_sorted = not is_partial and bool((index[1:] >= index[:-1]).all())
        small = index.astype(np.int32, copy=False) if rows < 2**31 else index
        return cls(rows, np.ascontiguousarray(small), is_sorted, is_partial)

    def take(self, joined: RowNumbers) -> RowNumbers:
        """p_i of some joined rows."""
        return joined if self.index is None else self.index[joined]

    def padded(self, values: Array) -> Array:
        """Values with a row of zeros behind them, which is where row −1 points."""
        if not self.is_partial:
            return values
        return np.concatenate([values, np.zeros((1, *values.shape[1:]))])

    def expand(self, padded: Array, start: int, stop: int) -> Array:
        """v[p_i(j)] for joined rows start ≤ j < stop."""
        if self.index is None:
            return padded[start:stop]
        return np.take(padded, self.index[start:stop], axis=0)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The rows that joined rows start ≤ j < stop can come from."""
        if start >= stop:
            return 0, 0
        if self.index is None:
            return start, stop
        if self.is_sorted:
            return int(self.index[start]), int(self.index[stop - 1]) + 1
        return 0, self.rows

    def collapse_into(self, out: Array, base: int, values: Array, start: int, stop: int) -> None:
        """out[p_i(j) − base] += values[j] for joined rows start ≤ j < stop."""
        if self.index is None:
            out[start - base : stop - base] += values
            return
        low, high = self.span(start, stop)
        index = self.index[start:stop].astype(np.intp)
        if self.is_partial:
            found = index >= 0
            index, values = index[found], values[found]
        for k in range(values.shape[1]):
            column = np.ascontiguousarray(values[:, k])
            if high - low <= 4 * SHARD:
                out[low - base : high - base, k] += np.bincount(index - low, column, high - low)
            else:
                np.add.at(out[:, k], index - base, column)


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """What an algorithm's join step sees of some joined rows."""

    scores: Array  # Σ_i expand_i(v_i), where the step asked for the sum
    blocks: Sequence[Array]  # expand_i(v_i) of each block, where it asked for each
    labels: Array
    state: Mapping[str, Array]  # the algorithm's own joined values, writable


Sums = dict[str, Any]
JoinStep = Callable[..., tuple[Sequence[Array], Sums]]


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """The outcome of one walk over all joined rows."""

    signals: list[list[Array]]  # signals[s][i]: the s-th signal, collapsed to block i
    sums: Sums


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """Some joined rows (all training rows, all test rows, one batch) and their labels."""

    rows: int
    indices: tuple[RowIndex, ...]  # one per block
    label_index: RowIndex
    labels: Array  # per row of the label table
    state: dict[str, Array] = field(default_factory=dict)

    def allocate(self, name: str, outputs: int) -> None:
        """A value per joined row and output, kept between passes and seen by join steps."""
        self.state[name] = np.zeros((self.rows, outputs))

    def run(
        self, step: JoinStep, per_row: Sequence[Array], *, each: bool = False, signals: int = 0, **given: Any
    ) -> Pass:
        """Walk over all joined rows: expand, `step`, collapse its signals, add up its sums."""
        padded = [p.padded(v) for p, v in zip(self.indices, per_row, strict=True)]
        lanes = self._lanes
        walk = [(lane, step, padded, each, signals, given) for lane in lanes]
        with _one_blas_thread():
            results = list(_pool().map(lambda w: self._walk(*w), walk))
        width = per_row[0].shape[1] if per_row and not each else None
        return Pass(self._merge(results, signals, width), _add_sums([sums for _, sums in results]))

    def take(self, joined: NDArray[np.int64]) -> tuple[JoinedRows, list[RowNumbers]]:
        """A batch of joined rows, and for each block the rows that occur in it (ascending)."""
        indices: list[RowIndex] = []
        numbers: list[RowNumbers] = []
        for p in self.indices:
            unique, inverse = np.unique(p.take(joined), return_inverse=True)
            missing = int(p.is_partial and len(unique) > 0 and unique[0] < 0)
            numbers.append(unique[missing:].astype(np.int32 if p.rows < 2**31 else np.int64))
            indices.append(RowIndex(len(unique) - missing, inverse - missing, is_partial=bool(missing)))
        labels = self.labels[self.label_index.take(joined)]
        identity = RowIndex(len(joined), None, is_sorted=True)
        return JoinedRows(len(joined), tuple(indices), identity, labels), numbers

    def multiplicities(self) -> list[NDArray[np.int64]]:
        """G_i = collapse_i(1)."""
        counts = []
        for p in self.indices:
            if p.index is None:
                counts.append(np.ones(p.rows, np.int64))
            else:
                found = p.index[p.index >= 0] if p.is_partial else p.index
                counts.append(np.bincount(found, minlength=p.rows))
        return counts

    @cached_property
    def _lanes(self) -> list[list[tuple[int, int]]]:
        borders = [*list(range(0, self.rows, SHARD)), self.rows]
        shards = list(itertools.pairwise(borders))
        size = max(1, -(-len(shards) // LANES))
        return [shards[i : i + size] for i in range(0, len(shards), size)]

    def _walk(
        self,
        lane: Sequence[tuple[int, int]],
        step: JoinStep,
        padded: Sequence[Array],
        each: bool,
        signals: int,
        given: Mapping[str, Any],
    ) -> tuple[list[list[tuple[int, Array]]], Sums]:
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is the engine's to notice
            return self._walk_lane(lane, step, padded, each, signals, given)

    def _walk_lane(
        self,
        lane: Sequence[tuple[int, int]],
        step: JoinStep,
        padded: Sequence[Array],
        each: bool,
        signals: int,
        given: Mapping[str, Any],
    ) -> tuple[list[list[tuple[int, Array]]], Sums]:
        spans = [p.span(lane[0][0], lane[-1][1]) for p in self.indices]
        buffers: list[list[tuple[int, Array]]] = []
        totals: list[Sums] = []
        for start, stop in lane:
            outcome, sums = step(self._shard(padded, each, start, stop), **given)
            totals.append(sums)
            if not buffers:
                buffers = [
                    [(low, np.zeros((high - low, signal.shape[1]))) for low, high in spans]
                    for signal in outcome[:signals]
                ]
            for block_buffers, signal in zip(buffers, outcome, strict=False):
                for p, (base, out) in zip(self.indices, block_buffers, strict=True):
                    p.collapse_into(out, base, signal, start, stop)
        return buffers, _add_sums(totals)

    def _shard(self, padded: Sequence[Array], each: bool, start: int, stop: int) -> Shard:
        expanded = (p.expand(v, start, stop) for p, v in zip(self.indices, padded, strict=True))
        state = {name: values[start:stop] for name, values in self.state.items()}
        labels = self.label_index.expand(self.labels, start, stop)
        if each:
            return Shard(np.empty((stop - start, 0)), list(expanded), labels, state)
        return Shard(_total(expanded), (), labels, state)

    def _merge(
        self, results: Sequence[tuple[list[list[tuple[int, Array]]], Sums]], signals: int, width: int | None
    ) -> list[list[Array]]:
        merged = []
        for s in range(signals):
            blocks = []
            for i, p in enumerate(self.indices):
                lanes = [buffers[s][i] for buffers, _ in results if buffers]
                columns = lanes[0][1].shape[1] if lanes else width or 1
                total = np.zeros((p.rows, columns))
                for base, out in lanes:
                    total[base : base + len(out)] += out
                blocks.append(total)
            merged.append(blocks)
        return merged


def _total(expanded: Iterator[Array]) -> Array:
    first = next(expanded).copy()
    for other in expanded:
        first += other
    return first


def _add_sums(parts: Sequence[Sums]) -> Sums:
    total: Sums = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


_POOL: list[ThreadPoolExecutor] = []


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _one_blas_thread() -> AbstractContextManager[object]:
    """Lanes already keep all cores busy; BLAS threads on top of them would fight over the cores."""
    return cast(AbstractContextManager[object], _blas().limit(limits=1, user_api="blas"))


def _pool() -> ThreadPoolExecutor:
    """One pool of threads for all walks of this process."""
    if not _POOL:
        _POOL.append(ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="tablepuppet-joined"))
    return _POOL[0]
