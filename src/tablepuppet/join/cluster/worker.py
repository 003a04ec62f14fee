"""A worker of a cluster: makes partitions of a joined table, holds them and walks over them.

In: calls that name a partition and the version of the algorithm's state they start from. Out: results of each lane of
the partition. A worker holds nothing that cannot be made again. A call carries the source of a partition. A worker
loads a partition from disk at its first use, and writes the state there after every walk that changed it. So any worker
can answer any call, and the same call always gets the same answer.

`collect` and `merge`: facts about all joined rows that are needed before any is written. Is p_i sorted, is it the
identity? They are those that RowIndex gives for one array.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet import __version__
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.join.cluster.partitions import Partition, PartitionSpec, Storage, load, write_partition
from tablepuppet.join.factorised.tiles import Lane, SeriesWalk, walk_lanes
from tablepuppet.join.join import JoinedSide
from tablepuppet.join.joined_rows import JoinedRows, LaneResult, Work
from tablepuppet.join.row_index import IndexFacts, counts_up, rises


def merge(views: Sequence[IndexFacts]) -> IndexFacts:
    """Facts about the whole p_i, from those about consecutive views."""
    is_partial = any(seen.is_partial for seen in views)
    is_identity = all(seen.is_identity for seen in views)
    follows = all(a.last <= b.first for a, b in itertools.pairwise(views))
    is_sorted = not is_partial and follows and all(seen.is_sorted for seen in views)
    return IndexFacts(views[0].rows, is_identity, is_sorted, is_partial)


class Source(msgspec.Struct, frozen=True):
    """A partition with its labels, by their names on disk."""

    path: str
    labels: str

    def __str__(self) -> str:
        return f"{self.path}-{self.labels}"


class Kept(msgspec.Struct, frozen=True):
    """One state of an algorithm: its shape, and the walk that wrote it last (0: none, it is all zeros)."""

    outputs: int
    dtype: str
    version: int = 0


class Walk(msgspec.Struct, frozen=True):
    """One walk over a partition; the per-row arrays come separately."""

    number: int
    work: Work
    blocks: int
    state: dict[str, Kept]


class Worker:
    """Partitions, each with its state at some version."""

    def __init__(self, place: str) -> None:
        self._storage = Storage(place)
        self._pieces: dict[Source, JoinedRows] = {}
        self._versions: dict[tuple[Source, str], int] = {}
        self._written: dict[tuple[Source, str], list[int]] = {}
        self._ordered: dict[tuple[Source, str], Array] = {}

    def describe(self) -> tuple[str, str]:
        """The version installed on this worker's node, and how Ray there authenticates users."""
        return __version__, os.environ.get("RAY_AUTH_MODE", "").lower()

    def collect(self, side: JoinedSide, start: int, stop: int) -> list[IndexFacts]:
        """Facts about joined rows start ≤ j < stop, for each column."""
        found = []
        for numbers, column in zip(side.numbers(start, stop), side.columns, strict=True):
            is_partial = int(numbers.min()) < 0
            is_sorted = not is_partial and rises(numbers)
            is_identity = column.rows == side.rows and counts_up(numbers, start)
            facts = (is_identity, is_sorted, is_partial, int(numbers[0]), int(numbers[-1]))
            found.append(IndexFacts(column.rows, *facts))
        return found

    def write(self, side: JoinedSide, facts: Sequence[IndexFacts], spec: PartitionSpec) -> Partition:
        """Makes a partition and writes it to disk."""
        given = zip(side.numbers(spec.start, spec.stop), facts, strict=True)
        return write_partition(
            self._storage, spec, [of.index(numbers) for numbers, of in given], side.label, side.blocks
        )

    def walk(self, source: Source, walk: Walk, *arrays: Array) -> list[LaneResult]:
        """Walks over a partition; what it wrote is on disk before it answers."""
        partition = self._at(source, walk.state)
        per_row, columns = arrays[: walk.blocks], arrays[walk.blocks :]
        results = list(partition.walk(walk.work, per_row, columns))
        for name in walk.work.writes:
            self._keep(source, name, walk.number)
        return results

    def walk_series(self, lanes: list[Lane], *walks: SeriesWalk) -> list[list[Array]]:
        """Sums over join trees of some frequencies."""
        return list(walk_lanes(walks, lanes))

    def sample(self, source: Source, name: str, state: dict[str, Kept], count: int) -> Array:
        """About so many of a state's values, evenly spread over their order."""
        values = self._in_order(source, name, state)
        return values[:: max(1, len(values) // count)]

    def list_between(
        self, source: Source, name: str, state: dict[str, Kept], low: float | None, high: float | None
    ) -> Array:
        """A state's values low < v ≤ high, in order; None: from the first, to the last."""
        values = self._in_order(source, name, state)
        start, stop = (None if v is None else int(np.searchsorted(values, v, side="right")) for v in (low, high))
        if high is None:
            del self._ordered[source, name]  # nobody asks for more
        return values[start:stop]

    def _in_order(self, source: Source, name: str, state: dict[str, Kept]) -> Array:
        if (source, name) not in self._ordered:
            values = self._at(source, state).collect(name).reshape(-1)
            del self._versions[source, name]
            values.sort()
            self._ordered[source, name] = values
        return self._ordered[source, name]

    def look_up(self, source: Source, joined: NDArray[np.int64]) -> tuple[list[RowNumbers], Array, Array | None]:
        """p_i, labels and weights of some of a partition's joined rows."""
        return self._at(source, {}).look_up(joined)

    def _at(self, source: Source, state: Mapping[str, Kept]) -> JoinedRows:
        """A partition, with its state as a call wants it."""
        if source not in self._pieces:
            self._pieces[source] = load(self._storage, source.path, source.labels)
        partition = self._pieces[source]
        for name, kept in state.items():
            if self._versions.get((source, name)) == kept.version:
                continue
            partition.allocate(name, kept.outputs, np.dtype(kept.dtype).type)
            if kept.version:
                columns, _ = self._storage.read(_name(source, name, kept.version))
                partition.state[name][...] = columns["values"].reshape(partition.rows, kept.outputs)
            self._versions[source, name] = kept.version
        return partition

    def _keep(self, source: Source, name: str, version: int) -> None:
        """Writes a state; the version before stays, for whoever must answer the same call again."""
        values = self._pieces[source].state[name]
        self._storage.write(_name(source, name, version), {"values": values.reshape(-1)})
        self._versions[source, name] = version
        written = self._written.setdefault((source, name), [])
        written.append(version)
        for old in written[:-2]:
            self._storage.remove(_name(source, name, old))
        del written[:-2]


def _name(source: Source, state: str, version: int) -> str:
    return f"{source}-{state}-{version}"
