"""What one measurement finds, and the yardstick beside it: the time to copy bytes."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

L2 = 1e-4
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in seconds; an epoch's are means over all but the first."""

    case: str
    algorithm: str
    joined_rows: int
    mapping: float  # of a baseline: materialising the join
    epoch: float  # of a baseline: the whole fit
    server: float  # of an epoch
    clients: float  # of an epoch
    cpu: float  # of the whole run
    total: float
    epochs: int
    objective: float
    bytes: int  # of an epoch
    peak: int  # bytes of memory, the tables included
    limit: float  # time to copy what an epoch must move at least once
    step: float | None = None  # the server's step by itself, where something is kept per joined row
    cores: float | None = None  # that it kept busy


HEADINGS = (
    *("case", "algorithm", "mapping s", "epoch s", "server s", "× copy", "clients s", "total s", "CPU s"),
    *("F", "MB/epoch", "peak MB", "B/row"),
)


def cells(f: Figures) -> list[str]:
    """A row of the table of figures."""
    return [
        f.case,
        f.algorithm,
        *(f"{value:.3f}" for value in (f.mapping, f.epoch, f.server)),
        f"{f.server / f.limit:.1f}",
        *(f"{value:.3f}" for value in (f.clients, f.total, f.cpu)),
        f"{f.objective:.8f}",
        f"{f.bytes / 1e6:.2f}",
        f"{f.peak / 1e6:.0f}",
        f"{f.peak / f.joined_rows:.0f}",
    ]


def copy_seconds(size: int) -> float:
    """The time to copy this many bytes from one place in memory to another."""
    piece = min(size, 1 << 28)
    source, target = np.ones(piece, np.uint8), np.empty(piece, np.uint8)
    np.copyto(target, source)  # touches the pages
    began = time.perf_counter()
    np.copyto(target, source)
    return (time.perf_counter() - began) * size / max(1, piece)


def peak() -> int:
    """The most memory that this process has had, in bytes.

    From /proc where there is one: getrusage counts what the parent held when it started this process, too.
    """
    if _STATUS.exists():
        return memory(_STATUS, "VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory(status: Path, which: str) -> int:
    """Bytes, from a process's status file as Linux writes it."""
    line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith(f"{which}:"))
    return int(line.split()[1]) * 1024
