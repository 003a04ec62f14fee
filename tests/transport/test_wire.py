"""Frames in every encoding: what goes in comes out; what is malformed is refused."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pyarrow as pa
import pytest

from tablepuppet.errors import TransportError
from tablepuppet.exchanges.keys import Keys
from tablepuppet.exchanges.labels import Labels
from tablepuppet.exchanges.registry import RESPONSES
from tablepuppet.protocol.codec import Frame, Wire, decode, encode

WIRES: tuple[Wire, ...] = get_args(Wire)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_arrays_come_back_as_they_were(wire: Wire, rows: int) -> None:
    values = np.arange(rows, dtype=np.float64)
    frame = encode(Labels(values=values, is_test=values > 5), wire)
    message = decode(frame, RESPONSES)
    assert frame.wire == wire
    assert message.values.dtype == np.float64
    np.testing.assert_array_equal(message.values, values)
    np.testing.assert_array_equal(message.is_test, values > 5)


@pytest.mark.parametrize("wire", WIRES)
def test_tables_come_back_as_they_were(wire: Wire) -> None:
    table = pa.table({"k": ["a", None, "b"], "n": [1, 2, 3]})
    assert decode(encode(Keys(rows=3, columns=table), wire), RESPONSES).columns.equals(table)


def test_float32_halves_and_compression_shrinks() -> None:
    message = Labels(values=np.zeros(10_000), is_test=np.zeros(10_000, bool))
    sizes = {wire: encode(message, wire).payload for wire in WIRES}
    assert sizes["float64"] == 90_000
    assert sizes["float32"] == 50_000
    assert max(sizes[w] for w in WIRES if "+" in w) < 2_000


def test_a_buffer_may_be_any_memory() -> None:
    frame = encode(Labels(values=np.arange(3.0), is_test=np.ones(3, bool)))
    views = Frame(frame.header, [memoryview(bytearray(b)).toreadonly() for b in frame.buffers])
    message = decode(views, RESPONSES)
    np.testing.assert_array_equal(message.values, [0, 1, 2])
    assert not message.values.flags.writeable


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: Frame(b"", f.buffers),
        lambda f: Frame(b"\xff" + f.header[1:], f.buffers),
        lambda f: Frame(f.header[:-1], f.buffers),
        lambda f: Frame(f.header, []),
        lambda f: Frame(f.header, [b"", b""]),
        lambda f: Frame(bytes([WIRES.index("float64+zstd")]) + f.header[1:], f.buffers),
        lambda f: Frame(f.header[:1] + b"\x00garbage", f.buffers),
    ],
)
def test_a_malformed_frame_is_refused(damage: object) -> None:
    frame = encode(Labels(values=np.arange(3.0), is_test=np.ones(3, bool)))
    with pytest.raises(TransportError, match="does not follow the protocol"):
        decode(damage(frame), RESPONSES)  # type: ignore[operator]
