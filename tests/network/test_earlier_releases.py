"""A state folder, and a party, of another release: results stay readable, the rest ends with a sentence.

`earlier_runs` was written by a release of November 2026 that calls itself 0.1.0, as this one may: a finished run, one
under way and one that waits. Whoever renames a class that results hold sees it here.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tests.network.parties import Parties, protocol, tables
from tests.network.test_outsiders import identity

import tablepuppet as tp
from tablepuppet.errors import TransportError
from tablepuppet.job import Job, make_job
from tablepuppet.network import control as c
from tablepuppet.network.serve import Server
from tablepuppet.network.settings import read_federation
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport import envelopes as e
from tablepuppet.transport.envelopes import fingerprint
from tablepuppet.transport.flight import Connection, Party

RUNS = Path(__file__).parent / "earlier_runs"
FINISHED, RUNNING, QUEUED = "2652d0e309a11b9b", "1f1f716d7cb8c627", "e13ca643365e24d4"


def test_runs_of_an_earlier_release_are_read_or_end_with_a_sentence(tmp_path: Path) -> None:
    made = Parties(tmp_path)
    made.write(tables(20))
    shutil.copytree(RUNS, tmp_path / "state" / "server" / "runs")
    for _ in range(2):  # the first one reads the files of the earlier release, the second what it made of them
        read_earlier_runs(made, tmp_path)
    assert not list((tmp_path / "state" / "server" / "runs").iterdir())


def read_earlier_runs(made: Parties, tmp_path: Path) -> None:
    server = Server(read_federation(made.federation))
    try:
        federation = made.connect()
        result = federation.wait(FINISHED)
        assert result.metrics["test"]["auc"] == pytest.approx(0.9286, abs=1e-4)
        result.save(tmp_path / "model")
        assert tp.load(tmp_path / "model").coefficients().equals(result.coefficients())
        for run in (RUNNING, QUEUED):
            says = f"run {run} was begun by another release.*start the run again"
            with pytest.raises(tp.TablePuppetError, match=says):
                federation.wait(run)
        states = {run["run"]: run["state"] for run in federation.status()["runs"]}
        assert states == {FINISHED: "finished", RUNNING: "failed", QUEUED: "failed"}
    finally:
        server.close()


@pytest.mark.parametrize("role", ["client", "user"])
def test_a_party_with_other_messages_is_refused_though_it_calls_itself_the_same(tmp_path: Path, role: str) -> None:
    made = Parties(tmp_path)
    made.write(tables(20))
    server = Server(read_federation(made.federation))
    try:
        for name, kind, types in (("supplier", "client", e.FROM_SERVER), ("analyst", "user", c.TO_USER)):
            own = identity(tmp_path / "certs", name)
            address = f"grpc+tls://127.0.0.1:{made.port}"
            if kind == role:
                with pytest.raises(TransportError, match=r"protocol 5-000000000000.*install the same release"):
                    Connection(address, Party(name, kind, own), types, "5-000000000000")  # type: ignore[arg-type]
            Connection(address, Party(name, kind, own), types, protocol(kind)).close()  # type: ignore[arg-type]
    finally:
        server.close()


def test_a_changed_field_changes_the_fingerprint_and_a_moved_class_does_not() -> None:
    def made(annotation: str) -> str:
        @dataclass
        class Thing:
            size: int

        Thing.__module__, Thing.__annotations__ = "tablepuppet.job.job", {"size": annotation}
        return fingerprint((Thing,))

    assert made("int") == made("int") != made("float")
    assert fingerprint((Job,)) != fingerprint((Job, e.Request))
    assert fingerprint((Job,)) == fingerprint((Job | None,))


def test_what_a_user_asks_is_read_strictly_and_what_the_server_gives_is_not() -> None:
    frame = c.to_frame(make_job("SELECT x, y FROM t", label="y", model="auto", algorithm=None, given={}))
    kind, module, name, held = msgspec.msgpack.decode(frame.header)
    older = Frame(msgspec.msgpack.encode([kind, "tablepuppet.elsewhere", name, held | {"gone": 1}]), frame.buffers)
    assert c.from_frame(older) == c.from_frame(frame)
    with pytest.raises(TransportError, match="does not know"):
        c.from_frame(older, (Job,))
    changed = Frame(msgspec.msgpack.encode([kind, module, name, held | {"gone": 1}]), frame.buffers)
    with pytest.raises(TransportError, match="install the same release"):
        c.from_frame(changed, (Job,))
