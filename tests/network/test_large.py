"""Payloads of any size: what memory holds is one copy of a message at each end, and a mebibyte of it under way."""

from __future__ import annotations

import multiprocessing
import resource
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np
import pytest
from tests.network import party  # noqa: F401  (the fork server of all tests)

from tablepuppet.protocol.codec import Frame
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.connections import Stream
from tablepuppet.transport.flight import Connection, Listener, ListenerSettings, Party

RUN = "0123456789abcdef"
_FORKS = multiprocessing.get_context("forkserver")


def peak() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(pipe: Pipe) -> None:
    """A server in a process of its own: sends back what it gets, then tells how much memory that took."""

    def echo(name: str, role: e.Role, stream: Stream) -> None:
        while True:
            envelope, frames = stream.receive()
            if isinstance(envelope, e.Goodbye):
                return
            before.append(peak())
            stream.send(e.Request(run=RUN, step=1, after=0), frames)
            del frames

    before: list[int] = []
    welcome = e.Welcome(heartbeat=5.0, limit=1 << 34, runs=[])
    server = Listener(
        "grpc+tcp://127.0.0.1:0", ListenerSettings({"a": "client"}, lambda: welcome, echo, e.FROM_CLIENT), None
    )
    start = peak()
    pipe.send(server.port)
    pipe.recv()
    pipe.send(peak() - start)
    server.shutdown()


def send_and_receive(size: int, pipe: Pipe, port: int) -> None:
    """A client in a process of its own."""
    connection = Connection(f"grpc+tcp://127.0.0.1:{port}", Party("a", "client", None), e.FROM_SERVER)
    connection.stream.allow(1 << 34)
    sent: Any = np.arange(size // 8)
    start = peak()
    connection.stream.send(e.Reply(run=RUN, step=1), [Frame(b"h", [sent.data.cast("B")])])
    _, (frame,) = connection.stream.receive()
    is_same = np.array_equal(np.frombuffer(frame.buffers[0], np.int64), sent)
    pipe.send((is_same, peak() - start))
    connection.stream.send(e.Goodbye(reason="done"))
    connection.close()


def assert_passes(size: int) -> None:
    """Each way, with at most one copy and a little more at either end."""
    ours, theirs = _FORKS.Pipe()
    server = _FORKS.Process(target=serve, args=(theirs,))
    server.start()
    port = ours.recv()
    mine, yours = _FORKS.Pipe()
    client = _FORKS.Process(target=send_and_receive, args=(size, yours, port))
    client.start()
    is_same, client_took = mine.recv()
    client.join(60)
    ours.send(None)
    server_took = ours.recv()
    server.join(60)
    assert is_same
    allowed = 1.15 * size + 64e6
    assert server_took < allowed, f"{server_took:,} bytes"
    assert client_took < allowed, f"{client_took:,} bytes"


def test_fifty_megabytes_pass_each_way() -> None:
    assert_passes(50_000_000)


@pytest.mark.slow
def test_a_gibibyte_passes_each_way_in_bounded_memory() -> None:
    assert_passes(1 << 30)
