"""An Arrow stream, looked at before it is read: no compressed body, and nothing but plain types.

In: the bytes of a stream that a peer sent. Out: nothing, or a ValueError. A body in Arrow's own compression says itself
how large it becomes, and Arrow believes it; we compress around streams, never inside, so such a body is refused. The
metadata are flatbuffers: `RecordBatch.compression` is the one field that is read here by hand, for pyarrow has no word
for it. Arrow itself verifies the rest, and `Table.validate(full=True)` every offset and index.
"""

from __future__ import annotations

import struct

import pyarrow as pa

_NESTED = (
    pa.types.is_union,
    pa.types.is_map,
    pa.types.is_struct,
    pa.types.is_run_end_encoded,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_MOST_MESSAGES = 1 << 20
_HEADER, _DICTIONARY_DATA, _COMPRESSION = 2, 1, 3  # fields by number, as Arrow's Message.fbs has them
_KIND, _IS_DICTIONARY, _IS_BATCH = 1, 2, 3


def check_stream(stream: pa.Buffer) -> None:
    """Refuses a stream that would take more memory than it has bytes, or that nobody here would send."""
    reader = pa.ipc.MessageReader.open_stream(stream)
    for _ in range(_MOST_MESSAGES):
        try:
            message = reader.read_next_message()
        except StopIteration:
            break
        if message.type == "schema":
            continue
        try:
            is_packed = _is_packed(message.metadata.to_pybytes())
        except (struct.error, IndexError):
            raise ValueError("the metadata of a table are damaged") from None
        if is_packed:
            raise ValueError("a table is compressed inside its stream")
    else:
        raise ValueError("a table has too many pieces")
    with pa.ipc.open_stream(stream) as opened:
        for column in opened.schema:
            check_type(column.type)


def check_type(kind: pa.DataType) -> None:
    """Numbers, texts, bytes, dates, dictionaries and vectors; nothing that has code or rows of its own."""
    if isinstance(kind, pa.BaseExtensionType) or any(is_one(kind) for is_one in _NESTED):
        raise ValueError(f"a table has a column of type {str(kind)[:100]}")
    if pa.types.is_dictionary(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        check_type(kind.value_type)
    elif pa.types.is_fixed_size_list(kind):
        if not 0 <= kind.list_size <= 1 << 24:
            raise ValueError("a table has vectors of too many numbers")
        check_type(kind.value_type)


def _is_packed(metadata: bytes) -> bool:
    """Whether a message's record batch has a field `compression`."""
    root = struct.unpack_from("<I", metadata, 0)[0]
    kind_at, header_at = _field(metadata, root, _KIND), _field(metadata, root, _HEADER)
    if kind_at is None or header_at is None:
        return False
    kind, batch = metadata[kind_at], _table(metadata, header_at)
    if kind == _IS_DICTIONARY:
        data_at = _field(metadata, batch, _DICTIONARY_DATA)
        return data_at is not None and _field(metadata, _table(metadata, data_at), _COMPRESSION) is not None
    return kind == _IS_BATCH and _field(metadata, batch, _COMPRESSION) is not None


def _table(metadata: bytes, at: int) -> int:
    """Where the table begins that an offset points at."""
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Where a field of a table lies; None: it is not there."""
    vtable = table - int(struct.unpack_from("<i", metadata, table)[0])
    if vtable < 0:
        raise IndexError("a table without fields")
    size = struct.unpack_from("<H", metadata, vtable)[0]
    place = 4 + 2 * number
    if place + 2 > size:
        return None
    offset = struct.unpack_from("<H", metadata, vtable + place)[0]
    return table + offset if offset else None
