"""Envelopes around frames on a network: the handshake, numbered requests, signs of life.

Every envelope that a client may send, or be sent, is here; frames (protocol/) lie inside
`Request` and `Reply` only. A request is known by its run and step: sent twice, it is answered twice
with the same reply and acted upon once.

Parcel ↔ pieces: an envelope and its frames, cut to pieces that any stream can carry.

In: an envelope (a typed struct) and frames of any size. Out: pieces of at most a mebibyte, the
first of which announces all sizes. `Assembler` joins them again straight into their final
buffers. It refuses malformed or too large pieces before it takes any memory for them.

Fingerprint: two ends with the same one understand each other's messages, whatever versions their packages have.
It covers names, fields and declared types; `PROTOCOL` covers their meaning.
"""

import builtins
import hashlib
import inspect
import re
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from tablepuppet.errors import TransportError
from tablepuppet.exchanges.registry import REQUESTS, RESPONSES
from tablepuppet.formatting import printable
from tablepuppet.protocol.codec import Frame
from tablepuppet.protocol.evidence import TreeHead

PIECE = 1 << 20
LIMIT = 1 << 34  # bytes of one parcel, unless the federation sets another limit
_LONGEST_LABEL = 1 << 20
_MOST_BUFFERS = 1 << 17
_LEAST = 1 << 12  # bytes of a label, whatever the limit
_FIRST, _MORE = b"M", b"C"
_LENGTH = struct.Struct("<I")


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, kw_only=True):
    """Base of all envelopes in a parcel."""


class _Label(msgspec.Struct, frozen=True, array_like=True):
    """The announcement of a parcel: its envelope, and the sizes of all that follows."""

    envelope: msgspec.Raw
    sizes: list[list[int]]  # of each frame: its header, then its buffers


Parcel = tuple[Any, list[Frame]]
_decode_label = msgspec.msgpack.Decoder(_Label).decode


@cache
def _decoder(types: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(types)


def pack(envelope: Envelope, frames: Sequence[Frame] = ()) -> Iterator[bytes]:
    """The pieces of a parcel.

    >>> [len(piece) <= PIECE for piece in pack(Envelope(), [Frame(b"h", [bytes(PIECE)])])]
    [True, True]
    """
    sizes = [[len(f.header), *(len(b) for b in f.buffers)] for f in frames]
    label = msgspec.msgpack.encode(_Label(msgspec.Raw(msgspec.msgpack.encode(envelope)), sizes))
    piece = bytearray(_FIRST + _LENGTH.pack(len(label)) + label)
    for buffer in (b for f in frames for b in (f.header, *f.buffers)):
        rest = memoryview(buffer)
        while len(rest):
            room = max(PIECE - len(piece), 0)
            piece += rest[:room]
            rest = rest[room:]
            if len(piece) >= PIECE:
                yield bytes(piece)
                piece = bytearray(_MORE)
    if piece != _MORE:
        yield bytes(piece)


class NoRoomError(TransportError):
    """A parcel found no room now; another time it may."""


class Room:
    """Bytes that all incoming parcels may take in total; any thread may ask."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        with self._lock:
            if size > self._left:
                raise NoRoomError(f"there is no room now for a message of {size:,} bytes; try again later")
            self._left -= size

    def give(self, size: int) -> None:
        with self._lock:
            self._left += size


class Assembler:
    """Joins pieces again, one parcel after another."""

    def __init__(self, types: Any, limit: int = LIMIT, room: Room | None = None) -> None:
        self._decoder = _decoder(types)
        self.limit = limit
        self._room = room
        self._taken = 0
        self._envelope: Any = None
        self._frames: list[list[memoryview]] = []
        self._places: Iterator[memoryview] = iter(())
        self._rest = memoryview(b"")
        self._missing = 0

    def feed(self, piece: memoryview) -> Parcel | None:
        """Takes the next piece; the parcel, once it is whole."""
        kind = bytes(piece[:1])
        if kind == _FIRST and self._envelope is None:
            self._fill(self._begin(piece))
        elif kind == _MORE and self._envelope is not None:
            self._fill(piece[1:])
        else:
            raise TransportError("a piece of a message came out of order")
        return None if self._missing else self._finish()

    def _begin(self, piece: memoryview) -> memoryview:
        try:
            (length,) = _LENGTH.unpack(piece[1:5])
            if length > min(_LONGEST_LABEL, max(self.limit, _LEAST), len(piece) - 5):
                raise ValueError("its label is too long")
            label = _decode_label(piece[5 : 5 + length])
            envelope = self._decoder.decode(label.envelope)
        except (struct.error, ValueError, msgspec.MsgspecError) as error:
            raise TransportError(f"a message does not follow the protocol: {printable(str(error), most=200)}") from None
        sizes = [size for frame in label.sizes for size in frame]
        if len(sizes) > _MOST_BUFFERS:
            raise TransportError(f"a message of {len(sizes):,} buffers has more than {_MOST_BUFFERS:,}")
        if not all(label.sizes) or min(sizes, default=0) < 0:
            raise TransportError("a message does not follow the protocol: sizes make no sense")
        if sum(sizes) > self.limit:
            raise TransportError(f"a message of {sum(sizes):,} bytes is over the limit of {self.limit:,}")
        self.drop()
        if self._room is not None:
            self._room.take(sum(sizes))
            self._taken = sum(sizes)
        # np.empty takes address space only; memory comes as the bytes do
        self._frames = [[np.empty(size, np.uint8).data for size in frame] for frame in label.sizes]
        self._places = (place for frame in self._frames for place in frame)
        self._rest = memoryview(b"")
        self._missing = sum(sizes)
        self._envelope = envelope
        return piece[5 + length :]

    def _fill(self, content: memoryview) -> None:
        if len(content) > self._missing:
            raise TransportError("a message is longer than it announced")
        self._missing -= len(content)
        while len(content):
            while not len(self._rest):
                self._rest = next(self._places)
            size = min(len(content), len(self._rest))
            self._rest[:size] = content[:size]
            self._rest, content = self._rest[size:], content[size:]

    def drop(self) -> None:
        if self._room is not None and self._taken:
            self._room.give(self._taken)
        self._taken = 0

    def _finish(self) -> Parcel:
        self.drop()
        frames = [Frame(bytes(header), [b.toreadonly() for b in buffers]) for header, *buffers in self._frames]
        parcel = self._envelope, frames
        self._envelope, self._frames, self._places, self._rest = None, [], iter(()), memoryview(b"")
        return parcel


PROTOCOL = 6  # changes when an older peer would misunderstand what schemas.py does not see
Role = Literal["client", "user"]


class Challenge(Envelope, frozen=True):
    """Server, first word: sign this with your certificate's key. → Hello"""

    protocol: int
    version: str
    nonce: bytes


class Hello(Envelope, frozen=True):
    """Who I am, which messages I know (schemas.py), and the proof. → Welcome | Refused"""

    protocol: int
    version: str
    name: str
    role: Role
    certificate: bytes = b""
    signature: bytes = b""
    schemas: str = ""


class Welcome(Envelope, frozen=True):
    """You may stay: send something every `heartbeat` seconds. Forget all runs but these."""

    heartbeat: Annotated[float, msgspec.Meta(ge=0.01, le=3600)]
    limit: Annotated[int, msgspec.Meta(ge=0)]
    runs: list[str]


class Refused(Envelope, frozen=True):
    """You may not stay, and trying again will not help."""

    reason: str


class Goodbye(Envelope, frozen=True):
    """This side leaves on purpose; `is_final`: do not come back."""

    reason: str
    is_final: bool = False


class Heartbeat(Envelope, frozen=True):
    """I am alive; `note`: my work, or why I wait."""

    note: str = ""


class Forget(Envelope, frozen=True):
    """Server to client: this run is over for good. True whenever it arrives, for other parcels may overtake it."""

    run: str


class Request(Envelope, frozen=True):
    """Server to client: frames of one step of a run, after step `after` of the same run. → Reply"""

    run: str
    step: int
    after: int


class Reply(Envelope, frozen=True):
    run: str
    step: int
    head: TreeHead | None = None  # of the client's log, where it is another than was sent last


class KnownHeads(Envelope, frozen=True):
    """Server to client: the kept heads of all clients' logs. A client whose log does not continue its head leaves."""

    heads: dict[str, TreeHead]


FROM_SERVER = Challenge | Welcome | Refused | Goodbye | Heartbeat | Forget | Request | KnownHeads
FROM_CLIENT = Hello | Goodbye | Heartbeat | Reply


@cache
def reachable(roots: tuple[Any, ...]) -> frozenset[type]:
    """Classes of ours that these types are made of, and that their fields, and those of the fields, may hold."""
    found: set[type] = set()
    left: list[Any] = list(roots)
    while left:
        kind = left.pop()
        if get_origin(kind) is not None:
            left += [get_origin(kind), *get_args(kind)]
        if not isinstance(kind, type) or kind in found or not kind.__module__.startswith("tablepuppet."):
            continue
        found.add(kind)
        if is_dataclass(kind) or issubclass(kind, msgspec.Struct):
            left += get_type_hints(kind, localns=_Names(kind)).values()
    return frozenset(found)


class _Names(dict[str, Any]):
    """Names of the modules of a class and its bases; names for type checkers only stand for anything."""

    def __init__(self, kind: type) -> None:
        for base in reversed(kind.__mro__):
            self |= vars(sys.modules[base.__module__])

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


@cache
def fingerprint(roots: tuple[Any, ...]) -> str:
    """The protocol's number, and a hash of all that messages of these types are declared to be.

    >>> fingerprint((int,)).partition("-")[0] == str(PROTOCOL)
    True
    """
    lines = sorted(f"{kind.__name__} {_fields(kind)}" for kind in reachable(roots))
    return f"{PROTOCOL}-{hashlib.blake2b(chr(10).join(lines).encode(), digest_size=6).hexdigest()}"


def _fields(kind: type) -> list[tuple[str, str]]:
    hints = [pair for base in kind.__mro__[::-1] for pair in inspect.get_annotations(base).items()]
    # Of hints that are equal, as limits of 0 and 0.0 are, `typing` gives back the one that was made first.
    return [(name, re.sub(r"(?<=\d)\.0\b", "", describe(hint))) for name, hint in hints]


def describe(hint: Any) -> str:
    """A type by names alone: what Python and NumPy print differs from release to release.

    >>> describe(Annotated[list[int] | None, "x"])
    "Annotated[Union[list[int], NoneType], 'x']"
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is None:
        return hint if isinstance(hint, str) else getattr(hint, "__name__", repr(hint))
    held = args[1:] if origin is np.ndarray else args  # the shape comes first
    name = "Union" if origin in (UnionType, Union) else getattr(origin, "__name__", str(origin))
    is_value = [origin is Literal or (origin is Annotated and place > 0) for place in range(len(held))]
    return f"{name}[{', '.join(repr(a) if v else describe(a) for a, v in zip(held, is_value, strict=True))}]"


def client_protocol() -> str:
    return fingerprint((FROM_CLIENT, FROM_SERVER, REQUESTS, RESPONSES))
