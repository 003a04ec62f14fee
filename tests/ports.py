"""Ports for servers that tests start."""

from __future__ import annotations

import fcntl
import itertools
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

_EACH, _BLOCKS = 1_000, range(12_000, 32_000, 1_000)


def _take_block() -> tuple[int, IO[bytes] | None]:
    """The first port of a block that no other test process of this machine has, and the file that says so."""
    for first in _BLOCKS:
        with suppress(OSError):
            file = (Path(tempfile.gettempdir()) / f"tablepuppet-ports-{first}").open("wb")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return first, file
    return random.choice(_BLOCKS), None


_FIRST, _HELD = _take_block()
_PORTS = itertools.cycle(random.sample(range(_FIRST, _FIRST + _EACH), _EACH))


def free_port() -> int:
    """A port that stays free while its server is away.

    It lies below those that the kernel gives to outgoing connections. No other process of tests has it, and this one
    not twice.
    """
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
