"""A storm without processes: keepers and journals meet every fault, fast; the model stays what it was.

The real client, keeper, journal and run transport; only the network between them is this file's, and it
is as bad as can be: clients die before and after they act, requests come twice, disks are full, and the
server dies between any two steps.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.network.parties import OWNERS, QUERY, SECRET, assert_same, in_process, tables

from tablepuppet import train as story
from tablepuppet.client import Client
from tablepuppet.errors import RunInterruptedError, TrainingError, TransportError
from tablepuppet.job import make_job
from tablepuppet.network.member import IdempotentClient
from tablepuppet.network.run_store import RunStore
from tablepuppet.network.run_transport import Journal, RunTransport
from tablepuppet.owner.tables import ClientTables
from tablepuppet.protocol.codec import Frame
from tablepuppet.sources.source import open_source
from tablepuppet.training.result import Result
from tablepuppet.transport.envelopes import Request
from tablepuppet.transport.link import Link
from tablepuppet.transport.switchboard import WaitRules

RUN = "0123456789abcdef"
TABLES = {"orders": ("store-eu", "store-us"), "items": ("supplier",)}


class ServerKilledError(RunInterruptedError):
    """The end of a server, in the middle of a run."""


class BadNetwork:
    """Stands where the switchboard would; every step has one fault."""

    def __init__(self, folder: Path, held: dict[str, pa.Table], seed: int | None) -> None:
        self.folder, self.held = folder, held
        self.chance = None if seed is None else random.Random(seed)
        self.boots = 0
        self.stores: dict[str, RunStore] = {}
        self.rooms: dict[str, threading.Timer] = {}  # timers that use a store; it must not close meanwhile
        self.keepers = {name: self.boot(name) for name in held}
        self.faults: dict[str, int] = {}

    def boot(self, name: str) -> IdempotentClient:
        """A client as it is after kill -9: nothing but its disk, as it was while it was written."""
        self.boots += 1
        folder = self.folder / f"{name}-{self.boots}"
        if name in self.stores:
            shutil.copytree(self.stores[name].folder, folder)
            self._close(name)
        self.stores[name] = RunStore(folder)
        source = open_source(self.held[name], OWNERS[name])
        client = Client(name, ClientTables({OWNERS[name]: source}), key=SECRET)
        return IdempotentClient(client, self.stores[name])

    def _close(self, name: str) -> None:
        if name in self.rooms:
            self.rooms[name].join()
        self.stores[name].close()

    def close(self) -> None:
        for name in self.stores:
            self._close(name)

    def list_connected(self) -> dict[str, str]:
        return dict.fromkeys(self.keepers, "")

    def ask(self, requests: Mapping[str, tuple[Request, Sequence[Frame]]], rules: WaitRules) -> dict[str, list[Frame]]:
        kinds = ["none", "before", "after", "twice", "full disk", "server before", "server after"]
        fault, victim = "none", ""
        if self.chance is not None:
            fault, victim = self.chance.choice(kinds), self.chance.choice(list(requests))
        self.faults[fault] = self.faults.get(fault, 0) + 1
        if fault == "server before":
            raise ServerKilledError
        if fault == "before":
            self.keepers[victim] = self.boot(victim)
        if fault == "full disk":
            self.rooms[victim] = fill_disk(self.stores[victim])
        replies = {name: list(self.keepers[name].answer(*request)) for name, request in requests.items()}
        if fault == "after":
            self.keepers[victim] = self.boot(victim)
            replies[victim] = list(self.keepers[victim].answer(*requests[victim]))
        if fault == "twice":
            again = list(self.keepers[victim].answer(*requests[victim]))
            assert [f.size for f in again] == [f.size for f in replies[victim]]
            replies[victim] = again
        if fault == "server after":
            raise ServerKilledError
        return replies


def fill_disk(store: RunStore, seconds: float = 0.15) -> threading.Timer:
    """For a while the store finds no room for one page more."""
    database: sqlite3.Connection = store._database
    database.execute("PRAGMA max_page_count = 1")  # as many as there are

    def make_room() -> None:
        with suppress(sqlite3.ProgrammingError):  # its process has died meanwhile
            database.execute("PRAGMA max_page_count = 1000000")

    room = threading.Timer(seconds, make_room)
    room.start()
    return room


def transport(network: BadNetwork, journal: Journal) -> RunTransport:
    return RunTransport(RUN, network, journal, WaitRules(60.0))  # type: ignore[arg-type]


def weather(folder: Path, network: BadNetwork, *, algorithm: str, **options: Any) -> tuple[Result, int]:
    """Trains until a server survives; the result, and how many did not."""
    job = make_job(QUERY, label="y", model="auto", algorithm=algorithm, given=options)
    deaths = 0
    store = RunStore(folder / "server-0")
    while True:
        try:
            link = Link(transport(network, Journal(store, RUN)), wire=job.wire)
            return story.train(job, TABLES, link, None, RUN), deaths
        except ServerKilledError:
            deaths += 1
            shutil.copytree(store.folder, folder / f"server-{deaths}")
        finally:
            store.close()
        store = RunStore(folder / f"server-{deaths}")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "newton"},
        {"algorithm": "newton", "walk": "factorised"},
        {"algorithm": "newton", "walk": "drawn", "max_joined_rows": 100},
        {"algorithm": "admm", "epochs": 3},
        {"algorithm": "sgd", "batch_size": 100, "epochs": 3, "learning_rate": 0.1},
        {"algorithm": "vfl-sgd", "batch_size": 200, "epochs": 2, "learning_rate": 0.1},
        {"algorithm": "admm", "epochs": 9, "validation_fraction": 0.3, "patience": 1, "weight": "1 + x * x"},
        {"algorithm": "sgd", "optimizer": "adam", "learning_rate": 1.0, "validation_fraction": 0.3, "patience": 1},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_no_fault_changes_the_model(tmp_path: Path, options: dict[str, Any]) -> None:
    with closing(BadNetwork(tmp_path, tables(120), seed=1)) as network:
        result, deaths = weather(tmp_path, network, **options)
    with in_process(tables(120)) as federation:
        expected = federation.train(QUERY, label="y", **options)
    assert deaths > 0
    assert_same(result, expected)


@pytest.mark.parametrize("is_masked", [False, True])
def test_steps_under_masks_are_synced_before_their_answers_leave(
    tmp_path: Path, is_masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the client would answer them again, under the same masks."""
    monkeypatch.setattr("tablepuppet.network.run_store._PERIOD", math.inf)  # or all are, on a slow machine
    levels: dict[str, list[int]] = {}
    options = {"epochs": 3, "batch_size": 100, "privacy": {"secure_aggregation": is_masked}}
    with closing(BadNetwork(tmp_path, tables(120), seed=None)) as network:
        ask = network.ask

        def watch(requests: Mapping[str, tuple[Request, Sequence[Frame]]], rules: WaitRules) -> dict[str, list[Frame]]:
            replies = ask(requests, rules)
            for name in requests:
                [[level]] = network.stores[name]._database.execute("PRAGMA synchronous")
                levels.setdefault(name, []).append(level)
            return replies

        network.ask = watch  # type: ignore[method-assign]
        weather(tmp_path, network, algorithm="sgd", **options)
    normal, full = 1, 2
    assert normal in levels["supplier"]  # alone with its table
    for shared in (levels["store-eu"], levels["store-us"]):
        assert (set(shared[len(shared) // 2 : -1]) == {full}) == is_masked


@pytest.mark.slow
def test_two_hundred_rounds_with_a_fault_each_change_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"algorithm": "sgd", "batch_size": 30, "epochs": 40, "learning_rate": 0.05}
    with closing(BadNetwork(tmp_path, tables(120), seed=2)) as network:
        result, _ = weather(tmp_path, network, **options)
    with in_process(tables(120)) as federation:
        expected = federation.train(QUERY, label="y", **options)
    assert result.traffic.rounds > 200
    assert len(network.faults) == 7
    assert_same(result, expected)


class OpenLink(Link):
    """Leaves jobs open, as a server that was killed does."""

    def tell(self, requests: Any) -> None:
        pass


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[BadNetwork]:
    """A network without faults, whose clients have trained a little."""
    network = BadNetwork(tmp_path, tables(120), seed=None)
    job = make_job(QUERY, label="y", model="auto", algorithm="sgd", given={"batch_size": 100, "epochs": 1})
    with closing(RunStore(tmp_path / "server")) as store:
        story.train(job, TABLES, OpenLink(transport(network, Journal(store, RUN))), None, RUN)
    yield network
    network.close()


def test_an_old_or_a_skipped_step_is_refused(trained: BadNetwork) -> None:
    keeper = trained.keepers["supplier"]
    last = keeper._runs[RUN].step
    for step, after in ((last - 1, last - 2), (last + 2, last + 1), (last + 1, last - 1)):
        (frame,) = keeper.answer(Request(run=RUN, step=step, after=after), [Frame(b"\x00x")])
        assert b"Failure" in frame.header
    assert keeper._runs[RUN].step == last


@pytest.mark.parametrize("run", ["../../etc", "", "0123456789ABCDEF", RUN + "0"])
def test_a_run_whose_name_is_a_path_is_refused(tmp_path: Path, run: str) -> None:
    with closing(BadNetwork(tmp_path, tables(20), seed=0)) as network:
        (frame,) = network.keepers["supplier"].answer(Request(run=run, step=1, after=0), [Frame(b"\x00x")])
    assert b"sixteen hexadecimal" in frame.header


def test_a_client_whose_tables_changed_says_so(trained: BadNetwork) -> None:
    step = trained.keepers["supplier"]._runs[RUN].step
    changed = trained.held["supplier"]
    trained.held["supplier"] = changed.set_column(1, "price", pa.array(range(changed.num_rows), pa.float64()))
    trained.keepers["supplier"] = trained.boot("supplier")
    (frame,) = trained.keepers["supplier"].answer(Request(run=RUN, step=step + 1, after=step), [Frame(b"\x00x")])
    assert b"table items has changed since the run began" in frame.header


def test_runs_that_the_server_forgot_leave_the_disk(trained: BadNetwork) -> None:
    store = trained.stores["supplier"]
    trained.keepers["supplier"].keep_only([RUN])
    assert store.runs() == [RUN]
    trained.keepers["supplier"].keep_only([])
    assert store.runs() == []


def test_another_job_cannot_be_resumed_from_a_journal(trained: BadNetwork, tmp_path: Path) -> None:
    job = make_job(QUERY, label="y", model="auto", algorithm="sgd", given={"batch_size": 50, "epochs": 1})
    with closing(RunStore(tmp_path / "server")) as store, pytest.raises(TrainingError, match="is not what it was"):
        story.train(job, TABLES, Link(transport(trained, Journal(store, RUN))), None, RUN)


def test_a_journal_that_finds_no_room_interrupts_its_run(tmp_path: Path) -> None:
    with closing(RunStore(tmp_path)) as store:
        fill_disk(store, 60.0).cancel()
        with pytest.raises(RunInterruptedError, match="No space left on device"):
            Journal(store, RUN).append(1, 0, {"a": [Frame(b"h", [bytes(1 << 20)])]})
        assert store.runs() == []


def test_a_journal_that_takes_most_of_the_disk_ends_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"a": [Frame(b"h", [bytes(1 << 20)])]}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=7 << 10, f_frsize=1 << 9))
    with closing(RunStore(tmp_path)) as store:
        for step in range(1, 9):
            Journal(store, RUN).append(step, 0, answers)
        journal = Journal(store, RUN)  # a second life counts what the first one wrote
        for step in range(9, 16):
            journal.append(step, 0, answers)
        with pytest.raises(TrainingError, match="left for others"):
            journal.append(16, 0, answers)


def test_a_checkpoint_that_cannot_be_written_ends_in_an_error(trained: BadNetwork) -> None:
    keeper = trained.keepers["supplier"]
    step = keeper._runs[RUN].step
    trained.stores["supplier"].close()
    with pytest.raises(TransportError, match="cannot write a checkpoint"):
        keeper.answer(Request(run=RUN, step=step + 1, after=step), [Frame(b"\x00x")])
