"""Groups with rows at several clients: three rounds, between the contract and the keys, that merge their figures.

The server compares tokens of groups, and never sees a figure: what clients send of a shared group is masked among all
clients of the table, and only the group's holder, the first of them that has it, takes the last mask off.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tablepuppet.privacy.masks import MaskKey
from tablepuppet.protocol.base import FieldDisclosure, FieldDisclosures, Message, Stage

Words = NDArray[np.int64]


def commitment(salt: bytes, rows: NDArray[np.int32]) -> bytes:
    """What stands for one client's rows towards the others."""
    return hashlib.sha256(salt + rows.tobytes()).digest()


def words_of(kind: str) -> tuple[int, int]:
    """How many words a state takes: of sums, and of extremes.

    >>> words_of("number integer"), words_of("number float"), words_of("spread float"), words_of("least date")
    ((1, 0), (2, 0), (4, 0), (0, 2))
    """
    name, _, what = kind.partition(" ")
    if name == "spread":
        return 4, 0
    return ((2 if what == "float" else 1), 0) if name == "number" else (0, 2)


def scales_of(kind: str) -> int:
    """How many scales clients agree on for a state."""
    return {"spread float": 2, "number float": 1}.get(kind, 0)


class SendGroups(Message, frozen=True):
    """Which groups do the rows of a scan come from? → Groups"""

    stage: ClassVar[Stage] = "groups"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    scan: int


class Groups(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("tokens", "group tokens", if_empty=True),
        FieldDisclosure("sizes", "magnitudes"),
    )
    tokens: NDArray[np.uint8]  # groups × 16, ascending
    kinds: list[str]  # of the groups' columns, and of each figure
    sizes: list[int]  # powers of two above the largest figures, in steps of 16
    key: MaskKey  # under which figures are masked
    salt: bytes  # which nobody can guess this client's rows in a commitment without


class SumGroups(Message, frozen=True):
    """Send figures of the groups that other clients have too, under masks. → GroupSums

    Masks are drawn from all of it: clients that were told different things share none.
    """

    stage: ClassVar[Stage] = "sum groups"
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("rows", "shared groups"),)
    job: str
    scan: int
    place: int  # of this client among the peers
    peers: list[MaskKey]  # of all clients of the table
    holders: NDArray[np.int32]  # of each shared group: the place of the client that will hold it
    rows: NDArray[np.int32]  # of each shared group: which of this client's it is; −1: it has none
    commitments: list[bytes]  # of each client: SHA-256 of its salt and its rows
    scales: list[int]


class GroupSums(Message, frozen=True):
    """Of each shared group that others hold, in their order: words under masks."""

    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("sums", "masked group sums"),
        FieldDisclosure("extremes", "masked group extremes"),
    )
    sums: NDArray[np.int64]
    extremes: NDArray[np.int64] | None = None  # each for the holder alone


class HoldGroups(Message, frozen=True):
    """Hold the groups that are yours, with what the others sent of them; let go of those that others hold. → Done"""

    stage: ClassVar[Stage] = "hold groups"
    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("sums", "group sums"),
        FieldDisclosure("extremes", "group extremes"),
    )
    job: str
    scan: int
    sums: NDArray[np.int64]  # over all other clients, still under this one's mask
    extremes: NDArray[np.int64] | None = None  # groups × other clients × words
