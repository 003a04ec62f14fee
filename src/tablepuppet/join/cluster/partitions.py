"""A joined table in partitions on disk: some lanes each, with just the rows that they use.

In: p_i of some consecutive joined rows. Out: Arrow files under a folder (or a URI), from which any machine
loads a partition. A partition is joined rows of its own. Its blocks have the rows that occur in it, numbered anew if
some are left out; its lanes are those of the whole. Results of partitions in lane order therefore equal those of the
whole, bit for bit. Labels lie in separate files, because a plan may still change them.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.fs
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.join.joined_rows import JoinedRows, Used
from tablepuppet.join.row_index import RowIndex
from tablepuppet.join.walk import Lane


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
        columns = {n: _whole(table.column(n)) for n in table.column_names}
        return columns, json.loads(table.schema.metadata[b"tablepuppet"])

    def remove(self, name: str) -> None:
        """Forgets a name, if it is there."""
        path = f"{self._folder}/{name}.arrow"
        if self._files.get_file_info(path).type != pyarrow.fs.FileType.NotFound:
            self._files.delete_file(path)

    def create(self) -> None:
        """Makes the folder."""
        self._files.create_dir(self._folder, recursive=True)

    def clear(self) -> None:
        """Removes the folder and all that is in it."""
        self._files.delete_dir(self._folder)


def _whole(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as one array, without a copy where it lies in one chunk."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.asarray(array.to_numpy(zero_copy_only=False))


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
    """Writes a partition's labels and weights, per label row, under a name."""
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
    """A partition, as joined rows of its own."""
    columns, facts = storage.read(path)
    beside, _ = storage.read(f"{path}-{labels}")
    indices = [RowIndex(index=columns.get(f"p{i}"), **given) for i, given in enumerate(facts["indices"])]
    lanes: Sequence[Sequence[tuple[int, int]]] = [[(a, b) for a, b in lane] for lane in facts["lanes"]]
    return JoinedRows(
        facts["rows"],
        tuple(indices[: facts["blocks"]]),
        indices[facts["label"]],
        beside["label"],
        weights=beside.get("weight"),
        lanes=lanes,
    )
