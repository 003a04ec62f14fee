"""Mistakes in the files of a deployment: what was found, and what to do next."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tablepuppet.errors import JobError, TransportError
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import read_client, read_federation

FEDERATION = """
[server]
address = "grpc+tcp://127.0.0.1:{port}"
health = "{health}"

[owners]
items = "supplier"
"""


@pytest.fixture
def taken() -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    yield listening.getsockname()[1]
    listening.close()


def test_a_file_of_the_other_kind_says_what_this_kind_has(tmp_path: Path) -> None:
    federation, client = tmp_path / "federation.toml", tmp_path / "supplier.toml"
    federation.write_text(FEDERATION.format(port=1, health=""))
    client.write_text('name = "supplier"\nserver = "grpc+tcp://127.0.0.1:1"\n[tables]\nitems = "items.parquet"\n')
    with pytest.raises(JobError, match=r"at `\$.server`; a client file has name, server, tables,"):
        read_client(federation)
    with pytest.raises(JobError, match=r"unknown field `name`; a federation file has server, owners,"):
        read_federation(client)


def test_a_port_in_use_is_named_with_the_reason(tmp_path: Path, taken: int) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(FEDERATION.format(port=taken, health=""))
    with pytest.raises(TransportError, match=f":{taken}: Address already in use; choose another port"):
        Server(read_federation(file))
    file.write_text(FEDERATION.format(port=0, health=f"127.0.0.1:{taken}"))
    with pytest.raises(
        TransportError, match=f":{taken} for health checks: Address already in use; choose another port"
    ):
        Server(read_federation(file))
