"""A joined table in pieces on disk: some lanes each, with just the rows that they use.

In: joined rows. Out: Arrow files under a folder (or a URI), from which any machine loads a piece. A
piece is joined rows of its own: its blocks have the rows that occur in it, numbered anew where that
leaves some out, and its lanes are those of the whole. What pieces give in lane order is therefore
what the whole gives, bit for bit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
from numpy.typing import NDArray

from tablepuppet.mapping.joined import JoinedRows, RowIndex
from tablepuppet.transport.messages import RowNumbers

NEAR = 1 << 17  # rows of a block that are sooner sent than numbered anew
Used = slice | NDArray[np.int64]  # which of a block's rows a piece uses, in the order of its walks


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Where some consecutive joined rows lie, and which rows of each block they use."""

    path: str
    first: int
    rows: int
    lanes: int
    used: tuple[Used, ...]

    def number(self, block: int, own: RowNumbers) -> RowNumbers:
        """The block's row numbers, from those that the piece has given them."""
        used = self.used[block]
        if isinstance(used, slice):
            return np.where(own < 0, -1, own + used.start) if used.start else own
        return np.where(own < 0, -1, used[own])


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
        """The arrays under a name, mapped from the disk where it is local, and the facts beside them."""
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


def cut(joined: JoinedRows, pieces: int, storage: Storage, name: str) -> list[Piece]:
    """Writes joined rows as at most so many pieces of about equal size."""
    lanes = joined.cut
    borders = np.unique(np.linspace(0, len(lanes), min(pieces, len(lanes)) + 1).round().astype(int))
    found = []
    for number, (a, b) in enumerate(zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)):
        found.append(_write(joined, a, b, storage, f"{name}-{number}"))
    return found


def _write(joined: JoinedRows, first_lane: int, end_lane: int, storage: Storage, path: str) -> Piece:
    lanes = joined.cut[first_lane:end_lane]
    start, stop = lanes[0][0][0], lanes[-1][-1][1]
    columns: dict[str, NDArray[Any]] = {}
    facts: list[dict[str, Any]] = []
    used: list[Used] = []
    for i, p in enumerate((*joined.indices, joined.label_index)):
        rows, own = _compact(p, start, stop, joined.rows)
        used.append(rows)
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        facts.append({"rows": count, "is_sorted": p.is_sorted, "is_partial": p.is_partial})
        if own is not None:
            columns[f"p{i}"] = own
    moved = [[(a - start, b - start) for a, b in lane] for lane in lanes]
    storage.write(path, columns, rows=stop - start, whole=joined.rows, lanes=moved, indices=facts)
    rows = used.pop()
    weights = {} if joined.weights is None else {"weight": joined.weights[rows]}
    storage.write(f"{path}-labels", {"label": joined.labels[rows], **weights})
    return Piece(path, start, stop - start, len(lanes), tuple(used))


def _compact(p: RowIndex, start: int, stop: int, whole: int) -> tuple[Used, RowNumbers | None]:
    """Which rows joined rows start ≤ j < stop use, and p_i in terms of those; None: 0, 1, 2, …"""
    low, high = p.span(start, stop)
    if p.index is None:
        return slice(low, high), None
    index = p.index[start:stop]
    if p.order is None and (p.is_sorted or p.rows <= NEAR):
        return slice(low, high), index - low if low else index
    counts = np.zeros(p.rows + 1, np.bool_)
    counts[index] = True  # −1: the last
    used = np.flatnonzero(counts[:-1])
    place = np.full(p.rows + 1, -1, index.dtype)
    place[used] = np.arange(len(used), dtype=index.dtype)
    return used if p.order is None else p.order[used].astype(np.int64), place[index]


def load(storage: Storage, path: str) -> JoinedRows:
    """A piece, as joined rows of its own."""
    columns, facts = storage.read(path)
    labels, _ = storage.read(f"{path}-labels")
    indices = [RowIndex(index=columns.get(f"p{i}"), **given) for i, given in enumerate(facts["indices"])]
    lanes: Sequence[Sequence[tuple[int, int]]] = [[(a, b) for a, b in lane] for lane in facts["lanes"]]
    return JoinedRows(
        facts["rows"],
        tuple(indices[:-1]),
        indices[-1],
        labels["label"],
        whole=facts["whole"],
        weights=labels.get("weight"),
        lanes=lanes,
    )


def _whole(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as one array, without a copy where it lies in one chunk."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.asarray(array.to_numpy(zero_copy_only=False))
