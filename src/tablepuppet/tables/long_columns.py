"""Long columns: put together from batches as they are read, and put in another order.

A database hands rows out in small batches, and takes a batch's memory back when the last of its columns is let go. Of a
long table, a million rows at a time are therefore copied into memory of their own, column by column: each column can
then go by itself, and what a batch took is used again by the next. Texts that repeat become codes on the way, so that
nobody hashes them again. NumPy asks for large pages, with which an array of megabytes is had in a fraction of the time;
Arrow's pool does not (docs/decisions/0107-a-scan-is-let-go-once-it-is-encoded.md).

Short tables stay as they come.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.threads import over_rows

PIECE = 1 << 20  # rows
_LOOK = 1 << 13  # rows of a text that tell whether it repeats
_REPEATS = 8  # times, from which codes are the shorter way
_TOGETHER = 1 << 28  # bytes of texts or lists that become one array: its offsets have 31 bits
_FEW = 1 << 16  # rows that Arrow takes as fast as we do
_TAKEN = 1 << 16  # rows taken at a time: NumPy makes wide numbers of those that it takes by


def put_together(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The rows of all batches, in pieces of `PIECE` rows where there are so many."""
    pieces: list[list[pa.Array]] = [[] for _ in schema]
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        if rows >= PIECE:
            _add(pieces, waiting)
            waiting, rows = [], 0
    if not any(pieces):
        return pa.Table.from_batches(waiting, schema)
    if waiting:
        _add(pieces, waiting)
    return pa.table([_whole(column) for column in pieces], schema.names)


def _add(pieces: Sequence[list[pa.Array]], batches: Sequence[pa.RecordBatch]) -> None:
    """One more piece of each column."""
    for i, column in enumerate(pieces):
        chunks = [batch.column(i) for batch in batches]
        is_text = pa.types.is_string(chunks[0].type)
        if is_text and (_repeats(chunks[0]) if not column else pa.types.is_dictionary(column[-1].type)):
            encoded = pa.chunked_array(chunks).dictionary_encode()
            if _REPEATS * len(encoded.chunk(0).dictionary) <= PIECE:
                column.append(encoded.combine_chunks())
                continue
        if _is_plain(chunks):
            column.append(_copied(chunks))
        else:
            column += _joined(chunks)


def _repeats(texts: pa.Array) -> bool:
    some = texts[:_LOOK]
    return bool(pc.count_distinct(some).as_py() * _REPEATS <= len(some))


def _joined(chunks: Sequence[pa.Array]) -> Iterator[pa.Array]:
    ends = np.cumsum([chunk.nbytes for chunk in chunks]) // _TOGETHER
    for _, some in itertools.groupby(zip(ends.tolist(), chunks, strict=True), itemgetter(0)):
        yield pa.concat_arrays([chunk for _, chunk in some])


def _whole(pieces: list[pa.Array]) -> pa.ChunkedArray:
    """A column with one dictionary, or without any."""
    kinds = {piece.type for piece in pieces}
    if len(kinds) > 1:
        return pa.chunked_array([_decoded(piece) for piece in pieces])
    column = pa.chunked_array(pieces)
    return column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column


def _decoded(piece: pa.Array) -> pa.Array:
    return piece.dictionary_decode() if pa.types.is_dictionary(piece.type) else piece


def _width(kind: pa.DataType) -> int:
    """Bytes of a value; 0 where values do not simply lie one after the other."""
    is_simple = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return kind.bit_width // 8 if is_simple and not pa.types.is_boolean(kind) else 0


def _is_plain(chunks: Sequence[pa.Array]) -> bool:
    return _width(chunks[0].type) > 0 and not any(chunk.null_count for chunk in chunks)


def _values(chunk: pa.Array) -> NDArray[Any]:
    """The values of a plain chunk, as whatever has as many bytes."""
    width = _width(chunk.type)
    kind = np.dtype(f"V{width}") if width > 8 else np.dtype(f"u{width}")
    return np.frombuffer(chunk.buffers()[1] or b"", kind)[chunk.offset : chunk.offset + len(chunk)]


def _copied(chunks: Sequence[pa.Array]) -> pa.Array:
    return _array(np.concatenate([_values(chunk) for chunk in chunks]), chunks[0].type)


def _array(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def in_another_order(columns: list[pa.ChunkedArray], order: RowNumbers) -> Iterator[pa.ChunkedArray]:
    """Each column with its rows in this order; the list gives them up one by one."""
    while columns:
        yield _taken(columns.pop(0), order)


def _taken(column: pa.ChunkedArray, order: RowNumbers) -> pa.ChunkedArray:
    chunks = column.chunks
    if len(column) < _FEW:
        return column.take(_array(order, pa.from_numpy_dtype(order.dtype)))
    if pa.types.is_dictionary(column.type) and all(c.dictionary.equals(chunks[0].dictionary) for c in chunks[1:]):
        codes = _taken(pa.chunked_array([chunk.indices for chunk in chunks]), order).combine_chunks()
        return pa.chunked_array([pa.DictionaryArray.from_arrays(codes, chunks[0].dictionary)])
    if not _is_plain(chunks):
        return column.take(_array(order, pa.from_numpy_dtype(order.dtype)))
    kind = column.type
    held = _values(chunks[0]) if len(chunks) == 1 else np.concatenate([_values(chunk) for chunk in chunks])
    del column, chunks
    out = np.empty_like(held)

    def take(rows: slice) -> None:
        for start in range(rows.start, rows.stop, _TAKEN):
            some = slice(start, min(start + _TAKEN, rows.stop))
            np.take(held, order[some], out=out[some], mode="clip")

    over_rows(take, len(order), 16 * _TAKEN)
    return pa.chunked_array([_array(out, kind)])
