"""What the coordinator keeps of its runs: results outlast full disks and restarts; one damaged file stops nobody."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.network.parties import QUERY
from tests.network.test_storm import fill_disk

from tablepuppet.errors import JobError, TransportError
from tablepuppet.job import make_job
from tablepuppet.network.control import Finished, Round, Submit, from_frame, to_frame
from tablepuppet.network.coordinator import Coordinator
from tablepuppet.network.processes import JsonLines
from tablepuppet.network.run_store import RunStore
from tablepuppet.network.runs import Card, Run
from tablepuppet.network.settings import FederationSettings, ServerSettings
from tablepuppet.protocol.codec import Frame
from tablepuppet.protocol.evidence import TreeHead
from tablepuppet.transport.switchboard import Switchboard

JOB = make_job(QUERY, label="y", model="auto", algorithm="newton", given={})
ID = "0123456789abcdef"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with closing(RunStore(tmp_path)) as made:
        yield made


def test_a_result_that_finds_no_room_is_kept_once_there_is_some(
    store: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(ID, "train", to_frame(JOB), store)
    news = run.follow(rounds=True)
    run.result = to_frame({"a": np.arange(100_000)})
    fill_disk(store, 3.0)
    run.move("finished")
    assert caplog.text.count("no room in") >= 2
    last, frames = news.get(timeout=60)
    assert isinstance(last, Finished)
    kept = store.read((ID, "card", 0), Card)
    assert kept is not None
    assert from_frame(kept[1][1])["a"].sum() == from_frame(frames[0])["a"].sum() == sum(range(100_000))


def test_a_run_that_finds_no_room_is_refused_where_nobody_waits(store: RunStore) -> None:
    fill_disk(store, 60.0).cancel()
    run = Run(ID, "train", Frame(b"h", [bytes(1 << 20)]), store)
    with pytest.raises(TransportError, match="cannot write down run 0123456789abcdef: No space left on device"):
        run.move("queued", waits=lambda: False)
    assert store.runs() == []


def settings(folder: Path, wait: float = 1.0, memory: int | None = None) -> FederationSettings:
    server = ServerSettings(address="grpc+tcp://127.0.0.1:1", state=".", wait=wait, memory=memory)
    return FederationSettings(server=server, owners={"orders": "a"}, folder=folder)


def test_a_coordinator_remembers_its_runs_and_passes_over_a_damaged_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(RunStore(tmp_path)) as store:
        for id in (ID, "fedcba9876543210"):
            run = Run(id, "train", to_frame(JOB), store)
            run.result = to_frame({"a": 1})
            run.move("finished")
        store._database.execute("UPDATE pieces SET checksum = 1 WHERE run = ?", (run.id,))
    coordinator = Coordinator(settings(tmp_path), Switchboard(["a"]))
    try:
        assert [r["run"] for r in coordinator.status()["runs"]] == [ID]
        assert "passed over" in caplog.text
    finally:
        coordinator.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Coordinator]:
    """A coordinator that gives a run 64 MiB, and no client ever comes to it."""
    made = Coordinator(settings(tmp_path, wait=60.0, memory=1 << 26), Switchboard(["a"]))
    yield made
    made.close()


def test_heads_of_clients_logs_outlive_the_coordinator_and_a_full_disk_fails_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "heads.json").write_text(json.dumps({"b": {"size": 2, "root": "b" * 64}}))  # of an earlier release
    for sizes in ({"b": 2}, {"a": 1, "b": 2}):
        board = Switchboard(["a"])
        coordinator = Coordinator(settings(tmp_path), board)
        assert {client: head.size for client, head in board.heads.items()} == sizes
        board._keep_head("a", TreeHead(size=1, root="a" * 64))
        assert coordinator.status()["runs"] == []
        coordinator.close()
    board._keep_head("a", TreeHead(size=2, root="c" * 64))  # its store is closed
    assert "cannot be written down" in caplog.text


def test_what_users_hand_in_takes_no_more_memory_than_is_theirs(small: Coordinator) -> None:
    """A hundred jobs of half a gigabyte each would have been kept in memory while they waited, and after."""
    given = Frame(b"\x00garbage", [bytes(1 << 20)])
    small.submit(Submit(kind="train"), to_frame(JOB), "patient")  # it waits for its client, and all others for it
    for _ in range(3):
        small.submit(Submit(kind="train"), given, "rival")
    with pytest.raises(JobError, match="more than the 4,194,304 that the server has for it"):
        small.submit(Submit(kind="train"), given, "rival")
    with pytest.raises(JobError, match="send less"):
        small.submit(Submit(kind="train"), Frame(b"\x00", [bytes(5 << 20)]), "other")
    small.submit(Submit(kind="train"), to_frame(JOB), "other")
    held = [run for run in small._runs.values() if run.owner == "rival"]
    assert sum(run.size for run in held) <= small.most_held


def test_results_give_way_to_their_own_users_later_ones_alone(tmp_path: Path) -> None:
    """Fifty quick jobs of one user pushed out what another had not fetched yet."""

    store = RunStore(tmp_path)

    def kept(number: int, owner: str, size: int) -> None:
        run = Run(f"{number:016x}", "train", to_frame(JOB), store)
        run.owner, run.result, run.submitted = owner, Frame(b"r", [bytes(size)]), float(number)
        run.move("finished")

    kept(1, "patient", 100)
    for number in range(2, 60):
        kept(number, "rival", 100)
    for number in range(60, 70):
        kept(number, "large", 1 << 20)
    store.close()
    coordinator = Coordinator(settings(tmp_path, memory=1 << 26), Switchboard(["a"]))
    coordinator.close()
    owners = Counter(run["user"] for run in coordinator.status()["runs"])
    assert owners == {"patient": 1, "rival": 50, "large": 3}
    with closing(RunStore(tmp_path)) as store:
        assert len(store.runs()) == 54


def test_who_does_not_read_misses_rounds_and_never_the_end(store: RunStore) -> None:
    run = Run(ID, "train", to_frame(JOB), store)
    news = run.follow(rounds=True)
    for number in range(5000):
        run.end_round(Round(round=number, rounds=5000), to_frame({"a": 1}))
    run.result = to_frame({"a": 1})
    run.move("finished")
    heard = [news.get(timeout=60) for _ in range(news.qsize())]
    assert len(heard) == 1001
    assert isinstance(heard[-1][0], Finished)


def test_a_run_that_goes_on_waits_for_nobody_any_more(store: RunStore) -> None:
    run = Run(ID, "train", to_frame(JOB), store)
    run.state, run.waiting = "waiting", {"supplier": 20.0}
    run.move("interrupted", "supplier has been away for too long")
    run.move("running")
    assert run.describe()["waiting"] == {}
    assert run.follow(rounds=False).empty()


def test_a_line_of_the_log_is_an_object_for_machines() -> None:
    said = ("a\x9b2J",)
    record = logging.LogRecord("tablepuppet.network.x", logging.WARNING, "x.py", 1, "client %s is gone", said, None)
    line = json.loads(JsonLines().format(record))
    assert line["level"] == "warning"
    assert line["message"] == "client a\\x9b2J is gone"
    assert line["logger"] == "tablepuppet.network.x"
