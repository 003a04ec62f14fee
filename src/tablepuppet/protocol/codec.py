"""Message ↔ frame: a MessagePack header and raw buffers outside it; no pickle.

In: a message (base.py). Out: a frame, the bytes that really travel. Every transport
carries frames and nothing else, so a run gives the same bits and the same byte counts
in process and over a network.

A peer's Arrow stream is checked before it is read: no compressed body, and nothing but plain types. A body in
Arrow's own compression states how large it becomes, and Arrow believes it. We compress around streams, never
inside, so such a body is refused. The metadata are flatbuffers. pyarrow does not expose `RecordBatch.compression`, so
this one field is read here by hand. Arrow itself verifies the rest, and `Table.validate(full=True)` every
offset and index.
"""

import math
import struct
import threading
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.errors import TransportError

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
    """The position of the table that an offset points at."""
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """The position of a field of a table; None: it is not there."""
    vtable = table - int(struct.unpack_from("<i", metadata, table)[0])
    if vtable < 0:
        raise IndexError("a table without fields")
    size = struct.unpack_from("<H", metadata, vtable)[0]
    place = 4 + 2 * number
    if place + 2 > size:
        return None
    offset = struct.unpack_from("<H", metadata, vtable + place)[0]
    return table + offset if offset else None


Wire = Literal["float64", "float32", "float64+lz4", "float32+lz4", "float64+zstd", "float32+zstd"]
Buffer = bytes | memoryview
_WIRES: tuple[Wire, ...] = get_args(Wire)  # a header's first byte is a place in this list
# Errors that reading a peer's bytes may raise.
UNREADABLE = (
    *(msgspec.MsgspecError, ValueError, ArithmeticError, LookupError, TypeError),
    *(pa.ArrowException, ImportError, OSError, MemoryError, RecursionError),
)
LARGEST = 2**34  # bytes of the arrays of one message, unpacked
_reading = threading.local()  # .buffers, .packing and .room (bytes) of the frame that a thread is decoding
_ELEMENTS = {"float": "f", "uint8": "u", "bool": "b", "signedinteger": "i", "numpy.int": "i"}  # by the declared type
_DTYPES = {name: np.dtype(name) for name in ("<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "|u1", "|b1")}


class Frame(msgspec.Struct, frozen=True):
    header: bytes
    buffers: Sequence[Buffer] = []

    @property
    def wire(self) -> Wire:
        """How the message was encoded; an answer follows its request."""
        if not self.header or self.header[0] >= len(_WIRES):
            raise TransportError("a message does not follow the protocol: unknown encoding")
        return _WIRES[self.header[0]]

    @property
    def payload(self) -> int:
        """Bytes of arrays and tables."""
        return sum(map(len, self.buffers))

    @property
    def size(self) -> int:
        return len(self.header) + self.payload


def encode(message: msgspec.Struct, wire: Wire = "float64", *, keep_order: bool = False) -> Frame:
    """The frame of a message; `float32` halves the bytes of every float64 array, `+zstd` compresses.

    `keep_order`: arrays in Fortran order come back in it, so that whatever is computed from them has the same bits.

    >>> from tablepuppet.exchanges.labels import Labels
    >>> frame = encode(Labels(values=np.zeros(3), is_test=np.zeros(3, bool)))
    >>> frame.payload
    27
    >>> decode(frame, Labels).values
    array([0., 0., 0.])
    """
    floats, _, packing = wire.partition("+")
    is_halved = floats == "float32"
    buffers: list[Buffer] = []

    def add(raw: Any) -> int:
        buffers.append(pa.compress(raw, packing, asbytes=True) if packing else raw)
        return len(buffers) - 1

    def hook(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            sent, kind = value, value.dtype.str
            declared = kind
            if is_halved and kind == "<f8":
                sent, kind = value.astype("<f4"), "<f4"
            if kind not in _DTYPES:
                raise TransportError(f"arrays of type {sent.dtype} are not sent")
            if keep_order and sent.flags.f_contiguous and not sent.flags.c_contiguous:
                return [add(sent.tobytes("F")), kind, sent.shape, declared, "F"]
            return [add(_bytes(sent)), kind, sent.shape, declared]
        if isinstance(value, pa.Table):
            stream = to_stream(value)
            return [add(stream), len(stream)]
        raise TransportError(f"a {type(value).__name__} cannot be sent")

    header = msgspec.msgpack.encode(message, enc_hook=hook)
    return Frame(bytes([_WIRES.index(wire)]) + header, buffers)


def to_stream(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue()).cast("B")


def _bytes(array: NDArray[Any]) -> Buffer:
    """An array's bytes: a copy, unless the array, or the one that it is a slice of, owns its memory and is immutable
    (arrays.fixed)."""
    owner = array if array.base is None else array.base
    is_fixed = isinstance(owner, np.ndarray) and owner.flags.owndata and not owner.flags.writeable
    if not is_fixed or array.flags.writeable or not array.flags.c_contiguous or not array.size:
        return array.tobytes()
    return array.data.cast("B")


def decode(frame: Frame, types: Any, unpacked: int = LARGEST) -> Any:
    """The message in a frame, which must be one of `types`; its arrays are read-only.

    Compressed data may unpack to `unpacked` bytes at the most; more is refused before it takes any memory.
    """
    _reading.buffers, _reading.packing, _reading.room = frame.buffers, frame.wire.partition("+")[2], unpacked
    try:
        return _decoder_of(types).decode(memoryview(frame.header)[1:])
    except msgspec.ValidationError as error:
        where = str(error).replace("`$", f"`{message_name(frame) or 'message'}")
        raise TransportError(f"a message does not follow the protocol: {where[:500]}") from None
    except UNREADABLE as error:
        raise TransportError(f"a message does not follow the protocol: {str(error)[:500]}") from None
    finally:
        del _reading.buffers


class _Named(msgspec.Struct):
    type: Annotated[str, Meta(max_length=100)]


_NAMED = msgspec.msgpack.Decoder(_Named)


def message_name(frame: Frame) -> str:
    """The type name that a message gives; "": it cannot be read."""
    try:
        return _NAMED.decode(memoryview(frame.header)[1:]).type
    except msgspec.MsgspecError:
        return ""


_STUDYING = threading.Lock()  # a type that another thread has half studied ends the process
# By the types' id, for to hash their union takes long; they are kept inside, so that no other object ever has the id.
_DECODERS: dict[int, tuple[Any, msgspec.msgpack.Decoder[Any]]] = {}


def _decoder_of(types: Any) -> msgspec.msgpack.Decoder[Any]:
    with _STUDYING:
        if id(types) not in _DECODERS:
            _DECODERS[id(types)] = types, msgspec.msgpack.Decoder(types, dec_hook=_beside_header)
        return _DECODERS[id(types)][1]


def _beside_header(declared: type, value: Any) -> Any:
    """An array or a table, which lies outside the header that this thread is reading."""
    kind, elements = _study(declared)
    if kind is np.ndarray:
        index, dtype, shape, original, *order = value
        sent, due = _DTYPES.get(dtype), _DTYPES.get(original)
        if sent is None or due is None or min(shape, default=0) < 0 or (order and order != ["F"]):
            raise ValueError("unknown array type")
        if due.kind not in elements:
            raise ValueError(f"an array of type {due} stands where one of another type is due")
        raw = _take(index, math.prod(shape) * sent.itemsize)
        array = np.frombuffer(raw, dtype=sent)
        if len(shape) != 1 or order or type(shape[0]) is not int:
            array = array.reshape(shape, order="F" if order else "C")
        if original == dtype:
            return array
        _make_room(array.size * _DTYPES[original].itemsize)
        with np.errstate(invalid="ignore"):  # the rules refuse NaN, and name its field
            return array.astype(original)
    if kind is pa.Table:
        stream = pa.py_buffer(_take(*value))
        check_stream(stream)
        with pa.ipc.open_stream(stream) as reader:
            return reader.read_all()
    raise ValueError("unknown field type")


@cache
def _study(declared: type) -> tuple[Any, str]:
    """An array or a table, and the kinds of elements that an array may have where this is declared."""
    found = [kind for name, kind in _ELEMENTS.items() if name in str(declared)]
    return get_origin(declared) or declared, "".join(found) or "fiub"


def _make_room(size: int) -> None:
    """Counts bytes that are about to be taken."""
    if size > _reading.room:
        raise ValueError(f"its arrays would take more than the {_reading.room:,} bytes that are left for them")
    _reading.room -= size


def _take(index: int, size: int) -> Any:
    buffers: Sequence[Buffer] = _reading.buffers
    if not 0 <= index < len(buffers) or not 0 <= size <= LARGEST:
        raise ValueError("a buffer is missing or too large")
    buffer = buffers[index]
    if _reading.packing:
        _make_room(size)
        return pa.decompress(buffer, size, _reading.packing)
    if size != len(buffer):
        raise ValueError("array size does not fit its buffer")
    return buffer
