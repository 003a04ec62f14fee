"""A federation in processes of its own on this machine, with mutual TLS, started as an administrator would.

In: which client holds which table. Out: a connected federation, and the ids of the processes. Nothing is left of them.
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
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tablepuppet.api import ConnectedFederation
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
