"""Before the greeting: nothing takes memory, nobody stays, and nothing about the server leaves."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pyarrow.flight as flight
import pytest
from tests.network.parties import Parties, tables
from tests.network.test_outsiders import dial, flight_client, identity, receive_until_the_end

from tablepuppet.errors import DisconnectedError, TransportError
from tablepuppet.network.control import FROM_ANYBODY
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import read_federation
from tablepuppet.transport import certs, connections
from tablepuppet.transport.envelopes import Assembler, Room


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parties]:
    monkeypatch.setattr(connections, "Limits", partial(connections.Limits, 1.0, 2.0))
    made = Parties(tmp_path)
    made.write(tables(20))
    server = Server(read_federation(made.federation))
    yield made
    assert made.connect().status()
    server.close()


def label(sizes: list[list[int]], envelope: object = None) -> bytes:
    inner = msgspec.Raw(msgspec.msgpack.encode(envelope or {"type": "Goodbye", "reason": ""}))
    content = msgspec.msgpack.encode([inner, sizes])
    return b"M" + len(content).to_bytes(4, "little") + content


def test_a_label_of_a_million_empty_sizes_is_refused_unread() -> None:
    before_greeting = Assembler(FROM_ANYBODY, 1 << 16)
    with pytest.raises(TransportError, match="label is too long"):
        before_greeting.feed(memoryview(label([[0]] * 1_000_000)))
    with pytest.raises(TransportError, match="buffers has more than"):
        Assembler(FROM_ANYBODY).feed(memoryview(label([[0] * 200_000])))


def test_all_parcels_on_their_way_in_share_one_room() -> None:
    room = Room(1000)
    first, second = Assembler(FROM_ANYBODY, 10_000, room), Assembler(FROM_ANYBODY, 10_000, room)
    assert first.feed(memoryview(label([[900]]))) is None
    with pytest.raises(TransportError, match="no room now"):
        second.feed(memoryview(label([[200]])))
    first.drop()
    assert second.feed(memoryview(label([[200]]))) is None


def test_whoever_says_nothing_is_cut_off(parties: Parties) -> None:
    with socket.create_connection(("127.0.0.1", parties.port), timeout=120) as silent:
        assert silent.recv(1) in (b"", b"\x00")  # the end, or a first byte of HTTP/2 before it
    member = identity(parties.folder / "certs", "supplier")
    client = flight_client(parties, member)
    _, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"client"))
    reader.read_chunk()  # the challenge, which is never answered
    with pytest.raises((flight.FlightError, OSError, StopIteration)):
        reader.read_chunk()
    client.close()


def test_a_party_whose_certificate_is_revoked_is_cut_off(parties: Parties) -> None:
    folder = parties.folder / "certs"
    connection = dial(parties, "supplier", identity(folder, "supplier"))
    time.sleep(3.0)  # longer than a stranger may stay: a party that has greeted does
    connection.stream.beat()
    certs.revoke(folder, "supplier")
    with pytest.raises(DisconnectedError):
        receive_until_the_end(connection)
    connection.close()


def test_without_a_list_of_revoked_certificates_nobody_is_let_in(parties: Parties) -> None:
    listed = parties.folder / "certs" / "revoked.txt"
    listed.unlink()
    with pytest.raises(TransportError, match="cannot tell which certificates were revoked") as refused:
        dial(parties, "supplier", identity(parties.folder / "certs", "supplier"))
    assert str(parties.folder) not in str(refused.value)
    listed.touch()


def test_whatever_else_flight_offers_tells_nothing_of_the_server(parties: Parties) -> None:
    member = identity(parties.folder / "certs", "supplier")
    client = flight_client(parties, member)
    with pytest.raises(flight.FlightUnauthorizedError) as refused:
        list(client.list_flights())
    said = str(refused.value).partition(". gRPC client debug context")[0]
    assert "tablepuppet/transport" not in said
    client.close()
