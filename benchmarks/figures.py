"""What one measurement finds, the time to copy bytes beside it, and where figures come from.

Provenance: the version, the machine, and whether it had anything else to do meanwhile. Other work is read from
Linux's /proc/stat: what all processes computed, less this one and those that it has waited for.
"""

from __future__ import annotations

import datetime
import os
import platform
import resource
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tablepuppet import __version__
from tablepuppet.formatting import size

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


IDLE = 0.05  # of the machine's cores: what others may take of one that counts as idle
_STAT, _CPU, _MEMORY = Path("/proc/stat"), Path("/proc/cpuinfo"), Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Of some figures."""

    version: str
    commit: str  # "" outside of a checkout; "+" follows where files were changed
    date: str
    machine: str
    elsewhere: float | None  # the share of all cores that others kept busy; None: nobody knows

    @property
    def is_idle(self) -> bool:
        return self.elsewhere is not None and self.elsewhere <= IDLE

    def sentence(self) -> str:
        """For readers of a page."""
        version = f"version {self.version}" + (f", commit {self.commit}" if self.commit else "")
        if self.elsewhere is None:
            others = "Other work on the machine is not known."
        elif self.is_idle:
            others = "The machine was otherwise idle."
        else:
            others = f"It was not idle: other work took {self.elsewhere:.0%} of its cores. Compare ratios only."
        return f"{self.date}, {version}, {self.machine}. {others}"


class Beginning:
    """When figures began to be measured."""

    def __init__(self) -> None:
        self._all, self._own, self._time = _busy(), _own(), time.perf_counter()

    def provenance(self) -> Provenance:
        """Of what was measured until now."""
        busy, cores = _busy(), os.cpu_count() or 1
        passed = max(time.perf_counter() - self._time, 1e-9) * cores
        elsewhere = None
        if busy is not None and self._all is not None:
            elsewhere = round(max(0.0, busy - self._all - (_own() - self._own)) / passed, 3)
        return Provenance(__version__, _commit(), datetime.date.today().isoformat(), _machine(), elsewhere)


def _busy() -> float | None:
    """CPU seconds of all processes since the machine started; None where nobody counts."""
    if not _STAT.exists():
        return None
    fields = [int(value) for value in _STAT.read_text(encoding="ascii").splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    return float(sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _commit() -> str:
    """Of the checkout that this file is in; a change of pages or tests is no change of what is measured."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=folder, check=False, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", Path(__file__).name):
            return ""
        is_changed = bool(git("status", "--porcelain", "--untracked-files=no", "../src", "."))
        return git("rev-parse", "--short", "HEAD") + "+" * is_changed
    except OSError:  # there is no git
        return ""


def _machine() -> str:
    lines = _CPU.read_text(encoding="utf-8").splitlines() if _CPU.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = ""
    if _MEMORY.exists():
        total = int(_MEMORY.read_text(encoding="ascii").split()[1]) * 1024
        memory = f", {size(total)}"
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores{memory}"
