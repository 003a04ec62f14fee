"""IdempotentClient: a client that answers every request once, whatever happens between.

In: numbered requests. Out: replies. A request that comes again gets the reply that it got before; one
that is older, or that skips a step, is refused. With a folder, what a run has changed is on the disk
before its reply leaves, so a client that was killed goes on where it was. The checkpoint of a run:

    setup   the requests that opened its scans and parts, which are answered again
    last    the last step, its reply, and the state of each part
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tablepuppet.client import Client
from tablepuppet.errors import TablePuppetError, TransportError
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.exchanges.schema import CloseJob
from tablepuppet.network.records import Slots, is_full, make_folder, open_private, read_record, write_record
from tablepuppet.protocol.base import Done, Failure
from tablepuppet.protocol.codec import Frame, encode
from tablepuppet.transport.envelopes import Envelope, Request

log = logging.getLogger(__name__)
_RUN = re.compile(r"[0-9a-f]{16}")
_SETUP = frozenset(kind.__name__ for kind, exchange in EXCHANGES.items() if exchange.leaves_state)


class _Kind(msgspec.Struct):
    type: str


_KIND = msgspec.msgpack.Decoder(_Kind)


class _Setup(Envelope, frozen=True):
    step: int


class _Last(Envelope, frozen=True):
    """Frames: the reply's, then one state per part."""

    step: int
    replies: int
    parts: list[int]
    fingerprints: dict[int, int]  # of the rows that the run has read, by scan


@dataclass(slots=True)
class _Memory:
    step: int = 0
    reply: Sequence[Frame] = ()
    fingerprints: dict[int, int] = field(default_factory=dict)
    setup_size: int = 0  # bytes of `setup` that count
    last: Slots | None = None  # the file; none without a folder


class IdempotentClient:
    """One client's memory of its runs."""

    def __init__(self, client: Client, folder: Path | None, on_note: Callable[[str], None] = lambda note: None) -> None:
        self._client = client
        self._folder = folder
        self._on_note = on_note
        self._runs: dict[str, _Memory] = {}
        if folder is not None:
            make_folder(folder)

    def answer(self, request: Request, frames: Sequence[Frame]) -> Sequence[Frame]:
        """The reply to a request, computed at most once."""
        kinds = [_kind(frame) for frame in frames]
        if set(kinds) == {CloseJob.__name__}:  # right at any step, and as often as it comes
            self.forget(request.run)
            return [encode(Done())] * len(frames)
        try:
            memory = self._remember(request.run)
            if request.step == memory.step:
                log.info("step %d of run %s came again", request.step, request.run)
                return memory.reply
            if request.after != memory.step or request.step < memory.step:
                raise TransportError(
                    f"step {request.step} follows step {request.after}, but this client is at step {memory.step} of "
                    f"run {request.run}; its checkpoint was lost, or the message is a replay. Start the run again"
                )
        except TablePuppetError as error:
            log.warning("refused step %d of run %s: %s", request.step, request.run[:16], error)
            return [encode(Failure(error=type(error).__name__, message=str(error)))] * len(frames)
        reply = [self._client.handle(frame) for frame in frames]
        self._keep(request, frames, kinds, memory, reply)
        return reply

    def forget(self, run: str) -> None:
        """Drops a run and its checkpoint."""
        memory = self._runs.pop(run, None)
        if memory is not None and memory.last is not None:
            memory.last.close()
        self._client.answer(CloseJob(job=run))
        if self._folder is not None and _RUN.fullmatch(run):
            shutil.rmtree(self._folder / run, ignore_errors=True)

    def keep_only(self, runs: Iterable[str]) -> None:
        """Drops every run but these."""
        stored = {p.name for p in self._folder.iterdir() if _RUN.fullmatch(p.name)} if self._folder else set()
        for run in (stored | set(self._runs)) - set(runs):
            log.info("forgetting run %s, which the server does not know", run)
            self.forget(run)

    def finish(self) -> None:
        """All checkpoints are on the disk when this returns."""
        for memory in list(self._runs.values()):
            if memory.last is not None:
                try:
                    memory.last.finish()
                except OSError as error:
                    log.warning("a checkpoint cannot be forced to the disk: %s", error.strerror)

    def close(self) -> None:
        """Lets go of the files; what they hold stays."""
        self.finish()
        for memory in self._runs.values():
            if memory.last is not None:
                memory.last.close()

    # -- checkpoints -----------------------------------------------------------------------

    def _keep(
        self, request: Request, frames: Sequence[Frame], kinds: list[str], memory: _Memory, reply: list[Frame]
    ) -> None:
        setup = [frame for frame, kind in zip(frames, kinds, strict=True) if kind in _SETUP]
        if setup:
            memory.fingerprints = self._client.tables.fingerprints(request.run)
        if memory.last is not None:
            last = memory.last
            self._wait_for_room(lambda: self._write(last, request, setup, memory, reply))
        memory.step, memory.reply = request.step, reply

    def _write(self, file: Slots, request: Request, setup: list[Frame], memory: _Memory, reply: list[Frame]) -> None:
        size = self._write_setup(request, setup, memory.setup_size) if setup else memory.setup_size
        states = self._client.states(request.run)
        last = _Last(step=request.step, replies=len(reply), parts=list(states), fingerprints=memory.fingerprints)
        kept = [*reply, *(encode(state, keep_order=True) for state in states.values())]
        file.write(last, kept, is_urgent=self._client.draws_noise(request.run))
        memory.setup_size = size

    def _write_setup(self, request: Request, setup: list[Frame], size: int) -> int:
        """Adds requests behind those that count; how many bytes count then."""
        assert self._folder is not None
        path = self._folder / request.run / "setup"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with open_private(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(size)
            file.seek(size)
            write_record(file, _Setup(step=request.step), setup)
            return file.tell()

    def _wait_for_room(self, write: Callable[[], None]) -> None:
        """A full disk is waited for: nothing leaves before it is kept."""
        pause = 0.1
        while True:
            try:
                write()
            except OSError as error:
                if not is_full(error):
                    raise TransportError(f"cannot write a checkpoint: {error.strerror}") from None
                self._on_note("its disk is full")
                log.warning("no room for a checkpoint; trying again in %.1f s", pause)
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
            else:
                self._on_note("")
                return

    def _remember(self, run: str) -> _Memory:
        if not _RUN.fullmatch(run):
            raise TransportError("a run's name must be sixteen hexadecimal digits")
        if run not in self._runs:
            if self._folder is None:
                self._runs[run] = _Memory()
            elif (self._folder / run / "last").exists():
                self._runs[run] = self._restore(run, self._folder / run)
            else:
                self._runs[run] = _Memory(last=Slots(self._folder / run / "last"))
        return self._runs[run]

    def _restore(self, run: str, folder: Path) -> _Memory:
        file = Slots(folder / "last")
        memory = _Memory(last=file)
        try:
            self._replay(run, folder, memory, file)
        except TablePuppetError:
            file.close()
            raise
        log.info("run %s goes on after step %d", run, memory.step)
        return memory

    def _replay(self, run: str, folder: Path, memory: _Memory, file: Slots) -> None:
        """Answers the requests of the setup again, and sets the states that the parts had."""
        last, frames = file.read(_Last)
        memory.step, memory.reply, memory.fingerprints = last.step, frames[: last.replies], last.fingerprints
        if (folder / "setup").exists():
            with (folder / "setup").open("rb") as setup, self._client.restoring():
                while (record := read_record(setup, _Setup)) is not None and record[0].step <= last.step:
                    for frame in record[1]:
                        self._client.handle(frame)
                    memory.setup_size = setup.tell()
        changed = self._client.tables.find_changed(run, last.fingerprints)
        if changed:
            self._client.answer(CloseJob(job=run))
            which = f"table {changed[0]} has" if len(changed) == 1 else f"tables {', '.join(changed)} have"
            raise TransportError(f"{which} changed since the run began; start the run again")
        states = frames[last.replies :]
        if len(states) != len(last.parts) or any((run, part) not in self._client.parts for part in last.parts):
            self._client.answer(CloseJob(job=run))
            raise TransportError(f"the checkpoint of run {run} is damaged at this client; start the run again")
        try:
            self._client.restore(run, dict(zip(last.parts, states, strict=True)))
        except TablePuppetError:
            self._client.answer(CloseJob(job=run))
            raise


def _kind(frame: Frame) -> str:
    try:
        return _KIND.decode(memoryview(frame.header)[1:]).type
    except msgspec.MsgspecError:
        return ""
