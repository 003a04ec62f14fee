"""Everything that passes over a real network without encryption, recorded byte by byte: no key, label, feature or place
of a row."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.stats
from numpy.typing import NDArray
from tests.network.relay import Relay
from tests.ports import free_port
from tests.privacy.test_runs import CANARY_AGE, CANARY_KEY, QUERY, tables

from tablepuppet.api.connected import ConnectedFederation
from tablepuppet.client import Client
from tablepuppet.exchanges.keys import Keys
from tablepuppet.exchanges.labels import Labels
from tablepuppet.exchanges.parts import Evaluation
from tablepuppet.exchanges.registry import RESPONSES
from tablepuppet.network.member import IdempotentClient, Member
from tablepuppet.network.run_store import RunStore
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import read_federation
from tablepuppet.owner.row_sets import in_order, order_bits
from tablepuppet.owner.tables import ClientTables
from tablepuppet.protocol.base import Predictions
from tablepuppet.protocol.codec import Frame, decode
from tablepuppet.sources.source import open_source

SECRET = b"a secret of the clients, 32 bytes"


class Recorder(Relay):
    """A relay that keeps what it carries."""

    def __init__(self, target: int) -> None:
        self.kept: list[bytes] = []
        super().__init__(target)

    async def _lane(self, direction: str, reader: Any, writer: Any) -> None:
        read = reader.read

        async def kept(size: int) -> bytes:
            chunk: bytes = await read(size)
            self.kept.append(chunk)
            return chunk

        reader.read = kept
        await super()._lane(direction, reader, writer)


@dataclass
class Overheard(Client):
    """A client of which every answer is kept as it leaves."""

    sent: list[Frame] = field(default_factory=list)

    def handle(self, frame: Frame) -> Frame:
        answer = super().handle(frame)
        self.sent.append(answer)
        return answer

    def answers(self, kind: type) -> list[Any]:
        decoded = [decode(frame, RESPONSES) for frame in self.sent]
        return [answer for answer in decoded if isinstance(answer, kind)]


@contextmanager
def federation(
    folder: Path, held: dict[str, pa.Table], overheard: dict[str, Overheard] | None = None
) -> Iterator[tuple[ConnectedFederation, Recorder]]:
    port = free_port()
    file = folder / "federation.toml"
    owners = "\n".join(f'{name} = "{name}"' for name in held)
    file.write_text(
        f'users = ["analyst"]\n[server]\naddress = "grpc+tcp://127.0.0.1:{port}"\nheartbeat = 1.0\nhealth = ""\n'
        f"[owners]\n{owners}\n"
    )
    server = Server(read_federation(file))
    recorder = Recorder(port)
    members = []
    for name, table in held.items():
        client = Overheard(name, ClientTables({name: open_source(table, name)}), key=SECRET)
        if overheard is not None:
            overheard[name] = client
        remembering = IdempotentClient(client, RunStore(file.parent / "state" / name))
        members.append(Member(name, f"grpc+tcp://127.0.0.1:{recorder.port}", None, remembering))
    threads = [threading.Thread(target=member.run, daemon=True) for member in members]
    for thread in threads:
        thread.start()
    try:
        yield ConnectedFederation(file), recorder
    finally:
        for member in members:
            member.stop()
        server.close()
        for thread in threads:
            thread.join(60)
        recorder.close()


def captured(folder: Path, **privacy: Any) -> bytes:
    with federation(folder, tables()) as (connected, recorder):
        connected.train(
            QUERY, label="late", model="logistic", algorithm="sgd", batch_size=100, epochs=3, privacy=privacy
        )
        return b"".join(recorder.kept)


def forbidden() -> list[bytes]:
    labels = tables()["rides"]["late"].to_numpy().astype(np.float64)
    planted = [struct.pack("<q", CANARY_KEY), str(CANARY_KEY).encode(), struct.pack("<d", CANARY_AGE), SECRET]
    return [*planted, labels[:16].tobytes()]  # labels in the owner's order


def test_a_run_over_the_network_shows_no_key_feature_or_label_in_its_place(tmp_path: Path) -> None:
    seen = captured(tmp_path, label={"epsilon": 2.0})
    assert len(seen) > 10_000
    assert [raw for raw in forbidden() if raw in seen] == []


def test_the_same_search_finds_what_is_sent_in_plain(tmp_path: Path) -> None:
    assert struct.pack("<q", CANARY_KEY) in captured(tmp_path, keys="plain")


USERS, RIDES = 400, 1200


def in_the_owners_order() -> dict[str, pa.Table]:
    """Tables in which everything grows with a row's place: keys, features and labels."""
    place = np.arange(RIDES)
    return {
        "users": pa.table({"uid": np.arange(USERS), "age": np.linspace(18.0, 80.0, USERS)}),
        "rides": pa.table({"uid": place // 3, "x": np.linspace(-1.0, 1.0, RIDES), "late": place > RIDES // 2}),
    }


def ordered(folder: Path, seed: int) -> tuple[dict[str, Overheard], bytes]:
    folder.mkdir()
    heard: dict[str, Overheard] = {}
    with federation(folder, in_the_owners_order(), heard) as (connected, recorder):
        connected.train(
            "SELECT r.x, u.age, r.late FROM rides r JOIN users u ON r.uid = u.uid",
            label="late",
            model="logistic",
            algorithm="sgd",
            batch_size=None,
            epochs=2,
            seed=seed,
        )
        return heard, b"".join(recorder.kept)


def places(client: Overheard, rows: int) -> NDArray[np.float64]:
    """How a client's train rows follow each other, as predictions betray it: they grow with a row's place."""
    shown = [a.values[:, 0] for a in client.answers(Predictions) if len(a.values) > rows // 2][-1]
    found: NDArray[np.float64] = scipy.stats.rankdata(shown)
    return found


def agreement(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Rank correlation in units of its standard deviation for two orders that know nothing of each other."""
    return abs(float(scipy.stats.spearmanr(one, other).statistic)) * float(np.sqrt(len(one) - 1))


ALARM = 6.0  # standard deviations: 2e-9 for each array that is looked at


def test_nothing_that_is_sent_per_row_follows_the_owners_order(tmp_path: Path) -> None:
    heard, seen = ordered(tmp_path / "first", seed=0)
    other, _ = ordered(tmp_path / "second", seed=1)
    per_row: list[NDArray[Any]] = []
    for client in heard.values():
        per_row += [keys.columns["c0"].combine_chunks().indices.to_numpy() for keys in client.answers(Keys)]
        per_row += [labels.values for labels in client.answers(Labels)]
        per_row += [labels.is_test.astype(float) for labels in client.answers(Labels)]
        per_row += [shown.values[:, 0] for shown in client.answers(Predictions)]
        per_row += [shown.test[:, 0] for shown in client.answers(Evaluation)]
    per_row = [values for values in per_row if len(np.unique(values)) > 1]
    assert len(per_row) >= 8
    for values in per_row:
        assert agreement(values, np.arange(len(values))) < ALARM
    rides = next(a for a in heard["rides"].answers(Keys)).columns["c0"].combine_chunks().indices.to_numpy()
    assert (rides[1:] == rides[:-1]).sum() < 20  # three rides of a user lie side by side at their owner
    # another job has another order
    for name, rows in (("users", USERS), ("rides", RIDES)):
        one, two = places(heard[name], rows), places(other[name], rows)
        shared = min(len(one), len(two))
        assert agreement(one[:shared], two[:shared]) < ALARM
    # and the places themselves are not in what passed
    for name, rows in (("users", USERS), ("rides", RIDES)):
        order = in_order(order_bits(SECRET, f"{name} None", 0, 0, rows))
        assert (order != np.arange(rows)).mean() > 0.9
        for piece in (order[:8], np.argsort(order)[:8]):
            assert piece.astype(np.int64).tobytes() not in seen
            assert piece.astype(np.int32).tobytes() not in seen


def test_the_same_look_finds_an_order_that_everybody_knows() -> None:
    """The measure itself: rows in their owner's order, or in one that two jobs share, are found."""
    grown = np.linspace(-1.0, 1.0, USERS)
    assert agreement(grown + np.random.default_rng(0).normal(size=USERS), np.arange(USERS)) > ALARM
    public = in_order(order_bits(b"", "users None", 0, 0, USERS))
    assert agreement(grown[public], grown[public]) > ALARM
