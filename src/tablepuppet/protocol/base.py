"""What every message is, and the three that belong to no stage.

A message is a frozen struct that rejects unknown fields. Arrays in it are typed here by what they hold.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, kw_only=True):
    """Base of all messages; the tag is the class name."""


class Done(Message, frozen=True):
    """The answer to a request that only asks for an action."""


class CloseJob(Message, frozen=True):
    """Forget everything about a job. → Done"""

    job: str


class Failure(Message, frozen=True):
    """The answer when a request cannot be met: which error, and its message."""

    error: str
    message: str
