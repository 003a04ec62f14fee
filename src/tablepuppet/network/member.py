"""A client in a federation: dials out, answers every request once, comes back after every interruption.

In: numbered requests. Out: replies. A request that comes again gets the same reply again. One that is older, or that
skips a step, is refused. With a store, a step's changes are on the disk before its reply leaves, so a killed client
resumes at its last step. The checkpoint of a run:

    setup   the requests that opened its scans and parts, which are answered again
    last    the last step, its reply, and the state of each part
"""

import logging
import random
import re
import threading
import time
from collections.abc import Iterable, Sequence

import msgspec

from tablepuppet.client import Client
from tablepuppet.errors import DisconnectedError, TablePuppetError, TransportError
from tablepuppet.exchanges.registry import EXCHANGES
from tablepuppet.exchanges.schema import CloseJob
from tablepuppet.formatting import printable
from tablepuppet.memory import memory_limit
from tablepuppet.network.run_store import Key, Record, RunStore, StoreError
from tablepuppet.protocol.base import Done, Failure
from tablepuppet.protocol.codec import Frame, encode, message_name
from tablepuppet.protocol.evidence import TreeHead
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.envelopes import Envelope, Request
from tablepuppet.transport.flight import Connection, Identity, Party

log = logging.getLogger(__name__)
_RUN = re.compile(r"[0-9a-f]{16}")
_SETUP = frozenset(kind.__name__ for kind, exchange in EXCHANGES.items() if exchange.leaves_state)
_SHORTEST, _LONGEST = 0.2, 10.0  # seconds between two attempts to reach the server


class _Setup(Envelope, frozen=True):
    """Frames: the requests of one step."""


class _Last(Envelope, frozen=True):
    """Frames: the reply's, then one state per part."""

    step: int
    replies: int
    parts: list[int]
    fingerprints: dict[int, int]  # of the rows that the run has read, by scan


class _Memory(msgspec.Struct):
    step: int = 0
    reply: Sequence[Frame] = ()
    fingerprints: dict[int, int] = {}


class IdempotentClient:
    """One client's memory of its runs."""

    def __init__(self, client: Client, store: RunStore) -> None:
        self._client, self.store, self.log = client, store, client.log
        self.note = ""  # why it waits, for the server
        self._runs: dict[str, _Memory] = {}

    def answer(self, request: Request, frames: Sequence[Frame]) -> Sequence[Frame]:
        """The reply to a request, computed at most once."""
        kinds = [message_name(frame) for frame in frames]
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
        self._runs.pop(run, None)
        self._client.answer(CloseJob(job=run))
        self.store.forget(run)

    def keep_only(self, runs: Iterable[str]) -> None:
        for run in {*self.store.runs(), *self._runs} - set(runs):
            log.info("forgetting run %s, which the server does not know", run)
            self.forget(run)

    def _keep(
        self, request: Request, frames: Sequence[Frame], kinds: list[str], memory: _Memory, reply: list[Frame]
    ) -> None:
        """The checkpoint after a step; a full disk is waited for, for nothing leaves before it is kept."""

        def wait_for_room() -> bool:
            self.note = "its disk is full"
            return True

        run, setup = request.run, [frame for frame, kind in zip(frames, kinds, strict=True) if kind in _SETUP]
        if setup:
            memory.fingerprints = self._client.tables.fingerprints(run)
        states = self._client.states(run)
        last = _Last(step=request.step, replies=len(reply), parts=list(states), fingerprints=memory.fingerprints)
        kept = [*reply, *(encode(part, keep_order=True) for part in states.values())]
        records: dict[Key, Record] = {(run, "last", 0): (last, kept)}
        if setup:
            records[run, "setup", request.step] = _Setup(), setup
        try:
            self.store.write(records, is_urgent=self._client.answers_once(run), waits=wait_for_room)
        except StoreError as error:
            raise TransportError(f"cannot write a checkpoint: {error}") from None
        self.note = ""
        memory.step, memory.reply = request.step, reply

    def _remember(self, run: str) -> _Memory:
        if not _RUN.fullmatch(run):
            raise TransportError("a run's name must be sixteen hexadecimal digits")
        if run not in self._runs:
            found = self.store.read((run, "last", 0), _Last)
            self._runs[run] = _Memory() if found is None else self._restore(run, *found)
        return self._runs[run]

    def _restore(self, run: str, last: _Last, frames: list[Frame]) -> _Memory:
        """Answers the requests of the setup again, and sets the states that the parts had."""
        states = frames[last.replies :]
        try:
            with self._client.restoring():
                for step in self.store.numbers(run, "setup"):
                    setup = self.store.read((run, "setup", step), _Setup)
                    for frame in setup[1] if setup is not None else ():
                        self._client.handle(frame)
            changed = self._client.tables.find_changed(run, last.fingerprints)
            if changed:
                which = f"table {changed[0]} has" if len(changed) == 1 else f"tables {', '.join(changed)} have"
                raise TransportError(f"{which} changed since the run began; start the run again")
            if len(states) != len(last.parts) or any((run, part) not in self._client.parts for part in last.parts):
                raise TransportError(f"the checkpoint of run {run} is damaged at this client; start the run again")
            self._client.restore(run, dict(zip(last.parts, states, strict=True)))
        except TablePuppetError:
            self._client.answer(CloseJob(job=run))
            raise
        log.info("run %s goes on after step %d", run, last.step)
        return _Memory(last.step, frames[: last.replies], last.fingerprints)


class Member:
    """One client's membership in a federation, until it is stopped."""

    def __init__(self, name: str, address: str, identity: Identity | None, client: IdempotentClient) -> None:
        self._name, self._address, self._identity = name, address, identity
        self._client = client
        self._stop = threading.Event()
        self._connection: Connection | None = None
        self._pause = _SHORTEST
        self._sent: TreeHead | None = None  # the head of its log that the server received last
        self._witnessed: dict[str, TreeHead] = {}  # of others' logs

    def run(self) -> None:
        """Dials until the server answers, and again whenever the line breaks; a refusal is an error."""
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._visit()
            except DisconnectedError as error:
                if self._stop.is_set():
                    return
                if time.monotonic() - began > 3 * _LONGEST:
                    self._pause = _SHORTEST
                log.warning("%s; dialling again in %.1f s", error, self._pause)
                self._stop.wait(self._pause * random.uniform(0.5, 1.0))
                self._pause = min(2 * self._pause, _LONGEST)

    def stop(self) -> None:
        """Ends `run`, from any thread."""
        self._stop.set()
        connection = self._connection
        if connection is not None:
            try:
                connection.stream.send(e.Goodbye(reason="the client was stopped"))
            except DisconnectedError:
                log.debug("the server was gone already")
            connection.stream.cancel()

    def _visit(self) -> None:
        """One connection, from greeting to end."""
        self._sent = None
        connection = Connection(self._address, Party(self._name, "client", self._identity), e.FROM_SERVER)
        self._connection = connection
        stream, welcome = connection.stream, connection.welcome
        stream.allow(min(welcome.limit, memory_limit() // 4))
        log.info("%s is connected to %s", self._name, self._address)
        is_over = threading.Event()
        is_busy = threading.Event()
        is_busy.set()
        ticker = threading.Thread(
            target=self._tick, args=(connection, welcome.heartbeat, is_over, is_busy), name="heartbeat", daemon=True
        )
        ticker.start()
        try:
            self._client.keep_only(welcome.runs)
            while not self._stop.is_set():
                stream.heard = time.monotonic()  # nobody listened while it was busy
                is_busy.clear()
                envelope, frames = stream.receive()
                is_busy.set()
                if isinstance(envelope, e.Goodbye):
                    reason = printable(envelope.reason[:1000])
                    if envelope.is_final:
                        raise TransportError(f"the server sent {self._name} away: {reason}")
                    raise DisconnectedError(f"the server said goodbye: {reason}")
                if isinstance(envelope, e.Forget):
                    self._client.forget(envelope.run)
                    continue
                if isinstance(envelope, e.KnownHeads):
                    self._compare(envelope.heads)
                    continue
                if not isinstance(envelope, e.Request):
                    raise DisconnectedError(f"the server sent a {type(envelope).__name__} out of turn")
                reply = self._client.answer(envelope, frames)
                newest = self._client.log.head
                head = newest if newest != self._sent else None
                stream.send(e.Reply(run=envelope.run, step=envelope.step, head=head), reply)
                self._sent = newest
                self._pause = _SHORTEST  # this line was of use
                del frames, reply  # or they stay in memory for as long as the next are waited for
        finally:
            is_over.set()
            self._connection = None
            ticker.join()
            connection.close()

    def _compare(self, heads: dict[str, TreeHead]) -> None:
        """The server's head of this client's log must be one of its prefixes; others' heads are written down."""
        own, others = heads.get(self._name), {name: head for name, head in heads.items() if name != self._name}
        if own is not None:
            self._client.log.expect(own, "the server")
        if others != self._witnessed:
            self._client.log.witness(others)
            self._witnessed = others

    def _tick(
        self, connection: Connection, heartbeat: float, is_over: threading.Event, is_busy: threading.Event
    ) -> None:
        """Signs of life; three of the server's missed, and the line is given up."""
        stream = connection.stream
        while not is_over.wait(heartbeat):
            try:
                stream.beat(self._client.note or ("computing" if is_busy.is_set() else ""))
            except DisconnectedError:
                return
            self._client.store.tidy()  # after the sign of life: a disk may be slow
            if not is_busy.is_set() and time.monotonic() - stream.heard > 3 * heartbeat:
                log.warning("the server is silent for %.0f s", time.monotonic() - stream.heard)
                stream.cancel()
                return
