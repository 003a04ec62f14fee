"""Memory, given back: how the C library's allocator treats arrays while tables are joined and models trained.

glibc learns from what is freed: after the first arrays of some megabytes it keeps the memory of all later ones for
itself, once for every thread, and at the same time it gives the few hundred kilobytes of a shard back after every step,
only to ask for them again, page by page. Fixed thresholds do the opposite: arrays of megabytes return to the system at
once, shards stay (docs/decisions/0023-numpy-before-the-compiler.md). They hold for the whole process; other C libraries
are left alone.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import pyarrow as pa

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h
_LARGE = 4 << 20  # bytes from which an array is the system's
_SPARE = 16 << 20  # bytes that may stay behind, unused, for the next small arrays


@cache
def fix_thresholds() -> None:
    """Once in a process."""
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, _SPARE)
        mallopt(_ARENA_MAX, 1)


def give_back() -> None:
    """Returns what was freed to the system: between stages, the next of which needs other arrays."""
    pa.default_memory_pool().release_unused()
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Any:
    """A function of the C library; None where it has none: musl, and systems other than Linux."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
