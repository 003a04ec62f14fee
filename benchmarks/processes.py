"""A federation in processes of its own on this machine, with mutual TLS: what a network and its server take.

In: which client holds which table. Out: a connected federation, and the ids of the processes. Nothing is left of them.

Overhead: one job over such processes and in one process, milliseconds a round both ways. All but one client hold a
share of one table, so that every round sums over them; payloads are small, so that nothing but the transport counts:
TLS, checkpoints, wake-ups.

Apart: what the server takes for itself. The most memory of the server beyond what it holds when idle after a tiny job,
when it has mapped the tables and over a whole run, and the CPU time of the server and of its clients. Read from the
system (Linux's /proc), so that whatever Arrow, TLS, checkpoints and compiled kernels take is in it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cases import Case, Trial, make_case
from benchmarks.figures import L2, memory
from tablepuppet.algorithms.registry import FEDERATED
from tablepuppet.api import Federation
from tablepuppet.api.connected import ConnectedFederation
from tablepuppet.errors import JobError, TablePuppetError, TransportError
from tablepuppet.training.result import Result
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
            connected = _wait_for_all(federation, running, folder / "log")
            server, *clients = (process.pid for process in running)
            yield Processes(connected, server, dict(zip(held, clients, strict=True)))
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(timeout=60)


def _wait_for_all(federation: Path, running: list[subprocess.Popen[bytes]], log: Path) -> ConnectedFederation:
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
            pairs.append((_time_run(local, given), _time_run(network.federation, given)))
    first, second = pairs[0][0][1], pairs[0][1][1]
    traffic = first.traffic
    return Overhead(
        clients=clients,
        rounds=traffic.rounds + traffic.setup.rounds + traffic.evaluation.rounds,
        in_process=tuple(alone for (alone, _), _ in pairs[1:]),
        over_network=tuple(together for _, (together, _) in pairs[1:]),
        is_same_model=first.coefficients().equals(second.coefficients()),
    )


def _time_run(federation: Any, given: dict[str, Any]) -> tuple[float, Result]:
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


_PROC = Path("/proc")
_TINY = "SELECT a.x, b.x AS z, a.y FROM tiny a JOIN tiny b ON a.k = b.k"


@dataclass(frozen=True, slots=True)
class Apart:
    """Bytes beyond an idle process, and CPU seconds."""

    case: str
    algorithm: str
    model: str
    joined_rows: int
    epochs: int
    objective: float
    mapping_peak: int  # of the server, until the plan stands
    peak: int  # of the server, over a whole run
    client_peak: int  # of the client that took most
    mapping_cpu: float  # of the server and all clients
    server_cpu: float  # of a whole run
    clients_cpu: float

    @property
    def epoch_cpu(self) -> float:
        """CPU seconds of an epoch, the last evaluation shared out among them."""
        return (self.server_cpu + self.clients_cpu - self.mapping_cpu) / self.epochs


HEADINGS = (
    *("case", "algorithm", "epochs", "F", "server MB", "B/row mapping", "B/row", "client B/row"),
    *("mapping ns/row", "epoch ns/row", "server ns/row", "clients ns/row"),
)


def cells(f: Apart) -> list[str]:
    """A row of the table of figures."""
    per_row = 1e9 / f.joined_rows
    return [
        f.case,
        f.algorithm,
        str(f.epochs),
        f"{f.objective:.8f}",
        f"{f.peak / 1e6:.0f}",
        *(f"{value / f.joined_rows:.1f}" for value in (f.mapping_peak, f.peak, f.client_peak)),
        *(f"{value * per_row:.0f}" for value in (f.mapping_cpu, f.epoch_cpu, f.server_cpu, f.clients_cpu)),
    ]


def measure_apart(trial: Trial) -> Apart:
    """Maps the tables once for the plan alone, then trains."""
    if not (_PROC / "self/clear_refs").exists():
        raise JobError("memory of processes is read from Linux's /proc, which is not here; leave --processes out")
    case = make_case(trial.case, trial.rows, trial.folder)
    given: dict[str, Any] = {"model": trial.model, "algorithm": trial.algorithm, "l2": L2, "epochs": trial.epochs}
    held = {f"owner-of-{table}": (table, data) for table, data in case.tables.items()} | {"tiny": ("tiny", _tiny())}
    with processes(held) as network:
        case.tables.clear()
        del held
        network.federation.train(_TINY, label="y", **given)  # loads what every job needs
        return _measure_run(case, network, given)


def _tiny() -> pa.Table:
    k = np.arange(40)
    return pa.table({"k": k, "x": np.sin(k), "y": (k % 2).astype(np.int8)})


def _measure_run(case: Case, network: Processes, given: dict[str, Any]) -> Apart:
    federation, server, clients = network.federation, network.server, list(network.clients.values())
    everybody = [server, *clients]
    idle = {process: _memory(process, "VmRSS") for process in everybody}
    before = _cpu(everybody)
    federation.explain(case.query, label=case.label, **given)
    mapping_cpu, mapping_peak = _cpu(everybody) - before, _memory(server, "VmHWM") - idle[server]
    for process in everybody:
        (_PROC / str(process) / "clear_refs").write_text("5", encoding="ascii")  # the peak is what it holds now
    spent = _cpu([server]), _cpu(clients)
    result = federation.train(case.query, label=case.label, **given)
    return Apart(
        case=case.name,
        algorithm=given["algorithm"],
        model=given["model"],
        joined_rows=result.plan.mapping.joined_rows,
        epochs=len(result.history),
        objective=result.objective,
        mapping_peak=mapping_peak,
        peak=_memory(server, "VmHWM") - idle[server],
        client_peak=max(_memory(client, "VmHWM") - idle[client] for client in clients),
        mapping_cpu=mapping_cpu,
        server_cpu=_cpu([server]) - spent[0],
        clients_cpu=_cpu(clients) - spent[1],
    )


def _memory(process: int, which: str) -> int:
    """Bytes, as the system counts them."""
    status = _PROC / str(process) / "status"
    if not status.exists():
        raise JobError(f"process {process} of the benchmark is gone")
    return memory(status, which)


def _cpu(of: Iterable[int]) -> float:
    """Seconds that processes have computed, for themselves and in the system."""
    ticks = 0
    for process in of:
        fields = (_PROC / str(process) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
