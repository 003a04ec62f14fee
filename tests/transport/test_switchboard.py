"""All clients' answers to one step together have a bound, however small each of them is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tablepuppet.errors import DisconnectedError, TransportError
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.flight import Connection, Listener, ListenerSettings, Party
from tablepuppet.transport.switchboard import Switchboard, WaitRules

_CLIENTS = ("a", "b", "c")


@contextmanager
def _connected(switchboard: Switchboard, answer: int) -> Iterator[None]:
    """Three clients over real connections, each of which answers every request with so many bytes."""

    def reply(connection: Connection) -> None:
        with suppress(DisconnectedError):  # the server may leave before it says goodbye
            while isinstance(request := connection.stream.receive()[0], e.Request):
                connection.stream.send(e.Reply(run=request.run, step=request.step), [Frame(b"h", [bytes(answer)])])

    welcome = e.Welcome(heartbeat=5.0, limit=1 << 20, runs=[])
    door = ListenerSettings(
        dict.fromkeys(_CLIENTS, "client"),
        lambda: welcome,
        lambda name, role, stream: switchboard.serve(name, stream),
        e.FROM_CLIENT,
    )
    server = Listener("grpc+tcp://127.0.0.1:0", door, None)
    url = f"grpc+tcp://127.0.0.1:{server.port}"
    connections = [Connection(url, Party(name, "client", None), e.FROM_SERVER) for name in _CLIENTS]
    threads = [threading.Thread(target=reply, args=(connection,), daemon=True) for connection in connections]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        switchboard.close("the test is over")
        for connection, thread in zip(connections, threads, strict=True):
            thread.join(timeout=60)
            connection.close()
        server.shutdown()


def _ask(switchboard: Switchboard) -> dict[str, list[Frame]]:
    requests = {name: (e.Request(run="r", step=1, after=0), [Frame(b"h", [b""])]) for name in _CLIENTS}
    return switchboard.ask(requests, WaitRules(20.0))


def test_answers_that_fit_into_the_servers_room_come_step_after_step() -> None:
    switchboard = Switchboard(_CLIENTS, room=400_000)
    with _connected(switchboard, answer=100_000):
        for _ in range(3):
            sizes = {name: frame.size for name, (frame,) in _ask(switchboard).items()}
            assert sizes == dict.fromkeys(_CLIENTS, 100_001)


def test_answers_that_pass_the_servers_room_together_end_the_step() -> None:
    switchboard = Switchboard(_CLIENTS, room=200_000)
    with (
        _connected(switchboard, answer=100_000),
        pytest.raises(TransportError, match=r"take \d+,\d+ bytes together, and the server has 200,000 for them"),
    ):
        _ask(switchboard)
