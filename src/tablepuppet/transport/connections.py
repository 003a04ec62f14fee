"""Connections: parcels both ways over one Flight exchange; who is at the door, and for how long.

Stream: any thread may send; one thread receives. Heartbeats slip in between the pieces of a long parcel and are never
returned by `receive`: they only say that the other side lives.

Watch: strangers that say nothing, and parties that were revoked, are cut off. A socket that opens no exchange, or an
exchange without a greeting, lasts `_GREETING` seconds; a certificate that appears in the list of revoked ones ends the
connections that it opened, within `_PERIOD` seconds. gRPC shows and ends no connection: the process looks at its own
TCP connections. Linux only; elsewhere nobody is seen.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from tablepuppet.errors import DisconnectedError, TransportError
from tablepuppet.formatting import printable
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport import certs
from tablepuppet.transport.envelopes import LIMIT, PIECE, Assembler, Envelope, Heartbeat, Parcel, Room, pack

_BEAT = b"H"
_LARGEST_PIECE = 2 * PIECE + 1024
_SMALL = 1 << 14  # bytes that fit into every window of flow control, so that no one has to read them first


class Stream:
    """One connection, seen from either end."""

    def __init__(
        self,
        reader: Any,
        writer: Any,
        types: Any,
        limit: int = LIMIT,
        cancel: Callable[[], None] | None = None,
        room: Room | None = None,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._assembler = Assembler(types, limit, room)
        self._whole, self._piece = threading.Lock(), threading.Lock()
        self._cancel = cancel
        self._is_over = False
        self._unanswered = 0  # bytes that were sent since the other side answered a question
        self.heard = time.monotonic()
        self.note = ""  # of the other side's last heartbeat

    @property
    def limit(self) -> int:
        """Bytes of a parcel, at the most."""
        return self._assembler.limit

    def allow(self, limit: int) -> None:
        """Parcels may be this large from now on."""
        self._assembler.limit = limit

    def send(self, envelope: Envelope, frames: Sequence[Frame] = ()) -> None:
        """Sends a parcel; other parcels wait until it is through."""
        with self._whole:
            for piece in pack(envelope, frames):
                self._write(piece)

    def send_now(self, envelope: Envelope, frames: Sequence[Frame] = ()) -> bool:
        """Sends a small parcel if that will not take long; whether it did: somebody who does not read keeps no one."""
        size = sum(frame.size for frame in frames)
        if self._unanswered + size > _SMALL or not self._whole.acquire(blocking=False):
            return False
        try:
            if not self._piece.acquire(blocking=False):
                return False
            try:
                for piece in pack(envelope, frames):
                    self._write_piece(piece)
            finally:
                self._piece.release()
        finally:
            self._whole.release()
        return True

    def answered(self) -> None:
        """The other side has read what was sent: it answers it."""
        self._unanswered = 0

    def beat(self, note: str = "") -> None:
        """A sign of life."""
        for piece in pack(Heartbeat(note=note)):
            self._write(_BEAT + piece)

    def receive(self) -> Parcel:
        """The other side's next parcel; DisconnectedError when it is gone."""
        while True:
            try:
                piece = self._reader.read_chunk().app_metadata
            except (StopIteration, pa.ArrowException, OSError) as error:
                raise DisconnectedError(f"the connection ended ({_why(error)})") from None
            self.heard = time.monotonic()
            content = memoryview(b"" if piece is None else piece).cast("B")
            if len(content) > _LARGEST_PIECE:
                raise TransportError(f"a piece of {len(content):,} bytes is larger than any that is sent")
            if content[:1] == _BEAT:
                self._hear(content[1:])
                continue
            parcel = self._assembler.feed(content)
            if parcel is not None:
                return parcel

    def cancel(self) -> None:
        """Gives the connection up, from any thread: `receive` ends at once (on a client's end)."""
        if self._cancel is not None:
            self._cancel()

    def end(self) -> None:
        """Nothing is written any more once this returns: Flight's writer must not outlive its call, even in use."""
        with self._piece:
            self._is_over = True
        self._assembler.drop()

    def _hear(self, content: memoryview) -> None:
        parcel = Assembler(Heartbeat, limit=0).feed(content)
        if parcel is not None:
            self.note = printable(parcel[0].note[:200])

    def _write(self, piece: bytes) -> None:
        with self._piece:
            self._write_piece(piece)

    def _write_piece(self, piece: bytes) -> None:
        if self._is_over:
            raise DisconnectedError("the connection ended")
        self._unanswered += len(piece)
        try:
            self._writer.write_metadata(pa.py_buffer(piece))
        except (pa.ArrowException, OSError) as error:
            raise DisconnectedError(f"the connection ended ({_why(error)})") from None


def _why(error: BaseException) -> str:
    return str(error).partition(". gRPC")[0][:200] or type(error).__name__


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
