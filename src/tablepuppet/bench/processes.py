"""A federation in processes of its own on this machine, with mutual TLS; and what a network adds to a round.

In: which client holds which table. Out: a connected federation, and the ids of the processes. Nothing is left of them.

Overhead: one job over such processes and in one process, milliseconds a round both ways. All but one client hold a
share of one table, so that every round sums over them; payloads are small, so that nothing but the transport counts:
TLS, checkpoints, wake-ups.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tablepuppet.algorithms.registry import FEDERATED
from tablepuppet.api import ConnectedFederation, Federation
from tablepuppet.engine.result import Result
from tablepuppet.errors import TablePuppetError, TransportError
from tablepuppet.transport import certs

SECRET = b"the clients of a benchmark share no data worth hiding"
_PATIENCE = 120.0  # seconds until all processes must be there

Held = Mapping[str, tuple[str, pa.Table | Path]]  # client → the name of its table, and the table or its file


@dataclass(frozen=True, slots=True)
class Processes:
    """A federation under way."""

    federation: ConnectedFederation
    server: int  # process ids
    clients: dict[str, int]


@contextmanager
def processes(held: Held) -> Iterator[Processes]:
    """A server and clients, each a process of its own; none is left at the end."""
    with tempfile.TemporaryDirectory(prefix="tablepuppet-bench-") as name:
        folder = Path(name)
        federation = _write(folder, held)
        commands = [["serve", str(federation)], *(["join", str(folder / f"{client}.toml")] for client in held)]
        running: list[subprocess.Popen[bytes]] = []
        try:
            with (folder / "log").open("wb") as log:
                for command in commands:
                    words = [sys.executable, "-m", "tablepuppet", *command, "--log-level", "warning"]
                    running.append(subprocess.Popen(words, stdout=log, stderr=log))
            connected = _connected(federation, running, folder / "log")
            server, *clients = (process.pid for process in running)
            yield Processes(connected, server, dict(zip(held, clients, strict=True)))
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(timeout=60)


def _connected(federation: Path, running: list[subprocess.Popen[bytes]], log: Path) -> ConnectedFederation:
    until = time.monotonic() + _PATIENCE
    while True:
        connected = ConnectedFederation(federation)
        try:
            if not connected.status()["away"]:
                return connected
        except TablePuppetError:
            pass  # the server is not there yet
        if time.monotonic() > until or any(process.poll() is not None for process in running):
            said = log.read_text(errors="replace")[-2000:]
            raise TransportError(f"the processes of the benchmark did not all come up; they said:\n{said}")
        time.sleep(0.2)


def _write(folder: Path, held: Held) -> Path:
    """Certificates, tables and everybody's file; the federation's."""
    address = f"grpc+tls://127.0.0.1:{_free_port()}"
    certs.create_authority(folder / "certs")
    certs.issue(folder / "certs", "server", "server", ["127.0.0.1"])
    for name in (*held, "analyst"):
        certs.issue(folder / "certs", name)
    (folder / "clients.secret").write_bytes(SECRET)
    (folder / "policy.toml").write_text("keys_in_plain = false\n", encoding="utf-8")
    owners: dict[str, list[str]] = {}
    for name, (table, rows) in held.items():
        owners.setdefault(table, []).append(name)
        file = rows if isinstance(rows, Path) else folder / f"{name}.parquet"
        if isinstance(rows, pa.Table):
            pq.write_table(rows, file)
        client = f'name = "{name}"\nserver = "{address}"\nsecret = "clients.secret"\n'
        client += 'policy = "policy.toml"\n[tables]\n'
        (folder / f"{name}.toml").write_text(f'{client}{table} = "{file.resolve()}"\n', encoding="utf-8")
    lists = "".join(f"{table} = {json.dumps(names)}\n" for table, names in owners.items())
    user = '[user]\nname = "analyst"\ncertificate = "certs/analyst.pem"\nkey = "certs/analyst.key"\n'
    path = folder / "federation.toml"
    path.write_text(
        f'users = ["analyst"]\n[server]\naddress = "{address}"\nhealth = ""\n[owners]\n{lists}{user}',
        encoding="utf-8",
    )
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_QUERY = "SELECT o.x, o.z, i.price, i.kind, o.y FROM orders o JOIN items i ON o.item = i.item"
_BATCHED = next(a.name for a in FEDERATED if a.uses_batches)
_JOB: dict[str, Any] = {"label": "y", "algorithm": _BATCHED, "batch_size": 20, "learning_rate": 0.1}
_ROWS, _ITEMS = 540, 30


@dataclass(frozen=True, slots=True)
class Overhead:
    """Milliseconds a round, of runs that took turns."""

    clients: int
    rounds: int  # of a run
    in_process: tuple[float, ...]
    over_network: tuple[float, ...]
    is_same_model: bool  # to the last bit

    @property
    def added(self) -> tuple[float, ...]:
        return tuple(n - p for n, p in zip(self.over_network, self.in_process, strict=True))

    @property
    def median(self) -> float:
        return median(self.added)


def measure_network(clients: int, epochs: int = 12, repeats: int = 5) -> Overhead:
    """Starts a server and so many clients, and trains over them and in this process by turns."""
    held = _tables(clients)
    *orders, items = held.values()
    given = _JOB | {"epochs": epochs}
    named = {name: ("items" if table is items else "orders", table) for name, table in held.items()}
    with processes(named) as network, Federation({"orders": orders, "items": items}, key=SECRET) as local:
        pairs = []
        for _ in range(repeats + 1):  # the first compiles and warms up
            pairs.append((_timed(local, given), _timed(network.federation, given)))
    first, second = pairs[0][0][1], pairs[0][1][1]
    traffic = first.traffic
    return Overhead(
        clients=clients,
        rounds=traffic.rounds + traffic.setup.rounds + traffic.evaluation.rounds,
        in_process=tuple(alone for (alone, _), _ in pairs[1:]),
        over_network=tuple(together for _, (together, _) in pairs[1:]),
        is_same_model=first.coefficients().equals(second.coefficients()),
    )


def _timed(federation: Any, given: dict[str, Any]) -> tuple[float, Result]:
    began = time.perf_counter()
    result: Result = federation.train(_QUERY, **given)
    traffic = result.traffic
    rounds = traffic.rounds + traffic.setup.rounds + traffic.evaluation.rounds
    return (time.perf_counter() - began) / rounds * 1e3, result


def _tables(clients: int) -> dict[str, pa.Table]:
    """Each client's table: shares of the orders, and the items."""
    rng = np.random.default_rng(7)
    x, item = rng.normal(size=_ROWS), rng.integers(0, _ITEMS, _ROWS)
    y = (x + 0.1 * item + rng.normal(size=_ROWS) > 1.5).astype(int)
    orders = pa.table({"item": item, "x": x, "z": rng.normal(size=_ROWS), "y": y})
    kinds = [f"kind {i % 4}" for i in range(_ITEMS)]
    items = pa.table({"item": np.arange(_ITEMS), "price": rng.normal(size=_ITEMS), "kind": kinds})
    partition_specs = np.linspace(0, _ROWS, clients).astype(int)
    shares = {f"store-{i}": orders.slice(a, b - a) for i, (a, b) in enumerate(pairwise(partition_specs))}
    return shares | {"supplier": items}
