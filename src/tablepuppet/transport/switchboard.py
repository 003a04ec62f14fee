"""The switchboard: which clients are connected, and numbered requests to them.

In: connections as they come and go, and requests of runs. Out: replies. A request stays with the
switchboard until it is answered: whenever its client connects again, it is sent again. Who is away
is known by name and since when; the one who asks decides how long to wait.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tablepuppet.errors import DisconnectedError, RunInterruptedError, TransportError
from tablepuppet.formatting import LONGEST_FAILURE, printable
from tablepuppet.protocol.codec import Frame
from tablepuppet.protocol.evidence import TreeHead
from tablepuppet.transport.connections import Stream
from tablepuppet.transport.envelopes import LIMIT, Envelope, Forget, Goodbye, KnownHeads, NoRoomError, Reply, Request

log = logging.getLogger(__name__)
_UNASKED = 1 << 20  # bytes of a parcel of a client that was asked nothing
_MISSED = 3  # heartbeats, after which a client that owes no answer is away
_MISSED_COMPUTING = 60  # one that computes its answer may keep its other threads from running for that long
_MOST_UNREAD = 20  # parcels that wait for a client that does not read
_MOST_UNASKED = 100  # answers in a row that nobody waits for: some come late, or twice
OnPause = Callable[[Sequence[str]], None]  # nothing happened for a while; who has not answered
OnWaiting = Callable[[dict[str, float]], None]  # who is away, and for how many more seconds they are waited for


class WaitRules(msgspec.Struct, frozen=True):
    """How long answers are waited for, and who hears of it meanwhile."""

    patience: float  # seconds that a client may be away; then the run ends, resumably
    on_waiting: OnWaiting = lambda clients: None
    on_pause: OnPause = lambda silent: None
    is_cancelled: Callable[[], bool] = lambda: False
    since: float | None = None  # when it was asked first, if it is asked again


class _Line(msgspec.Struct):
    """One client's connection and the thread that writes to it."""

    stream: Stream
    limit: int  # bytes of an answer
    outbox: queue.SimpleQueue[tuple[Envelope, Sequence[Frame]] | None] = msgspec.field(
        default_factory=queue.SimpleQueue
    )

    unasked: int = 0  # answers in a row that nobody waits for

    def expect(self, is_asked: bool) -> None:
        """Large parcels may come while there is a question, and only then."""
        self.stream.allow(self.limit if is_asked else min(self.limit, _UNASKED))

    @property
    def is_stuck(self) -> bool:
        """Whether the other side does not read: unsent parcels take memory."""
        return self.outbox.qsize() > _MOST_UNREAD

    def write(self, beat: float) -> None:
        """Sends parcels of the outbox, and a sign of life when there is none, until the outbox ends."""
        try:
            while True:
                try:
                    parcel = self.outbox.get(timeout=beat)
                except queue.Empty:
                    self.stream.beat()
                    continue
                if parcel is None:
                    return
                self.stream.send(*parcel)
        except DisconnectedError:
            self.stream.cancel()


class _Asked(msgspec.Struct):
    request: Request
    frames: Sequence[Frame]
    asked: float
    reply: list[Frame] | None = None
    wrong: str = ""  # the fault of an answer that was refused


class Switchboard:
    """Connections by client name, and what each of them still has to answer."""

    def __init__(self, clients: Sequence[str], heartbeat: float = 5.0, room: int = LIMIT) -> None:
        self.clients = tuple(clients)
        self.room = room  # bytes of all clients' answers to one step
        self.heartbeat = heartbeat
        self.heads: dict[str, TreeHead] = {}  # of clients' logs, as received last
        self.on_head: Callable[[], None] = lambda: None
        self.waited = dict.fromkeys(clients, 0.0)  # seconds that runs spent waiting for each client
        self._lines: dict[str, _Line] = {}
        self._gone = dict.fromkeys(clients, time.monotonic())  # since when
        self._asked: dict[str, _Asked] = {}
        self._held = 0  # bytes of answers that have come, and are not passed on yet
        self._changed = threading.Condition()
        self._is_closed = False

    def serve(self, client: str, stream: Stream) -> None:
        """Holds one client's connection until it ends; a newer one of the same client replaces it."""
        line = _Line(stream, stream.limit)
        writer = threading.Thread(target=line.write, args=(self.heartbeat,), name=f"to-{client}", daemon=True)
        with self._changed:
            old = self._lines.pop(client, None)
            if old is not None:
                old.outbox.put((Goodbye(reason="another connection came under the same name", is_final=True), ()))
                old.outbox.put(None)
            self._lines[client] = line
            if self.heads:
                line.outbox.put((KnownHeads(heads=dict(self.heads)), ()))
            line.expect(self._owes(client))
            if self._owes(client):
                line.outbox.put((self._asked[client].request, self._asked[client].frames))
            self._changed.notify_all()
        writer.start()
        log.info("client %s is connected", client)
        try:
            while not self._is_closed and self._lines.get(client) is line:
                envelope, frames = stream.receive()
                if isinstance(envelope, Goodbye):
                    log.info("client %s said goodbye: %s", client, printable(envelope.reason[:200]))
                    break
                if not isinstance(envelope, Reply):
                    raise TransportError(f"client {client} sent a {type(envelope).__name__} out of turn")
                self._keep_head(client, envelope.head)
                self._receive(client, line, envelope, frames)
                del envelope, frames  # or they stay in memory for as long as the next are waited for
        except DisconnectedError:
            log.warning("client %s is gone", client)
        except NoRoomError:
            raise  # it may send its answer again
        except TransportError as error:
            with self._changed:
                if self._lines.get(client) is line and client in self._asked:
                    self._asked[client].wrong = printable(str(error), most=LONGEST_FAILURE)
                    self._changed.notify_all()
            raise
        finally:
            line.outbox.put(None)
            self._detach(client, line)
            writer.join(timeout=self.heartbeat)

    def _detach(self, client: str, line: _Line) -> None:
        with self._changed:
            if self._lines.get(client) is line:
                del self._lines[client]
                self._gone[client] = time.monotonic()
                self._changed.notify_all()

    def _receive(self, client: str, line: _Line, reply: Reply, frames: list[Frame]) -> None:
        with self._changed:
            asked = self._asked.get(client)
            if asked is None or (asked.request.run, asked.request.step) != (reply.run, reply.step):
                log.info(
                    "client %s answered step %d of run %s, which nobody waits for", client, reply.step, reply.run[:16]
                )
                line.unasked += 1
                if line.unasked > _MOST_UNASKED:
                    raise TransportError(f"client {client} answers what nobody asked, {line.unasked} times over")
                return
            line.unasked = 0
            if asked.reply is None:
                asked.reply = frames
                if client in self._lines:
                    self._lines[client].expect(False)
                self._count(client, asked)
                self._held += sum(frame.size for frame in frames)
                if self._held > self.room or all(a.reply is not None for a in self._asked.values()):
                    self._changed.notify_all()

    def _keep_head(self, client: str, head: TreeHead | None) -> None:
        """Keeps the head of a client's log. A shorter one than before was accepted by a person, or is a lie."""
        if head is None:
            return
        earlier = self.heads.get(client)
        if earlier is not None and (head.size, head.root) != (earlier.size, earlier.root) and head.size <= earlier.size:
            log.warning(
                "the log of client %s does not continue: it had %d lines (head %s), and now %d (head %s); its owner "
                "accepted that, or does not tell the truth",
                *(client, earlier.size, earlier.root[:16], head.size, head.root[:16]),
            )
        self.heads[client] = head
        self.on_head()

    def _count(self, client: str, asked: _Asked) -> None:
        self.waited[client] = self.waited.get(client, 0.0) + time.monotonic() - asked.asked

    def list_connected(self) -> dict[str, str]:
        with self._changed:
            return {client: line.stream.note for client, line in self._lines.items()}

    def away(self) -> dict[str, float]:
        """Who is not connected, and for how many seconds."""
        now = time.monotonic()
        with self._changed:
            return {c: now - self._gone[c] for c in self.clients if c not in self._lines}

    def ask(self, requests: Mapping[str, tuple[Request, Sequence[Frame]]], rules: WaitRules) -> dict[str, list[Frame]]:
        """Every client's reply."""
        now = time.monotonic()
        with self._changed:
            for client, (request, frames) in requests.items():
                self._asked[client] = _Asked(request, frames, now)
                if client in self._lines:
                    self._lines[client].expect(True)
                    self._lines[client].outbox.put((request, frames))
            try:
                return self._await(requests, rules, now if rules.since is None else rules.since)
            finally:
                self._held = 0
                for client in requests:
                    if client in self._lines:
                        self._lines[client].expect(False)
                    asked = self._asked.pop(client, None)
                    if asked is not None and asked.reply is None:
                        self._count(client, asked)

    def _await(self, requests: Mapping[str, object], rules: WaitRules, began: float) -> dict[str, list[Frame]]:
        said: set[str] = set()
        pause = min(1.0, self.heartbeat)
        paused = time.monotonic()
        while True:
            if self._held > self.room:
                whose = ", ".join(c for c in requests if self._asked[c].reply is not None)
                raise TransportError(
                    f"the answers of {whose} to one step take {self._held:,} bytes together, and the server has "
                    f"{self.room:,} for them; ask for fewer rows, or let it have more memory"
                )
            for client in requests:
                if self._asked[client].wrong:
                    raise TransportError(f"client {client}: {self._asked[client].wrong}")
            replies = {c: self._asked[c].reply for c in requests}
            done = {c: r for c, r in replies.items() if r is not None}
            if len(done) == len(replies):
                if said:
                    rules.on_waiting({})
                return done
            if self._is_closed or rules.is_cancelled():
                raise RunInterruptedError("the run was stopped; it can be resumed")
            now = time.monotonic()
            self._drop_silent(now)
            away = {c: now - max(self._gone[c], began) for c in replies if c not in done and c not in self._lines}
            for client, seconds in away.items():
                if seconds > rules.patience:
                    raise RunInterruptedError(
                        f"client {client} has been away for {seconds:.0f} s, longer than this run waits "
                        f"({rules.patience:.0f} s); when it is back, train the same job again with --resume "
                        "(resume=True)"
                    )
            if set(away) != said:
                said = set(away)
                rules.on_waiting({c: rules.patience - s for c, s in away.items()})
            self._changed.wait(pause)
            now = time.monotonic()
            if now - paused >= pause:  # clients that come or leave meanwhile wake us, too
                paused = now
                rules.on_pause([client for client in replies if self._asked[client].reply is None])

    def _drop_silent(self, now: float) -> None:
        """Ends lines without a sign of life, whatever TCP still believes, and lines that nobody reads.

        A client that computes may be silent for longer. If its machine is gone, gRPC ends the line within seconds:
        the machine acknowledges nothing.
        """
        for client, line in list(self._lines.items()):
            if line.is_stuck:
                log.warning("client %s does not read what it is sent", client)
                line.outbox = queue.SimpleQueue()  # without the parcels that wait
            elif now - line.stream.heard > self.heartbeat * (_MISSED_COMPUTING if self._owes(client) else _MISSED):
                log.warning("client %s is silent for %.0f s", client, now - line.stream.heard)
            else:
                continue
            line.outbox.put(None)
            self._detach(client, line)

    def _owes(self, client: str) -> bool:
        return client in self._asked and self._asked[client].reply is None

    def forget(self, run: str) -> None:
        """Informs all clients that a run is over for good."""
        with self._changed:
            for line in self._lines.values():
                if not line.is_stuck:
                    line.outbox.put((Forget(run=run), ()))

    def close(self, reason: str) -> None:
        """Takes leave of everybody; runs under way are interrupted."""
        with self._changed:
            self._is_closed = True
            for line in self._lines.values():
                line.outbox.put((Goodbye(reason=reason), ()))
            self._changed.notify_all()
