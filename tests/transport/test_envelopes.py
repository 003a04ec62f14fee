"""Parcels: any frames survive being cut to pieces; nothing that does not fit is put together."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.errors import TransportError
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport import envelopes
from tablepuppet.transport.envelopes import Assembler, NoRoomError, Reply, Room, pack

FRAMES = st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.lists(st.binary(max_size=300), max_size=3)))


@given(FRAMES, st.integers(64, 400))
def test_frames_survive_any_cut(given_frames: list[tuple[bytes, list[bytes]]], size: int) -> None:
    frames = [Frame(header, buffers) for header, buffers in given_frames]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelopes, "PIECE", size)
        pieces = list(pack(Reply(run="r", step=3), frames))
    assembler = Assembler(Reply)
    found = [assembler.feed(memoryview(piece)) for piece in pieces]
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] is not None
    envelope, received = found[-1]
    assert envelope == Reply(run="r", step=3)
    assert [(f.header, [bytes(b) for b in f.buffers]) for f in received] == given_frames


@given(st.binary(max_size=100))
def test_garbage_is_a_protocol_error(garbage: bytes) -> None:
    with pytest.raises(TransportError):
        Assembler(Reply).feed(memoryview(b"M" + garbage))


def test_a_parcel_that_announces_too_much_is_refused_at_once() -> None:
    piece = next(pack(Reply(run="r", step=3), [Frame(b"h", [bytes(100)])]))
    with pytest.raises(TransportError, match="over the limit"):
        Assembler(Reply, limit=50).feed(memoryview(piece))


def test_the_buffers_of_a_parcel_are_counted_together() -> None:
    frames = [Frame(b"h" * 10, [bytes(15)]), Frame(b"h" * 10, [bytes(15)])]
    piece = memoryview(next(pack(Reply(run="r", step=3), frames)))
    assert Assembler(Reply, limit=50).feed(piece) is not None
    with pytest.raises(TransportError, match="50 bytes is over the limit of 49"):
        Assembler(Reply, limit=49).feed(piece)
    for longer in (bytes(piece) + b"x", bytes(next(pack(Reply(run="r", step=3)))) + b"x"):
        with pytest.raises(TransportError, match="longer than it announced"):
            Assembler(Reply).feed(memoryview(longer))
    with pytest.raises(TransportError, match="buffers has more than"):
        Assembler(Reply).feed(memoryview(next(pack(Reply(run="r", step=3), [Frame(b"", [b""] * (1 << 17))]))))


def test_room_is_taken_by_what_is_announced_and_given_back_once() -> None:
    room = Room(3 << 20)
    first, *rest = (memoryview(piece) for piece in pack(Reply(run="r", step=3), [Frame(b"h", [bytes(2 << 20)])]))
    for is_whole in (True, False):
        assembler = Assembler(Reply, room=room)
        assert assembler.feed(first) is None
        with pytest.raises(NoRoomError):
            Assembler(Reply, room=room).feed(first)
        whole = [assembler.feed(piece) for piece in rest] if is_whole else [None]
        assert (whole[-1] is not None) == is_whole
        for _ in range(2):
            assembler.drop()
    room.take(3 << 20)
    with pytest.raises(NoRoomError):
        room.take(1)


def test_an_envelope_off_the_list_is_refused() -> None:
    from tablepuppet.transport.envelopes import Goodbye

    with pytest.raises(TransportError, match="does not follow the protocol"):
        Assembler(Reply).feed(memoryview(next(pack(Goodbye(reason="x")))))


def test_the_protocol_does_not_depend_on_what_was_loaded_first() -> None:
    """`typing` gives back one hint for limits of 0 and 0.0: that which it met first."""
    told = "from tablepuppet.network.control import run_protocol; print(run_protocol())"
    first = "from tablepuppet.cli.main import make_app; make_app(); "
    said = [subprocess.check_output([sys.executable, "-c", code], text=True) for code in (told, first + told)]
    assert said[0] == said[1]
