"""Long columns: put together from batches as they are read, and put in another order.

A database hands rows out in small batches, and takes a batch's memory back when the last of its columns is let go. The
columns of a long table are therefore copied into memory of their own, a piece of a million rows and then larger ones:
each column can then go by itself, and what a batch took is used again by the next. Texts that repeat become codes on
the way, so that nobody hashes them again. NumPy asks for large pages, with which an array of megabytes is had in a
fraction of the time; Arrow's pool does not.

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

from tablepuppet.arrays import RowNumbers, pieces
from tablepuppet.tables.columns import is_valid
from tablepuppet.threads import over_rows

PIECE = 1 << 20  # rows
_FURTHER = 1 << 24  # bytes of those that follow: the system's (memory.py). Smaller ones, freed, leave room in the heap
# that long arrays are put into, and when these go, their pages stay
_BATCHES = 8  # of a few thousand rows, that are copied together: they stay in the cache
_LOOK = 1 << 13  # rows of a text that tell whether it repeats
_REPEATS = 8  # times, from which codes are the shorter way
_TOGETHER = 1 << 28  # bytes of texts or lists that become one array: its offsets have 31 bits
_FEW = 1 << 16  # rows that Arrow takes as fast as we do
_TAKEN = 1 << 16  # rows taken at a time: NumPy makes wide numbers of those that it takes by


def put_together(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The rows of all batches; where they are many, those of a column lie together."""
    given, first, rows = iter(batches), list[pa.RecordBatch](), 0
    for batch in given:
        first.append(batch)
        rows += len(batch)
        if rows >= PIECE:
            break
    else:
        return pa.Table.from_batches(first, schema)
    columns = [_Column() for _ in schema]
    for some in itertools.chain(_together(_emptied(first)), _together(given)):
        for i, column in enumerate(columns):
            column.add([batch.column(i) for batch in some])
    return pa.table([column.whole() for column in columns], schema.names)


def _emptied(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while batches:
        yield batches.pop(0)


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Some batches at a time, few enough to stay in the cache."""
    while some := list(itertools.islice(batches, _BATCHES)):
        yield some


class _Column:
    """A column that grows."""

    def __init__(self) -> None:
        self._pieces: list[pa.Array] = []
        self._kind: pa.DataType | None = None
        self._open: NDArray[Any] | None = None  # a piece of plain values that is not full
        self._valid: NDArray[np.uint8] | None = None  # which of them are there; None: all
        self._filled = 0

    def add(self, chunks: Sequence[pa.Array]) -> None:
        if _width(chunks[0].type):
            for chunk in chunks:
                self._write(chunk)
            return
        self._close()
        if pa.types.is_string(chunks[0].type) and self._is_coded(chunks[0]):
            encoded = pa.chunked_array(chunks).dictionary_encode()
            if _REPEATS * len(encoded.chunk(0).dictionary) <= _BATCHES * _LOOK:
                self._pieces.append(encoded.combine_chunks())
                return
        self._pieces += _joined(chunks)

    def whole(self) -> pa.ChunkedArray:
        """The column with one dictionary, or without any."""
        self._close()
        if len({piece.type for piece in self._pieces}) > 1:
            return pa.chunked_array([_decoded(piece) for piece in self._pieces])
        column = pa.chunked_array(self._pieces)
        return column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column

    def _is_coded(self, texts: pa.Array) -> bool:
        return pa.types.is_dictionary(self._pieces[-1].type) if self._pieces else _repeats(texts)

    def _write(self, chunk: pa.Array) -> None:
        values, self._kind, start = _values(chunk), chunk.type, 0
        valid = is_valid(chunk) if chunk.null_count else None
        while start < len(values):
            if self._open is None:
                size = max(PIECE, _FURTHER // values.itemsize) if self._pieces else PIECE
                self._open, self._filled = np.empty(size, values.dtype), 0
            if self._valid is None and valid is not None:
                self._valid = np.ones(len(self._open), np.uint8)
            some = slice(start, start + len(self._open) - self._filled)
            start, here = some.stop, slice(self._filled, self._filled + len(values[some]))
            self._open[here], self._filled = values[some], here.stop
            if self._valid is not None and valid is not None:
                self._valid[here] = valid[some]
            if self._filled == len(self._open):
                self._close()

    def _close(self) -> None:
        if self._open is not None:
            assert self._kind is not None
            valid = None if self._valid is None else self._valid[: self._filled]
            self._pieces.append(_array(self._open[: self._filled], self._kind, valid))
        self._open = self._valid = None


def _repeats(texts: pa.Array) -> bool:
    some = texts[:_LOOK]
    return bool(pc.count_distinct(some).as_py() * _REPEATS <= len(some))


def _joined(chunks: Sequence[pa.Array]) -> Iterator[pa.Array]:
    ends = np.cumsum([chunk.nbytes for chunk in chunks]) // _TOGETHER
    for _, some in itertools.groupby(zip(ends.tolist(), chunks, strict=True), itemgetter(0)):
        yield pa.concat_arrays([chunk for _, chunk in some])


def _decoded(piece: pa.Array) -> pa.Array:
    return piece.dictionary_decode() if pa.types.is_dictionary(piece.type) else piece


def _width(kind: pa.DataType) -> int:
    """Bytes of a value; 0 where values do not simply lie one after the other."""
    is_simple = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return kind.bit_width // 8 if is_simple and not pa.types.is_boolean(kind) else 0


def _values(chunk: pa.Array) -> NDArray[Any]:
    """The values of a chunk of such, as whatever has as many bytes."""
    width = _width(chunk.type)
    kind = np.dtype(f"V{width}") if width > 8 else np.dtype(f"u{width}")
    held = chunk.buffers()[1]
    return np.zeros(len(chunk), kind) if held is None else np.frombuffer(held, kind)[chunk.offset :][: len(chunk)]


def _array(values: NDArray[Any], kind: pa.DataType, valid: NDArray[np.uint8] | None = None) -> pa.Array:
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bits, pa.py_buffer(values)])


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
    if not _width(column.type):
        return column.take(_array(order, pa.from_numpy_dtype(order.dtype)))
    kind, has_missing = column.type, column.null_count > 0
    held = [_values(chunks[0]) if len(chunks) == 1 else np.concatenate([_values(chunk) for chunk in chunks])]
    held += [np.concatenate([is_valid(chunk) for chunk in chunks])] if has_missing else []
    del column, chunks
    out = [np.empty_like(values) for values in held]

    def take(rows: slice) -> None:
        for some in pieces(rows.stop - rows.start, _TAKEN):
            here = slice(rows.start + some.start, rows.start + some.stop)
            for values, taken in zip(held, out, strict=True):
                np.take(values, order[here], out=taken[here], mode="clip")
            if has_missing:  # zeros, whatever lay there: fingerprints of equal rows are equal
                values, width = out[0][here], out[0].itemsize // 8
                for word in values.view(np.uint64).reshape(-1, width).T if width > 1 else [values]:
                    np.multiply(word, out[1][here], out=word)

    over_rows(take, len(order), 4 * _TAKEN)
    return pa.chunked_array([_array(out[0], kind, *out[1:])])
