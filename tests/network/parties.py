"""A federation of real processes on loopback, with mutual TLS, for tests: started, killed, started again."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.network import party
from tests.network.relay import Relay
from tests.ports import free_port

import tablepuppet as tp
from tablepuppet.api.connected import ConnectedFederation
from tablepuppet.network.control import user_protocol
from tablepuppet.training.result import Result
from tablepuppet.transport import certs
from tablepuppet.transport.envelopes import Role, client_protocol

QUERY = "SELECT o.x, o.z, i.price, i.kind, o.y FROM orders o JOIN items i ON o.item = i.item"
SECRET = b"a secret of the clients, 32 bytes"
LASTING = ("runs.sqlite", "runs.sqlite-wal", "secret", "log.jsonl")  # what stays between runs
OWNERS = {"store-eu": "orders", "store-us": "orders", "supplier": "items"}


def kept_runs(state: Path, part: str = "%") -> set[str]:
    """Runs that a state folder holds, or holds this part of; read from a copy, for its process has it open."""
    with TemporaryDirectory() as place:
        for path in state.glob("runs.sqlite*"):
            shutil.copy(path, place)
        with closing(sqlite3.connect(f"{place}/runs.sqlite")) as copied:
            return {run for (run,) in copied.execute("SELECT run FROM pieces WHERE part LIKE ?", (part,))}


def tables(rows: int = 400) -> dict[str, pa.Table]:
    """Each client's table."""
    rng = np.random.default_rng(7)

    def orders(n: int) -> pa.Table:
        x, item = rng.normal(size=n), rng.integers(0, 30, n)
        y = (x + 0.1 * item + rng.normal(size=n) > 1.5).astype(int)
        return pa.table({"item": item, "x": x, "z": rng.normal(size=n), "y": y})

    items = {"item": np.arange(30), "price": rng.normal(size=30), "kind": [f"kind {i % 4}" for i in range(30)]}
    return {"store-eu": orders(rows), "store-us": orders(rows // 2), "supplier": pa.table(items)}


@contextmanager
def in_process(held: dict[str, pa.Table]) -> Iterator[tp.Federation]:
    """The same clients in one process: what every run over the network must equal."""
    given = {"orders": [held["store-eu"], held["store-us"]], "items": held["supplier"]}
    with tp.Federation(given, key=SECRET) as federation:
        yield federation


def assert_same(network: Result, local: Result) -> None:
    """The same model, to the last bit, and the same traffic, to the last byte."""
    assert network.coefficients().equals(local.coefficients())
    assert np.array_equal(network.encoded_intercept, local.encoded_intercept)
    assert network.objective == local.objective
    assert network.metrics == local.metrics
    assert network.traffic.rounds == local.traffic.rounds
    assert abs(network.traffic.total_bytes - local.traffic.total_bytes) < 0.02 * local.traffic.total_bytes


def protocol(role: Role) -> str:
    """The messages that a party of this release says that it knows."""
    return user_protocol() if role == "user" else client_protocol()


@dataclass
class Parties:
    """Files and processes of one federation."""

    folder: Path
    owners: Mapping[str, str] = field(default_factory=lambda: OWNERS)  # client → its table
    port: int = field(default_factory=free_port)
    health: int = field(default_factory=free_port)
    host: str = "127.0.0.1"  # where the server is reached
    wait: float = 60.0
    heartbeat: float = 0.5
    relays: dict[str, Relay] = field(default_factory=dict)  # whose way to the server leads through a relay
    namespaces: dict[str, str] = field(default_factory=dict)  # who lives in a network namespace
    extra: dict[str, list[str]] = field(default_factory=dict)  # more words of somebody's command
    limits: dict[str, int] = field(default_factory=dict)  # bytes of address space that somebody may have
    descriptors: dict[str, tuple[int, int]] = field(default_factory=dict)  # somebody's soft and hard limit of files
    measures: bool = False  # whether clients write what their rules take of their time
    processes: dict[str, BaseProcess] = field(default_factory=dict)

    def write(self, held: Mapping[str, pa.Table]) -> None:
        """Certificates, tables, and everybody's file."""
        authority = self.folder / "certs"
        certs.create_authority(authority)
        certs.issue(authority, "server", "server", ["localhost", "127.0.0.1", self.host])
        for name in (*self.owners, "analyst"):
            certs.issue(authority, name)
        (self.folder / "clients.secret").write_bytes(SECRET)
        owners: dict[str, list[str]] = {}
        for name, table in self.owners.items():
            owners.setdefault(table, []).append(name)
        self.federation.write_text(
            f"""
users = ["analyst"]
[server]
address = "{self.address("analyst")}"
listen = "{self.host}:{self.port}"
health = "127.0.0.1:{self.health}"
wait = {self.wait}
heartbeat = {self.heartbeat}
[owners]
{"".join(f"{table} = {json.dumps(names)}{chr(10)}" for table, names in owners.items())}
[user]
name = "analyst"
certificate = "certs/analyst.pem"
key = "certs/analyst.key"
"""
        )
        (self.folder / "open.toml").write_text("keys_in_plain = false\n")  # without a policy, a person would be asked
        for name, table in self.owners.items():
            pq.write_table(held[name], self.folder / f"{name}.parquet")
            (self.folder / f"{name}.toml").write_text(
                f"""
name = "{name}"
server = "{self.address(name)}"
secret = "clients.secret"
policy = "open.toml"
[tables]
{table} = "{name}.parquet"
"""
            )

    def address(self, name: str) -> str:
        """Where somebody reaches the server."""
        if name in self.relays:
            return f"grpc+tls://127.0.0.1:{self.relays[name].port}"
        return f"grpc+tls://{self.host}:{self.port}"

    @property
    def federation(self) -> Path:
        return self.folder / "federation.toml"

    def twice(self, name: str) -> Path:
        """While this file exists, the party's next message is sent twice."""
        return self.folder / f"{name}.twice"

    def start(self, *names: str) -> None:
        """Starts processes: "server", or a client's name; all by default."""
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        for name in names or ("server", *self.owners):
            command = ["serve", str(self.federation)] if name == "server" else ["join", f"{self.folder}/{name}.toml"]
            self.processes[name] = party.start(
                [*command, *self.extra.get(name, [])],
                self.folder / f"{name}.log",
                namespace=self.namespaces.get(name),
                twice=self.twice(name),
                limit=self.limits.get(name),
                measured=self.folder / f"{name}.measured" if self.measures else None,
                descriptors=self.descriptors.get(name),
            )

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.processes.pop(name)
        process.kill()
        process.join(120)

    def restart(self, name: str) -> None:
        self.kill(name)
        self.start(name)

    def stop(self) -> dict[str, int | None]:
        """Ends everybody as an administrator would; their exit codes."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join(120)
        codes = {name: process.exitcode for name, process in self.processes.items()}
        self.processes.clear()
        return codes

    def connect(self) -> ConnectedFederation:
        return ConnectedFederation(self.federation)

    def await_status(self, is_so: Any, seconds: float = 180.0) -> dict[str, Any]:
        """The server's status, as soon as it is as wanted."""
        until = time.monotonic() + seconds
        while True:
            try:
                found = self.connect().status()
                if is_so(found):
                    return found
            except tp.TablePuppetError as error:
                found = {"error": str(error)}
            assert time.monotonic() < until, f"{json.dumps(found)}\n{self.logs()}"
            time.sleep(0.1)

    def await_clients(self) -> None:
        self.await_status(lambda s: len(s["connected"]) == len(self.owners))

    def logs(self) -> str:
        return "\n".join(f"-- {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.folder.glob("*.log")))


def train_with_faults(
    parties: Parties, faults: Mapping[int, str | Callable[[], object]], query: str = QUERY, **job: Any
) -> Result:
    """Trains while faults happen at given rounds: somebody's process is killed and started again, or whatever is given.

    Each has a thread of its own, so that the run is not held up. The server's comes last: while a user comes back to a
    new one, rounds go on, and the run may end before it hears of one at which something is due.
    """
    due, threads = sorted(faults), list[Thread]()

    def on_round(event: Any) -> None:
        if due and due[0] <= event.round and not any(t.is_alive() for t in threads):
            fault = faults[due.pop(0)]
            threads.append(Thread(target=partial(parties.restart, fault) if isinstance(fault, str) else fault))
            threads[-1].start()

    result = parties.connect().train(query, **job, on_round=on_round)
    for thread in threads:
        thread.join(60)
    assert not due
    return result


@contextmanager
def running(folder: Path, held: Mapping[str, pa.Table], **options: Any) -> Iterator[Parties]:
    """A federation whose processes all run; none is left at the end."""
    parties = Parties(folder, **options)
    parties.write(held)
    parties.start()
    try:
        parties.await_clients()
        yield parties
    finally:
        for process in parties.processes.values():
            process.kill()
            process.join(120)
        for relay in parties.relays.values():
            relay.close()
