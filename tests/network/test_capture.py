"""Everything that passes over a real network without encryption, recorded byte by byte: no key, label or feature."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.network.parties import free_port
from tests.network.relay import Relay
from tests.privacy.test_runs import CANARY_AGE, CANARY_KEY, QUERY, tables

from tablepuppet.federation import ConnectedFederation
from tablepuppet.network.join import Member
from tablepuppet.network.keeper import Keeper
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import read_federation
from tablepuppet.operators.client import Client
from tablepuppet.tables.source import open_source
from tablepuppet.tables.store import ClientTables

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


@contextmanager
def federation(folder: Path, held: dict[str, pa.Table]) -> Iterator[tuple[ConnectedFederation, Recorder]]:
    port = free_port()
    file = folder / "federation.toml"
    owners = "\n".join(f'{name} = "{name}"' for name in held)
    file.write_text(
        f'users = ["analyst"]\n[server]\naddress = "grpc+tcp://127.0.0.1:{port}"\nheartbeat = 1.0\n[owners]\n{owners}\n'
    )
    server = Server(read_federation(file))
    recorder = Recorder(port)
    members = []
    for name, table in held.items():
        client = Client(name, ClientTables({name: open_source(table, name)}), key=SECRET)
        members.append(Member(name, f"grpc+tcp://127.0.0.1:{recorder.port}", None, Keeper(client, None)))
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
            thread.join(10)
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
