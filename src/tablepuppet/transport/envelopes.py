"""What travels around frames on a network: the handshake, numbered requests, signs of life.

Every envelope that a client may send, or be sent, is here; frames (messages/) lie inside
`Request` and `Reply` only. A request is known by its run and step: sent twice, it is answered twice
with the same reply and acted upon once.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tablepuppet.transport.parcels import Envelope

PROTOCOL = 4  # changes when an older peer would misunderstand
Role = Literal["client", "user"]


class Challenge(Envelope, frozen=True):
    """Server, first word: sign this with your certificate's key. → Hello"""

    protocol: int
    version: str
    nonce: bytes


class Hello(Envelope, frozen=True):
    """Who I am, and the proof. → Welcome | Refused"""

    protocol: int
    version: str
    name: str
    role: Role
    certificate: bytes = b""
    signature: bytes = b""


class Welcome(Envelope, frozen=True):
    """You may stay: say something every `heartbeat` seconds. Forget all runs but these."""

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
    """I am alive; `note` says what I am busy with, or why I wait."""

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


FROM_SERVER = Challenge | Welcome | Refused | Goodbye | Heartbeat | Forget | Request
FROM_CLIENT = Hello | Goodbye | Heartbeat | Reply
