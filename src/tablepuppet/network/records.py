"""Records in a file: checked, appended or replaced at once, never half there.

In: an envelope and frames. Out: the same, read again. A record that a crash tore off is not there
at all: its length or its checksum does not fit.

When a file is forced to the disk: at once after a pause, and at most every 50 ms in a rush.

In: "something was written to this file". What was written is with the operating system already, so no death of a
process loses it; only a machine that goes down can. Rounds that take longer than 50 ms, as all do between distant
organisations, are on the disk before their answer leaves. In quicker ones, up to 50 ms of steps are not, and a machine
that goes down then ends the run (decision 0024).

`Slots`: a file that holds the newest of many records, each written over an older one. Three slots of the same size take
turns: one holds the newest record, one the newest that is surely on the disk, and the next is written to the third, so
a crash at any moment leaves a whole one. Nothing but content changes on the disk, which makes it durable four times as
fast as a new file under the old name (decision 0019): no name, no size, no free block moves. A record that outgrows its
slot gets a new file; large ones always do, and have no other slot.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from tablepuppet.errors import TransportError
from tablepuppet.protocol.codec import Buffer, Frame
from tablepuppet.transport.connections import OUT_OF_DESCRIPTORS
from tablepuppet.transport.envelopes import Assembler, Envelope, Parcel, pack

PERIOD = 0.05  # seconds


class Syncing:
    """The syncs of one file; any thread may call."""

    def __init__(self) -> None:
        self._last = -PERIOD
        self._pending: IO[bytes] | None = None
        self._lock = threading.Lock()

    def note_write(self, file: IO[bytes], *, is_urgent: bool = False) -> None:
        """The file has new content, which must be on the disk soon, or when this returns."""
        with self._lock:
            self._pending = file
            if is_urgent or time.monotonic() - self._last >= PERIOD:
                self._sync()

    def finish(self) -> None:
        """Whatever was written is on the disk when this returns."""
        with self._lock:
            self._sync()

    def forget(self) -> None:
        """The file is closed or replaced."""
        with self._lock:
            self._pending = None

    def _sync(self) -> None:
        if self._pending is not None:
            sync(self._pending)
            self._pending = None
            self._last = time.monotonic()

    @property
    def is_finished(self) -> bool:
        return self._pending is None


def sync(file: IO[bytes]) -> None:
    """Waits until a file's content is on the disk; not for the time of its last change, where the system can tell."""
    getattr(os, "fdatasync", os.fsync)(file.fileno())


_HEAD = struct.Struct("<IQI")  # pieces, bytes, checksum
_SIZE = struct.Struct("<I")
_SMALL = 1 << 20
_PATIENCE = 10.0  # seconds that a descriptor is waited for
_ROOM = 1 << 16  # bytes that a card of a run may need


def write_record(file: IO[bytes], envelope: Envelope, frames: Sequence[Frame] = ()) -> None:
    """Appends one record to an unbuffered file and waits until it is on the disk."""
    if is_small(frames):
        write_whole(file, record(envelope, frames))
    else:
        _stream_record(file, envelope, frames)
    sync(file)


def record(envelope: Envelope, frames: Sequence[Frame] = ()) -> bytes:
    """The bytes of a small record."""
    pieces = list(pack(envelope, frames))
    body = b"".join(part for piece in pieces for part in (_SIZE.pack(len(piece)), piece))
    return _HEAD.pack(len(pieces), len(body), _crc32(pieces)) + body


def _stream_record(file: IO[bytes], envelope: Envelope, frames: Sequence[Frame]) -> None:
    start = file.tell()
    write_whole(file, bytes(_HEAD.size))
    pieces = total = checksum = 0
    for piece in pack(envelope, frames):
        write_whole(file, _SIZE.pack(len(piece)) + piece)
        checksum = zlib.crc32(piece, checksum)
        pieces += 1
        total += _SIZE.size + len(piece)
    os.pwrite(file.fileno(), _HEAD.pack(pieces, total, checksum), start)


def is_small(frames: Sequence[Frame]) -> bool:
    """Whether frames are put together in memory, as their record is written at once."""
    return sum(frame.size for frame in frames) <= _SMALL


def write_whole(file: IO[bytes], content: bytes) -> None:
    """All of it, where the operating system would be content with a part."""
    rest = memoryview(content)
    while len(rest):
        rest = rest[file.write(rest) :]


def read_record(file: IO[bytes], types: Any) -> Parcel | None:
    """The next record; None at the end of what was written whole (the file stays where it was)."""
    start = file.tell()
    head = file.read(_HEAD.size)
    parcel: Parcel | None = None
    if len(head) == _HEAD.size:
        pieces, total, expected = _HEAD.unpack(head)
        if pieces and start + _HEAD.size + total <= os.fstat(file.fileno()).st_size:
            parcel = _read_pieces(file, types, pieces, expected)
    if parcel is None:
        file.seek(start)
    return parcel


def _read_pieces(file: IO[bytes], types: Any, pieces: int, expected: int) -> Parcel | None:
    assembler, checksum, parcel = Assembler(types), 0, None
    try:
        for _ in range(pieces):
            (size,) = _SIZE.unpack(file.read(_SIZE.size))
            piece = file.read(size)
            checksum = zlib.crc32(piece, checksum)
            parcel = assembler.feed(memoryview(piece))
    except (struct.error, TransportError):
        return None
    return parcel if checksum == expected else None


def replace_record(path: Path, envelope: Envelope, frames: Sequence[Frame] = ()) -> None:
    """Writes a file of one record; the old one stays until the new one is whole."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        with open_private(temporary, "wb") as file:
            write_record(file, envelope, frames)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def load_record(path: Path, types: Any) -> Parcel:
    """A file's only record."""
    with open(path, "rb", opener=_open) as file:
        parcel = read_record(file, types)
    if parcel is None:
        raise TransportError(f"the checkpoint {path} is damaged; remove its folder and start the run again")
    return parcel


def make_folder(folder: Path) -> None:
    """A folder for state, unless it is there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise TransportError(f"cannot make the folder {folder} for state: {error.strerror}") from None


def open_private(path: Path, mode: str) -> IO[bytes]:
    """An unbuffered file that nobody else may read: it holds labels and answers. An older one is closed to others."""
    file = open(path, mode, buffering=0, opener=_open)  # noqa: SIM115
    if os.fstat(file.fileno()).st_mode & 0o077:
        os.fchmod(file.fileno(), 0o600)
    return file


def _open(name: str, flags: int) -> int:
    """A descriptor that only we may read from; a flood of connections takes them all at times, and is over soon."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return os.open(name, flags, 0o600)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or time.monotonic() > until:
                raise
            time.sleep(0.05)


def lock_folder(folder: Path) -> IO[bytes]:
    """Holds a folder for this process alone, until the file is closed: two in one would spoil each other's state."""
    make_folder(folder)
    try:
        lock = open_private(folder / "lock", "wb")
    except OSError as error:
        raise TransportError(f"cannot write in the folder {folder} for state: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise TransportError(f"another process uses {folder}; stop it, or give this one a state of its own") from None
    return lock


def sync_folder(folder: Path) -> None:
    """Makes names in a folder as durable as the files' content."""
    descriptor = _open(str(folder), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_out_of_room(folder: Path) -> bool:
    """Whether hardly anything can be written in a folder."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < _ROOM


def is_full(error: OSError) -> bool:
    """Whether a disk or a quota has no room left: waiting may help."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def checksum(frames: Iterable[Frame]) -> int:
    """A figure that frames can be told apart by."""
    return _crc32(buffer for frame in frames for buffer in (frame.header, *frame.buffers))


def _crc32(buffers: Iterable[Buffer]) -> int:
    value = 0
    for buffer in buffers:
        value = zlib.crc32(buffer, value)
    return value


_BLOCK = 4096
_SLOTS = 3


class Slots:
    """A file of three slots, open from its first record to `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._room = 0  # bytes of each slot
        self._newest = self._durable = 0  # slots
        self._syncing = Syncing()

    def write(self, envelope: Envelope, frames: Sequence[Frame] = (), *, is_urgent: bool = False) -> None:
        """Makes this the newest record; it survives the process at once, and the machine soon, or now if urgent."""
        if not is_small(frames):
            self._replace(lambda file: write_record(file, envelope, frames), room=0)
            return
        content = record(envelope, frames)
        file = self._open_slots()
        if file is None or len(content) > self._room:
            room = -(-3 * len(content) // 2 // _BLOCK) * _BLOCK
            self._replace(lambda new: write_whole(new, content + bytes(_SLOTS * room - len(content))), room)
            return
        slot = next(slot for slot in range(_SLOTS) if slot not in (self._newest, self._durable))
        file.seek(slot * self._room)
        write_whole(file, content)
        self._newest = slot
        self._syncing.note_write(file, is_urgent=is_urgent)
        if self._syncing.is_finished:
            self._durable = slot

    def read(self, types: Any) -> Parcel:
        """The newest whole record, the one with the highest step."""
        self.close()
        self._file = file = open_private(self._path, "r+b")
        room = os.fstat(file.fileno()).st_size // _SLOTS
        first = read_record(file, types)
        self._room = room if file.tell() <= room else 0  # a record of its own fills the file
        found = [(0, first)] if first is not None else []
        for slot in range(1, _SLOTS) if self._room else ():
            file.seek(slot * room)
            parcel = read_record(file, types)
            found += [(slot, parcel)] if parcel is not None else []
        if not found:
            raise TransportError(f"the checkpoint {self._path} is damaged; remove its folder and start the run again")
        self._newest, newest = max(found, key=lambda f: f[1][0].step)
        self._durable = self._newest
        self._syncing.note_write(file, is_urgent=True)
        return newest

    def finish(self) -> None:
        """The newest record is on the disk when this returns."""
        self._syncing.finish()

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            self._syncing.forget()
            self._file.close()
            self._file = None

    def _open_slots(self) -> IO[bytes] | None:
        """The file, unless it has no slots or somebody has removed it."""
        is_there = self._file is not None and self._room > 0 and os.fstat(self._file.fileno()).st_nlink > 0
        return self._file if is_there else None

    def _replace(self, write: Callable[[IO[bytes]], None], room: int) -> None:
        """A new file in place of the old one, its first slot filled, on the disk."""
        temporary = self._path.with_name(f".{self._path.name}.new")
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        file = open_private(temporary, "w+b")
        try:
            write(file)
            sync(file)
            os.replace(temporary, self._path)
        except OSError:
            file.close()
            temporary.unlink(missing_ok=True)
            raise
        self.close()
        self._file, self._room, self._newest, self._durable = file, room, 0, 0
        sync_folder(self._path.parent)
