"""A server that asks for what it may not have gets nothing but a refusal, over the network as in process."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.network.parties import Parties, tables

from tablepuppet.exchanges.keys import Keys, SendKeys
from tablepuppet.exchanges.labels import SendLabels
from tablepuppet.exchanges.parts import RevealFeatures
from tablepuppet.exchanges.prediction import SendIdentifiers
from tablepuppet.exchanges.proposal import Agreement, ProposeContract
from tablepuppet.exchanges.registry import RESPONSES
from tablepuppet.exchanges.schema import CountRows, DescribeTable, OpenScan, ScanSchema, TableSchema
from tablepuppet.network.control import FROM_ANYBODY
from tablepuppet.owner.owner_files import Approvals
from tablepuppet.owner.owner_log import verify
from tablepuppet.protocol.base import Failure, Message
from tablepuppet.protocol.codec import Frame, decode, encode
from tablepuppet.protocol.contract import Column, Contract, ScanTerms
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.connections import Stream
from tablepuppet.transport.envelopes import LIMIT
from tablepuppet.transport.flight import Identity, Listener, ListenerSettings

RUN = "0123456789abcdef"
POLICY = """
[labels]
epsilon = 1.0
[tables.orders]
features = ["x"]
keys = ["item"]
labels = ["y"]
"""


FORBIDDEN: list[Message] = [
    OpenScan(job=RUN, scan=1, table="orders", columns=["z"]),
    OpenScan(job=RUN, scan=1, table="orders", columns=["x + z"]),
    OpenScan(job=RUN, scan=1, table="orders", columns=["x"], filter="z > 0"),
    OpenScan(job=RUN, scan=1, table="orders", columns=["(SELECT max(z) FROM orders)"]),
    OpenScan(job=RUN, scan=1, table="orders", columns=["read_text('/etc/passwd')"]),
    SendKeys(job=RUN, scan=0),
    SendIdentifiers(job=RUN, scan=0, columns=[1]),
    SendLabels(job=RUN, scan=0, column=1, classes=None, offset=0),
    SendLabels(job=RUN, scan=0, column=2, classes=None, offset=0),
    RevealFeatures(job=RUN, part=0),
]


class Impostor:
    """A server with a valid certificate that asks a real client whatever it likes."""

    def __init__(self, parties: Parties) -> None:
        folder = parties.folder / "certs"
        self._came: queue.Queue[Stream] = queue.Queue()
        self._over: queue.Queue[None] = queue.Queue()
        welcome = e.Welcome(heartbeat=5.0, limit=LIMIT, runs=[RUN])
        door = ListenerSettings(dict.fromkeys(parties.owners, "client"), lambda: welcome, self._hold, FROM_ANYBODY)
        identity = Identity(folder / "ca.pem", folder / "server.pem", folder / "server.key")
        self._door = Listener(f"grpc+tls://127.0.0.1:{parties.port}", door, identity)
        self._step = 0
        self._stream: Stream | None = None

    def _hold(self, name: str, role: e.Role, stream: Stream) -> None:
        self._came.put(stream)
        self._over.get()

    def ask(self, *messages: Message) -> list[Any]:
        """The client's answers."""
        return [decode(f, RESPONSES) for f in self.ask_frames([encode(message) for message in messages])]

    def ask_frames(self, frames: list[Frame]) -> list[Frame]:
        if self._stream is None:
            self._stream = self._came.get(timeout=120)
        self._stream.send(e.Request(run=RUN, step=self._step + 1, after=self._step), frames)
        self._step += 1
        _, answer = self._stream.receive()
        return answer

    def close(self) -> None:
        self._over.put(None)
        self._door.shutdown()


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    made = Parties(tmp_path)
    made.write(tables(60))
    yield made
    for name in list(made.processes):
        made.kill(name)


def meet(parties: Parties, *, policy: str | None) -> Impostor:
    """An impostor, and the client store-eu that joined it with its scan open: item, x, z, y."""
    file = parties.folder / "store-eu.toml"
    if policy is not None:
        (parties.folder / "policy.toml").write_text(policy)
        file.write_text(file.read_text().replace("open.toml", "policy.toml"))
    else:
        file.write_text(file.read_text().replace('policy = "open.toml"\n', ""))
    impostor = Impostor(parties)
    parties.start("store-eu")
    columns = ["item", "x", "y"] if policy is not None else ["item", "x", "z", "y"]
    (opened,) = impostor.ask(OpenScan(job=RUN, scan=0, table="orders", columns=columns))
    assert isinstance(opened, ScanSchema)
    return impostor


def test_what_the_policy_forbids_is_refused(parties: Parties) -> None:
    impostor = meet(parties, policy="keys_in_plain = false\n" + POLICY)
    for asked, answer in zip(FORBIDDEN, impostor.ask(*FORBIDDEN), strict=True):
        assert isinstance(answer, Failure), asked
    assert "no rule of" not in (parties.folder / "store-eu.log").read_text()
    impostor.close()


def test_without_a_policy_nothing_is_read_before_a_person_approves(parties: Parties) -> None:
    impostor = meet(parties, policy=None)
    columns = [("item", ("key",)), ("x", ("feature",)), ("z", ()), ("y", ("label",))]
    terms = ScanTerms(0, "orders", tuple(Column(c, cast("Any", roles), 0) for c, roles in columns), None)
    contract = Contract(purpose="profile", asker="a server", label="y", scans=(terms,), blocks=())
    agreement, *others = impostor.ask(
        ProposeContract(job=RUN, contract=contract),
        SendKeys(job=RUN, scan=0),
        CountRows(job=RUN, scan=0),
        RevealFeatures(job=RUN, part=0),
    )
    assert isinstance(agreement, Agreement)
    assert not agreement.is_agreed
    for answer in others:
        assert isinstance(answer, Failure)
        assert "no contract was agreed to" in answer.message
    state = parties.folder / "state" / "store-eu"
    assert verify(state / "log.jsonl")[0].size == 5  # proposed, waiting, three refusals
    Approvals(state).decide(contract.hash[:12], is_approved=True)
    agreement, keys, counted = impostor.ask(
        ProposeContract(job=RUN, contract=contract),
        SendKeys(job=RUN, scan=0),
        CountRows(job=RUN, scan=0),
    )
    assert isinstance(agreement, Agreement)
    assert agreement.is_agreed
    assert isinstance(keys, Keys)
    assert isinstance(counted, Failure)  # a profile has no use for it
    assert "no rule of store-eu speaks of table orders" in (parties.folder / "store-eu.log").read_text()
    impostor.close()


def test_a_message_that_is_not_on_the_list_is_refused(parties: Parties) -> None:
    impostor = meet(parties, policy=None)
    garbage = [b"", b"\x00", b"\x09x", b"\x00\x81\xa4type\xa6Launch", b"\x00" + bytes(100)]
    for frame in impostor.ask_frames([Frame(header or b"\xff", [bytes(8)]) for header in garbage]):
        assert isinstance(decode(frame, RESPONSES), Failure)
    (answer,) = impostor.ask(DescribeTable(table="orders"))  # the client goes on
    assert isinstance(answer, TableSchema)
    impostor.close()


def test_a_refusal_holds_no_value_of_any_row(parties: Parties) -> None:
    impostor = meet(parties, policy=POLICY)
    frames = impostor.ask_frames(
        [
            encode(SendLabels(job=RUN, scan=0, column=2, classes=None, offset=0)),
            encode(SendKeys(job=RUN, scan=0)),
        ]
    )
    values = np.asarray(tables(60)["store-eu"]["x"])
    for frame in frames:
        sent = frame.header + b"".join(bytes(b) for b in frame.buffers)
        assert not any(value.tobytes() in sent or repr(float(value)).encode() in sent for value in values)
    impostor.close()
