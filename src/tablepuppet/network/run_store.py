"""Durable state of a process: records of its runs in one SQLite file, which no other process may open.

In: an envelope and frames, under a run, a part and a number. Out: the same, read again, or nothing after a torn write.
The write-ahead log holds every record at once, so no death of a process loses one. A power cut loses no urgent record,
and none of a run whose rounds take longer than `_PERIOD`. In quicker ones the log is forced to the disk that often; the
records in between are with the operating system.

An earlier release kept a file for each record; `read_earlier_runs` reads them once.
"""

import errno
import logging
import os
import shutil
import sqlite3
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from tablepuppet.errors import TransportError
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport.envelopes import Assembler, Envelope, Parcel, pack

log = logging.getLogger(__name__)
Part = Literal["card", "step", "setup", "last", "heads"]
Key = tuple[str, Part, int]  # a run, a part of its state, a number
Record = tuple[Envelope, Sequence[Frame]]
_FILE = "runs.sqlite"
_PERIOD = 0.05  # seconds between two times that the log is forced to the disk, where nothing is urgent
_LONGEST_PAUSE = 5.0  # seconds between two attempts to write to a full disk
_HANDOVER = 5.0  # seconds that another process may still take to end
_LEAST_ROOM = 1 << 16  # bytes that a card of a run may need
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)  # the second where a quota is used up
_OPENING = (
    "PRAGMA locking_mode = EXCLUSIVE",  # before anything else: then the log needs no shared memory, nor a third file
    "PRAGMA auto_vacuum = FULL",  # a run that is over gives its room back
    "PRAGMA secure_delete = FAST",
    "PRAGMA journal_mode = WAL",
    "PRAGMA wal_autocheckpoint = 64",  # pages, 256 KiB: the log takes no room that the database needs
    "PRAGMA journal_size_limit = 262144",
    "CREATE TABLE IF NOT EXISTS pieces (run TEXT, part TEXT, number INTEGER, piece INTEGER, checksum INTEGER, "
    "content BLOB, PRIMARY KEY (run, part, number, piece))",
    "BEGIN IMMEDIATE",  # another process that has it open is noticed here
    "COMMIT",
)


_EMPTY_LOG = "PRAGMA wal_checkpoint(TRUNCATE)"


class StoreError(TransportError):
    """A record cannot be written or read; the message has the reason."""


class RunStore:
    """Records of runs, in a folder; any thread may call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = path = folder / _FILE
        self._lock = threading.RLock()
        self._synced = 0.0  # when the log was forced to the disk
        self._is_tidy = False  # whether the log holds nothing that was removed
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # it holds labels and answers
            path.chmod(0o600)
        except OSError as error:
            raise StoreError(f"cannot write in the folder {folder} for state: {error.strerror}") from None
        self._database = sqlite3.connect(path, timeout=_HANDOVER, isolation_level=None, check_same_thread=False)
        try:
            for statement in _OPENING:
                self._database.execute(statement)
        except sqlite3.Error as error:
            self._database.close()
            if _code(error) & 0xFF == sqlite3.SQLITE_BUSY:
                raise StoreError(
                    f"another process uses {folder}; stop it, or give this one a state of its own"
                ) from None
            raise StoreError(
                f"the state in {path} cannot be used: {_reason(error)}. If it is damaged, move it away; runs under way "
                "must then be started again"
            ) from None

    def write(
        self,
        records: Mapping[Key, Record],
        *,
        remove: Iterable[tuple[str, Part]] = (),
        is_urgent: bool = True,
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """Replaces these records and removes parts of runs, all at once or not at all.

        `is_urgent`: it is on the disk when this returns. `waits`: asked whether a full disk is still waited for.
        """
        pause = 0.0
        while True:
            try:
                with self._lock:
                    self._write(records, remove, is_urgent)
                return
            except sqlite3.Error as error:
                if _code(error) not in _FULL or (pause and not waits()):
                    raise StoreError(_reason(error)) from None
            if pause:
                log.warning("no room in %s; trying again in %.1f s", self._path, pause)
                time.sleep(pause)
            with self._lock, suppress(sqlite3.Error):
                self._database.execute(_EMPTY_LOG)  # which takes room, too
            pause = min(2 * pause, _LONGEST_PAUSE) or 0.1

    def _write(self, records: Mapping[Key, Record], remove: Iterable[tuple[str, Part]], is_urgent: bool) -> None:
        database, now = self._database, time.monotonic()
        is_synced = is_urgent or now - self._synced >= _PERIOD
        database.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
        try:
            database.execute("BEGIN IMMEDIATE")
            for run, part in remove:
                self._is_tidy = False
                database.execute("DELETE FROM pieces WHERE run = ? AND part = ?", (run, part))
            for key, (envelope, frames) in records.items():
                database.execute("DELETE FROM pieces WHERE run = ? AND part = ? AND number = ?", key)
                rows = ((*key, i, zlib.crc32(piece), piece) for i, piece in enumerate(pack(envelope, frames)))
                database.executemany("INSERT INTO pieces VALUES (?, ?, ?, ?, ?, ?)", rows)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        self._synced = now if is_synced else self._synced

    def read(self, key: Key, types: Any) -> Parcel | None:
        query = "SELECT checksum, content FROM pieces WHERE run = ? AND part = ? AND number = ? ORDER BY piece"
        parcel, is_there = None, False
        try:
            with self._lock:
                assembler = Assembler(types)
                for checksum, piece in self._database.execute(query, key):
                    is_there = True
                    if zlib.crc32(piece) != checksum:
                        raise StoreError("its checksum does not fit")
                    parcel = assembler.feed(memoryview(piece))
        except (sqlite3.Error, TransportError) as error:
            raise StoreError(f"the state of run {key[0]} is damaged ({error}); start the run again") from None
        if is_there and parcel is None:
            raise StoreError(f"the state of run {key[0]} is damaged (its end is missing); start the run again")
        return parcel

    def numbers(self, run: str, part: Part) -> list[int]:
        found = self._select("SELECT DISTINCT number FROM pieces WHERE run = ? AND part = ? ORDER BY 1", run, part)
        return [number for (number,) in found]

    def size(self, run: str, part: Part) -> int:
        ((size,),) = self._select("SELECT sum(length(content)) FROM pieces WHERE run = ? AND part = ?", run, part)
        return int(size or 0)

    def runs(self) -> list[str]:
        return [run for (run,) in self._select("SELECT DISTINCT run FROM pieces WHERE run != '' ORDER BY 1")]

    def forget(self, run: str) -> None:
        """Removes a run's records; `tidy` removes them from the log, too."""
        try:
            with self._lock:
                self._database.execute("PRAGMA synchronous = NORMAL")
                self._is_tidy = False
                self._database.execute("DELETE FROM pieces WHERE run = ?", (run,))
        except sqlite3.Error as error:
            log.warning("run %s cannot be removed from %s: %s", run, self._path, _reason(error))

    def tidy(self) -> None:
        """Leaves nothing of removed records on the disk; takes some milliseconds, where anything was removed."""
        if self._is_tidy:
            return
        with self._lock, suppress(sqlite3.Error):  # a full disk, or a store that is closed: another time
            self._database.execute(_EMPTY_LOG)
            self._is_tidy = True

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _select(self, query: str, *given: str) -> list[Any]:
        try:
            with self._lock:
                return self._database.execute(query, given).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the state in {self._path} is damaged ({error}); start its runs again") from None


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # Python's own have none


def _reason(error: sqlite3.Error) -> str:
    return os.strerror(errno.ENOSPC) if _code(error) in _FULL else str(error)


def is_out_of_room(folder: Path) -> bool:
    """Whether hardly anything can be written in a folder."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < _LEAST_ROOM


_HEAD = struct.Struct("<IQI")  # pieces, bytes, checksum
_SIZE = struct.Struct("<I")


def read_earlier_runs(folder: Path, types: Any) -> Iterator[tuple[str, Parcel]]:
    """Each run in a folder of an earlier release, by name; its files are removed once the next one is asked for."""
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            yield place.name, _read_earlier((place / "run").read_bytes(), types)
        except (OSError, TransportError, struct.error) as error:
            log.error("run %s cannot be read and is passed over: %s", place.name, error)
            continue
        shutil.rmtree(place, ignore_errors=True)


def remove_earlier_checkpoints(folder: Path) -> None:
    """Removes what clients of an earlier release kept of their runs, which end at the server."""
    for place in folder.glob("[0-9a-f]" * 16):
        shutil.rmtree(place, ignore_errors=True)


def _read_earlier(content: bytes, types: Any) -> Parcel:
    pieces, _, checksum = _HEAD.unpack_from(content)
    assembler, parcel, start, found = Assembler(types), None, _HEAD.size, 0
    for _ in range(pieces):
        (size,) = _SIZE.unpack_from(content, start)
        piece = content[start + _SIZE.size : start + _SIZE.size + size]
        start += _SIZE.size + size
        found = zlib.crc32(piece, found)
        parcel = assembler.feed(memoryview(piece))
    if parcel is None or found != checksum:
        raise TransportError("it is damaged")
    return parcel
