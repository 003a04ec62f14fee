"""What the server takes for itself: one job over a server and clients in processes of their own.

In: a case, an algorithm and a model. Out: Apart, the most memory of the server beyond what it holds when idle after a
tiny job, when it has mapped the tables and over a whole run, and the CPU time of the server and of its clients. Read
from the system (Linux's /proc), so that whatever Arrow, TLS, checkpoints and compiled kernels take is in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tablepuppet.bench.cases import Case, make_case
from tablepuppet.bench.figures import L2, memory
from tablepuppet.bench.processes import Processes, processes
from tablepuppet.errors import JobError

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


def measure_apart(name: str, rows: int, folder: Path | None, algorithm: str, model: str, epochs: int) -> Apart:
    """Maps the tables once for the plan alone, then trains."""
    if not (_PROC / "self/clear_refs").exists():
        raise JobError("memory of processes is read from Linux's /proc, which is not here; leave --processes out")
    case = make_case(name, rows, folder)
    given: dict[str, Any] = {"model": model, "algorithm": algorithm, "l2": L2, "epochs": epochs}
    held = {f"owner-of-{table}": (table, data) for table, data in case.tables.items()} | {"tiny": ("tiny", _tiny())}
    with processes(held) as network:
        case.tables.clear()
        del held
        network.federation.train(_TINY, label="y", **given)  # loads what every job needs
        return _measured(case, network, given)


def _tiny() -> pa.Table:
    k = np.arange(40)
    return pa.table({"k": k, "x": np.sin(k), "y": (k % 2).astype(np.int8)})


def _measured(case: Case, network: Processes, given: dict[str, Any]) -> Apart:
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
