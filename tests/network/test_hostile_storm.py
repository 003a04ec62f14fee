"""A storm of hostile parties beside honest ones: the honest jobs of the same minute end with the same bits.

Strangers open sockets and say nothing or garbage; a revoked party greets; a party sends frames that are none and
claims gigabytes; one client lies, then another way, and one is mute; a user submits jobs that would fill the memory,
frames that would import, and asks for others' runs. The server has a limit of memory of its own.
"""

from __future__ import annotations

import random
import resource
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.network import hostile
from tests.network.parties import OWNERS, QUERY, Parties, assert_same, in_process, protocol, tables

import tablepuppet as tp
from tablepuppet.api.connected import ConnectedFederation
from tablepuppet.network import control as c
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport import certs
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.envelopes import pack
from tablepuppet.transport.flight import Connection, Identity, Party

STRANGERS = {"mallory": "extras", "revoked": "others"}
LIES = ("outside_the_dictionary", "a_billion_parameters", "eight_gibibytes_of_zeros", "garbage", "escapes", "mute",
        "no_numbers", "one_less")  # fmt: skip
HONEST: list[dict[str, Any]] = [
    {"algorithm": "admm", "epochs": 4},
    {"algorithm": "boosting", "trees": 8, "depth": 3},
    {"algorithm": "als", "head": "factor", "rank": 2, "epochs": 3},
    {"algorithm": "sgd", "epochs": 2, "batch_size": 60},
    {"algorithm": "newton"},
    {"algorithm": "elastic", "l1": 0.01, "epochs": 5},
]
ATTACKS: list[dict[str, Any]] = [{"algorithm": "admm", "epochs": 2, "wire": "float64+zstd"}, *HONEST]
ATTACKED = "SELECT o.x, e.w, o.y FROM orders o JOIN extras e ON o.item = e.item"
MEMORY = 2 << 30


class Storm:
    """Hostile parties of one federation, each a thread that attacks until the storm is over."""

    def __init__(self, parties: Parties, seed: int) -> None:
        self.parties, self.seed = parties, seed
        self.folder = parties.folder / "certs"
        self.rival = ConnectedFederation(parties.folder / "rival.toml")
        self.over = threading.Event()
        self.done: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._attack, args=(number, attack), name=attack.__name__, daemon=True)
            for number, attack in enumerate(
                (self._silence, self._noise, self._half_a_handshake, self._greet_revoked, self._send_garbage, self._ask)
            )
        ]

    @contextmanager
    def raging(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in self._threads:
                thread.join(60)

    def _attack(self, number: int, attack: Callable[[random.Random], None]) -> None:
        chance = random.Random(self.seed * 100 + number)
        while not self.over.is_set():
            with suppress(tp.TablePuppetError, OSError, pa.ArrowException, ssl.SSLError):
                attack(chance)
            self.done[attack.__name__] += 1
            self.over.wait(0.05)

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.parties.port), timeout=5)

    def _silence(self, chance: random.Random) -> None:
        held = [self._connect() for _ in range(20)]
        self.over.wait(1.0)
        for one in held:
            one.close()

    def _noise(self, chance: random.Random) -> None:
        with self._connect() as line:
            for _ in range(20):
                line.sendall(chance.randbytes(chance.choice((1, 100, 70_000))))

    def _half_a_handshake(self, chance: random.Random) -> None:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        context.check_hostname = False
        with self._connect() as line, context.wrap_socket(line) as secured:  # no certificate
            secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(1000))
            secured.recv(100)

    def _identity(self, name: str) -> Identity:
        return Identity(self.folder / "ca.pem", self.folder / f"{name}.pem", self.folder / f"{name}.key")

    def _dial(self, name: str, role: e.Role) -> Connection:
        address = f"grpc+tls://127.0.0.1:{self.parties.port}"
        return Connection(address, Party(name, role, self._identity(name)), c.TO_USER | e.FROM_SERVER, protocol(role))

    def _greet_revoked(self, chance: random.Random) -> None:
        self._dial("revoked", "client").close()

    def _send_garbage(self, chance: random.Random) -> None:
        """By a user, who may send little, and the wrong things."""
        connection = self._dial("rival", "user")
        sizes = msgspec.msgpack.encode([msgspec.Raw(msgspec.msgpack.encode({"type": "AskStatus"})), [[0]] * 100_000])
        pieces = [
            chance.randbytes(chance.randrange(1, 5000)),
            b"M" + len(sizes).to_bytes(4, "little") + sizes,
            b"C" + bytes(1000),
            next(pack(c.Submit(kind="train"), [Frame(chance.randbytes(50), [bytes(9)])])),
            next(pack(e.Reply(run="0123456789abcdef", step=1), [Frame(b"h", [bytes(9)])])),
        ]
        try:
            connection.stream._write(chance.choice(pieces))
            if chance.random() < 0.5:
                connection.stream.receive()
        finally:
            connection.close()

    def _ask(self, chance: random.Random) -> None:
        """Jobs that a lying or mute client spoils, that need all memory, and others' runs."""
        attack = chance.randrange(4)
        if attack == 0:
            query = "SELECT a.x, b.z, a.y FROM orders a JOIN orders b ON a.y = b.y"
            self.rival.submit(query, label="y", max_joined_rows=10**12)
        elif attack == 1:
            self._dial("rival", "user").stream.send(
                c.Submit(kind="train", follows=False),
                [Frame(msgspec.msgpack.encode(["object", "tablepuppet.cli.main", "main", {}]), [])],
            )
        elif attack == 2:
            self.rival.cancel("0123456789abcdef")
        else:
            self.rival.submit(ATTACKED, label="y", **chance.choice(ATTACKS))
        self.over.wait(0.3)


def federation_file(parties: Parties, compute: float = 60.0) -> None:
    """Two users, two more owners, and a limit of memory."""
    text = parties.federation.read_text()
    text = text.replace('["analyst"]', '["analyst", "rival"]')
    text = text.replace("[server]", f"[server]\nmemory = {MEMORY}\nturn = 1.0\ncompute = {compute}")
    parties.federation.write_text(text)
    certs.issue(parties.folder / "certs", "rival")
    rival = text.replace('name = "analyst"', 'name = "rival"').replace("certs/analyst", "certs/rival")
    (parties.folder / "rival.toml").write_text(rival)


def liar(parties: Parties, lie: str) -> None:
    """Mallory, a member of the federation, lies in another way from now on."""
    if "mallory" in parties.processes:
        parties.kill("mallory")
    command = ["join", f"{parties.folder}/mallory.toml"]
    parties.processes["mallory"] = hostile.start(command, parties.folder / "mallory.log", lie)


def assert_alike(network: tp.Result, local: tp.Result) -> None:
    """The same model, to the last bit, whatever kind it is."""
    if network.trees or network.model.head is not None:
        assert network.trees == local.trees
        assert network.metrics == local.metrics
        for ours, theirs in zip(network.blocks, local.blocks, strict=True):
            assert ours.splits == theirs.splits
            assert np.array_equal(ours.theta, theirs.theta)
    else:
        assert_same(network, local)


def storm(folder: Path, jobs: int, seed: int) -> Counter[str]:
    """So many honest jobs in a storm; each gives the model of one process. How often each attack was made."""
    parties = Parties(folder, owners=OWNERS | STRANGERS, wait=20.0)
    held: dict[str, Any] = tables(120)
    extras = pa.table({"item": np.arange(30), "w": np.random.default_rng(1).normal(size=30)})
    parties.write(held | dict.fromkeys(STRANGERS, extras))
    federation_file(parties)
    certs.revoke(parties.folder / "certs", "revoked")
    parties.start("server", *OWNERS)
    chance = random.Random(seed)
    try:
        liar(parties, LIES[0])
        parties.await_status(lambda s: len(s["connected"]) == len(OWNERS) + 1)
        server = parties.processes["server"].pid
        weather = Storm(parties, seed)
        desk = parties.connect()
        with weather.raging(), in_process(held) as local:
            for number in range(jobs):
                liar(parties, chance.choice(LIES))
                job = HONEST[number % len(HONEST)]
                assert_alike(desk.train(QUERY, label="y", **job), local.train(QUERY, label="y", **job))
        assert parties.processes["server"].pid == server
        assert parties.processes["server"].is_alive()
        resident = int(Path(f"/proc/{server}/statm").read_text().split()[1]) * resource.getpagesize()
        assert resident < MEMORY
        assert desk.status()["trouble"] == ""
        assert "\x1b" not in (folder / "server.log").read_text()
        assert [r["user"] for r in desk.status()["runs"]] == ["analyst"] * jobs
        return weather.done
    finally:
        for name in list(parties.processes):
            parties.kill(name)


@pytest.mark.slow
def test_honest_jobs_in_a_hostile_storm_end_with_the_same_bits(tmp_path: Path) -> None:
    done = storm(tmp_path, jobs=3, seed=1)
    assert len(done) == 6
    assert min(done.values()) > 1, done


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_a_long_hostile_storm_changes_nothing(tmp_path: Path, seed: int) -> None:
    assert min(storm(tmp_path, jobs=24, seed=seed).values()) > 10


def test_a_client_that_is_mute_keeps_nobody_elses_run_waiting(tmp_path: Path) -> None:
    parties = Parties(tmp_path, owners=OWNERS | STRANGERS, wait=20.0)
    held: dict[str, Any] = tables(120)
    extras = pa.table({"item": np.arange(30), "w": np.random.default_rng(1).normal(size=30)})
    parties.write(held | dict.fromkeys(STRANGERS, extras))
    federation_file(parties, compute=15.0)
    parties.start("server", *OWNERS)
    try:
        liar(parties, "mute")
        parties.await_status(lambda s: len(s["connected"]) == len(OWNERS) + 1)
        rival = ConnectedFederation(parties.folder / "rival.toml")
        stuck = rival.submit(ATTACKED, label="y")
        parties.await_status(lambda s: s["others"] == 1)
        time.sleep(1.0)
        with in_process(held) as local:
            assert_same(parties.connect().train(QUERY, label="y"), local.train(QUERY, label="y"))
        assert "others wait for their turn" in (tmp_path / "server.log").read_text()
        with pytest.raises(tp.TablePuppetError, match=r"no answer of mallory for .* longer than a client may take"):
            rival.wait(stuck)
    finally:
        for name in list(parties.processes):
            parties.kill(name)
