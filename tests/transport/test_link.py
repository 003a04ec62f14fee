"""Who answers a round in one process: threads, or the server's own where they would be woken for nothing."""

from __future__ import annotations

import threading
import time

from tablepuppet.exchanges.evaluation import Evaluate
from tablepuppet.exchanges.schema import CloseJob
from tablepuppet.protocol.base import Done
from tablepuppet.protocol.codec import Frame, encode
from tablepuppet.transport.link import Link, LocalTransport


def test_a_kind_of_request_that_is_quick_says_nothing_of_another() -> None:
    answered_by: list[str] = []

    def answer(frame: Frame) -> Frame:
        answered_by.append(threading.current_thread().name)
        if b"Evaluate" in frame.header:  # keeps a core busy for longer than it takes to wake a thread
            until = time.thread_time() + 0.01
            while time.thread_time() < until:
                pass
        return encode(Done())

    transport = LocalTransport({"a": answer, "b": answer})
    link = Link(transport)
    here = threading.current_thread().name

    def rounds(message: CloseJob | Evaluate, count: int) -> list[set[str]]:
        found = []
        for _ in range(count):
            answered_by.clear()
            link.transport.exchange({client: [encode(message)] for client in "ab"})
            found.append(set(answered_by))
        return found

    quick = rounds(CloseJob(job="j"), 40)
    slow = rounds(Evaluate(job="j", part=0, train=False), 2)
    transport.close()
    assert here not in quick[0]
    assert all(names == {here} for names in quick[1:])
    assert all(here not in names for names in slow)


def test_threads_that_are_no_faster_are_left_out_of_rounds_that_take_long() -> None:
    answered_by: list[str] = []

    def answer(frame: Frame) -> Frame:
        answered_by.append(threading.current_thread().name)
        until = time.thread_time() + 0.01
        while time.thread_time() < until:  # in the interpreter: threads take turns
            pass
        return encode(Done())

    transport = LocalTransport({"a": answer, "b": answer})
    here = threading.current_thread().name
    found = []
    for _ in range(6):
        answered_by.clear()
        transport.exchange({client: [encode(Evaluate(job="j", part=0, train=False))] for client in "ab"})
        found.append(set(answered_by) == {here})
    transport.close()
    assert found == [False, False, True, True, True, True]
