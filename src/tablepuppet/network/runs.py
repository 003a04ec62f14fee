"""One run at the coordinator: what is asked, how far it is, who wants to hear of it, what is on the disk."""

from __future__ import annotations

import logging
import queue
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tablepuppet.engine.result import RoundEvent
from tablepuppet.errors import TransportError
from tablepuppet.network.control import Failed, Finished, Kind, News, Round, State, Waiting
from tablepuppet.network.objects import from_frame, to_frame
from tablepuppet.network.records import is_full, load_record, replace_record
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport.parcels import Envelope

log = logging.getLogger(__name__)
NewsItem = tuple[News, list[Frame]]
_OVER = ("finished", "failed", "interrupted", "cancelled")


class Card(Envelope, frozen=True):
    """What the disk keeps of a run. Frames: what was asked, and the result once there is one."""

    kind: Kind
    state: State
    submitted: float
    message: str = ""


@dataclass(eq=False)
class Run:
    """A run, from its submission to its end."""

    id: str
    kind: Kind
    asked: Any
    folder: Path | None  # None: not kept
    state: State = "queued"
    submitted: float = field(default_factory=time.time)
    message: str = ""
    round: int = 0
    rounds: int = 0
    steps: int = 0
    waiting: dict[str, float] = field(default_factory=dict)
    result: Frame | None = None
    error: Failed | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: list[queue.SimpleQueue[NewsItem]] = []
        self._watchers: list[queue.SimpleQueue[NewsItem]] = []  # those who want to hear of every round
        self.stop = threading.Event()
        self.keeps_state = False  # whether a stopped run can be resumed

    @property
    def is_over(self) -> bool:
        return self.state in _OVER

    def follow(self, *, rounds: bool) -> queue.SimpleQueue[NewsItem]:
        """A queue of news from now on, of every round or not; the last item is Finished or Failed."""
        news: queue.SimpleQueue[NewsItem] = queue.SimpleQueue()
        with self._lock:
            self._followers.append(news)
            if rounds:
                self._watchers.append(news)
            if self.is_over:
                news.put(self._last())
            elif self.waiting:
                news.put((Waiting(clients=self.waiting), []))
        return news

    def tell(self, news: News) -> None:
        with self._lock:
            for follower in self._followers:
                follower.put((news, []))

    def end_round(self, event: RoundEvent) -> None:
        """Notes how far the run is, and tells those who asked for every round."""
        self.round, self.rounds = event.round, event.rounds
        with self._lock:
            if self._watchers:
                item = Round(round=event.round), [to_frame(event)]
                for watcher in self._watchers:
                    watcher.put(item)

    def move(self, state: State, message: str = "") -> None:
        """A new state, on the disk before anybody hears of it."""
        self.state, self.message, self.waiting = state, message, {}
        self.save()
        if self.is_over:
            with self._lock:
                for follower in self._followers:
                    follower.put(self._last())

    def _last(self) -> NewsItem:
        if self.state == "finished" and self.result is not None:
            return Finished(), [self.result]
        return self.error or Failed(error="TrainingError", message=self.message or f"the run was {self.state}"), []

    # -- on the disk -----------------------------------------------------------------------

    @property
    def journal(self) -> Path | None:
        return None if self.folder is None else self.folder / "journal"

    def save(self) -> None:
        if self.folder is None:
            return
        card = Card(kind=self.kind, state=self.state, submitted=self.submitted, message=self.message)
        frames = [to_frame(self.asked), *([] if self.result is None else [self.result])]
        while True:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_record(self.folder / "run", card, frames)
                break
            except OSError as error:
                if not is_full(error):
                    raise TransportError(f"cannot write {self.folder}: {error.strerror}") from None
                log.warning("no room for run %s; trying again in 1 s", self.id)
                time.sleep(1.0)
        if self.state in ("finished", "failed", "cancelled") and self.journal is not None:
            self.journal.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path) -> Run:
        card, frames = load_record(folder / "run", Card)
        run = cls(folder.name, card.kind, from_frame(frames[0]), folder, card.state, card.submitted, card.message)
        run.result = frames[1] if len(frames) > 1 else None
        return run

    def remove(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def describe(self) -> dict[str, Any]:
        """For people and machines: no value of any row."""
        return {
            "run": self.id,
            "kind": self.kind,
            "state": self.state,
            "submitted": self.submitted,
            "message": self.message,
            "round": self.round,
            "rounds": self.rounds,
            "steps": self.steps,
            "waiting": self.waiting,
        }
