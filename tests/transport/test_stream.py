"""A stream of the server may be written to by any thread at any time, also when its connection is over."""

from __future__ import annotations

import queue
import time

import pytest

from tablepuppet.errors import DisconnectedError
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.connections import Stream
from tablepuppet.transport.flight import Connection, Listener, ListenerSettings, Party


def test_whoever_writes_after_the_end_is_told_so() -> None:
    """Flight destroys the writer with its call: to use it later would end the process."""
    served: queue.Queue[Stream] = queue.Queue()
    welcome = e.Welcome(heartbeat=5.0, limit=1 << 20, runs=[])
    door = ListenerSettings(
        {"a": "client"}, lambda: welcome, lambda name, role, stream: served.put(stream), e.FROM_CLIENT
    )
    server = Listener("grpc+tcp://127.0.0.1:0", door, None)
    connection = Connection(f"grpc+tcp://127.0.0.1:{server.port}", Party("a", "client", None), e.FROM_SERVER)
    stream = served.get(timeout=60)
    with pytest.raises(DisconnectedError):
        connection.stream.receive()
    connection.close()
    until = time.monotonic() + 60
    while not stream._is_over:
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(DisconnectedError):
        stream.send(e.Forget(run=""))
    with pytest.raises(DisconnectedError):
        stream.beat()
    server.shutdown()
