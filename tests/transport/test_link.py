"""A round in one process: all clients are asked at once, each in a thread of its own."""

from __future__ import annotations

import threading

import pytest

from tablepuppet.errors import TransportError
from tablepuppet.exchanges.schema import CloseJob, RowCount
from tablepuppet.protocol.codec import Frame, encode
from tablepuppet.transport.link import LocalTransport

ASKED = [encode(CloseJob(job="j"))]


def test_clients_answer_at_once_and_answers_come_by_client() -> None:
    both = threading.Barrier(2, timeout=300)

    def answer(rows: int) -> Frame:
        both.wait()  # which one after the other would never pass
        return encode(RowCount(rows=rows))

    transport = LocalTransport({"a": lambda frame: answer(1), "b": lambda frame: answer(2)}, threads=2)
    found = transport.exchange({"b": ASKED, "a": ASKED})
    transport.close()
    assert found == {"b": [encode(RowCount(rows=2))], "a": [encode(RowCount(rows=1))]}


def test_a_closed_transport_asks_nobody() -> None:
    transport = LocalTransport({"a": lambda frame: frame})
    transport.close()
    assert transport.exchange({"a": ASKED}, wait=False) == {}
    with pytest.raises(TransportError, match="closed"):
        transport.exchange({"a": ASKED})
