"""What contracts cost over a network: real processes, mutual TLS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.network.parties import OWNERS, QUERY, running, tables


@pytest.mark.slow
def test_contracts_take_less_than_a_twentieth_of_the_clients_time_over_a_network(tmp_path: Path) -> None:
    """The CPU seconds of what stands between requests and answers, beside those of its client."""
    with running(tmp_path, tables(100_000), measures=True) as parties:
        result = parties.connect().train(QUERY, label="y", algorithm="sgd", epochs=5)
        found = [json.loads((tmp_path / f"{name}.measured").read_text()) for name in OWNERS]
    rules, cpu, requests = (sum(one[name] for one in found) for name in ("rules", "cpu", "requests"))
    assert requests > result.traffic.rounds
    assert rules < 0.05 * cpu, f"{rules:.3f} s of {cpu:.3f} s, {requests} requests"
