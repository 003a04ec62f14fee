"""A pipe between two processes of one machine: envelopes and frames, whole, in order.

In: an envelope and frames. Out: the same at the other end. Nothing is cut to pieces and no buffer is copied more than
once, since both ends are on one machine and trust each other to be the same program.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tablepuppet.errors import DisconnectedError
from tablepuppet.protocol.codec import Buffer, Frame
from tablepuppet.transport.envelopes import Envelope, Parcel

_LENGTH = struct.Struct("<I")
_AT_ONCE = 512  # buffers of one system call


class _Label(msgspec.Struct, frozen=True, array_like=True):
    envelope: msgspec.Raw
    sizes: list[list[int]]


class Pipe:
    """One end; one thread reads and one writes."""

    def __init__(self, end: socket.socket, types: Any) -> None:
        self._end = end
        self._decoder = msgspec.msgpack.Decoder(types)
        self._labels = msgspec.msgpack.Decoder(_Label)

    def send(self, envelope: Envelope, frames: Sequence[Frame] = ()) -> None:
        sizes = [[len(f.header), *(len(b) for b in f.buffers)] for f in frames]
        label = msgspec.msgpack.encode(_Label(msgspec.Raw(msgspec.msgpack.encode(envelope)), sizes))
        buffers: list[Buffer] = [_LENGTH.pack(len(label)) + label]
        buffers += [b for f in frames for b in (f.header, *f.buffers) if len(b)]
        try:
            for start in range(0, len(buffers), _AT_ONCE):
                self._send(buffers[start : start + _AT_ONCE])
        except OSError as error:
            raise DisconnectedError(f"the other process is gone ({error.strerror})") from None

    def receive(self) -> Parcel:
        """The next envelope and its frames; DisconnectedError when the other end is gone."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        label = self._labels.decode(self._read(length))
        frames = []
        for header, *sizes in label.sizes:
            frames.append(Frame(bytes(self._read(header)), [self._read(size).toreadonly() for size in sizes]))
        return self._decoder.decode(label.envelope), frames

    def is_readable(self, seconds: float) -> bool:
        waiting = select.poll()  # select() knows no descriptor beyond 1,023
        waiting.register(self._end, select.POLLIN)
        return bool(waiting.poll(1000 * seconds))

    def close(self) -> None:
        self._end.close()

    def _send(self, buffers: list[Buffer]) -> None:
        rest = [memoryview(b).cast("B") for b in buffers]
        while rest:
            sent = self._end.sendmsg(rest)
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if rest and sent:
                rest[0] = rest[0][sent:]

    def _read(self, size: int) -> memoryview:
        place = np.empty(size, np.uint8).data  # address space only; memory comes as the bytes do
        got = 0
        try:
            while got < size:
                count = self._end.recv_into(place[got:])
                if not count:
                    raise DisconnectedError("the other process is gone")
                got += count
        except OSError as error:
            raise DisconnectedError(f"the other process is gone ({error.strerror})") from None
        return place
