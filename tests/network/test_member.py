"""A client answers each step of a run once, in order: what comes again is answered again, and nothing is skipped."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tablepuppet.client import Client
from tablepuppet.exchanges.registry import RESPONSES
from tablepuppet.exchanges.schema import DescribeTable, TableSchema
from tablepuppet.network.member import IdempotentClient
from tablepuppet.network.run_store import RunStore
from tablepuppet.owner.tables import ClientTables
from tablepuppet.protocol.base import Failure
from tablepuppet.protocol.codec import Frame, decode, encode
from tablepuppet.sources.source import open_source
from tablepuppet.transport.envelopes import Request

RUN = "0123456789abcdef"


def test_steps_are_answered_once_each_and_in_their_order(tmp_path: Path) -> None:
    client = Client("owner", ClientTables({"t": open_source(pa.table({"x": [1.0]}), "t")}))
    store = RunStore(tmp_path)
    member, asked = IdempotentClient(client, store), list[Frame]()
    handle = client.handle

    def watch(frame: Frame) -> Frame:
        asked.append(frame)
        return handle(frame)

    client.handle = watch  # type: ignore[method-assign]

    def say(step: int, after: int, run: str = RUN) -> type:
        (frame,) = member.answer(Request(run=run, step=step, after=after), [encode(DescribeTable(table="t"))])
        return type(decode(frame, RESPONSES))

    assert say(2, after=1) is Failure  # the first was never seen
    assert say(1, after=0) is TableSchema
    assert say(1, after=0) is TableSchema
    assert len(asked) == 1
    assert [say(step, after) for step, after in ((3, 2), (0, 0), (4, 0), (2, 0))] == [Failure] * 4
    assert say(3, after=1) is TableSchema  # steps in which this client had no part
    assert [say(step, after) for step, after in ((1, 0), (2, 1), (2, 3))] == [Failure] * 3
    assert [say(1, 0, run) for run in ("", "../x", RUN + "0", RUN.upper())] == [Failure] * 4
    assert len(asked) == 2
    member = IdempotentClient(client, store)  # after a restart
    assert say(3, after=1) is TableSchema
    assert say(5, after=4) is Failure
    assert len(asked) == 2
    assert say(4, after=3) is TableSchema
    store.close()
