"""Joined rows on a cluster: each worker walks over its partition, and lanes are added up here, in order.

In: partitions on disk made by the workers (worker.py). Out: something that algorithms walk over as
they do over local rows, with the same results bit for bit. Arrays here have one entry per row of a table, none per
joined row.
"""

import itertools
import uuid
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import VALUES_PER_CLUSTER_SORT, Array, RowNumbers
from tablepuppet.join.cluster.cluster import Cluster
from tablepuppet.join.cluster.worker import Kept, Partition, Source, Walk, write_labels
from tablepuppet.join.joined_rows import AnyRows, JoinedRows, add_lanes
from tablepuppet.join.row_index import IndexFacts, RowIndex
from tablepuppet.join.walk import Pass, Work


class ClusterRows(AnyRows, frozen=True):
    """Joined rows whose partitions lie with workers, as plans, algorithms and metrics use them."""

    rows: int
    indices: tuple[IndexFacts, ...]  # one per block
    partitions: list[Partition]
    cluster: Cluster
    labels: Array  # per row of the label table
    weights: Array | None
    counts: RowNumbers  # joined rows per row of the label table
    state: dict[str, Kept] = msgspec.field(default_factory=dict)
    numbers: Iterator[int] = msgspec.field(default_factory=lambda: itertools.count(1))  # of walks

    def allocate(self, name: str, outputs: int, dtype: type[np.floating[Any]] = np.float64) -> None:
        self.state[name] = Kept(outputs, np.dtype(dtype).str)

    def walk_all(self, work: Work, per_row: Sequence[Array], columns: Sequence[Array]) -> Pass:
        walk = Walk(next(self.numbers), work, len(per_row), dict(self.state))
        calls = self._calls(walk, per_row, columns)
        answers = zip(self.partitions, self.cluster.ask("walk", calls), strict=True)
        lanes = ((partition.used, lane) for partition, results in answers for lane in results)
        done = add_lanes(lanes, [len(values) for values in per_row])
        for name in work.writes:
            self.state[name] = Kept(self.state[name].outputs, self.state[name].dtype, walk.number)
        return done

    def _calls(self, walk: Walk, per_row: Sequence[Array], columns: Sequence[Array]) -> list[tuple[Any, ...]]:
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
        """As JoinedRows.iterate_sorted: workers sort their own, and send one range of values at a time."""
        state = {name: self.state.pop(name)}
        chunks = -(-self.rows // VALUES_PER_CLUSTER_SORT)
        sources = [(self._source(partition), name, state) for partition in self.partitions]
        sampled = np.sort(
            np.concatenate(list(self.cluster.ask("sample", [(*source, 8 * chunks) for source in sources])))
        )
        borders = np.unique(sampled[len(sampled) // chunks :: max(1, len(sampled) // chunks)][: chunks - 1])
        for low, high in itertools.pairwise([None, *borders.tolist(), None]):
            found = np.concatenate(list(self.cluster.ask("list_between", [(*source, low, high) for source in sources])))
            found.sort()
            yield found

    def label_counts(self) -> RowNumbers:
        return self.counts

    def fetch(self) -> JoinedRows:
        """The same joined rows in this process, for work that is not a walk."""
        numbers, labels, weights = self.look_up(np.arange(self.rows))
        indices = tuple(RowIndex.of(own, facts.rows) for own, facts in zip(numbers, self.indices, strict=True))
        return JoinedRows(self.rows, indices, RowIndex(self.rows, None, is_sorted=True), labels, weights=weights)

    def look_up(self, joined: NDArray[np.int64]) -> tuple[list[RowNumbers], Array, Array | None]:
        """As JoinedRows.look_up, each where it lies."""
        holder = np.searchsorted([partition.first for partition in self.partitions], joined, side="right") - 1
        places = [np.flatnonzero(holder == k) for k in range(len(self.partitions))]
        calls = [(self._source(p), joined[place] - p.first) for p, place in zip(self.partitions, places, strict=True)]
        numbers: list[RowNumbers] = [
            np.empty(len(joined), np.int32 if p.rows < 2**31 else np.int64) for p in self.indices
        ]
        labels, weights = np.empty(len(joined)), np.empty(len(joined)) if self.weights is not None else None
        for partition, place, found in zip(self.partitions, places, self.cluster.ask("look_up", calls), strict=True):
            for block, own in enumerate(found[0]):
                numbers[block][place] = partition.number(block, own)
            labels[place] = found[1]
            if weights is not None:
                weights[place] = found[2]
        return numbers, labels, weights
