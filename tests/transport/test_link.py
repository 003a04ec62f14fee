"""A round in one process: all clients are asked at once, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest

from tablepuppet.errors import PolicyError, TablePuppetError, TransportError
from tablepuppet.exchanges.schema import CloseJob, CountRows, DescribeTable, RowCount, TableSchema
from tablepuppet.protocol.base import Failure, Message
from tablepuppet.protocol.codec import Frame, encode
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.transport.link import Link, LocalTransport

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


class Said:
    """A transport over which one client says what a test wants, and whether its answers were taken for sound."""

    def __init__(self, *answers: Message) -> None:
        self.answers, self.accepted = answers, 0

    def exchange(self, frames: Mapping[str, Sequence[Frame]], *, wait: bool = True) -> dict[str, list[Frame]]:
        return {client: [encode(answer) for answer in self.answers] for client in frames}

    def accept(self) -> None:
        self.accepted += 1

    def close(self) -> None:
        """Nothing is open."""


COUNT, DESCRIBE = CountRows(job="j", scan=0), DescribeTable(table="t")
TWICE = TableSchema(columns=[ColumnInfo("x", "float"), ColumnInfo("x", "float")])


def test_answers_are_taken_for_sound_once_each_was_checked() -> None:
    sound = Said(RowCount(rows=3), RowCount(rows=3))
    assert Link(sound).ask({"a": [COUNT, COUNT]}) == {"a": [RowCount(rows=3), RowCount(rows=3)]}
    assert sound.accepted == 1
    wrong: list[tuple[list[Message], list[Message], str]] = [
        ([COUNT], [], "sent 0 answers to 1 requests"),
        ([COUNT], [RowCount(rows=3)] * 2, "sent 2 answers to 1 requests"),
        ([COUNT, COUNT], [RowCount(rows=3)], "sent 1 answers to 2 requests"),
        ([COUNT, COUNT], [RowCount(rows=3), RowCount(rows=4)], "a table changes in a run|otherwise than before"),
        ([DESCRIBE], [TWICE], "columns name one column twice"),
        ([COUNT], [TWICE], "client a"),
    ]
    for asked, answers, why in wrong:
        transport = Said(*answers)
        with pytest.raises(TransportError, match=why):
            Link(transport).ask({"a": asked})
        assert not transport.accepted


def test_what_is_fixed_for_a_run_is_answered_alike_until_the_job_is_over() -> None:
    transport = Said(RowCount(rows=3))
    link = Link(transport)
    link.ask({"a": [COUNT]})
    transport.answers = (RowCount(rows=4),)
    for _ in range(2):
        with pytest.raises(TransportError):
            link.ask({"a": [COUNT]})
    assert link.ask({"b": [COUNT]}) == {"b": [RowCount(rows=4)]}
    link.tell({"a": [CloseJob(job="j")]})
    assert link.ask({"a": [COUNT]}) == {"a": [RowCount(rows=4)]}


@pytest.mark.parametrize("name", ["RunInterruptedError", "DisconnectedError", "ApprovalError", "KeyError", "no error"])
def test_no_client_says_how_the_servers_own_run_goes_on(name: str) -> None:
    with pytest.raises(TablePuppetError, match="client a: stop") as said:
        Link(Said(Failure(error=name, message="stop"))).ask({"a": [COUNT]})
    assert type(said.value) is TransportError
    with pytest.raises(PolicyError, match="client a: no"):
        Link(Said(Failure(error="PolicyError", message="no"))).ask({"a": [COUNT]})
