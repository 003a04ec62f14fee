"""A run's line to its clients: numbered requests, and a journal of every answer, by which a run is resumed.

The server's part of a run is a function of its job and of its clients' answers. So these answers are its checkpoint.
After a crash the run starts over with answers from the journal, arrives at the same state, bit for bit, and continues
from there. No algorithm needs to know. A checksum of every step's requests proves that the second life is the first.
"""

import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from msgspec.structs import replace

from tablepuppet.errors import RunInterruptedError, TrainingError
from tablepuppet.network.run_store import RunStore, StoreError
from tablepuppet.network.run_worker import join_frames, split_frames
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport.envelopes import Envelope, Request
from tablepuppet.transport.switchboard import Switchboard, WaitRules

_GROWTH = 1 << 24  # bytes that a journal grows by between two checks of the disk
_MOST_SHARE = 4  # times as much as is left on the disk, and a journal takes too much of it


class _Step(Envelope, frozen=True):
    """Frames: the answers of each client in turn."""

    requests: int  # their checksum
    answers: dict[str, int]  # how many frames each client sent


class Journal:
    """The steps of one run: read to the last first, then written."""

    def __init__(self, store: RunStore, run: str) -> None:
        self._store, self._run = store, run
        self._size = store.size(run, "step")
        self._checked = 0  # its size when the disk was checked last

    def replay(self, step: int, requests: int) -> dict[str, list[Frame]] | None:
        """The answers to a step of an earlier life; None once that life ended."""
        found = self._store.read((self._run, "step", step), _Step)
        if found is None:
            return None
        kept, frames = found
        if kept.requests != requests:
            raise TrainingError(
                f"the run cannot be resumed: step {step} is not what it was. Its job, the federation or the version "
                "of TablePuppet changed; start the run again"
            )
        return split_frames(kept.answers, frames)

    def append(
        self,
        step: int,
        requests: int,
        answers: Mapping[str, Sequence[Frame]],
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """Adds a step. A run without end does not fill the disk: it fails while others still have room."""
        counts, frames = join_frames(answers)
        record = _Step(requests=requests, answers=counts), frames
        try:
            self._store.write({(self._run, "step", step): record}, is_urgent=False, waits=waits)
        except StoreError as error:
            raise RunInterruptedError(
                f"the server cannot write its checkpoint ({error}); make room and resume the run"
            ) from None
        self._size += sum(frame.size for frame in frames)
        if self._size - self._checked < _GROWTH:  # a small one is not why a disk is full
            return
        self._checked = self._size
        disk = os.statvfs(self._store.folder)
        left = disk.f_bavail * disk.f_frsize
        if self._size > _MOST_SHARE * left:
            raise TrainingError(
                f"its answers take {self._size:,} bytes on the server's disk, which has {left:,} left for others; "
                "ask for fewer epochs or larger batches, or let the server have a larger disk"
            )


class GivesWayError(RunInterruptedError):
    """The run waits for a client, or worked for long, and others wait for their turn: it continues after them."""


@dataclass
class TimeSlice:
    """How long a run may keep others waiting; it outlives a run's lives."""

    seconds: float = inf  # that it waits for a client while other runs are queued
    longest: float = inf  # that a client may take to answer
    others_wait: Callable[[], bool] = lambda: False
    share: float = inf  # that it works while other users' runs are queued
    other_users_wait: Callable[[], bool] = lambda: False
    asked: tuple[int, float] = (0, 0.0)  # the step that it is at, and when it was asked first
    began: float = 0.0  # this life
    replayed: float | None = None  # seconds that it took to get where the last life was

    def begin(self) -> None:
        self.began, self.replayed = time.monotonic(), None

    def step(self, *, can_go_on: bool) -> None:
        """Before a new step: ends a run, or this life of it, that has worked for long while other users wait.

        A life lasts twice as long as it took to replay the last ones, so that most of the work is new.
        """
        worked = time.monotonic() - self.began
        if self.replayed is None:
            self.replayed = worked
        most = self.replayed + max(self.share, min(2.0 * self.replayed, self.longest))
        if worked > (most if can_go_on else self.longest) and self.other_users_wait():
            if can_go_on:
                raise GivesWayError(f"it worked for {worked:.0f} s, and others wait for their turn")
            raise TrainingError(
                f"the run took longer than {self.longest:.0f} s while others wait for their turn (`compute` under "
                "[server]); ask for less at a time"
            )

    def since(self, step: int) -> float:
        if self.asked[0] != step:
            self.asked = (step, time.monotonic())
        return self.asked[1]

    def check(self, began: float, silent: Sequence[str], *, can_go_on: bool) -> None:
        """Ends a wait that has lasted too long."""
        now, names = time.monotonic(), ", ".join(silent)
        if now - self.asked[1] > self.longest:
            raise RunInterruptedError(
                f"no answer of {names} for {now - self.asked[1]:.0f} s, longer than a client may take (`compute` under "
                "[server]); ask its owner, then train the same job again with --resume (resume=True)"
            )
        if can_go_on and now - began > self.seconds and self.others_wait():
            raise GivesWayError(f"no answer of {names} for {now - began:.0f} s, and others wait for their turn")


OnStep = Callable[[int, Mapping[str, Sequence[Frame]], Mapping[str, Sequence[Frame]]], None]


class RunTransport:
    """A run's line to its clients: numbered requests, answers kept in a journal."""

    def __init__(
        self,
        run: str,
        switchboard: Switchboard,
        journal: Journal | None,
        rules: WaitRules,
        turn: TimeSlice | None = None,
        on_step: OnStep = lambda *step: None,
    ) -> None:
        self._run, self._switchboard, self._journal = run, switchboard, journal
        self._turn = turn if turn is not None else TimeSlice()
        self._began, self._polls = 0.0, False  # when this life asked last, and whether answers matter
        self._rules, self._on_step = rules, on_step
        self._step = 0
        self._turn.begin()
        self._last: dict[str, int] = {}  # each client's last step
        self._unkept: tuple[int, Mapping[str, Sequence[Frame]]] | None = None  # answers that nobody has checked yet

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        if not wait:
            present = self._switchboard.list_connected()
            try:
                return self._ask({c: f for c, f in frames.items() if c in present}, patience=0.0)
            except RunInterruptedError:  # somebody left meanwhile; the next greeting informs them
                return {}
        self._step += 1
        requests = _checksum(frames) if self._journal is not None else 0
        answers = None if self._journal is None else self._journal.replay(self._step, requests)
        if answers is None:
            self._turn.step(can_go_on=self._journal is not None)
            answers = self._ask(frames, self._rules.patience)
            self._unkept = requests, answers
            self._on_step(self._step, frames, answers)
        self._last |= dict.fromkeys(frames, self._step)
        return {client: answers[client] for client in frames}

    def accept(self) -> None:
        """The answers of the last round are sound: from now on they belong to the run.

        It waits for room on a full disk as long as for an absent client.
        """
        if self._unkept is not None and self._journal is not None:
            until = time.monotonic() + self._rules.patience
            waits = lambda: time.monotonic() < until and not self._rules.is_cancelled()  # noqa: E731
            self._journal.append(self._step, *self._unkept, waits)
        self._unkept = None

    def close(self) -> None:
        """Nothing to end here: connections outlive runs."""

    def _ask(self, frames: Mapping[str, Sequence[Frame]], patience: float) -> dict[str, list[Frame]]:
        step = self._step if patience else self._step + 1
        requests = {
            client: (Request(run=self._run, step=step, after=self._last.get(client, 0)), sent)
            for client, sent in frames.items()
        }
        self._began, self._polls = time.monotonic(), not patience
        since = self._turn.since(step) if patience else None
        rules = replace(self._rules, patience=patience, on_pause=self._pause, since=since)
        return self._switchboard.ask(requests, rules)

    def _pause(self, silent: Sequence[str]) -> None:
        """Nothing has happened for a while."""
        if self._polls:
            if time.monotonic() - self._began > self._turn.seconds:  # a client that does not answer is left out
                raise RunInterruptedError(f"no answer of {', '.join(silent)}")
            return
        self._turn.check(self._began, silent, can_go_on=self._journal is not None)


def _checksum(frames: Mapping[str, Sequence[Frame]]) -> int:
    found = 0
    for buffer in (b for sent in frames.values() for frame in sent for b in (frame.header, *frame.buffers)):
        found = zlib.crc32(buffer, found)
    return found
