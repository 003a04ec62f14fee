"""Frames: what goes in comes out, nothing aliases, nothing off the whitelist passes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tablepuppet.arrays import freeze
from tablepuppet.errors import TransportError
from tablepuppet.exchanges.keys import BlindedKeys, Keys
from tablepuppet.exchanges.parts import Parameters
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.protocol.base import Done, Message, Predictions
from tablepuppet.protocol.codec import Frame, decode, encode


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=20)))
def test_arrays_survive_bit_for_bit(values: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
    message = Predictions(values=values, products=np.zeros(1))
    received = decode(encode(message), RESPONSES)
    assert received.values.tobytes() == values.tobytes()
    assert received.values.shape == values.shape


def test_a_received_array_is_read_only_and_not_the_sent_one() -> None:
    values = np.ones((3, 1))
    received = decode(encode(Predictions(values=values, products=np.zeros(1))), RESPONSES)
    values[0] = 5
    assert received.values[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        received.values[0] = 2


def test_tables_survive_with_their_types() -> None:
    table = pa.table({"k": pa.array([1, None], pa.int16()), "s": ["é", "x"]})
    received = decode(encode(Keys(rows=2, columns=table)), RESPONSES)
    assert received.columns.equals(table)


def test_float32_halves_the_payload_and_comes_back_as_float64() -> None:
    message = Predictions(values=np.full((100, 1), 0.1), products=np.zeros(4))
    full, half = encode(message), encode(message, "float32")
    assert half.payload * 2 == full.payload
    received = decode(half, RESPONSES).values
    assert received.dtype == np.float64
    np.testing.assert_allclose(received, 0.1, rtol=1e-7)


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("shape", [(0, 1), (7, 1), (3, 2)])
def test_only_what_nobody_can_change_travels_without_a_copy(is_fixed: bool, shape: tuple[int, int]) -> None:
    values = np.ones(shape)
    sent = freeze(values) if is_fixed else values
    received = decode(encode(Parameters(values=sent)), RESPONSES).values
    assert np.shares_memory(received, values) == (is_fixed and values.size > 0)
    assert not received.flags.writeable
    some = values[1:]  # of an array that may still change, or cannot any more
    some.flags.writeable = False
    received = decode(encode(Parameters(values=some)), RESPONSES).values
    assert np.shares_memory(received, values) == (is_fixed and some.size > 0)
    np.testing.assert_array_equal(received, some)


@given(st.binary(max_size=200), st.lists(st.binary(max_size=50), max_size=3))
def test_garbage_is_refused_as_a_protocol_error(header: bytes, buffers: list[bytes]) -> None:
    with pytest.raises(TransportError):
        decode(Frame(b"\x00\x81" + header, buffers), REQUESTS)


def test_a_response_is_not_a_request_and_unknown_fields_are_refused() -> None:
    with pytest.raises(TransportError):
        decode(encode(Done()), REQUESTS)
    forged = b"\x00" + msgspec.msgpack.encode({"type": "CloseJob", "job": "a", "extra": 1})
    with pytest.raises(TransportError):
        decode(Frame(forged), REQUESTS)


def test_an_array_that_claims_more_than_its_buffer_is_refused() -> None:
    frame = encode(Parameters(values=np.zeros((2, 2))))
    with pytest.raises(TransportError, match="size"):
        decode(Frame(frame.header, [frame.buffers[0][:-8]]), RESPONSES)


def test_a_buffer_is_exactly_as_long_as_its_array() -> None:
    frame = encode(Parameters(values=np.zeros((2, 2))))
    for wrong in (frame.buffers[0][:-1], bytes(frame.buffers[0]) + b"0", b""):
        with pytest.raises(TransportError, match="size does not fit"):
            decode(Frame(frame.header, [wrong]), RESPONSES)


@pytest.mark.parametrize("kind", ["<i8", "<i4", "|b1", "|u1"])
def test_an_array_is_of_the_kind_that_its_field_declares(kind: str) -> None:
    with pytest.raises(TransportError, match="where one of another type is due"):
        decode(encode(Parameters(values=np.zeros(3, kind))), RESPONSES)
    with pytest.raises(TransportError, match="where one of another type is due"):
        decode(encode(BlindedKeys(points=np.zeros((2, 32)))), RESPONSES)  # type: ignore[arg-type]


@pytest.mark.parametrize("wire", ["float32", "float64+zstd", "float32+lz4", "float32+zstd", "float64+lz4"])
def test_arrays_that_grow_when_they_are_read_share_the_room_that_there_is(wire: Any) -> None:
    """Compressed ones become as long as they say, and those of 32 bits then twice as long."""
    due = {"float32": 4, "float64": 0}[wire.partition("+")[0]] * ("+" in wire) + 8
    due = 8 if wire.startswith("float64") or "+" not in wire else due
    frame = encode(Predictions(values=np.zeros((500, 1)), products=np.zeros(500)), wire)
    assert decode(frame, RESPONSES, 1000 * due).values.shape == (500, 1)
    with pytest.raises(TransportError, match="would take more than"):
        decode(frame, RESPONSES, 1000 * due - 1)


def test_every_message_type_is_on_exactly_one_list() -> None:
    requests, responses = ({get_origin(t) or t for t in get_args(union)} for union in (REQUESTS, RESPONSES))
    assert not requests & responses
    assert requests | responses == set(_leaves(Message))


def _leaves(kind: type[Message]) -> Iterator[type[Message]]:
    """Every message of the package that no other one is made from."""
    below = [one for one in kind.__subclasses__() if one.__module__.startswith("tablepuppet.")]
    if not below:
        yield kind
    for one in below:
        yield from _leaves(one)


THREADS = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import msgspec
from tablepuppet.protocol.codec import Frame, decode

sys.setswitchinterval(1e-6)
for number in range(100):
    fields = [(f"f{k}", "dict[str, list[int | None]]") for k in range(12)]
    inner = [msgspec.defstruct(f"Inner{number}_{k}", fields) for k in range(4)]
    kinds = msgspec.defstruct(f"Outer{number}", [(k.__name__, k | None, None) for k in inner], tag=True)
    gate = threading.Barrier(4)

    def read(_):
        gate.wait()
        return decode(Frame(b"\\x01" + msgspec.msgpack.encode(kinds()), ()), kinds)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(4))) == [kinds()] * 4
"""


def test_threads_may_be_the_first_to_read_a_kind_of_message_at_the_same_time() -> None:
    """In a process of its own: to study a type in two threads would end it."""
    subprocess.run([sys.executable, "-c", THREADS], check=True, timeout=120)
