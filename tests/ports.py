"""Ports for servers that tests start."""

from __future__ import annotations

import itertools
import os
import random
import socket
from contextlib import suppress

_EACH = 2_000
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
_FIRST = 12_000 + _EACH * _WORKER
_PORTS = itertools.cycle(random.sample(range(_FIRST, _FIRST + _EACH), _EACH))


def free_port() -> int:
    """A port that stays free while its server is away.

    It lies below those that the kernel gives to outgoing connections. No other worker of a run has it, and this one not
    twice.
    """
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
