"""Floods that the list of attacks does not name: nothing stays in memory, on the disk or in the queue of the server."""

from __future__ import annotations

import logging
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.network.parties import QUERY, Parties, assert_same, in_process, running, tables
from tests.network.test_hostile_storm import federation_file
from tests.network.test_outsiders import dial, identity, receive_until_the_end

import tablepuppet as tp
from tablepuppet.api.connected import ConnectedFederation
from tablepuppet.errors import DisconnectedError, RunInterruptedError
from tablepuppet.network import control as c
from tablepuppet.network.processes import RateLimitFilter
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import read_federation
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.flight import Connection, Party
from tablepuppet.transport.switchboard import WaitRules

PARCEL = 24 << 20
LINES = 20


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    with running(tmp_path_factory.mktemp("federation"), tables(60)) as started:
        yield started


def resident(parties: Parties) -> int:
    """Bytes of the server's process."""
    pages = Path(f"/proc/{parties.processes['server'].pid}/statm").read_text().split()
    return int(pages[1]) * resource.getpagesize()


def user_line(parties: Parties) -> Connection:
    own = identity(parties.folder / "certs", "analyst")
    address = f"grpc+tls://127.0.0.1:{parties.port}"
    return Connection(address, Party("analyst", "user", own), c.TO_USER | e.FROM_SERVER, c.user_protocol())


def test_what_was_refused_does_not_stay_in_memory_while_its_line_is_open(parties: Parties) -> None:
    before = resident(parties)
    lines = [user_line(parties) for _ in range(LINES)]
    try:
        for line in lines:
            line.stream.send(c.AskStatus(), [Frame(b"h", [bytes(PARCEL)])])
            refused, _ = line.stream.receive()
            assert "nothing that is asked" in refused.message
            line.stream.send(c.Submit(kind="train", follows=False), [Frame(b"h", [bytes(PARCEL)])] * 2)
            refused, _ = line.stream.receive()
            assert isinstance(refused, c.Failed)
        # What the allocator keeps for its next parcels is a third of this; one kept parcel a line is more, and stays.
        until = time.monotonic() + 300
        while resident(parties) - before >= LINES * PARCEL * 2 // 3:
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        for line in lines:
            line.close()


def _flood(connection: Connection, reply: e.Reply) -> None:
    for _ in range(5000):
        connection.stream.send(reply, [Frame(b"h", [bytes(9)])])
    receive_until_the_end(connection)


def test_a_client_that_answers_what_nobody_asked_is_cut_off(parties: Parties) -> None:
    parties.kill("supplier")
    connection = dial(parties, "supplier", identity(parties.folder / "certs", "supplier"))
    try:
        reply = e.Reply(run="\x1b[2J" + "f" * 100_000, step=-1)
        with pytest.raises(DisconnectedError):
            _flood(connection, reply)
    finally:
        connection.close()
        parties.start("supplier")
        parties.await_clients()
    said = (parties.folder / "server.log").read_text()
    assert "answers what nobody asked" in said
    assert len(said) < 200_000
    assert "\x1b" not in said


def test_a_client_that_does_not_read_holds_up_nobody_and_is_released(parties: Parties) -> None:
    """Its signs of life go on, and what it is sent would fill its window, and then the outbox, for ever."""
    made = Parties(parties.folder.with_name("unread"))
    made.folder.mkdir()
    made.write(tables(20))
    server = Server(read_federation(made.federation))
    connection = dial(made, "supplier", identity(made.folder / "certs", "supplier"))
    board = server.switchboard
    made.await_status(lambda s: "supplier" in s["connected"])

    def stop(silent: Sequence[str]) -> None:
        raise RunInterruptedError("enough")

    def ask() -> None:
        for step in range(1, 2000):
            with suppress(DisconnectedError):  # it was let go
                connection.stream.beat()
            request = e.Request(run="0123456789abcdef", step=step, after=step - 1), [Frame(b"h", [bytes(12_000)])]
            try:
                board.ask({"supplier": request}, WaitRules(0.0, print, stop, partial(bool, step % 50)))
            except RunInterruptedError:
                if "supplier" not in board.list_connected():
                    return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()
    assert "supplier" in board.away()
    connection.close()
    server.close()


def test_names_of_those_who_may_read_a_run_are_few_and_short() -> None:
    decoder = msgspec.msgpack.Decoder(c.Submit)
    for readers in (["a"] * 101, ["a" * 300]):
        asked = msgspec.msgpack.encode({"type": "Submit", "kind": "train", "readers": readers})
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(asked)


def test_a_flood_of_lines_that_strangers_bring_about_is_counted_and_not_written() -> None:
    few = RateLimitFilter(most=3, seconds=3600.0)

    def line(logger: str, text: str = "refused %s") -> logging.LogRecord:
        return logging.LogRecord(logger, logging.WARNING, "", 0, text, ("somebody",), None)

    assert [few.filter(line("tablepuppet.transport.flight")) for _ in range(5)] == [True] * 3 + [False] * 2
    assert few.filter(line("tablepuppet.transport.flight", "cut off %s"))
    assert all(few.filter(line("tablepuppet.network.coordinator")) for _ in range(5))
    few._seen["refused %s"] = (-1e9, 5)  # an hour later
    last = line("tablepuppet.transport.flight")
    assert few.filter(last)
    assert last.getMessage() == "refused somebody (and 2 lines like this one that are not shown)"


def test_the_limit_of_ulimit_is_the_limit() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (5 << 30, 5 << 30)); "
        "from tablepuppet.memory import free_memory, memory_limit; print(memory_limit(), free_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    limit, free = map(int, done.stdout.split())
    assert limit == 5 << 30
    assert 0 < free < limit


def test_a_run_without_end_leaves_others_their_turn_and_goes_on_after_them(tmp_path: Path) -> None:
    made = Parties(tmp_path)
    held = tables(120)
    made.write(held)
    federation_file(made)
    made.federation.write_text(made.federation.read_text().replace("[server]", "[server]\nshare = 0.4"))
    made.start()
    try:
        made.await_clients()
        rival = ConnectedFederation(tmp_path / "rival.toml")
        endless = rival.submit(QUERY, label="y", algorithm="sgd", epochs=10**6, batch_size=20)
        long: dict[str, Any] = {"label": "y", "algorithm": "sgd", "epochs": 16, "batch_size": 20}
        desk = made.connect()
        with in_process(held) as local:
            first = desk.submit(QUERY, **long)  # it gives way, too
            assert_same(desk.wait(first), local.train(QUERY, **long))
            assert_same(desk.train(QUERY, label="y"), local.train(QUERY, label="y"))
        (run,) = rival.status()["runs"]
        assert run["state"] in ("queued", "running")
        assert "others wait for their turn" in (tmp_path / "server.log").read_text()
        rival.cancel(endless)
        with pytest.raises(tp.TablePuppetError, match="cancelled"):
            rival.wait(endless)
    finally:
        for name in list(made.processes):
            made.kill(name)
