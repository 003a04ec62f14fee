"""A party that would bring the coordinator down ends its own run, by name; the next job is trained as ever."""

from __future__ import annotations

import json
import os
import signal
import stat
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.network import hostile
from tests.network.parties import QUERY, Parties, assert_same, in_process, kept_runs, running, tables

import tablepuppet as tp
from tablepuppet.api.connected import ConnectedFederation
from tablepuppet.network.control import to_frame
from tablepuppet.network.run_store import RunStore
from tablepuppet.network.runs import Run
from tablepuppet.transport import certs

ALONE = "SELECT x, z, y FROM orders"  # a job that needs no supplier
GIVEN: dict[str, Any] = {"label": "y", "algorithm": "admm", "epochs": 2, "wire": "float64+zstd"}


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    with running(tmp_path_factory.mktemp("federation"), tables(120)) as started:
        yield started


def instead(parties: Parties, lie: str) -> None:
    """The supplier is replaced by a liar."""
    parties.kill("supplier")
    command = ["join", f"{parties.folder}/supplier.toml"]
    parties.processes["supplier"] = hostile.start(command, parties.folder / "supplier.log", lie)
    parties.await_status(lambda s: "supplier" in s["connected"])


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        ("outside_the_dictionary", "client supplier answers SendKeys with what cannot be: Keys.columns is damaged"),
        ("a_billion_parameters", "client supplier answers StartPart with what cannot be: Started.width is 1,000,000"),
        ("eight_gibibytes_of_zeros", "client supplier: .*would take more than"),
        ("garbage", "client supplier: a message does not follow the protocol"),
        ("gone", "client supplier: the other process is gone"),
        ("escapes", r"client supplier: \\x1b\[2J\\x1b\]0;owned\\x07 no.*… \(59,\d+ more characters\)"),
    ],
)
def test_a_poisoned_answer_ends_its_run_alone(parties: Parties, lie: str, says: str) -> None:
    server = parties.processes["server"].pid
    instead(parties, lie)
    federation = parties.connect()
    with pytest.raises(tp.TablePuppetError, match=says) as failed:
        federation.train(QUERY, **GIVEN)
    shown = (str(failed.value), federation.status()["runs"][-1]["message"])
    assert all(len(text) < 1200 and "\x1b" not in text for text in shown)
    assert not kept_runs(parties.folder / "state" / "server", "step")
    network = federation.train(ALONE, **GIVEN)
    with in_process(tables(120)) as local:
        assert_same(network, local.train(ALONE, **GIVEN))
    assert parties.processes["server"].pid == server
    assert parties.processes["server"].is_alive()
    assert "\x1b" not in parties.logs()


def test_a_run_whose_process_is_killed_goes_on_from_its_journal(tmp_path: Path) -> None:
    with running(tmp_path, tables(120)) as parties, in_process(tables(120)) as local:
        killed: list[int] = []

        def kill(event: Any) -> None:
            if event.round >= 3 and not killed and end(worker(parties), signal.SIGKILL):
                killed.append(event.round)

        network = parties.connect().train(QUERY, label="y", algorithm="admm", epochs=6, on_round=kill)
        assert killed
        assert_same(network, local.train(QUERY, label="y", algorithm="admm", epochs=6))


def test_a_run_that_brings_its_process_down_twice_is_set_aside(tmp_path: Path) -> None:
    with running(tmp_path, tables(120)) as parties:
        killed: set[int] = set()

        def kill(event: Any) -> None:
            pid = worker(parties)
            if pid not in killed and end(pid, signal.SIGKILL):
                killed.add(pid)

        with pytest.raises(tp.TablePuppetError, match=r"set aside: its process died \(SIGKILL\) 2 times"):
            parties.connect().train(QUERY, label="y", algorithm="sgd", epochs=50, batch_size=20, on_round=kill)
        assert parties.connect().train(QUERY, label="y").metrics["train"]


def test_what_was_set_aside_is_resumed_by_its_name(tmp_path: Path) -> None:
    job: dict[str, Any] = {"label": "y", "algorithm": "sgd", "epochs": 50, "batch_size": 20}
    with running(tmp_path, tables(120)) as parties, in_process(tables(120)) as local:
        federation = parties.connect()
        run = federation.submit(QUERY, **job)
        killed: set[int] = set()

        def kill(event: Any) -> None:
            if len(killed) < 2 and (pid := worker(parties)) not in killed and end(pid, signal.SIGKILL):
                killed.add(pid)

        with pytest.raises(tp.TablePuppetError, match=f"tablepuppet resume {run}"):
            federation.wait(run, on_round=kill)
        (found,) = federation.status()["runs"]
        assert found["state"] == "interrupted"
        federation.resume(run)
        assert_same(federation.wait(run), local.train(QUERY, **job))
        with pytest.raises(tp.TablePuppetError, match="finished; only an interrupted run can be resumed"):
            federation.resume(run)


def test_a_service_that_is_told_to_stop_again_and_again_sets_no_run_aside(tmp_path: Path) -> None:
    """As `systemctl restart` does it: every process of the service gets the signal, the run's own before the server."""
    job: dict[str, Any] = {"label": "y", "algorithm": "admm", "epochs": 12, "l2": 1e-4}
    with running(tmp_path, tables(120)) as parties, in_process(tables(120)) as local:
        restarts: list[int] = []

        def restart(event: Any) -> None:
            if event.round % 2 == 0 and event.round not in restarts:
                restarts.append(event.round)
                server = parties.processes["server"]
                assert server.pid is not None
                for pid in (*descendants(server.pid), server.pid):
                    end(pid, signal.SIGTERM)
                server.join(120)
                parties.start("server")

        network = parties.connect().train(QUERY, **job, on_round=restart)
        assert len(restarts) >= 3
        assert_same(network, local.train(QUERY, **job))


def test_a_run_whose_process_is_told_to_stop_goes_on(tmp_path: Path) -> None:
    job: dict[str, Any] = {"label": "y", "algorithm": "sgd", "epochs": 20, "batch_size": 20}
    with running(tmp_path, tables(120)) as parties, in_process(tables(120)) as local:
        told: set[int] = set()

        def stop(event: Any) -> None:
            last = signal.SIGTERM if told else signal.SIGKILL
            if event.round > 2 * len(told) and len(told) < 4:
                # it hears of nothing before it dies of the first
                told.update({event.round} if end(worker(parties), signal.SIGSTOP, last, signal.SIGCONT) else ())

        assert_same(parties.connect().train(QUERY, **job, on_round=stop), local.train(QUERY, **job))
        assert len(told) == 4


def end(pid: int, *signals: int) -> bool:
    """Whether a process was there to be told; 0: there is none."""
    try:
        for number in signals if pid else ():
            os.kill(pid, number)
    except ProcessLookupError:  # it has just ended
        return False
    return pid != 0


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and theirs."""
    children = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # another one that has just ended
            if place.read_text().rpartition(")")[2].split()[1] == str(pid):
                children.append(int(place.parent.name))
    return [found for child in children for found in (*descendants(child), child)]


def worker(parties: Parties) -> int:
    """The process that the run is computed in; 0: between two of them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{parties.health}/status", timeout=60) as answer:
        return int(json.loads(answer.read())["process"] or 0)


def test_a_job_that_needs_more_memory_than_it_may_have_fails_alone(tmp_path: Path) -> None:
    """Every row of one table meets every row of the other: 10⁹ joined rows."""
    made = Parties(tmp_path)
    held = tables(30_000)
    made.write(held)
    made.federation.write_text(made.federation.read_text().replace("[server]", f"[server]\nmemory = {3 << 29}"))
    made.start()
    try:
        made.await_clients()
        query = "SELECT a.x, b.z, a.y FROM orders a JOIN orders b ON a.y = b.y"
        with pytest.raises(tp.TablePuppetError, match=r"memory|rows"):
            made.connect().train(query, label="y", max_joined_rows=10**12)
        assert made.connect().train(QUERY, label="y", epochs=2).metrics["train"]
    finally:
        for name in list(made.processes):
            made.kill(name)


def test_what_is_kept_of_runs_is_for_the_server_alone(tmp_path: Path) -> None:
    with running(tmp_path, tables(120)) as parties:
        seen: set[int] = set()

        def look(event: Any) -> None:
            for path in (tmp_path / "state").rglob("*"):
                with suppress(FileNotFoundError):  # a journal of SQLite's
                    seen.add(stat.S_IMODE(path.stat().st_mode) & 0o077)

        parties.connect().train(QUERY, label="y", algorithm="admm", epochs=3, on_round=look)
    assert seen == {0}


def test_a_run_of_another_version_does_not_keep_the_coordinator_from_starting(tmp_path: Path) -> None:
    made = Parties(tmp_path)
    made.write(tables(60))
    folder = tmp_path / "state" / "server"
    with closing(RunStore(folder)) as store:
        old = Run("0123456789abcdef", "train", to_frame({"no": "job"}), store)
        old.version, old.protocol = "0.0.1", ""
        old.move("running")
    (folder / "runs" / "fedcba9876543210").mkdir(parents=True)
    (folder / "runs" / "fedcba9876543210" / "run").write_bytes(os.urandom(300))
    made.start("server")
    try:
        found = made.await_status(lambda s: True)
        assert "begun by another release of TablePuppet (version 0.0.1)" in (tmp_path / "server.log").read_text()
        assert found["runs"] == []  # nobody's own
    finally:
        made.kill("server")


def test_a_second_server_in_the_same_folder_is_refused_and_harms_no_run(tmp_path: Path) -> None:
    with running(tmp_path, tables(60)) as parties:
        other = tmp_path / "other.toml"
        text = parties.federation.read_text().replace(str(parties.port), "1").replace(str(parties.health), "0")
        other.write_text(text)
        second = hostile._FORKS.Process(target=_serve, args=(other, tmp_path / "second.log"))
        second.start()
        second.join(300)
        assert second.exitcode == 1
        assert "another process uses" in (tmp_path / "second.log").read_text()
        assert parties.connect().train(QUERY, label="y").metrics["train"]


def _serve(file: Path, log: Path) -> None:
    hostile.run_plainly(["serve", str(file)], log)


def test_a_server_that_was_told_to_stop_takes_its_run_up_again(tmp_path: Path) -> None:
    with running(tmp_path, tables(120)) as parties, in_process(tables(120)) as local:
        stopped: list[int] = []

        def stop(event: Any) -> None:
            if event.round == 3 and not stopped:
                stopped.append(1)
                parties.processes["server"].terminate()
                parties.processes["server"].join(120)
                parties.start("server")

        network = parties.connect().train(QUERY, label="y", algorithm="admm", epochs=6, on_round=stop)
        assert stopped
        assert_same(network, local.train(QUERY, label="y", algorithm="admm", epochs=6))


def test_runs_belong_to_who_asked(tmp_path: Path) -> None:
    made = Parties(tmp_path)
    made.write(tables(60))
    text = made.federation.read_text().replace('["analyst"]', '["analyst", "rival", "boss"]\nadministrators = ["boss"]')
    made.federation.write_text(text)
    desks = {}
    for name in ("rival", "boss"):
        certs.issue(tmp_path / "certs", name)
        file = tmp_path / f"{name}-federation.toml"
        file.write_text(text.replace('name = "analyst"', f'name = "{name}"').replace("certs/analyst", f"certs/{name}"))
        desks[name] = ConnectedFederation(file)
    made.start()
    try:
        made.await_clients()
        own = made.connect()
        run = own.submit(QUERY, label="y")
        assert own.wait(run).metrics["train"]
        assert [r["run"] for r in own.status()["runs"]] == [run]
        assert desks["rival"].status()["runs"] == []
        assert ["bytes_up" in desk.status() for desk in (own, desks["rival"], desks["boss"])] == [False, False, True]
        for ask in (desks["rival"].wait, desks["rival"].cancel):
            with pytest.raises(tp.TablePuppetError, match="there is no run"):
                ask(run)
        assert [r["user"] for r in desks["boss"].status()["runs"]] == ["analyst"]
        assert desks["boss"].wait(run).metrics["train"]
        shared = own.submit(QUERY, label="y", share=["rival"])
        assert desks["rival"].wait(shared).metrics["train"]
        with pytest.raises(tp.TablePuppetError, match="who alone can stop it"):
            desks["rival"].cancel(shared)
    finally:
        for name in list(made.processes):
            made.kill(name)


def test_a_model_that_owners_hold_is_applied_for_its_user_and_those_it_is_shared_with(tmp_path: Path) -> None:
    made = Parties(tmp_path)
    made.write(tables(60))
    (tmp_path / "closed.toml").write_text("keys_in_plain = false\nrelease_parameters = false\n")
    supplier = tmp_path / "supplier.toml"
    supplier.write_text(supplier.read_text().replace("open.toml", "closed.toml"))
    text = made.federation.read_text().replace('["analyst"]', '["analyst", "rival"]')
    made.federation.write_text(text)
    certs.issue(tmp_path / "certs", "rival")
    other = tmp_path / "rival-federation.toml"
    other.write_text(text.replace('name = "analyst"', 'name = "rival"').replace("certs/analyst", "certs/rival"))
    made.start()
    try:
        made.await_clients()
        own, rival = made.connect(), ConnectedFederation(other)
        result = own.train(QUERY, label="y")
        assert own.predict(result).num_rows > 0
        with pytest.raises(tp.TablePuppetError, match="holds no part"):  # it knows the model's name, and nothing else
            rival.predict(result)
        shared = rival.wait(own.submit(QUERY, label="y", share=["rival"]))
        assert rival.predict(shared).num_rows == own.predict(shared).num_rows
    finally:
        for name in list(made.processes):
            made.kill(name)


def test_twenty_jobs_at_once_wait_for_their_turn(parties: Parties) -> None:
    federation = parties.connect()
    runs = [federation.submit(ALONE, label="y", epochs=1, seed=i) for i in range(20)]
    assert len(set(runs)) == 20
    for run in runs:
        assert federation.wait(run).metrics["train"]
