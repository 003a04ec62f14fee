"""The memory that this process may take: the machine's, or less where its container has a limit.

Files that are merely cached count as free. Limits are those of control groups, version 2 or 1, and of `ulimit`.

Freed memory: by its own rules glibc keeps long arrays, once for every thread, and gives the few
hundred kilobytes of a shard back after every step. Fixed thresholds do the opposite: long arrays return to the system
at once, shards stay, and so do vectors over a table of a million rows (docs/decisions/measurements.md). They hold for
the whole process: commands and the service set them (`train`, `serve`, `join`, a run's worker), never a user's own
process.
"""

import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")
_STATUS = Path("/proc/self/status")


@cache
def memory_limit() -> int:
    """Bytes that this process and its children can ever have."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *(limit for limit, _ in (*_limits(), *_own_limits()))])


def free_memory() -> int:
    """Bytes that are still free."""
    found = _kernel_bytes(_MEMINFO, "MemAvailable:")
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if found is None else found
    return min([available, *(max(limit - used, 0) for limit, used in (*_limits(), *_own_limits()))])


def _kernel_bytes(path: Path, name: str) -> int | None:
    """The bytes in a line of one of the kernel's tables; None: there is no such line."""
    lines = path.read_text(encoding="ascii", errors="replace").splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


def _limits() -> Iterator[tuple[int, int]]:
    """The limit of each control group that this process is in, and how much of it is used."""
    for folder in _folders():
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _number(folder / limit_file)
            if limit is not None:
                yield limit, max((_number(folder / used_file) or 0) - _cache_bytes(folder), 0)


def _own_limits() -> Iterator[tuple[int, int]]:
    """The limits that were set for this process alone (`ulimit -d`, `-v`), and how much of each is used."""
    for kind, name in ((resource.RLIMIT_DATA, "VmData:"), (resource.RLIMIT_AS, "VmSize:")):
        limit, used = resource.getrlimit(kind)[0], _kernel_bytes(_STATUS, name)
        if limit != resource.RLIM_INFINITY and used is not None:
            yield limit, used


def _folders() -> Iterator[Path]:
    """The folders that may have limits: a container sees its own group as the root, other processes theirs below it."""
    try:
        lines = _SELF.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _GROUPS / "memory" if controllers else _GROUPS
        inside = root / path.strip("/")
        yield from (folder for folder in (inside, *inside.parents) if folder == root or root in folder.parents)


def _number(path: Path) -> int | None:
    """The number in a file; None: no limit, or no such file."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _cache_bytes(folder: Path) -> int:
    """Bytes of files in memory, which the kernel gives back when it must."""
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "total_inactive_file ")))


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h
_MIN_MAPPED_BYTES = 12 << 20  # bytes from which an array is the system's
_MAX_SPARE_BYTES = 64 << 20  # they stay behind, unused, for the next small arrays: a page anew takes microseconds


@cache
def fix_thresholds() -> None:
    """Once in a process."""
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MIN_MAPPED_BYTES)
        mallopt(_TRIM_THRESHOLD, _MAX_SPARE_BYTES)
        mallopt(_ARENA_MAX, 1)


def trim_heap() -> None:
    """Returns freed memory to the system between stages."""
    pa.default_memory_pool().release_unused()
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Any:
    """A function of the C library; None where it has none: musl, and systems other than Linux."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
