"""The coordinator's process: the listener for clients and users, the coordinator, and health checks.

Health, status and metrics are served over HTTP, for machines that watch the coordinator.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tablepuppet.errors import DisconnectedError, TablePuppetError, TransportError
from tablepuppet.formatting import printable
from tablepuppet.memory import memory_limit
from tablepuppet.network import control as c
from tablepuppet.network.control import to_frame
from tablepuppet.network.coordinator import Coordinator
from tablepuppet.network.runs import Run
from tablepuppet.network.settings import FederationSettings
from tablepuppet.transport.connections import OUT_OF_DESCRIPTORS, Stream
from tablepuppet.transport.envelopes import Goodbye, Role, Room, Welcome, client_protocol
from tablepuppet.transport.flight import Listener, ListenerSettings
from tablepuppet.transport.switchboard import Switchboard

log = logging.getLogger(__name__)
_HEALTH_CONNECTIONS = 64  # at a time
_HEALTH_SECONDS = 5.0  # that one of them may last
_HEALTH_REQUEST = 8192  # bytes
_HEALTH_SPARE = 16  # descriptors for when no other is left


class Monitor(ThreadingHTTPServer):
    """A small HTTP server: /health, /status (JSON) and /metrics (Prometheus).

    It answers even if many are connected: it has descriptors of its own, and cuts off slow or excess connections.
    """

    daemon_threads = True
    request_queue_size = 4096

    def __init__(self, address: str, status: Callable[[], dict[str, Any]], health: Callable[[], str]) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise TransportError(f"health must be host:port, not {address!r}")
        self.status, self.health = status, health
        self._spare: list[int] = []
        self._since: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        try:
            super().__init__((host, int(port)), _Handler)
        except OSError as error:
            raise TransportError(
                f"cannot listen on {address} for health checks: {error.strerror}; choose another port"
            ) from None
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._spare:
                raise
        os.close(self._spare.pop())
        return super().get_request()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accepts a connection. If many are open, only one that has sent a whole request is accepted."""
        with self._lock:
            is_crowded = len(self._since) >= _HEALTH_CONNECTIONS
        if not is_crowded:
            return True
        try:
            return b"\r\n\r\n" in request.recv(_HEALTH_REQUEST, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return False

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._since[request] = time.monotonic()
            while len(self._since) > _HEALTH_CONNECTIONS:
                self._cut(next(iter(self._since)))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Between two requests: ends those that last too long, and takes descriptors for the next flood."""
        latest = time.monotonic() - _HEALTH_SECONDS
        with self._lock:
            for request in [r for r, since in self._since.items() if since < latest]:
                self._cut(request)
        with suppress(OSError):
            while len(self._spare) < _HEALTH_SPARE:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def server_close(self) -> None:
        super().server_close()
        while self._spare:
            os.close(self._spare.pop())

    def _cut(self, request: socket.socket) -> None:
        del self._since[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a health check ended early", exc_info=True)


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


class _Handler(BaseHTTPRequestHandler):
    timeout = 10
    server: Monitor

    def do_GET(self) -> None:
        status, health = self.server.status, self.server.health
        pages: dict[str, tuple[str, Callable[[], str]]] = {
            "/health": ("application/json", lambda: json.dumps({"status": health()})),
            "/status": ("application/json", lambda: json.dumps(status())),
            "/metrics": ("text/plain; version=0.0.4", lambda: metrics(status())),
        }
        if self.path not in pages:
            self.send_error(404)
            return
        kind, page = pages[self.path]
        body = page().encode()
        self.send_response(503 if self.path == "/health" and health() != "ok" else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Health checks are not worth a line each."""


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
