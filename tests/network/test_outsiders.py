"""Whoever does not belong is refused and logged, and the service goes on."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from tests.network.parties import Parties, protocol, tables

from tablepuppet import __version__
from tablepuppet.errors import DisconnectedError, JobError, TransportError
from tablepuppet.network.control import FROM_ANYBODY
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import read_federation
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport import certs
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.connections import Stream
from tablepuppet.transport.envelopes import pack
from tablepuppet.transport.flight import Connection, Identity, Listener, ListenerSettings, Party


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    """The files of a federation, and its server in this process."""
    made = Parties(tmp_path)
    made.write(tables(20))
    server = Server(read_federation(made.federation))
    yield made
    made.await_status(lambda s: "supplier" in s["away"])  # the service is unaffected
    server.close()


def identity(folder: Path, name: str) -> Identity:
    return Identity(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")


def flight_client(parties: Parties, who: Identity) -> flight.FlightClient:
    """A line to the server that no party of ours has opened: every word on it is written by a test."""
    authority, certificate, key = who.read()
    address = f"grpc+tls://127.0.0.1:{parties.port}"
    return flight.FlightClient(address, tls_root_certs=authority, cert_chain=certificate, private_key=key)


def dial(parties: Parties, name: str, who: Identity | None, role: e.Role = "client") -> Connection:
    return Connection(f"grpc+tls://127.0.0.1:{parties.port}", Party(name, role, who), e.FROM_SERVER, protocol(role))


def receive_until_the_end(connection: Connection) -> None:
    """The server may say goodbye before the stream ends."""
    while True:
        connection.stream.receive()


def hold_many(held: list[Connection], parties: Parties, who: Identity) -> None:
    for _ in range(50):
        held.append(dial(parties, "supplier", who))


def test_a_party_without_a_certificate_is_refused(parties: Parties) -> None:
    client = flight.FlightClient(
        f"grpc+tls://127.0.0.1:{parties.port}", tls_root_certs=(parties.folder / "certs/ca.pem").read_bytes()
    )
    with pytest.raises(flight.FlightUnavailableError):
        client.do_exchange(flight.FlightDescriptor.for_command(b"client"))[1].read_chunk()
    client.close()


def test_a_certificate_of_another_authority_is_refused(parties: Parties) -> None:
    other = parties.folder / "other"
    certs.create_authority(other)
    certs.issue(other, "supplier")
    shutil.copy(parties.folder / "certs/ca.pem", other / "ca.pem")
    with pytest.raises(DisconnectedError):
        dial(parties, "supplier", identity(other, "supplier"))


def test_a_revoked_certificate_is_refused_and_its_successor_is_welcome(
    parties: Parties, caplog: pytest.LogCaptureFixture
) -> None:
    folder = parties.folder / "certs"
    certs.revoke(folder, "supplier")
    with caplog.at_level(logging.WARNING), pytest.raises(TransportError, match="revoked"):
        dial(parties, "supplier", identity(folder, "supplier"))
    assert "refused supplier at" in caplog.text
    certs.renew(folder, "supplier")
    dial(parties, "supplier", identity(folder, "supplier")).close()


def test_a_revoked_party_cannot_show_its_successors_certificate(parties: Parties) -> None:
    """It has the new certificate, which is public, but not its key."""
    folder = parties.folder / "certs"
    stolen = parties.folder / "stolen"
    shutil.copytree(folder, stolen)
    certs.revoke(folder, "supplier")
    certs.renew(folder, "supplier")
    old = identity(stolen, "supplier")
    client = flight_client(parties, old)
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"client"))
    challenge = reader.read_chunk().app_metadata
    assert challenge is not None
    hello = e.Hello(
        protocol=e.PROTOCOL,
        version="0",
        name="supplier",
        role="client",
        certificate=(folder / "supplier.pem").read_bytes(),
        signature=certs.sign(old.key.read_bytes(), bytes(challenge)),
    )
    for piece in pack(hello):
        writer.write_metadata(pa.py_buffer(piece))
    assert b"did not sign" in bytes(reader.read_chunk().app_metadata)
    client.close()


@pytest.mark.parametrize(
    ("name", "holder", "role", "why"),
    [
        ("store-eu", "supplier", "client", "do not belong together"),
        ("supplier", "supplier", "user", "knows no user"),
        ("analyst", "analyst", "client", "knows no client"),
    ],
)
def test_a_party_is_nobody_else(parties: Parties, name: str, holder: str, role: e.Role, why: str) -> None:
    with pytest.raises(TransportError, match=why):
        dial(parties, name, identity(parties.folder / "certs", holder), role)


def test_a_party_that_the_federation_does_not_list_is_refused(parties: Parties) -> None:
    certs.issue(parties.folder / "certs", "stranger")
    with pytest.raises(TransportError, match="knows no client"):
        dial(parties, "stranger", identity(parties.folder / "certs", "stranger"))


@pytest.mark.parametrize(
    "pieces",
    [
        [b""],
        [b"garbage"],
        [b"M\xff\xff\xff\xff"],
        [b"C" + bytes(100)],
        [b"H" + bytes(100)],
        [next(pack(e.Reply(run="x", step=1), [Frame(b"h", [bytes(9)])])), b"C" + bytes(100)],
        [next(pack(e.Request(run="x", step=1, after=0)))],
    ],
    ids=["empty", "garbage", "long label", "piece of nothing", "bad heartbeat", "too long", "a server's word"],
)
def test_garbage_of_a_client_ends_its_connection_alone(parties: Parties, pieces: list[bytes]) -> None:
    connection = dial(parties, "supplier", identity(parties.folder / "certs", "supplier"))
    for piece in pieces:
        connection.stream._write(piece)
    with pytest.raises(DisconnectedError):
        receive_until_the_end(connection)
    connection.close()


def test_a_parcel_over_the_limit_is_refused_before_it_arrives(parties: Parties) -> None:
    connection = dial(parties, "supplier", identity(parties.folder / "certs", "supplier"))

    class Huge(bytes):
        def __len__(self) -> int:
            return 2**40

    connection.stream._write(next(pack(e.Reply(run="x", step=1), [Frame(b"h", [Huge(b"xx")])])))
    goodbye, _ = connection.stream.receive()
    assert "over the limit" in goodbye.reason
    connection.close()


def test_a_thousand_connections_leave_the_service_alone(parties: Parties, caplog: pytest.LogCaptureFixture) -> None:
    sockets = [socket.create_connection(("127.0.0.1", parties.port), timeout=60) for _ in range(1000)]
    member = identity(parties.folder / "certs", "supplier")
    held: list[Connection] = []
    with caplog.at_level(logging.WARNING), pytest.raises(TransportError):
        hold_many(held, parties, member)
    assert "connections are enough" in caplog.text
    assert parties.connect().status()
    for one in sockets:
        one.close()
    for connection in held:
        connection.close()


def test_a_reply_that_is_replayed_or_was_never_asked_for_is_passed_over(
    parties: Parties, caplog: pytest.LogCaptureFixture
) -> None:
    connection = dial(parties, "supplier", identity(parties.folder / "certs", "supplier"))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            connection.stream.send(e.Reply(run="0123456789abcdef", step=7), [Frame(b"h", [bytes(9)])])
        parties.await_status(lambda s: "supplier" in s["connected"])
        until = time.monotonic() + 60
        while caplog.text.count("which nobody waits for") < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
    connection.close()


def test_a_greeting_that_was_overheard_is_of_no_use_again(parties: Parties) -> None:
    """The signature in it answers one challenge, and the next one is another."""
    member = identity(parties.folder / "certs", "supplier")
    _, certificate, key = member.read()
    client = flight_client(parties, member)
    answers = []
    hello: list[bytes] = []
    for _ in range(2):
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"client"))
        challenge, _ = Stream(reader, writer, e.Assembler(e.FROM_SERVER)).receive()
        signature = certs.sign(key, challenge.nonce)
        first = e.Hello(
            protocol=e.PROTOCOL,
            version=__version__,
            name="supplier",
            role="client",
            certificate=certificate,
            signature=signature,
            schemas=protocol("client"),
        )
        hello = hello or list(pack(first))  # the second time the same bytes
        for piece in hello:
            writer.write_metadata(pa.py_buffer(piece))
        answers.append(Stream(reader, writer, e.Assembler(e.FROM_SERVER)).receive()[0])
    assert isinstance(answers[0], e.Welcome)
    assert isinstance(answers[1], e.Refused)
    client.close()


def test_whoever_fails_the_handshake_is_in_the_log(tmp_path: Path) -> None:
    """TLS refuses those before our code hears of them; what gRPC says of it becomes an event of our log."""
    made = Parties(tmp_path)
    made.write(tables(20))
    other = tmp_path / "other"
    certs.create_authority(other)
    certs.issue(other, "supplier")
    shutil.copy(tmp_path / "certs/ca.pem", other / "ca.pem")
    made.extra["server"] = ["--log-format", "json"]
    made.start("server")
    try:
        made.await_status(lambda s: True)
        with pytest.raises(DisconnectedError):
            dial(made, "supplier", identity(other, "supplier"))
        with socket.create_connection(("127.0.0.1", made.port), timeout=60) as one:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n")
            one.recv(100)
        assert made.connect().status()
        made.processes["server"].terminate()
        made.processes["server"].join(120)
        lines = [json.loads(line) for line in (tmp_path / "server.log").read_text().splitlines() if line[:1] == "{"]
        refused = [line["message"] for line in lines if "TLS handshake failed" in line["message"]]
        assert all(line["level"] == "warning" for line in lines if line["message"] in refused)
        assert any("http request" in message for message in refused)
        assert any("certificate verify failed" in message.lower().replace("_", " ") for message in refused), lines
    finally:
        made.kill("server")


def test_without_tls_only_this_machine_is_spoken_to() -> None:
    def nothing(name: str, role: e.Role, stream: Any) -> None:
        raise AssertionError

    door = ListenerSettings({}, lambda: e.Welcome(heartbeat=1, limit=1, runs=[]), nothing, FROM_ANYBODY)
    with pytest.raises(JobError, match="this machine only"):
        Listener("grpc+tcp://0.0.0.0:0", door, None)
    with pytest.raises(JobError, match="this machine only"):
        Connection("grpc+tcp://192.0.2.1:1", Party("a", "client", None), e.FROM_SERVER)


def test_another_version_of_the_protocol_is_refused(parties: Parties) -> None:
    client = flight_client(parties, identity(parties.folder / "certs", "supplier"))
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"client"))
    reader.read_chunk()
    for piece in pack(e.Hello(protocol=e.PROTOCOL + 1, version="9.9", name="supplier", role="client")):
        writer.write_metadata(pa.py_buffer(piece))
    assert b"install the same version" in bytes(reader.read_chunk().app_metadata)
    client.close()
