"""Masked sums over a real network: a lost client or server changes nothing, and no mask serves twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.network.parties import QUERY, assert_same, in_process, running, tables

JOB: dict[str, Any] = {
    "label": "y",
    "algorithm": "sgd",
    "batch_size": 50,
    "epochs": 12,
    "learning_rate": 0.1,
    "privacy": {"secure_aggregation": True},
}


def test_killed_parties_of_a_masked_run_change_nothing(tmp_path: Path) -> None:
    with in_process(tables()) as federation:
        expected = federation.train(QUERY, **JOB)
    assert expected.traffic.by_message["Masked"]
    with running(tmp_path, tables()) as parties:
        faults: dict[int, Callable[[], None]] = {
            10: lambda: parties.restart("store-us"),
            50: lambda: parties.restart("server"),
            90: lambda: parties.restart("store-eu"),
        }

        def on_round(event: Any) -> None:
            for at in [at for at in faults if at <= event.round]:
                faults.pop(at)()

        assert_same(parties.connect().train(QUERY, **JOB, on_round=on_round), expected)
        assert not faults
