"""Long columns: put together from batches as they are read, and put in another order.

A database hands rows out in small batches, and takes a batch's memory back when the last of its columns is let go. The
columns of a long table are therefore copied into memory of their own, a million rows at a time: each column can then go
by itself. Texts that repeat become codes on the way, so that nobody hashes them again.

Short tables stay as they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tablepuppet.arrays import RowNumbers
from tablepuppet.tables.columns import decode

PIECE = 1 << 20  # rows that are copied together
_REPEATS = 8  # times, from which codes are the shorter way


def put_together(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The rows of all batches; where they are many, those of a column lie together."""
    whole, waiting, rows = list[list[pa.ChunkedArray]](), list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        if rows >= PIECE:
            whole.append(_own_columns(waiting, schema))
            waiting, rows = [], 0
    if not whole:
        return pa.Table.from_batches(waiting, schema)
    whole += [_own_columns(waiting, schema)] if rows else []
    return pa.table([_join(list(pieces)) for pieces in zip(*whole, strict=True)], schema.names)


def _own_columns(batches: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.ChunkedArray]:
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    return [_encode(column) if pa.types.is_string(column.type) else column for column in table.columns]


def _encode(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as codes, where they repeat."""
    is_repeated = pc.count_distinct(texts).as_py() * _REPEATS <= len(texts)
    return texts.dictionary_encode() if is_repeated else texts


def _join(pieces: list[pa.ChunkedArray]) -> pa.ChunkedArray:
    """The pieces of a column with one dictionary, or without any."""
    kinds = {piece.type for piece in pieces}
    if len(kinds) > 1:
        pieces = [decode(piece) for piece in pieces]
    chunks = [chunk for piece in pieces for chunk in piece.chunks]
    column = pa.chunked_array(chunks)
    return column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column


def in_another_order(columns: list[pa.ChunkedArray], order: RowNumbers) -> Iterator[pa.ChunkedArray]:
    """Each column with its rows in this order; the list gives them up one by one."""
    rows = pa.array(order)
    while columns:
        yield columns.pop(0).take(rows)
