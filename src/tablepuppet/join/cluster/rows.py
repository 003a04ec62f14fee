"""Joined rows on a cluster: each worker walks over its partition, and lanes are added up here, in order.

In: partitions on disk (partitions.py), made by the workers (worker.py). Out: something that algorithms walk over as
they do over local rows, with the same results bit for bit. What is here is per row of the tables; nothing is per joined
row.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, PerRow, RowNumbers
from tablepuppet.join.cluster.cluster import Cluster
from tablepuppet.join.cluster.partitions import IndexFacts, Partition, write_labels
from tablepuppet.join.cluster.worker import Kept, Source, Walk
from tablepuppet.join.joined_rows import JoinedRows, batch, by_label, weight_step
from tablepuppet.join.row_index import RowIndex
from tablepuppet.join.walk import JoinStep, LaneResult, Pass, Work, add_sums
from tablepuppet.sizes import VALUES_PER_CLUSTER_SORT


@dataclass(frozen=True, eq=False)
class ClusterRows:
    """Joined rows whose partitions lie with workers: what plans, algorithms and metrics need of JoinedRows."""

    rows: int
    indices: tuple[IndexFacts, ...]  # one per block
    partitions: list[Partition]
    cluster: Cluster
    labels: Array  # per row of the label table
    weights: Array | None
    counts: RowNumbers  # joined rows per row of the label table
    state: dict[str, Kept] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # of walks

    def allocate(self, name: str, outputs: int, dtype: type[np.floating[Any]] = np.float64) -> None:
        self.state[name] = Kept(outputs, np.dtype(dtype).str)

    def run(
        self,
        step: JoinStep,
        per_row: Sequence[PerRow],
        *,
        columns: Sequence[Array] = (),
        signals: int = 0,
        writes: Collection[str] = (),
        own: float = 0.0,
        **given: Any,
    ) -> Pass:
        """As JoinedRows.run: the partitions at once, their lanes added up in order."""
        work = Work(step, signals, tuple(writes), given, own)
        walk = Walk(next(self.numbers), work, len(per_row), dict(self.state))
        calls = self._calls(walk, per_row, columns)
        merged: list[list[Array]] = []
        sums = []
        for partition, results in zip(self.partitions, self.cluster.ask("walk", calls), strict=True):
            for lane in results:
                merged = merged or [
                    [np.zeros((len(v), out.shape[1])) for v, (_, out) in zip(per_row, blocks, strict=True)]
                    for blocks in lane[0]
                ]
                _add(merged, partition, lane)
                sums.append(lane[1])
        for name in writes:
            self.state[name] = Kept(self.state[name].outputs, self.state[name].dtype, walk.number)
        return Pass(merged, add_sums(sums))

    def _calls(self, walk: Walk, per_row: Sequence[PerRow], columns: Sequence[Array]) -> list[tuple[Any, ...]]:
        """For each partition: its path, the walk, and the values of the rows that it uses."""
        given = [(i % len(per_row), np.ascontiguousarray(v)) for i, v in enumerate((*per_row, *columns))]
        shared: dict[int, Any] = {}
        calls = []
        for partition in self.partitions:
            own = []
            for place, (block, values) in enumerate(given):
                used = partition.used[block]
                if isinstance(used, slice) and used.stop - used.start == len(values):
                    if place not in shared:
                        shared[place] = self.cluster.put(values)
                    own.append(shared[place])
                else:
                    own.append(values[used])
            calls.append((self._source(partition), walk, *own))
        return calls

    def _source(self, partition: Partition) -> Source:
        return Source(partition.path, self._labels)

    @cached_property
    def _labels(self) -> str:
        """The name under which labels and weights are with the partitions: written at the first walk."""
        name = f"labels-{uuid.uuid4().hex[:8]}"
        for partition in self.partitions:
            write_labels(self.cluster.storage, partition, name, self.labels, self.weights)
        return name

    def iterate_sorted(self, name: str) -> Iterator[Array]:
        """As JoinedRows.ordered: workers sort their own, and send what lies between some values at a time."""
        state = {name: self.state.pop(name)}
        chunks = -(-self.rows // VALUES_PER_CLUSTER_SORT)
        sources = [(self._source(partition), name, state) for partition in self.partitions]
        sampled = np.sort(
            np.concatenate(list(self.cluster.ask("sample", [(*source, 8 * chunks) for source in sources])))
        )
        borders = np.unique(sampled[len(sampled) // chunks :: max(1, len(sampled) // chunks)][: chunks - 1])
        for low, high in itertools.pairwise([None, *borders.tolist(), None]):
            found = np.concatenate(list(self.cluster.ask("between", [(*source, low, high) for source in sources])))
            found.sort()
            yield found

    def with_weights(self, weights: Array | None) -> ClusterRows:
        """As JoinedRows.weighted."""
        return replace(self, weights=weights, state={})

    def label_counts(self) -> RowNumbers:
        return self.counts

    def by_label(self) -> JoinedRows:
        """As JoinedRows.by_label: few rows, which stay here."""
        return by_label(self.labels, self.counts, self.weights)

    def collapsed_weights(self) -> list[Array] | None:
        """As JoinedRows.collapsed_weights."""
        if self.weights is None:
            return None
        signals: list[list[Array]] = self.run(
            weight_step, [np.zeros((p.rows, 1)) for p in self.indices], signals=1
        ).signals
        return signals[0]

    def take(self, joined: NDArray[np.int64]) -> tuple[JoinedRows, list[RowNumbers]]:
        """A batch, looked up where its joined rows lie; it is small, and walked over here."""
        holder = np.searchsorted([partition.first for partition in self.partitions], joined, side="right") - 1
        places = [np.flatnonzero(holder == k) for k in range(len(self.partitions))]
        calls = [(self._source(p), joined[place] - p.first) for p, place in zip(self.partitions, places, strict=True)]
        numbers = [np.empty(len(joined), np.int64) for _ in self.indices]
        labels, weights = np.empty(len(joined)), np.empty(len(joined)) if self.weights is not None else None
        for partition, place, found in zip(self.partitions, places, self.cluster.ask("look_up", calls), strict=True):
            for block, own in enumerate(found[0]):
                numbers[block][place] = partition.number(block, own)
            labels[place] = found[1]
            if weights is not None:
                weights[place] = found[2]
        return batch(numbers, labels, weights, [p.rows for p in self.indices])

    def fetch(self) -> JoinedRows:
        """The same joined rows in this process, for work that is not a walk; a partition at a time."""
        numbers: list[RowNumbers] = [
            np.empty(self.rows, np.int32) if p.rows < 2**31 else np.empty(self.rows, np.int64) for p in self.indices
        ]
        labels, weights = np.empty(self.rows), np.empty(self.rows) if self.weights is not None else None
        calls = []
        stops = [*(partition.first for partition in self.partitions[1:]), self.rows]
        for partition, stop in zip(self.partitions, stops, strict=True):
            calls.append((self._source(partition), np.arange(stop - partition.first)))
        for partition, stop, found in zip(self.partitions, stops, self.cluster.ask("look_up", calls), strict=True):
            own = slice(partition.first, stop)
            for block, rows in enumerate(found[0]):
                numbers[block][own] = partition.number(block, rows)
            labels[own] = found[1]
            if weights is not None:
                weights[own] = found[2]
        indices = tuple(RowIndex.of(own, facts.rows) for own, facts in zip(numbers, self.indices, strict=True))
        return JoinedRows(self.rows, indices, RowIndex(self.rows, None, is_sorted=True), labels, weights=weights)


def _add(merged: list[list[Array]], partition: Partition, lane: LaneResult) -> None:
    """total[rows] += what a lane collapsed to them."""
    for blocks, totals in zip(lane[0], merged, strict=True):
        for block, (base, out) in enumerate(blocks):
            used = partition.used[block]
            if isinstance(used, slice):
                totals[block][used.start + base : used.start + base + len(out)] += out
            else:
                totals[block][used[base : base + len(out)]] += out
