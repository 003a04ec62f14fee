"""Stream: parcels both ways over one Flight exchange, and when the other side was last heard.

Any thread may send; one thread receives. Heartbeats slip in between the pieces of a long parcel
and are never returned by `receive`: they only say that the other side lives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tablepuppet.errors import DisconnectedError, TransportError
from tablepuppet.formatting import printable
from tablepuppet.protocol.codec import Frame
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
        """Sends a small parcel if that will not take long; whether it did."""
        if sum(frame.size for frame in frames) > _SMALL or not self._whole.acquire(blocking=False):
            return False
        try:
            for piece in pack(envelope, frames):
                self._write(piece)
        finally:
            self._whole.release()
        return True

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
            if self._is_over:
                raise DisconnectedError("the connection ended")
            try:
                self._writer.write_metadata(pa.py_buffer(piece))
            except (pa.ArrowException, OSError) as error:
                raise DisconnectedError(f"the connection ended ({_why(error)})") from None


def _why(error: BaseException) -> str:
    return str(error).partition(". gRPC")[0][:200] or type(error).__name__
