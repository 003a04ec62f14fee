"""Slots: a file that holds the newest of many records, each written over the one before the last.

In: an envelope and frames. Out: the newest that was written whole. Two slots of the same size take turns, so a crash
while one is written leaves the other. Nothing but their content changes on the disk, which makes it durable four times
as fast as a new file under the old name (decision 0019): no name, no size, no free block moves. A record that
outgrows its slot gets a new file; large ones always do, and have no second slot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from tablepuppet.errors import TransportError
from tablepuppet.network.records import (
    is_small,
    read_record,
    record,
    sync,
    sync_folder,
    write_record,
    write_whole,
)
from tablepuppet.transport.codec import Frame
from tablepuppet.transport.parcels import Envelope, Parcel

_BLOCK = 4096


class Slots:
    """A file of two slots, open from its first record to `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._room = 0  # bytes of each slot
        self._held = 0  # the slot of the newest record

    def write(self, envelope: Envelope, frames: Sequence[Frame] = ()) -> None:
        """Makes this the newest record; when this returns, it is on the disk."""
        if not is_small(frames):
            self._replace(lambda file: write_record(file, envelope, frames), room=0)
            return
        content = record(envelope, frames)
        file = self._open_slots()
        if file is None or len(content) > self._room:
            room = -(-3 * len(content) // 2 // _BLOCK) * _BLOCK
            self._replace(lambda new: write_whole(new, content + bytes(2 * room - len(content))), room)
            return
        file.seek((1 - self._held) * self._room)
        write_whole(file, content)
        sync(file)
        self._held = 1 - self._held

    def read(self, types: Any) -> Parcel:
        """The newest whole record, the one with the higher step."""
        self.close()
        self._file = file = self._path.open("r+b", buffering=0)
        middle = os.fstat(file.fileno()).st_size // 2
        first = read_record(file, types)
        self._room = middle if file.tell() <= middle else 0  # a record of its own fills the file
        file.seek(middle)
        second = read_record(file, types) if self._room else None
        found = [(parcel[0].step, slot, parcel) for slot, parcel in enumerate((first, second)) if parcel is not None]
        if not found:
            raise TransportError(f"the checkpoint {self._path} is damaged; remove its folder and start the run again")
        _, self._held, newest = max(found, key=lambda f: f[0])
        return newest

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_slots(self) -> IO[bytes] | None:
        """The file, unless it has no slots or somebody has removed it."""
        is_there = self._file is not None and self._room > 0 and os.fstat(self._file.fileno()).st_nlink > 0
        return self._file if is_there else None

    def _replace(self, write: Callable[[IO[bytes]], None], room: int) -> None:
        """A new file in place of the old one, its first slot filled."""
        temporary = self._path.with_name(f".{self._path.name}.new")
        self._path.parent.mkdir(exist_ok=True)
        file = temporary.open("w+b", buffering=0)
        try:
            write(file)
            sync(file)
            os.replace(temporary, self._path)
        except OSError:
            file.close()
            temporary.unlink(missing_ok=True)
            raise
        self.close()
        self._file, self._room, self._held = file, room, 0
        sync_folder(self._path.parent)
