"""What a user and the coordinator say to each other: jobs in, news and results out."""

from __future__ import annotations

from typing import Literal

from tablepuppet.transport.envelopes import (
    FROM_CLIENT,
    Challenge,
    Envelope,
    Goodbye,
    Heartbeat,
    Hello,
    Refused,
    Welcome,
)

Kind = Literal["train", "explain", "profile", "predict", "evaluate"]
State = Literal["queued", "running", "waiting", "finished", "failed", "interrupted", "cancelled"]


class Submit(Envelope, frozen=True):
    """Frame: what to do. `resume`: go on with an interrupted run of the same job. → Accepted, then news

    `rounds`: whether news of every round are wanted. `follows`: whether any are. `readers`: other users who may see it.
    """

    kind: Kind
    resume: bool = False
    rounds: bool = True
    follows: bool = True
    readers: tuple[str, ...] = ()


class Follow(Envelope, frozen=True):
    """Tell me about this run, from now on. → Accepted, then news"""

    run: str
    rounds: bool = True


class Cancel(Envelope, frozen=True):
    """Stop a run; `keep`: so that it can be resumed. → Accepted"""

    run: str
    keep: bool = False


class AskStatus(Envelope, frozen=True):
    """→ Status"""


class Accepted(Envelope, frozen=True):
    run: str


class Status(Envelope, frozen=True):
    """Frame: a document about clients and runs."""


class Round(Envelope, frozen=True):
    """News: a round has ended. Frame: its RoundEvent."""

    round: int


class Waiting(Envelope, frozen=True):
    """News: who is away, and for how many more seconds the run waits, or whose approval it waits for; nobody: it goes
    on."""

    clients: dict[str, float]
    approval: str = ""


class Finished(Envelope, frozen=True):
    """Last news. Frame: the result, the plan, the predictions or the metrics."""


class Failed(Envelope, frozen=True):
    """Last news: the error's class and message."""

    error: str
    message: str


News = Round | Waiting | Finished | Failed
FROM_USER = Hello | Goodbye | Heartbeat | Submit | Follow | Cancel | AskStatus
FROM_ANYBODY = FROM_USER | FROM_CLIENT
TO_USER = Challenge | Welcome | Refused | Goodbye | Heartbeat | Accepted | Status | News
