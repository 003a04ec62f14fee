"""Runs at the coordinator: those that wait, each run with its news and its card, and the process that computes them.

The process is started when needed, watched, ended, started again. In: a run and its line to the clients. Out: its
outcome as a frame, or an error. A process that exceeds its memory, or its time between two questions, is killed; one
that dies is noticed at once. Either is a `RunDiedError`, and the next run gets a new process.
"""

import logging
import multiprocessing
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tablepuppet import __version__
from tablepuppet.errors import (
    DisconnectedError,
    RunInterruptedError,
    TablePuppetError,
    TrainingError,
    TransportError,
    error_class,
)
from tablepuppet.formatting import printable
from tablepuppet.network import run_worker as w
from tablepuppet.network.control import Failed, Finished, Kind, News, Round, State, Waiting, run_protocol
from tablepuppet.network.run_store import Part, RunStore, StoreError
from tablepuppet.network.run_transport import RunTransport, TimeSlice
from tablepuppet.protocol.codec import Frame
from tablepuppet.protocol.evidence import Signature
from tablepuppet.sql.bound import partitions_of
from tablepuppet.transport.envelopes import Envelope

log = logging.getLogger(__name__)
NewsItem = tuple[News, list[Frame]]
_UNREAD = 1000  # rounds that somebody may be behind
_CHARACTERS = 2000  # characters of a message about a run
_OVER = ("finished", "failed", "interrupted", "cancelled")
_PROGRAM = "import sys; from tablepuppet.network.run_worker import main; main(*map(int, sys.argv[1:]))"
_PAGE = resource.getpagesize()
_PERIOD = 0.2  # seconds between two checks of a process that computes
_GRACE = 20.0  # seconds that a stopped run may take to notice


class Card(Envelope, frozen=True, forbid_unknown_fields=False):
    """A run on the disk. Frames: the request, and the result once there is one.

    Later releases read it: a field that is added has a default, and one that is no more is passed over.
    """

    kind: Kind
    state: State
    submitted: float
    message: str = ""
    owner: str = ""  # the user who asked
    readers: tuple[str, ...] = ()  # users who may follow it too
    deaths: int = 0  # of processes that it was computed in
    version: str = ""
    protocol: str = ""  # of the request, and of the answers in its journal
    signatures: dict[str, Signature] = msgspec.field(default_factory=dict)  # of contracts, by their hashes


class RunQueue:
    """Runs that wait: users in turn, each user's in the order in which they came. Any thread may call."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._served: dict[str, int] = {}  # by user: when a run of its began last
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, run: "Run") -> None:
        with self._changed:
            self._runs.append(run)
            self._changed.notify()

    def get(self) -> "Run | None":
        """The next run, once there is one; None: the queue is closed."""
        with self._changed:
            while True:
                self._runs = [run for run in self._runs if not run.is_over]
                if self._is_closed:
                    return None
                if self._runs:
                    break
                self._changed.wait()
            run = min(self._runs, key=lambda r: self._served.get(r.owner, 0))
            self._runs.remove(run)
            self._served[run.owner] = max(self._served.values(), default=0) + 1
            return run

    def has_any(self, *, besides: str | None = None) -> bool:
        """Whether a run waits; `besides`: of another user than this."""
        with self._changed:
            return any(not run.is_over and (besides is None or run.owner != besides) for run in self._runs)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


@dataclass(eq=False)
class Run:
    id: str
    kind: Kind
    asked: Frame
    store: RunStore | None  # None: nowhere
    state: State = "queued"
    submitted: float = field(default_factory=time.time)
    message: str = ""
    owner: str = ""
    readers: tuple[str, ...] = ()
    signatures: dict[str, Signature] = field(default_factory=dict)
    is_draft: bool = False
    deaths: int = 0
    version: str = __version__
    protocol: str = field(default_factory=run_protocol)
    round: int = 0
    rounds: int = 0
    steps: int = 0
    waiting: dict[str, float] = field(default_factory=dict)
    approval: str = ""  # whose approval it waits for, in words
    result: Frame | None = None
    error: Failed | None = None
    turn: TimeSlice | None = None  # once it has begun

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: list[tuple[queue.SimpleQueue[NewsItem], bool]] = []  # with whether each wants every round
        self.stop = threading.Event()
        self.keeps_state = False  # whether a stopped run can be resumed

    @property
    def is_over(self) -> bool:
        return self.state in _OVER

    @property
    def size(self) -> int:
        """Bytes that it holds in memory: the request and the result."""
        return self.asked.size + (0 if self.result is None else self.result.size)

    def is_of(self, user: str) -> bool:
        return user == self.owner or user in self.readers

    def check_protocol(self) -> None:
        """Fails if the run was begun by a release with other messages than ours."""
        if self.protocol != run_protocol():
            raise TransportError(
                f"run {self.id} was begun by another release of TablePuppet (version {self.version or 'unknown'}) and "
                "cannot go on in this one; start the run again"
            )

    def follow(self, *, rounds: bool) -> queue.SimpleQueue[NewsItem]:
        """A queue of news from now on, of every round or not; the last item is Finished or Failed."""
        news: queue.SimpleQueue[NewsItem] = queue.SimpleQueue()
        with self._lock:
            self._followers.append((news, rounds))
            if self.is_over:
                news.put(self._last())
            elif self.waiting or self.approval:
                news.put((Waiting(clients=self.waiting, approval=self.approval), []))
        return news

    def unfollow(self, news: queue.SimpleQueue[NewsItem]) -> None:
        with self._lock:
            self._followers = [follower for follower in self._followers if follower[0] is not news]

    def publish(self, news: News, frames: list[Frame] | None = None) -> None:
        with self._lock:
            for follower, _ in self._followers:
                follower.put((news, frames or []))

    def end_round(self, ended: Round, event: Frame) -> None:
        """Records how far the run is, and informs those who asked for every round."""
        self.round, self.rounds = ended.round, ended.rounds
        with self._lock:
            for follower, wants_rounds in self._followers:
                if wants_rounds and follower.qsize() < _UNREAD:  # who does not read misses rounds, and never the end
                    follower.put((ended, [event]))

    def move(self, state: State, message: str = "", *, waits: Callable[[], bool] = lambda: True) -> None:
        """Sets a new state, on the disk before it is news; `waits`: asked whether a full disk is still waited for."""
        self.state, self.waiting = state, {}
        self.message = printable(message, keep="\n", most=_CHARACTERS)  # others see it too, and it may quote a client
        self.save(waits)
        if self.is_over:
            self.publish(*self._last())

    def _last(self) -> NewsItem:
        if self.state == "finished" and self.result is not None:
            return Finished(), [self.result]
        return self.error or Failed(error="TrainingError", message=self.message or f"the run was {self.state}"), []

    def save(self, waits: Callable[[], bool] = lambda: True) -> None:
        """Writes the card, and drops the journal of a run that is over for good. On a full disk it waits, or refuses
        at once."""
        if self.store is None:
            return
        card = Card(**{name: getattr(self, name) for name in Card.__struct_fields__})
        frames = [self.asked, *([] if self.result is None else [self.result])]
        over: list[tuple[str, Part]] = [(self.id, "step")] if self.is_over and self.state != "interrupted" else []
        try:
            self.store.write({(self.id, "card", 0): (card, frames)}, remove=over, waits=waits)
        except StoreError as error:
            raise TransportError(f"the server cannot write down run {self.id}: {error}") from None

    @classmethod
    def from_card(cls, id: str, store: RunStore, card: Card, frames: list[Frame]) -> "Run":
        result = frames[1] if len(frames) > 1 else None
        return cls(id, asked=frames[0], store=store, result=result, **msgspec.structs.asdict(card))

    def remove(self) -> None:
        if self.store is not None:
            self.store.forget(self.id)

    def describe(self) -> dict[str, Any]:
        """For people and machines: no value of any row."""
        shown = ("kind", "state", "submitted", "message", "round", "rounds", "steps", "waiting")
        return {"run": self.id, "user": self.owner, **{name: getattr(self, name) for name in shown}}


class RunDiedError(TablePuppetError):
    """The process of a run is gone; `is_final`: it would die again; `is_orderly`: somebody ended it."""

    def __init__(self, reason: str, *, is_final: bool = False, is_orderly: bool = False) -> None:
        self.is_final, self.is_orderly = is_final, is_orderly
        super().__init__(reason)


class RunProcess:
    """One process at a time, for one run at a time."""

    def __init__(self, memory: int, seconds: float) -> None:
        self.memory, self._seconds = memory, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: w.Pipe | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def do(self, run: Run, tables: Mapping[str, tuple[str, ...]], transport: RunTransport) -> Frame:
        try:
            pipe = self.start()
            by = partitions_of(tables)
            begin = w.Begin(
                run=run.id,
                kind=run.kind,
                tables={table: (list(clients), by.get(table, ())) for table, clients in tables.items()},
                asker=run.owner,
                readers=run.readers,
                is_draft=run.is_draft,
                signatures=run.signatures,
            )
            pipe.send(begin, [run.asked])
            return self._serve(pipe, run, transport)
        except DisconnectedError:
            raise self._death() from None
        except RunDiedError:
            raise
        except (Exception, KeyboardInterrupt):
            self.close()
            raise

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def start(self) -> w.Pipe:
        """A process that waits for a run: the present one, unless it has grown too large."""
        if self._pipe is not None and self._process is not None and self._process.poll() is None:
            if self._resident_bytes() < self.memory // 2:
                return self._pipe
            log.info("the process of runs holds %.1f GiB and is replaced", self._resident_bytes() / 2**30)
        self.close()
        level = logging.getLogger("tablepuppet").getEffectiveLevel()
        own, other = multiprocessing.Pipe()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(other.fileno()), str(self.memory), str(level)],
                stdin=subprocess.PIPE,  # which ends when we do
                pass_fds=[other.fileno()],
                start_new_session=True,  # no key press in our terminal is meant for it
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self._pipe = w.Pipe(own, w.FROM_WORKER)
        return self._pipe

    def _serve(self, pipe: w.Pipe, run: Run, transport: RunTransport) -> Frame:
        stopped: RunInterruptedError | None = None
        while True:
            self._await(pipe, run)
            said, frames = pipe.receive()
            if isinstance(said, w.Ask):
                if said.accepts:
                    transport.accept()
                given = w.split_frames(said.clients, frames)
                try:
                    answers = transport.exchange(given, wait=said.wait)
                except RunInterruptedError as error:
                    stopped = error
                    pipe.send(w.Interrupt(reason=str(error)))
                else:
                    counts, every = w.join_frames(answers)
                    pipe.send(w.Answers(clients=counts), every)
            elif isinstance(said, Round):
                run.end_round(said, frames[0])
            elif isinstance(said, w.Logged):
                logging.getLogger(said.logger).log(said.level, "%s", said.message)
            elif isinstance(said, Finished):
                return frames[0]
            else:
                raise stopped or error_class(said.error, TrainingError)(said.message)

    def _await(self, pipe: w.Pipe, run: Run) -> None:
        """Waits for a word; a process that takes too much, or too long, is killed."""
        began, stopped = time.monotonic(), None
        while not pipe.is_readable(_PERIOD):
            now = time.monotonic()
            if self._resident_bytes() > self.memory:
                self.close()
                raise RunDiedError(w.too_much_memory(self.memory), is_final=True)
            if now - began > self._seconds:
                self.close()
                raise RunDiedError(
                    f"the run computed for {self._seconds:.0f} s without asking any client; make the query smaller, or "
                    "let the server give runs more time (`compute` under [server])",
                    is_final=True,
                )
            if run.stop.is_set():
                stopped = stopped or now
                if now - stopped > _GRACE:
                    self.close()
                    raise RunInterruptedError("the run was stopped while it computed")

    def _resident_bytes(self) -> int:
        """Bytes of memory that the process alone has; 0 where the system does not report it."""
        assert self._process is not None
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()
        except OSError:
            return 0
        return (int(pages[1]) - int(pages[2])) * _PAGE

    def _death(self) -> RunDiedError:
        code = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(5)
        self.close()
        how = f"exit code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = signal.Signals(-code).name
        return RunDiedError(f"its process died ({how})", is_orderly=code == -signal.SIGTERM)
