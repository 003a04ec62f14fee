"""Killed clients, a killed server, absent clients: the run goes on, or can be resumed, and the model is the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.network.parties import OWNERS, QUERY, Parties, assert_same, in_process, running, tables

import tablepuppet as tp
from tablepuppet.engine.result import Result
from tablepuppet.errors import RunInterruptedError

JOB: dict[str, Any] = {"label": "y", "algorithm": "sgd", "batch_size": 25, "epochs": 20, "learning_rate": 0.1}


def expected() -> Result:
    with in_process(tables()) as federation:
        return federation.train(QUERY, **JOB)


def train_with_faults(parties: Parties, faults: dict[int, Callable[[], None]]) -> Result:
    """Trains while faults happen at given rounds, each in a thread of its own so that the run is not held up."""
    threads: list[threading.Thread] = []

    def on_round(event: Any) -> None:
        due = min(faults, default=event.round + 1)
        if due <= event.round and not any(t.is_alive() for t in threads):
            threads.append(threading.Thread(target=faults.pop(due)))
            threads[-1].start()

    result = parties.connect().train(QUERY, **JOB, on_round=on_round)
    for thread in threads:
        thread.join(60)
    assert not faults
    return result


def restart(parties: Parties, name: str) -> None:
    parties.kill(name)
    parties.start(name)


def test_a_killed_client_and_a_killed_server_change_nothing(tmp_path: Path) -> None:
    with running(tmp_path, tables()) as parties:
        faults: dict[int, Callable[[], None]] = {
            10: lambda: restart(parties, "store-us"),
            40: lambda: restart(parties, "server"),
            70: lambda: restart(parties, "supplier"),
        }
        assert_same(train_with_faults(parties, faults), expected())


def test_a_run_whose_client_stays_away_says_so_and_is_resumed_later(tmp_path: Path) -> None:
    with running(tmp_path, tables(), wait=2.0) as parties:
        with pytest.raises(RunInterruptedError, match="store-eu has been away"):
            train_with_faults(parties, {20: lambda: parties.kill("store-eu")})
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

        with pytest.raises(RunInterruptedError, match="stopped"):
            train_with_faults(parties, {20: cancel})
        parties.await_status(lambda s: s["runs"][-1]["state"] == "cancelled")
        assert not list(tmp_path.rglob("journal"))
        parties.await_status(
            lambda s: not any((tmp_path / "state" / n / r["run"]).exists() for n in OWNERS for r in s["runs"])
        )


@pytest.mark.slow
def test_a_storm_of_random_faults_changes_nothing(tmp_path: Path) -> None:
    chance = random.Random(0)
    with running(tmp_path, tables()) as parties:
        rounds = 20 * 21
        faults: dict[int, Callable[[], None]] = {}
        for at in range(3, rounds - 2, 4):
            name = chance.choice(["server", *OWNERS])
            faults[at] = lambda name=name: restart(parties, name)  # type: ignore[misc]
        assert_same(train_with_faults(parties, faults), expected())
