"""Message ↔ frame: a MessagePack header and raw buffers beside it; no pickle.

In: a message (messages.py). Out: a frame, the bytes that really travel. Every transport
carries frames and nothing else, so a run gives the same bits and the same byte counts
in process and over a network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_origin

import msgspec
import numpy as np
import pyarrow as pa

from tablepuppet.errors import TransportError

Wire = Literal["float64", "float32"]
_DTYPES = frozenset({"<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "|u1", "|b1"})


@dataclass(frozen=True, slots=True)
class Frame:
    """One encoded message."""

    header: bytes
    buffers: list[bytes] = field(default_factory=list)

    @property
    def payload(self) -> int:
        """Bytes of arrays and tables."""
        return sum(len(b) for b in self.buffers)

    @property
    def size(self) -> int:
        """All bytes."""
        return len(self.header) + self.payload


def encode(message: msgspec.Struct, wire: Wire = "float64") -> Frame:
    """The frame of a message; `wire="float32"` halves the bytes of every float64 array.

    >>> from tablepuppet.transport.messages import Labels, RESPONSES
    >>> frame = encode(Labels(values=np.zeros(3), is_test=np.zeros(3, bool)))
    >>> frame.payload
    27
    >>> decode(frame, RESPONSES).values
    array([0., 0., 0.])
    """
    buffers: list[bytes] = []

    def hook(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            sent = value.astype("<f4") if wire == "float32" and value.dtype == np.float64 else value
            if sent.dtype.str not in _DTYPES:
                raise TransportError(f"arrays of type {sent.dtype} are not sent")
            buffers.append(sent.tobytes())
            return [len(buffers) - 1, sent.dtype.str, list(sent.shape), value.dtype.str]
        if isinstance(value, pa.Table):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, value.schema) as writer:
                writer.write_table(value)
            buffers.append(sink.getvalue().to_pybytes())
            return len(buffers) - 1
        raise TransportError(f"a {type(value).__name__} cannot be sent")

    header = msgspec.msgpack.encode(message, enc_hook=hook)
    return Frame(header, buffers)


def decode(frame: Frame, types: Any) -> Any:
    """The message in a frame, which must be one of `types`; its arrays are read-only."""

    def hook(kind: type, value: Any) -> Any:
        kind = get_origin(kind) or kind
        if kind is np.ndarray:
            index, dtype, shape, original = value
            if dtype not in _DTYPES or original not in _DTYPES:
                raise ValueError("unknown array type")
            size = math.prod(shape) * np.dtype(dtype).itemsize
            buffer = frame.buffers[index]
            if min(shape, default=0) < 0 or size != len(buffer):
                raise ValueError("array size does not fit its buffer")
            array = np.frombuffer(buffer, dtype=dtype).reshape(shape)
            return array if original == dtype else array.astype(original)
        if kind is pa.Table:
            with pa.ipc.open_stream(pa.py_buffer(frame.buffers[value])) as reader:
                return reader.read_all()
        raise ValueError("unknown field type")

    try:
        return msgspec.msgpack.decode(frame.header, type=types, dec_hook=hook)
    except (msgspec.MsgspecError, ValueError, IndexError, TypeError, pa.ArrowException) as error:
        raise TransportError(f"a message does not follow the protocol: {error}") from None
