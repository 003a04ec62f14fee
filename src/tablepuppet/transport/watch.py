"""Who is at the door, and for how long: strangers that say nothing, and parties that were revoked, are cut off.

In: connections as they come, greet and go. Out: ends of TCP connections. A socket that opens no exchange, or an
exchange without a greeting, lasts `_GREETING` seconds; a certificate that appears in the list of revoked ones ends the
connections that it opened, within `_PERIOD` seconds.

gRPC shows and ends no connection: the process looks at its own TCP connections. Linux only; elsewhere nobody is seen.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from tablepuppet.errors import TransportError
from tablepuppet.transport import certs

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


log = logging.getLogger(__name__)
_GREETING = 15.0  # seconds
_PERIOD = 2.0


@dataclass(eq=False, slots=True)
class Guest:
    """One exchange: whose, since when, and by which certificate once it has greeted."""

    who: str
    peer: tuple[str, int] | None
    since: float = field(default_factory=time.monotonic)
    serial: int | None = None
    is_greeted: bool = False


class Watch:
    """Looks at the guests of one port from time to time, until it is ended."""

    def __init__(self, port: int, revoked: Path | None, greeting: float = _GREETING, period: float = _PERIOD) -> None:
        self._port, self._revoked, self._greeting, self._period = port, revoked, greeting, period
        self._guests: set[Guest] = set()
        self._first: dict[tuple[str, int], float] = {}  # when each connection was first seen
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="door", daemon=True)
        self._thread.start()

    def enter(self, who: str, said: str) -> Guest:
        guest = Guest(who, peer_of(said))
        with self._lock:
            self._guests.add(guest)
        return guest

    def leave(self, guest: Guest) -> None:
        with self._lock:
            self._guests.discard(guest)

    def end(self) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def _look(self) -> None:
        while not self._over.wait(self._period):
            try:
                ending = self._silent() | self._revoked_ones()
            except OSError as error:
                log.warning("the connections cannot be looked at: %s", error.strerror)
                continue
            if ending:
                cut(self._port, ending)

    def _silent(self) -> set[tuple[str, int]]:
        """Connections that have had their time, and no exchange that is greeted."""
        now = time.monotonic()
        there = peers(self._port)
        with self._lock:
            greeted = {guest.peer for guest in self._guests if guest.is_greeted}
        self._first = {peer: self._first.get(peer, now) for peer in there - greeted}
        silent = {peer for peer, since in self._first.items() if now - since > self._greeting}
        if silent:
            log.warning("cut off %d connections that did not greet within %.0f s", len(silent), self._greeting)
        return silent

    def _revoked_ones(self) -> set[tuple[str, int]]:
        with self._lock:
            guests = [guest for guest in self._guests if guest.serial is not None]
        if self._revoked is None or not guests:
            return set()
        try:
            revoked = certs.read_revoked(self._revoked)
        except TransportError as error:
            log.error("%s", error)  # new greetings are refused meanwhile
            return set()
        found = set()
        for guest in guests:
            if guest.serial in revoked and guest.peer is not None:
                log.warning("cut off %s: its certificate was revoked", guest.who)
                found.add(guest.peer)
        return found
