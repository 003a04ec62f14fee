"""The coordinator's process: the listener for clients and users, the coordinator, and health checks.

Health, status and metrics are served over HTTP, for machines that watch the coordinator.
"""

import json
import logging
import os
import queue
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tablepuppet.errors import DisconnectedError, JobError, TablePuppetError, TransportError
from tablepuppet.formatting import printable
from tablepuppet.memory import memory_limit
from tablepuppet.network import control as c
from tablepuppet.network.control import to_frame
from tablepuppet.network.coordinator import Coordinator
from tablepuppet.network.runs import Run
from tablepuppet.network.settings import FederationSettings
from tablepuppet.transport.connections import OUT_OF_DESCRIPTORS, SPARE, Stream
from tablepuppet.transport.envelopes import Goodbye, Role, Room, Welcome, client_protocol
from tablepuppet.transport.flight import Listener, ListenerSettings
from tablepuppet.transport.switchboard import Switchboard

log = logging.getLogger(__name__)
_HEALTH_CONNECTIONS = 256  # at a time
_HEALTH_BACKLOG = 4096  # that wait to be let in
_HEALTH_AT_ONCE = 64  # that are let in before anybody else is attended to
_HEALTH_SECONDS = 5.0  # that one of them may last
_HEALTH_REQUEST = 8192  # bytes
_HEALTH_PERIOD = 0.2  # seconds until it looks for those that last too long
_HEALTH_GRACE = 0.1  # seconds that each of them has, however many come
_HEALTH_RETRY = 0.01  # seconds until it tries again to let somebody in


class _Guest(msgspec.Struct):
    """Somebody who asks for a page."""

    since: float
    asked: bytes = b""
    answer: memoryview = memoryview(b"")  # what is left to send of it


class Monitor:
    """A small HTTP server: /health, /status (JSON) and /metrics (Prometheus).

    One thread serves everybody at once, so that a slow request holds up no other. Where many come, the oldest are cut
    off, and whoever has sent half a request; the next are let in once there is room.
    """

    def __init__(self, address: str, status: Callable[[], dict[str, Any]], health: Callable[[], str]) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or int(port) >= 1 << 16:
            raise JobError(f"health must be host:port, not {address!r}")
        self._status, self._health = status, health
        try:
            self._door = socket.create_server((host, int(port)), backlog=_HEALTH_BACKLOG)
        except OSError as error:
            reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            raise TransportError(
                f"cannot listen on {address} for health checks: {reason}; choose another port"
            ) from None
        self._door.setblocking(False)
        self.port = int(self._door.getsockname()[1])
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._door, selectors.EVENT_READ)
        self._guests: dict[socket.socket, _Guest] = {}  # the oldest first
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._over.is_set():
            for key, _ in self._ready.select(_HEALTH_PERIOD):
                if key.fileobj is self._door:
                    self._let_in()
                elif key.fileobj in self._guests:  # and was not dropped meanwhile
                    self._attend(key.fileobj, key.data)
            latest = time.monotonic() - _HEALTH_SECONDS
            for one in [one for one, guest in self._guests.items() if guest.since < latest]:
                self._drop(one)
        for one in list(self._guests):
            self._drop(one)
        self._ready.close()
        self._door.close()

    def _let_in(self) -> None:
        for _ in range(_HEALTH_AT_ONCE):
            if len(self._guests) == _HEALTH_CONNECTIONS:
                oldest, guest = next(iter(self._guests.items()))
                if time.monotonic() - guest.since < _HEALTH_GRACE:
                    self._over.wait(_HEALTH_RETRY)
                    return
                self._drop(oldest)
            try:
                one = self._door.accept()[0]
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:
                    return
                try:
                    with SPARE.lend():
                        one = self._door.accept()[0]
                except OSError:
                    self._over.wait(_HEALTH_RETRY)
                    return
            one.setblocking(False)
            self._guests[one] = guest = _Guest(time.monotonic())
            self._ready.register(one, selectors.EVENT_READ, guest)
            self._attend(one, guest)  # who waited for long has sent its request by now

    def _attend(self, one: Any, guest: _Guest) -> None:
        try:
            if not guest.answer:
                said = one.recv(_HEALTH_REQUEST)
                guest.asked += said
                if b"\r\n\r\n" not in guest.asked:
                    is_crowded = len(self._guests) > _HEALTH_CONNECTIONS // 2
                    if not said or len(guest.asked) > _HEALTH_REQUEST or is_crowded:
                        self._drop(one)
                    return
                guest.answer = memoryview(self._answer(guest.asked))
                self._ready.modify(one, selectors.EVENT_WRITE, guest)
            guest.answer = guest.answer[one.send(guest.answer) :]
        except BlockingIOError:
            return
        except OSError:
            log.debug("a health check ended early", exc_info=True)
            guest.answer = memoryview(b"")
        if not guest.answer:
            self._drop(one)

    def _drop(self, one: socket.socket) -> None:
        del self._guests[one]
        self._ready.unregister(one)
        one.close()

    def _answer(self, asked: bytes) -> bytes:
        """The page that a request asks for, with its head."""
        words, kind, status = asked.split(maxsplit=2), "application/json", HTTPStatus.OK
        try:
            match words[1] if words[:1] == [b"GET"] and len(words) > 1 else b"":
                case b"/health":
                    health = self._health()
                    status = HTTPStatus.OK if health == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
                    page = json.dumps({"status": health})
                case b"/status":
                    page = json.dumps(self._status())
                case b"/metrics":
                    kind, page = "text/plain; version=0.0.4", metrics(self._status())
                case _:
                    status, page = HTTPStatus.NOT_FOUND, ""
        except Exception:  # a bug must not end the health checks
            log.exception("a health check failed")
            status, page = HTTPStatus.INTERNAL_SERVER_ERROR, ""
        size = len(page.encode())
        head = f"HTTP/1.0 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
        return f"{head}{page}".encode()


def metrics(status: dict[str, Any]) -> str:
    """The status as Prometheus reads it.

    >>> metrics({"steps": 2, "bytes_up": 10, "bytes_down": 5, "connected": {"a": ""}, "away": {},
    ...          "waited": {"a": 0.5}, "runs": [{"state": "finished"}]}).splitlines()[-1]
    'tablepuppet_runs{state="finished"} 1'
    """
    is_connected = dict.fromkeys(status["connected"], 1) | dict.fromkeys(status["away"], 0)
    states = Counter(run["state"] for run in status["runs"])
    families: list[tuple[str, str, str, dict[str, Any]]] = [
        ("rounds_total", "counter", "", {"": status["steps"]}),
        ("bytes_total", "counter", "direction", {"up": status["bytes_up"], "down": status["bytes_down"]}),
        ("client_connected", "gauge", "client", is_connected),
        ("client_wait_seconds_total", "counter", "client", status["waited"]),
        ("runs", "gauge", "state", dict(sorted(states.items()))),
    ]
    lines = []
    for name, kind, label, samples in families:
        lines.append(f"# TYPE tablepuppet_{name} {kind}")
        for value, count in samples.items():
            labels = f'{{{label}="{value}"}}' if label else ""
            lines.append(f"tablepuppet_{name}{labels} {count}")
    return "\n".join(lines) + "\n"


class Server:
    """Everything that listens; `close` ends all of it."""

    def __init__(self, settings: FederationSettings) -> None:
        server = settings.server
        self._heartbeat = server.heartbeat
        self.switchboard = Switchboard(settings.clients, server.heartbeat, memory_limit() // 5)
        self._is_closing = False
        self.coordinator = Coordinator(settings, self.switchboard)
        roles: dict[str, Role] = dict.fromkeys(settings.clients, "client")
        roles |= dict.fromkeys(settings.users, "user")
        admission = ListenerSettings(
            roles=roles,
            welcome=lambda: Welcome(heartbeat=server.heartbeat, limit=server.limit, runs=self.coordinator.live()),
            serve=self._serve,
            types=c.FROM_ANYBODY,
            limit=min(server.limit, memory_limit() // 8),
            room=Room(memory_limit() // 5),
            revoked=settings.path(server.revoked),
            protocols={"client": client_protocol(), "user": c.user_protocol()},
        )
        address = urlsplit(server.address)
        location = f"{address.scheme}://{server.listen or address.netloc}"
        try:
            self._listener = Listener(location, admission, settings.server_identity())
            self.monitor = (
                Monitor(server.health, self.coordinator.status, self.coordinator.health) if server.health else None
            )
        except TablePuppetError:
            self.coordinator.close()
            raise
        self.port: int = self._listener.port
        log.info("listening on %s", location)

    def close(self) -> None:
        """Stops the run under way, which resumes another time; takes leave of everybody; stops listening."""
        self._is_closing = True
        self.coordinator.close()
        self.switchboard.close("the server stops")
        if self.monitor is not None:
            self.monitor.close()
        # Flight waits for open exchanges; a party that is silent must not keep us
        ending = threading.Thread(target=self._listener.shutdown, daemon=True)
        ending.start()
        ending.join(timeout=3 * self._heartbeat)

    def _serve(self, name: str, role: Role, stream: Stream) -> None:
        if role == "client":
            self.switchboard.serve(name, stream)
            return
        stream.allow(min(stream.limit, self.coordinator.most_held))
        while True:
            envelope, frames = stream.receive()
            if isinstance(envelope, Goodbye):
                return
            try:
                self._answer(name, envelope, frames, stream)
            except DisconnectedError:
                raise
            except TablePuppetError as error:
                stream.send(c.Failed(error=type(error).__name__, message=str(error)))
            del envelope, frames  # or they stay in memory for as long as the next are waited for

    def _answer(self, name: str, envelope: Any, frames: list[Any], stream: Stream) -> None:
        if isinstance(envelope, c.Submit) and len(frames) == 1:
            run = self.coordinator.submit(envelope, frames.pop(), name)  # which it holds, and nobody else
            log.info("user %s submitted run %s (%s)", name, run.id, run.kind)
            if envelope.follows:
                self._follow(run, stream, rounds=envelope.rounds)
            else:
                stream.send(c.Accepted(run=run.id))
        elif frames:
            raise TransportError(f"a {type(envelope).__name__} of {len(frames)} frames is nothing that is asked")
        elif isinstance(envelope, c.Follow):
            self._follow(self.coordinator.run(envelope.run, name), stream, rounds=envelope.rounds)
        elif isinstance(envelope, c.Cancel):
            log.info("user %s stops run %s", name, printable(envelope.run[:16]))
            run = self.coordinator.cancel(envelope.run, keep=envelope.keep, user=name)
            stream.send(c.Accepted(run=run.id))
        elif isinstance(envelope, c.Resume):
            log.info("user %s resumes run %s", name, printable(envelope.run[:16]))
            stream.send(c.Accepted(run=self.coordinator.resume(envelope.run, name).id))
        elif isinstance(envelope, c.AskStatus):
            stream.send(c.Status(), [to_frame(self.coordinator.status(name))])
        else:
            raise TransportError(f"a user may not send a {type(envelope).__name__}")

    def _follow(self, run: Run, stream: Stream, *, rounds: bool) -> None:
        news = run.follow(rounds=rounds)
        try:
            stream.send(c.Accepted(run=run.id))
            while not self._is_closing:
                try:
                    item, frames = news.get(timeout=self._heartbeat)
                except queue.Empty:
                    stream.beat()
                    continue
                stream.send(item, frames)
                if isinstance(item, c.Finished | c.Failed):
                    return
        finally:
            run.unfollow(news)
        raise DisconnectedError("the server stops")
