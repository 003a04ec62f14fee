"""Thousands of strangers at the door: whoever watches the server, and the parties of the federation, notice nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.network.parties import QUERY, Parties, assert_same, in_process, tables

from tablepuppet.errors import JobError
from tablepuppet.network.run_worker import Pipe
from tablepuppet.network.serve import Monitor
from tablepuppet.transport.connections import SPARE, Limits, RevokedList, _Stranger, find_excess
from tablepuppet.transport.envelopes import Goodbye

SOFT = 1024  # systemd's default
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
EACH = 5000  # strangers of one process
SECONDS = 20.0
STRANGER = """
import random, socket, sys, time
port, count, first, word, comes_back = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
def knock(number):
    one = socket.socket()
    one.settimeout(20)
    one.bind((f"127.0.{1 + number % 4}.{1 + number // 4 % 100}" if comes_back == "spread" else "127.0.0.1", 0))
    try:
        one.connect(("127.0.0.1", port))
        if word == "tls":  # the first bytes of a handshake, and no more
            one.sendall(bytes.fromhex("16030100c8010000c40303"))
        elif word == "http":
            one.sendall(b"GET /health HTTP/1.1\\r\\nX-Slow: ")
    except OSError:
        pass
    return one
there = [knock(first + i) for i in range(count)]
print("ready", flush=True)
while True:
    for i in range(count):
        if comes_back == "again":
            there[i].close()
            there[i] = knock(first + i)
        elif word == "http":
            try:
                there[i].send(b"a")
            except OSError:
                pass
    time.sleep(0.5)
"""


@contextmanager
def strangers(port: int, count: int, word: str = "silent", how: str = "stays") -> Iterator[None]:
    """Processes that hold so many connections to a port, and never greet."""
    started = []
    try:
        for first in range(0, count, EACH):
            command = [sys.executable, "-c", STRANGER, port, min(EACH, count - first), first, word, how]
            started.append(subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE))
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def look(parties: Parties) -> dict[str, Any]:
    """What health and status say, while the strangers are there."""
    with urlopen(f"http://127.0.0.1:{parties.health}/health", timeout=SECONDS) as answer:
        assert json.load(answer) == {"status": "ok"}
    with urlopen(f"http://127.0.0.1:{parties.health}/status", timeout=SECONDS) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def hold_out(folder: Path, count: int, word: str, how: str, limits: tuple[int, int]) -> None:
    parties = Parties(folder, descriptors={"server": limits})
    held = tables(60)
    parties.write(held)
    parties.start()
    try:
        parties.await_clients()
        with strangers(parties.health if word == "http" else parties.port, count, word, how):
            for _ in range(5):
                assert len(look(parties)["connected"]) == len(parties.owners)
            with in_process(held) as local:
                assert_same(parties.connect().train(QUERY, label="y"), local.train(QUERY, label="y"))
            assert look(parties)["runs"][-1]["state"] == "finished"
            parties.restart("supplier")
            parties.await_clients()
    finally:
        for name in list(parties.processes):
            parties.kill(name)


@pytest.mark.parametrize("limits", [(SOFT, HARD), (SOFT, SOFT)], ids=["soft", "hard"])
def test_strangers_who_say_nothing_keep_nobody_from_the_server(tmp_path: Path, limits: tuple[int, int]) -> None:
    hold_out(tmp_path, 2000, "silent", "stays", limits)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [(SOFT, HARD), (SOFT, SOFT)], ids=["soft", "hard"])
@pytest.mark.parametrize("how", ["stays", "spread", "again"])
@pytest.mark.parametrize("word", ["silent", "tls", "http"])
@pytest.mark.parametrize("count", [5_000, 20_000])
def test_thousands_of_strangers_keep_nobody_from_the_server(
    tmp_path: Path, count: int, word: str, how: str, limits: tuple[int, int]
) -> None:
    hold_out(tmp_path, count, word, how, limits)


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    made = Monitor("127.0.0.1:0", lambda: {}, lambda: "ok")
    yield made
    made.close()


def test_a_health_check_whose_request_comes_late_is_answered_in_a_crowd(monitor: Monitor) -> None:
    with ExitStack() as leaving:
        for _ in range(300):  # who have sent half a request each
            one = leaving.enter_context(socket.create_connection(("127.0.0.1", monitor.port)))
            one.sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
        with socket.create_connection(("127.0.0.1", monitor.port), timeout=SECONDS) as late:
            time.sleep(0.3)
            late.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            assert late.makefile().read().endswith('{"status": "ok"}')


@pytest.mark.parametrize(
    ("asked", "status"), [(b"GET /elsewhere HTTP/1.1", b"404"), (b"POST /health HTTP/1.1", b"404"), (b"", b"404")]
)
def test_whatever_else_is_asked_of_health_is_answered_too(monitor: Monitor, asked: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", monitor.port), timeout=SECONDS) as one:
        one.sendall(asked + b"\r\n\r\n")
        assert one.makefile("rb").readline().startswith(b"HTTP/1.0 " + status)
    with urlopen(f"http://127.0.0.1:{monitor.port}/health", timeout=SECONDS) as answer:
        assert answer.status == 200


def test_the_list_of_revoked_certificates_is_read_where_strangers_hold_all_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "revoked.txt"
    path.write_text("a\n")
    listed = RevokedList(path)
    SPARE.fill()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(SOFT, HARD), HARD))
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        assert listed.read() == {10}
        with SPARE.lend():
            path.write_text("a\nbb\n")
        assert listed.read() == {10, 187}
        path.unlink()
        with pytest.raises(JobError, match="no list of revoked certificates"):
            listed.read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in held:
            os.close(descriptor)


def test_the_silent_go_first_and_the_oldest_of_them() -> None:
    limits = Limits(silent=3.0, greeting=10.0, per_address=2, all=4)
    guests = [_Stranger(("a", 1), 0.0, False), _Stranger(("a", 2), 0.0, True), _Stranger(("a", 3), 4.0, False)]
    assert find_excess(guests, limits, 5.0) == {("a", 1)}  # silent for too long
    assert find_excess(guests, limits, 11.0) == {("a", 1), ("a", 2), ("a", 3)}
    guests.append(_Stranger(("a", 4), 4.5, False))
    assert find_excess(guests, limits, 5.0) == {("a", 1), ("a", 3)}  # three of one address are one too many
    many = [_Stranger((f"b{i}", i), 4.0 + 0.1 * i, i == 0) for i in range(6)]
    assert find_excess(many, limits, 5.0) == {("b1", 1), ("b2", 2)}
    assert not find_excess(many[:4], limits, 5.0)


def test_a_pipe_whose_descriptor_is_beyond_those_of_select_is_read() -> None:
    """A server that may have more than 1,024 descriptors has such pipes."""
    if HARD < 1400:
        pytest.skip("the system allows fewer descriptors")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 1400), HARD))
    others = [socket.socket() for _ in range(1100)]
    try:
        assert all(a.fileno() < b.fileno() for a, b in pairwise(others[-10:]))
        one, two = multiprocessing.Pipe()
        assert one.fileno() >= SOFT
        sender, receiver = Pipe(one, Goodbye), Pipe(two, Goodbye)
        assert not receiver.is_readable(0.0)
        sender.send(Goodbye(reason="x"))
        assert receiver.is_readable(10.0)
        assert receiver.receive()[0].reason == "x"
        one.close()
        two.close()
    finally:
        for other in others:
            other.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
