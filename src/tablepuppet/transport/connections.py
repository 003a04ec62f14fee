"""Connections: parcels both ways over one Flight exchange; and limits on who may stay connected.

Stream: any thread may send; one thread receives. Heartbeats slip in between the pieces of a long parcel and are never
returned by `receive`: they only show that the other side lives.

Watch: ends connections of silent strangers, of too many strangers and of revoked parties, so that descriptors are
left for the parties of the federation; some are kept for files. A connection that has not greeted lasts some seconds
(`Limits`). A newly revoked certificate ends the connections that it opened. gRPC neither lists nor ends connections:
the process inspects its own TCP connections. Linux only; elsewhere nobody is seen.
"""

import errno
import logging
import os
import re
import resource
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from tablepuppet.errors import DisconnectedError, JobError, TransportError
from tablepuppet.formatting import printable
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport import certs
from tablepuppet.transport.envelopes import PIECE, Assembler, Envelope, Heartbeat, Parcel, pack

OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_SPARE = 32
_REVOKED_PERIOD = 2.0  # seconds between two reads of the list of revoked certificates
_BEAT = b"H"
_LARGEST_PIECE = 2 * PIECE + 1024


class SpareDescriptors:
    """Descriptors that this process keeps for what it must open while strangers hold all others."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._lock = threading.Lock()

    def fill(self) -> None:
        """Takes as many as are missing, or as there are."""
        with self._lock, suppress(OSError):
            while len(self._held) < _SPARE:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    @contextmanager
    def lend(self) -> Iterator[None]:
        """All of them are free inside: strangers take some of them, too."""
        with self._lock:
            while self._held:
                os.close(self._held.pop())
        try:
            yield
        finally:
            self.fill()


SPARE = SpareDescriptors()


class Stream:
    """One connection, seen from either end."""

    def __init__(
        self, reader: Any, writer: Any, assembler: Assembler, cancel: Callable[[], None] | None = None
    ) -> None:
        self._reader, self._writer, self._assembler = reader, writer, assembler
        self._whole, self._piece = threading.Lock(), threading.Lock()
        self._cancel = cancel
        self._is_over = False
        self.heard = time.monotonic()
        self.note = ""  # of the other side's last heartbeat

    @property
    def limit(self) -> int:
        return self._assembler.limit

    def allow(self, limit: int) -> None:
        self._assembler.limit = limit

    def send(self, envelope: Envelope, frames: Sequence[Frame] = ()) -> None:
        """Sends a parcel; other parcels wait until it is through."""
        with self._whole:
            for piece in pack(envelope, frames):
                self._write(piece)

    def beat(self, note: str = "") -> None:
        for piece in pack(Heartbeat(note=note)):
            self._write(_BEAT + piece)

    def receive(self) -> Parcel:
        """The other side's next parcel; DisconnectedError when it is gone."""
        while True:
            try:
                piece = self._reader.read_chunk().app_metadata
            except (StopIteration, pa.ArrowException, OSError) as error:
                raise DisconnectedError(f"the connection ended ({first_line(error)})") from None
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
            if self._is_over:
                raise DisconnectedError("the connection ended")
            try:
                self._writer.write_metadata(pa.py_buffer(piece))
            except (pa.ArrowException, OSError) as error:
                raise DisconnectedError(f"the connection ended ({first_line(error)})") from None


def first_line(error: BaseException) -> str:
    """The error, without the names of those who pass it on.

    >>> first_line(OSError("Flight returned unavailable error, with message: failed to connect to all addresses; "
    ...                    "last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused. gRPC client debug context: …"))
    'ipv4:127.0.0.1:1: Connection refused'
    """
    said = str(error).partition(". gRPC")[0].rpartition("with message: ")[2].rpartition("last error: ")[2]
    return said.removeprefix("UNKNOWN: ")[:200] or type(error).__name__


_DESCRIPTORS = "/proc/self/fd"
_PEER = re.compile(r"ipv[46]:\[?(?:::ffff:)?([^\]]+?)\]?:(\d+)")
_BYTES_RECEIVED = 128  # where Linux's tcp_info has them
Peer = tuple[str, int]


def peer_of(said: str) -> Peer | None:
    """Address and port, as gRPC spells them.

    >>> peer_of("ipv4:127.0.0.1:5000"), peer_of("ipv6:%5B::1%5D:5000"), peer_of("unix:x")
    (('127.0.0.1', 5000), ('::1', 5000), None)
    """
    found = _PEER.fullmatch(unquote(said))
    return None if found is None else (found[1], int(found[2]))


class OpenSockets:
    """The TCP connections of one port of this process. Listing them takes no free descriptor: a flood leaves none.

    Each is read through a descriptor of our own, so that nobody closes it, or reuses its number, meanwhile.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._place = os.dup(self._nothing)

    def __iter__(self) -> Iterator[tuple[Peer, socket.socket]]:
        try:
            for number in _numbers():
                held = self._hold(number)
                if held is None:
                    continue
                try:
                    peer = _peer_on(held, self._port)
                    if peer is not None:
                        yield peer, held
                finally:
                    held.detach()
        finally:
            os.dup2(self._nothing, self._place, inheritable=False)

    def cut(self, who: Set[Peer]) -> None:
        """Ends the connections of these peers; their readers notice."""
        for peer, held in self:
            if peer in who:
                with suppress(OSError):
                    held.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        os.close(self._place)
        os.close(self._nothing)

    def _hold(self, number: int) -> socket.socket | None:
        try:
            if number == self._place or not stat.S_ISSOCK(os.fstat(number).st_mode):
                return None
            os.dup2(number, self._place, inheritable=False)
            return socket.socket(fileno=self._place)
        except OSError:
            return None


def _numbers() -> Iterable[int]:
    """Descriptors of this process: those listed, or all that can be where not even a list can be opened."""
    try:
        return [int(name) for name in os.listdir(_DESCRIPTORS)]
    except OSError as error:
        if error.errno not in OUT_OF_DESCRIPTORS:
            return ()  # not Linux
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _peer_on(held: socket.socket, port: int) -> Peer | None:
    try:
        own, peer = held.getsockname(), held.getpeername()
    except OSError:
        return None
    is_ours = isinstance(own, tuple) and own[1] == port
    return (str(peer[0]).removeprefix("::ffff:"), int(peer[1])) if is_ours else None


def _has_spoken(held: socket.socket) -> bool:
    """Whether any byte has come; True where the system does not report it."""
    try:
        info = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
    except (OSError, AttributeError):
        return True
    return len(info) < _BYTES_RECEIVED + 8 or any(info[_BYTES_RECEIVED:])


log = logging.getLogger(__name__)


class RevokedList:
    """The list of revoked certificates, in memory; read again whenever its file changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None
        self._numbers: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        with suppress(JobError):  # whoever greets is refused
            self.read()

    def read(self) -> frozenset[int]:
        with self._lock:
            try:
                found = os.stat(self._path)
                seen = found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
            except OSError:
                seen = None
            if seen is None or seen != self._seen:
                with SPARE.lend():
                    self._numbers = certs.read_revoked(self._path)
                self._seen = seen
            return self._numbers


class Limits(msgspec.Struct, frozen=True):
    """How long, and how many, connections stay that have not greeted."""

    silent: float = 3.0  # seconds without a byte
    greeting: float = 10.0  # seconds with bytes, and no greeting
    period: float = 0.1  # seconds between two checks
    per_address: int = 128
    all: int = 512  # or half of the descriptors, if that is less


class _Stranger(msgspec.Struct, frozen=True):
    peer: Peer
    since: float
    has_spoken: bool


def find_excess(strangers: Iterable[_Stranger], limits: Limits, now: float) -> set[Peer]:
    """The strangers to disconnect: those whose time is over, then the silent before the others, the oldest first."""
    ending, staying = set(), []
    for stranger in strangers:
        if now - stranger.since > (limits.greeting if stranger.has_spoken else limits.silent):
            ending.add(stranger.peer)
        else:
            staying.append(stranger)
    staying.sort(key=lambda s: (s.has_spoken, s.since))
    of_address = Counter(s.peer[0] for s in staying)
    left = len(staying)
    for stranger in staying:
        address = stranger.peer[0]
        if left > limits.all or of_address[address] > limits.per_address:
            ending.add(stranger.peer)
            of_address[address] -= 1
            left -= 1
    return ending


class Guest(msgspec.Struct, eq=False):
    """One exchange: whose, and by which certificate once it has greeted."""

    who: str
    peer: Peer | None
    serial: int | None = None
    is_greeted: bool = False


class Watch:
    """Checks the connections of one port again and again, until it is ended."""

    def __init__(self, port: int, revoked: RevokedList | None) -> None:
        half = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._limits = Limits(all=min(Limits().all, half))
        self._revoked = revoked
        self._sockets = OpenSockets(port)
        self._guests: set[Guest] = set()
        self._first: dict[Peer, float] = {}  # when each connection was first seen
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="strangers", daemon=True)
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
        self._thread.join()
        self._sockets.close()

    def _watch(self) -> None:
        looked = time.monotonic()
        while not self._over.wait(self._limits.period):
            ending = self._find_strangers()
            if time.monotonic() - looked > _REVOKED_PERIOD:
                looked = time.monotonic()
                ending |= self._find_revoked()
            if ending:
                self._sockets.cut(ending)
            SPARE.fill()

    def _find_strangers(self) -> set[Peer]:
        now = time.monotonic()
        found = {peer: _has_spoken(held) for peer, held in self._sockets}
        with self._lock:
            greeted = {guest.peer for guest in self._guests if guest.is_greeted}
        self._first = {peer: self._first.get(peer, now) for peer in found if peer not in greeted}
        strangers = (_Stranger(peer, since, found[peer]) for peer, since in self._first.items())
        ending = find_excess(strangers, self._limits, now)
        if ending:
            log.warning("cut off %d of %d connections that have not greeted", len(ending), len(self._first))
        return ending

    def _find_revoked(self) -> set[Peer]:
        with self._lock:
            guests = [guest for guest in self._guests if guest.serial is not None]
        if self._revoked is None or not guests:
            return set()
        try:
            revoked = self._revoked.read()
        except JobError as error:
            log.error("%s", error)  # new greetings are refused meanwhile
            return set()
        found = set()
        for guest in guests:
            if guest.serial in revoked and guest.peer is not None:
                log.warning("cut off %s: its certificate was revoked", guest.who)
                found.add(guest.peer)
        return found
