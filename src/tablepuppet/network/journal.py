"""The journal: every answer that a run was given, in order; a run is resumed by replaying it.

The server's part of a run is a function of its job and of what clients answered. So the checkpoint of
a server is its clients' answers: after a crash the run starts over with answers out of the journal
instead of the network, arrives at the very state it was in, bit for bit, and goes on from there. No
algorithm needs to know. A checksum of every step's requests proves that the second life is the first.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from tablepuppet.errors import RunInterruptedError, TrainingError
from tablepuppet.network.records import (
    Syncing,
    checksum,
    is_full,
    is_small,
    open_private,
    read_record,
    record,
    sync_folder,
    write_record,
    write_whole,
)
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport.envelopes import Envelope, Request
from tablepuppet.transport.switchboard import OnWaiting, Switchboard, WaitRules

log = logging.getLogger(__name__)
_AHEAD = 1 << 16  # bytes of zeros after the last record
_LOOK = 1 << 24  # bytes that a journal grows by between two looks at the disk
_SHARE = 4  # times as much as is left on the disk, and a journal takes too much of it


class _Step(Envelope, frozen=True):
    """Frames: the answers of each client in turn."""

    step: int
    requests: int  # their checksum
    answers: dict[str, int]  # how many frames each client sent


class Journal:
    """A file of steps: read to its end first, then written, always a little beyond its end.

    What lies ahead of the records is zeros. To overwrite them changes nothing but content on the disk, which is
    durable sooner than a file that grows.
    """

    def __init__(self, path: Path) -> None:
        try:
            is_new = not path.exists()
            if is_new:
                open_private(path, "wb").close()
                sync_folder(path.parent)
            self._file = open_private(path, "r+b")
        except OSError as error:
            raise _unwritable(error) from None
        self._is_replaying = True
        self._looked = 0  # how large it was at the last look
        self._syncing = Syncing()

    def next(self, step: int, requests: int) -> dict[str, list[Frame]] | None:
        """The answers to the next step of an earlier life; None once that life ended."""
        found = read_record(self._file, _Step) if self._is_replaying else None
        if found is None:
            if self._is_replaying:
                self._is_replaying = False
                self._cut()
            return None
        kept, frames = found
        if (kept.step, kept.requests) != (step, requests):
            raise TrainingError(
                f"the run cannot be resumed: step {step} is not what it was. Its job, the federation or the version "
                "of TablePuppet changed; start the run again"
            )
        answers, start = {}, 0
        for client, count in kept.answers.items():
            answers[client] = frames[start : start + count]
            start += count
        return answers

    def _cut(self) -> None:
        """Drops what a crash tore, and says so: clients answer those steps again."""
        start = self._file.tell()
        lost = len(self._file.read().rstrip(b"\0"))
        if lost:
            log.warning("%s: %d bytes after its last whole step are damaged and dropped", self._file.name, lost)
        self._file.seek(start)
        self._file.truncate()

    def append(self, step: int, requests: int, answers: Mapping[str, Sequence[Frame]]) -> None:
        """Adds a step; it survives the process at once, and the machine soon."""
        start = self._file.tell()
        frames = [frame for client in answers.values() for frame in client]
        counts = {client: len(sent) for client, sent in answers.items()}
        envelope = _Step(step=step, requests=requests, answers=counts)
        try:
            if is_small(frames):
                self._overwrite(record(envelope, frames))
            else:
                write_record(self._file, envelope, frames)
        except OSError:
            self._file.seek(start)
            self._file.truncate()
            raise
        self._check_share()

    def _check_share(self) -> None:
        """A run that goes on and on fills no disk that others need: it ends while there is room."""
        size = self._file.tell()
        if size - self._looked < _LOOK:
            return
        self._looked = size
        disk = os.statvfs(self._file.fileno())
        left = disk.f_bavail * disk.f_frsize
        if size > _SHARE * left:
            raise TrainingError(
                f"its answers take {size:,} bytes on the server's disk, which has {left:,} left for others; "
                "ask for fewer epochs or larger batches, or let the server have a larger disk"
            )

    def _overwrite(self, content: bytes) -> None:
        end = self._file.tell() + len(content)
        is_ahead = end <= os.fstat(self._file.fileno()).st_size
        write_whole(self._file, content if is_ahead else content + bytes(_AHEAD))
        self._file.seek(end)
        self._syncing.note_write(self._file)

    def finish(self) -> None:
        """All steps are on the disk when this returns."""
        self._syncing.finish()

    def close(self) -> None:
        if not self._is_replaying:
            self._file.truncate()
        self._syncing.finish()
        self._file.close()


def _unwritable(error: OSError) -> RunInterruptedError:
    return RunInterruptedError(
        f"the server cannot write its checkpoint ({error.strerror}); make room and resume the run"
    )


class GivesWayError(RunInterruptedError):
    """A client keeps the run waiting, or it worked for long, and others wait for their turn: it goes on after them."""


@dataclass
class TimeSlice:
    """How long a run may keep others waiting; it outlives a run's lives."""

    seconds: float = inf  # that it waits for a client while other runs are queued
    longest: float = inf  # that a client may take to answer
    others_wait: Callable[[], bool] = lambda: False
    asked: tuple[int, float] = (0, 0.0)  # the step that it is at, and when it was asked first
    share: float = inf  # that it works while other users' runs are queued
    other_users_wait: Callable[[], bool] = lambda: False
    began: float = 0.0  # this life
    replayed: float | None = None  # seconds that it took to get where the last life was

    def begin(self) -> None:
        """The run is worked on again, from its journal."""
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


@dataclass(frozen=True, slots=True)
class RunHooks:
    """How long a run waits for a client, what may stop it, and who hears of its steps."""

    patience: float
    on_waiting: OnWaiting = lambda clients: None
    is_cancelled: Callable[[], bool] = lambda: False
    on_step: Callable[[int, Mapping[str, Sequence[Frame]], Mapping[str, Sequence[Frame]]], None] = lambda *step: None


class RunTransport:
    """A run's line to its clients: numbered requests, answers kept in a journal."""

    def __init__(
        self,
        run: str,
        switchboard: Switchboard,
        journal: Journal | None,
        hooks: RunHooks,
        turn: TimeSlice | None = None,
    ) -> None:
        self._run, self._switchboard, self._journal = run, switchboard, journal
        self._turn = turn if turn is not None else TimeSlice()
        self._began, self._polls = 0.0, False  # when this life asked last, and whether answers matter
        self._hooks = hooks
        self._step = 0
        self._turn.begin()
        self._last: dict[str, int] = {}  # each client's last step
        self._unkept: tuple[int, Mapping[str, Sequence[Frame]]] | None = None  # answers that nobody has checked yet

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        if not wait:
            present = self._switchboard.list_connected()
            try:
                return self._ask({c: f for c, f in frames.items() if c in present}, patience=0.0)
            except RunInterruptedError:  # somebody left meanwhile; the next greeting tells them
                return {}
        self._step += 1
        requests = checksum(f for sent in frames.values() for f in sent) if self._journal is not None else 0
        answers = None if self._journal is None else self._journal.next(self._step, requests)
        if answers is None:
            self._turn.step(can_go_on=self._journal is not None)
            answers = self._ask(frames, self._hooks.patience)
            self._unkept = requests, answers
            self._hooks.on_step(self._step, frames, answers)
        self._last |= dict.fromkeys(frames, self._step)
        return {client: answers[client] for client in frames}

    def accept(self) -> None:
        """The answers of the last round are sound: from now on they belong to the run."""
        if self._unkept is not None and self._journal is not None:
            self._keep(self._journal, *self._unkept)
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
        rules = WaitRules(patience, self._hooks.on_waiting, self._settle, self._hooks.is_cancelled, since)
        return self._switchboard.ask(requests, rules)

    def _settle(self, silent: Sequence[str]) -> None:
        """Nothing happens for a while."""
        if self._journal is not None:
            self._journal.finish()
        if self._polls:
            if time.monotonic() - self._began > self._turn.seconds:  # whoever does not answer is left out
                raise RunInterruptedError(f"no answer of {', '.join(silent)}")
            return
        self._turn.check(self._began, silent, can_go_on=self._journal is not None)

    def _keep(self, journal: Journal, requests: int, answers: Mapping[str, Sequence[Frame]]) -> None:
        """A full disk is waited for, as long as an absent client would be."""
        until = time.monotonic() + self._hooks.patience
        pause = 0.1
        while True:
            try:
                return journal.append(self._step, requests, answers)
            except OSError as error:
                if not is_full(error) or time.monotonic() > until or self._hooks.is_cancelled():
                    raise _unwritable(error) from None
                log.warning("no room for run %s; trying again in %.1f s", self._run, pause)
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
