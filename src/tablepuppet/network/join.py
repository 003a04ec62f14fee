"""A client's process: dials out, answers what it is asked, comes back after every interruption."""

from __future__ import annotations

import logging
import random
import threading
import time

from tablepuppet.errors import DisconnectedError, TransportError
from tablepuppet.formatting import printable
from tablepuppet.memory import memory_limit
from tablepuppet.network.idempotent_client import IdempotentClient
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.flight import Connection, Identity, Party

log = logging.getLogger(__name__)
_SHORTEST, _LONGEST = 0.2, 10.0  # seconds between two attempts to reach the server


class Member:
    """One client's membership in a federation, until it is stopped."""

    def __init__(self, name: str, address: str, identity: Identity | None, client: IdempotentClient) -> None:
        self._name, self._address, self._identity = name, address, identity
        self._client = client
        self._stop = threading.Event()
        self._connection: Connection | None = None
        self._pause = _SHORTEST
        self.note = ""

    def run(self) -> None:
        """Dials until somebody answers, and again whenever the line breaks; refusal is an error."""
        try:
            self._dial()
        finally:
            self._client.close()

    def _dial(self) -> None:
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
                    self._leave(envelope)
                    return
                if isinstance(envelope, e.Forget):
                    self._client.forget(envelope.run)
                    continue
                if not isinstance(envelope, e.Request):
                    raise DisconnectedError(f"the server sent a {type(envelope).__name__} out of turn")
                reply = self._client.answer(envelope, frames)
                stream.send(e.Reply(run=envelope.run, step=envelope.step), reply)
                self._pause = _SHORTEST  # this line was of use
                del frames, reply  # or they stay in memory for as long as the next are waited for
        finally:
            is_over.set()
            self._connection = None
            ticker.join()
            connection.close()

    def _leave(self, goodbye: e.Goodbye) -> None:
        if goodbye.is_final:
            raise TransportError(f"the server sent {self._name} away: {printable(goodbye.reason[:1000])}")
        raise DisconnectedError(f"the server said goodbye: {printable(goodbye.reason[:1000])}")

    def _tick(
        self, connection: Connection, heartbeat: float, is_over: threading.Event, is_busy: threading.Event
    ) -> None:
        """Signs of life; three of the server's missed, and the line is given up."""
        stream = connection.stream
        while not is_over.wait(heartbeat):
            try:
                stream.beat(self.note or ("computing" if is_busy.is_set() else ""))
            except DisconnectedError:
                return
            self._client.finish()  # after the sign of life: a disk may be slow
            if not is_busy.is_set() and time.monotonic() - stream.heard > 3 * heartbeat:
                log.warning("the server is silent for %.0f s", time.monotonic() - stream.heard)
                stream.cancel()
                return
