"""The server's own TCP connections, seen and ended from outside of gRPC, which offers neither.

In: the port that this process listens on. Out: who is connected, and an end to any of them: a stranger that says
nothing, a party whose certificate was revoked meanwhile. Linux only; elsewhere nobody is seen.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

_DESCRIPTORS = Path("/proc/self/fd")
_PEER = re.compile(r"ipv[46]:\[?(?:::ffff:)?([^\]]+?)\]?:(\d+)")


def peer_of(said: str) -> tuple[str, int] | None:
    """Address and port, as gRPC spells them.

    >>> peer_of("ipv4:127.0.0.1:5000"), peer_of("ipv6:%5B::1%5D:5000"), peer_of("unix:x")
    (('127.0.0.1', 5000), ('::1', 5000), None)
    """
    found = _PEER.fullmatch(unquote(said))
    return None if found is None else (found[1], int(found[2]))


def peers(port: int) -> set[tuple[str, int]]:
    """Who is connected to a port of ours."""
    found = set()
    for peer, held in _connections(port):
        held.close()
        found.add(peer)
    return found


def cut(port: int, who: set[tuple[str, int]]) -> None:
    """Ends the connections of these peers; whoever reads from them notices."""
    for peer, held in _connections(port):
        with held:
            if peer in who:
                with suppress(OSError):
                    held.shutdown(socket.SHUT_RDWR)


def _connections(port: int) -> Iterator[tuple[tuple[str, int], socket.socket]]:
    """Each connection with a descriptor of its own, so that nobody closes it, or reuses its number, meanwhile."""
    if not _DESCRIPTORS.is_dir():
        return
    for name in os.listdir(_DESCRIPTORS):
        try:
            if not os.readlink(_DESCRIPTORS / name).startswith("socket:"):
                continue
            held = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        try:
            own, peer = held.getsockname(), held.getpeername()
        except OSError:
            held.close()
            continue
        if isinstance(own, tuple) and own[1] == port:
            yield (str(peer[0]).removeprefix("::ffff:"), int(peer[1])), held
        else:
            held.close()
