"""What keeps no coordinator from its work: full disks, damaged files, other versions, frames that would do more."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from tests.network.parties import QUERY, Parties, kept_runs, running, tables
from tests.network.test_outsiders import flight_client, identity
from tests.network.test_storm import RUN, TABLES, BadNetwork, OpenLink, transport

import tablepuppet as tp
from tablepuppet import memory
from tablepuppet import train as story
from tablepuppet.errors import JobError, TransportError
from tablepuppet.exchanges.registry import RESPONSES
from tablepuppet.job import make_job
from tablepuppet.job.job import Local, Ray
from tablepuppet.network.control import _class, from_frame, to_frame
from tablepuppet.network.run_store import RunStore
from tablepuppet.network.run_transport import Journal
from tablepuppet.network.run_worker import _check_request
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import read_federation
from tablepuppet.owner.policy import Policy
from tablepuppet.privacy.ledger import Spending
from tablepuppet.protocol.base import Failure
from tablepuppet.protocol.codec import Frame, decode
from tablepuppet.protocol.columns import ColumnInfo, NumberEncoder
from tablepuppet.protocol.contract import Folds
from tablepuppet.training.evaluate import Comparison
from tablepuppet.transport import certs
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.envelopes import Request, pack


def health(parties: Parties, page: str = "health") -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{parties.health}/{page}", timeout=60) as answer:
            return dict(json.loads(answer.read()))
    except urllib.error.HTTPError as error:  # 503 is an answer, too
        return dict(json.loads(error.read()))


@pytest.mark.root
def test_a_full_disk_refuses_a_job_freezes_nothing_and_is_said(tmp_path: Path) -> None:
    state = tmp_path / "state" / "server"
    state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(state)], check=True)
    try:
        with running(tmp_path, tables(60)) as parties:
            assert health(parties) == {"status": "ok"}
            ballast = state / "ballast"
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 12)):
                    pass
            federation = parties.connect()
            with pytest.raises(tp.TablePuppetError, match=r"cannot write down run .*No space left"):
                federation.submit(QUERY, label="y")
            assert health(parties) == {"status": "the disk is full"}
            assert len(health(parties, "status")["connected"]) == 3
            parties.restart("supplier")  # clients come and go
            parties.await_clients()
            ballast.unlink()
            assert health(parties) == {"status": "ok"}
            assert federation.train(QUERY, label="y").metrics["train"]
            assert set(parties.stop().values()) == {0}
    finally:
        subprocess.run(["umount", str(state)], check=True)


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[BadNetwork]:
    """Clients in the middle of a run, as a server that was killed leaves them."""
    network = BadNetwork(tmp_path, tables(60), seed=None)
    job = make_job(QUERY, label="y", model="auto", algorithm="sgd", given={"batch_size": 30, "epochs": 1})
    with closing(RunStore(tmp_path / "server")) as store:
        story.train(job, TABLES, OpenLink(transport(network, Journal(store, RUN))), None, RUN)
    yield network
    network.close()


_DAMAGE = [
    "UPDATE pieces SET content = substr(content, 1, length(content) / 2) WHERE part = ?",
    "UPDATE pieces SET content = zeroblob(length(content)) WHERE part = ?",
    "UPDATE pieces SET content = x'00' || substr(content, 2) WHERE part = ?",
    "DELETE FROM pieces WHERE part = ?",
]


@pytest.mark.parametrize("part", ["setup", "last"])
@pytest.mark.parametrize("damage", _DAMAGE)
def test_a_damaged_checkpoint_of_a_client_is_said_and_is_no_bug(trained: BadNetwork, part: str, damage: str) -> None:
    step = 10**6  # far on, as a checkpoint that went back would not know
    trained.stores["supplier"]._database.execute(damage, (part,))
    keeper = trained.boot("supplier")
    (frame,) = keeper.answer(Request(run=RUN, step=step + 1, after=step), [Frame(b"\x00\x80")])
    answer = decode(frame, RESPONSES)
    assert isinstance(answer, Failure)
    assert "internal error" not in answer.message
    assert "tart the run again" in answer.message


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Parties]:
    made = Parties(tmp_path)
    made.write(tables(20))
    server = Server(read_federation(made.federation))
    yield made
    server.close()


def test_another_version_is_refused_by_name(served: Parties) -> None:
    own = identity(served.folder / "certs", "supplier")
    _, certificate, key = own.read()
    client = flight_client(served, own)
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"client"))
    challenge = bytes(reader.read_chunk().app_metadata)
    hello = e.Hello(
        protocol=e.PROTOCOL,
        version="9.9\x1b[2J",
        name="supplier",
        role="client",
        certificate=certificate,
        signature=certs.sign(key, _nonce(challenge)),
    )
    for piece in pack(hello):
        writer.write_metadata(pa.py_buffer(piece))
    answer = bytes(reader.read_chunk().app_metadata)
    assert b"install the same release" in answer
    assert b"\x1b" not in answer
    client.close()


def _nonce(challenge: bytes) -> bytes:
    found = challenge.index(b"nonce") + len("nonce")
    assert challenge[found] == 0xC4  # bytes of a length in one byte
    return challenge[found + 2 : found + 2 + challenge[found + 1]]


@pytest.mark.parametrize("kind", [Policy, Spending, Failure, Request])
def test_a_users_frame_makes_no_object_that_a_job_has_not(kind: type) -> None:
    job = make_job(QUERY, label="y", model="auto", algorithm="newton", given={})
    for held in (
        ["object", kind.__module__, kind.__name__, {}],
        ["list", [["object", kind.__module__, kind.__name__, {}]]],
    ):
        with pytest.raises(TransportError, match=f"a {kind.__name__} is nothing that can be asked for"):
            from_frame(Frame(msgspec.msgpack.encode(held), []), (type(job),))
    assert from_frame(to_frame(job), (type(job),)) == job


@pytest.mark.parametrize("module", ["tablepuppet.demo", "antigravity", "os", "tablepuppet.cli.main"])
def test_a_users_frame_imports_nothing_and_makes_nothing_but_jobs(module: str) -> None:
    before = set(sys.modules)
    for name in ("system", "Federation", "Run", "main", "__builtins__"):
        frame = Frame(msgspec.msgpack.encode(["object", module, name, {}]), [])
        with pytest.raises(TransportError, match="does not follow the protocol"):
            from_frame(frame, (type(make_job(QUERY, label="y", model="auto", algorithm="newton", given={})),))
    assert set(sys.modules) == before


def test_what_waits_on_the_disk_since_before_a_class_moved_is_read() -> None:
    assert _class("tablepuppet.job.engines", "Local", None) is Local
    assert _class("tablepuppet.training.comparison", "Comparison", None) is Comparison
    assert _class("tablepuppet.protocol.features", "NumberEncoder", None) is NumberEncoder
    assert _class("tablepuppet.protocol.setup", "ColumnInfo", None) is ColumnInfo
    assert _class("tablepuppet.protocol.setup", "Folds", None) is Folds


def test_a_user_does_not_choose_the_servers_ray_cluster() -> None:
    for engine in (Ray(address="10.0.0.1:6379"), Ray(storage="/etc")):
        job = make_job(QUERY, label="y", model="auto", algorithm="newton", given={"engine": engine})
        with pytest.raises(JobError, match="which Ray cluster and folder a server uses is the server's to say"):
            _check_request("train", from_frame(to_frame(job), (type(job),)))


@pytest.mark.parametrize(
    ("group", "file", "line"),
    [("0::/box", "box/memory.max", ""), ("5:memory:/box", "memory/box/memory.limit_in_bytes", "memory")],
    ids=["version 2", "version 1"],
)
def test_the_limit_of_a_container_is_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, file: str, line: str
) -> None:
    (tmp_path / "self").write_text(group + "\n")
    limit = tmp_path / "groups" / file
    limit.parent.mkdir(parents=True)
    limit.write_text(f"{5 << 30}\n")
    monkeypatch.setattr(memory, "_SELF", tmp_path / "self")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    memory.memory_limit.cache_clear()
    try:
        assert memory.memory_limit() == 5 << 30
        limit.write_text("max\n")
        memory.memory_limit.cache_clear()
        assert memory.memory_limit() > 5 << 30 or line
    finally:
        memory.memory_limit.cache_clear()


def test_a_cancelled_run_does_not_claim_that_it_can_be_resumed(tmp_path: Path) -> None:
    with running(tmp_path, tables(60)) as parties:
        federation = parties.connect()
        run = federation.submit(QUERY, label="y", algorithm="sgd", epochs=2000, batch_size=20)
        parties.await_status(lambda s: s["runs"] and s["runs"][0]["steps"] > 20)
        federation.cancel(run)
        with pytest.raises(tp.TablePuppetError, match="was cancelled") as said:
            federation.wait(run)
        assert "resume" not in str(said.value)
        until = time.monotonic() + 120
        while kept_runs(tmp_path / "state" / "server", "step"):
            assert time.monotonic() < until
            time.sleep(0.1)
