"""A joined table in partitions on disk, and the workers of a cluster that make them, hold them and walk over them.

A partition has some lanes, with just the rows that they use. In: p_i of some consecutive joined rows. Out: Arrow files
under a folder (or a URI), from which any machine loads a partition. A partition is joined rows of its own. Its blocks
have the rows that occur in it, numbered anew if some are left out; its lanes are those of the whole. Results of
partitions in lane order therefore equal those of the whole, bit for bit. Labels lie in separate files, because a plan
may still change them.

`Worker`. In: calls that name a partition and the version of the algorithm's state they start from. Out: results of each
lane of the partition. A worker holds nothing that cannot be made again. A call carries the source of a partition. A
worker loads a partition from disk at its first use, and writes the state there after every walk that changed it. So any
worker can answer any call, and the same call always gets the same answer.

`collect` and `merge`: facts about all joined rows that are needed before any is written. Is p_i sorted, is it the
identity? They are those that RowIndex gives for one array.
"""

import itertools
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.fs
from numpy.typing import NDArray

from tablepuppet import __version__
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.join.factorised.series import SeriesWalk, TileLane, walk_lanes
from tablepuppet.join.join import JoinedSide
from tablepuppet.join.joined_rows import JoinedRows, LaneResult, Used, Work
from tablepuppet.join.row_index import IndexFacts, RowIndex, counts_up, rises
from tablepuppet.join.walk import Lane
from tablepuppet.sources.columns import numpy_of


class Storage:
    """A folder that several machines reach: a path, or a URI that Arrow knows."""

    def __init__(self, place: str) -> None:
        if "://" in place:
            self._files, self._folder = pyarrow.fs.FileSystem.from_uri(place)
        else:
            self._files, self._folder = pyarrow.fs.LocalFileSystem(use_mmap=True), str(Path(place).absolute())

    def write(self, name: str, columns: dict[str, NDArray[Any]], **facts: Any) -> None:
        """Arrays of one length, under a name; whole or not at all."""
        schema_facts = {"tablepuppet": json.dumps(facts)}
        table = pa.table({n: pa.array(a) for n, a in columns.items()}).replace_schema_metadata(schema_facts)
        path = f"{self._folder}/{name}.arrow"
        part = f"{path}.{uuid.uuid4().hex}"  # a worker that was given up may still be writing the same
        with self._files.open_output_stream(part) as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self._files.move(part, path)

    def read(self, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The arrays under a name, mapped from the disk where it is local, and their facts."""
        source = self._files.open_input_file(f"{self._folder}/{name}.arrow")
        table = pa.ipc.open_file(source).read_all()
        columns = {n: numpy_of(table.column(n)) for n in table.column_names}
        return columns, json.loads(table.schema.metadata[b"tablepuppet"])

    def remove(self, name: str) -> None:
        path = f"{self._folder}/{name}.arrow"
        if self._files.get_file_info(path).type != pyarrow.fs.FileType.NotFound:
            self._files.delete_file(path)

    def create(self) -> None:
        self._files.create_dir(self._folder, recursive=True)

    def clear(self) -> None:
        self._files.delete_dir(self._folder)


MAX_ROWS_TO_SEND = 1 << 17  # rows of a block that are sooner sent than numbered anew


class Partition(msgspec.Struct, frozen=True, eq=False):
    """Where some consecutive joined rows lie, and which rows of each block they use."""

    path: str
    first: int
    rows: int
    used: tuple[Used, ...]
    labels: Used

    def number(self, block: int, own: RowNumbers) -> RowNumbers:
        """The block's row numbers, from those that the partition has given them."""
        used = self.used[block]
        if isinstance(used, slice):
            return np.where(own < 0, -1, own + used.start) if used.start else own
        return np.where(own < 0, -1, used[own])


class PartitionSpec(msgspec.Struct, frozen=True):
    """Which joined rows a partition has: some lanes."""

    path: str
    lanes: list[Lane]

    @property
    def start(self) -> int:
        return self.lanes[0][0][0]

    @property
    def stop(self) -> int:
        return self.lanes[-1][-1][1]


def partition_specs(lanes: Sequence[Lane], partitions: int, name: str) -> list[PartitionSpec]:
    """At most so many partitions of about equal size."""
    borders = np.unique(np.linspace(0, len(lanes), min(partitions, len(lanes)) + 1).round().astype(int)).tolist()
    return [PartitionSpec(f"{name}-{k}", list(lanes[a:b])) for k, (a, b) in enumerate(itertools.pairwise(borders))]


def write_partition(
    storage: Storage, spec: PartitionSpec, columns: Sequence[RowIndex], label: int, blocks: int
) -> Partition:
    """Writes the columns of a partition: p_i of its joined rows alone; None: the identity."""
    arrays: dict[str, NDArray[Any]] = {}
    facts: list[dict[str, Any]] = []
    used: list[Used] = []
    for i, p in enumerate(columns):
        rows, own = _compact(p, spec)
        used.append(rows)
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        kind = {"is_sorted": p.is_sorted, "is_partial": p.is_partial, "is_sparse": p.is_sparse}
        facts.append({"rows": count, **kind})
        if own is not None:
            arrays[f"p{i}"] = own
    moved = [[(a - spec.start, b - spec.start) for a, b in lane] for lane in spec.lanes]
    rows_here = spec.stop - spec.start
    given = {"rows": rows_here, "lanes": moved, "indices": facts, "label": label, "blocks": blocks}
    storage.write(spec.path, arrays, **given)
    return Partition(spec.path, spec.start, rows_here, tuple(used[:blocks]), used[label])


def write_labels(storage: Storage, partition: Partition, name: str, labels: Array, weights: Array | None) -> None:
    beside = {} if weights is None else {"weight": weights[partition.labels]}
    storage.write(f"{partition.path}-{name}", {"label": labels[partition.labels], **beside})


def _compact(p: RowIndex, spec: PartitionSpec) -> tuple[Used, RowNumbers | None]:
    """Which rows a partition uses, and p_i in terms of those; None: 0, 1, 2, …"""
    if p.index is None:
        return slice(spec.start, spec.stop), None
    if p.is_sorted or p.rows <= MAX_ROWS_TO_SEND:
        low, high = p.span(0, len(p.index))
        return slice(low, high), p.index - low if low else p.index
    occurs = np.zeros(p.rows + 1, np.bool_)
    occurs[p.index] = True  # −1: the last
    used = np.flatnonzero(occurs[:-1])
    place = np.full(p.rows + 1, -1, p.index.dtype)
    place[used] = np.arange(len(used), dtype=p.index.dtype)
    return used, place[p.index]


def load(storage: Storage, path: str, labels: str) -> JoinedRows:
    columns, facts = storage.read(path)
    beside, _ = storage.read(f"{path}-{labels}")
    indices = [RowIndex(index=columns.get(f"p{i}"), **given) for i, given in enumerate(facts["indices"])]
    return JoinedRows(
        facts["rows"],
        tuple(indices[: facts["blocks"]]),
        indices[facts["label"]],
        beside["label"],
        weights=beside.get("weight"),
        lanes=facts["lanes"],
    )


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

    def walk_series(self, lanes: list[TileLane], *walks: SeriesWalk) -> list[list[Array]]:
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
