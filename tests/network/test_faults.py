"""Killed clients, a killed server, absent clients: the run goes on, or can be resumed, and the model is the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.network.parties import (
    LASTING,
    OWNERS,
    QUERY,
    assert_same,
    in_process,
    kept_runs,
    running,
    tables,
    train_with_faults,
)
from tests.network.weather import bad_weather

import tablepuppet as tp
from tablepuppet.errors import RunInterruptedError
from tablepuppet.training.result import Result

JOB: dict[str, Any] = {"label": "y", "algorithm": "sgd", "batch_size": 25, "epochs": 10, "learning_rate": 0.1}


def expected() -> Result:
    with in_process(tables()) as federation:
        return federation.train(QUERY, **JOB)


def test_a_killed_client_and_a_killed_server_change_nothing(tmp_path: Path) -> None:
    with running(tmp_path, tables()) as parties:
        faults = {10: "store-us", 40: "supplier", 70: "server"}
        assert_same(train_with_faults(parties, faults, **JOB), expected())


HOLDS_THE_INTERPRETER = """
import ctypes, sys
from tablepuppet.cli.main import main
from tablepuppet.client import Client
from tablepuppet.exchanges.schema import OpenScan
answer = Client.answer
def answer_late(self, message):
    if isinstance(message, OpenScan):
        ctypes.PyDLL(None).usleep(8_000_000)  # lets no other thread run, as one long call of a library may
    return answer(self, message)
Client.answer = answer_late
sys.exit(main(["join", sys.argv[1]]))
"""


def test_a_client_whose_computation_lets_no_heartbeat_through_is_not_away(tmp_path: Path) -> None:
    with running(tmp_path, tables(), heartbeat=2.0) as parties:
        parties.kill("supplier")
        parties.await_status(lambda s: "supplier" in s["away"])
        command = [sys.executable, "-c", HOLDS_THE_INTERPRETER, str(tmp_path / "supplier.toml")]
        supplier = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            parties.await_clients()
            result = parties.connect().train(QUERY, label="y")
        finally:
            supplier.kill()
            supplier.wait()
        log = (tmp_path / "server.log").read_text()
    assert "waits for client" not in log
    assert "supplier is silent" not in log
    with in_process(tables()) as federation:
        assert_same(result, federation.train(QUERY, label="y"))


def test_a_run_whose_client_stays_away_says_so_and_is_resumed_later(tmp_path: Path) -> None:
    with running(tmp_path, tables(), wait=2.0, heartbeat=5.0) as parties:  # nobody else is away by chance
        with pytest.raises(RunInterruptedError, match="store-eu has been away"):
            train_with_faults(parties, {20: lambda: parties.kill("store-eu")}, **JOB)
        parties.start("store-eu")
        parties.await_clients()
        with pytest.raises(tp.TablePuppetError, match="no interrupted run of this job"):
            parties.connect().train(QUERY, label="y", seed=1, resume=True)
        assert_same(parties.connect().train(QUERY, **JOB, resume=True), expected())


def test_a_cancelled_run_ends_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    with running(tmp_path, tables()) as parties:
        federation = parties.connect()

        def cancel() -> None:
            federation.cancel(federation.status()["runs"][-1]["run"])

        with pytest.raises(RunInterruptedError, match="cancelled"):
            train_with_faults(parties, {20: cancel}, **JOB)
        parties.await_status(lambda s: s["runs"][-1]["state"] == "cancelled")
        parties.await_status(
            lambda s: not any(r["run"] in kept_runs(tmp_path / "state" / n) for n in OWNERS for r in s["runs"])
        )
        assert not kept_runs(tmp_path / "state" / "server", "step")


def assert_weathered(folder: Path, faults: int) -> None:
    job = JOB | {"epochs": 2 + faults // 8}  # 20 rounds an epoch, and a few pass before a fault is over
    with bad_weather(folder, tables(), seed=faults) as weather:
        result = weather.train(**job, faults=faults)
        states = [p for p in (folder / "state").rglob("*") if p.is_file() and p.name not in LASTING]
        assert not any(kept_runs(folder / "state" / name) for name in OWNERS)
        assert not kept_runs(folder / "state" / "server", "step")
    with in_process(tables()) as federation:
        assert_same(result, federation.train(QUERY, **job))
    assert len(set(weather.rounds)) == faults
    assert min(weather.seen[kind] for kind in weather.kinds) >= faults // len(weather.kinds)
    assert not states


def test_a_fault_in_every_round_changes_nothing(tmp_path: Path) -> None:
    assert_weathered(tmp_path, 16)


@pytest.mark.slow
def test_a_storm_of_two_hundred_faults_changes_nothing(tmp_path: Path) -> None:
    assert_weathered(tmp_path, 200)
