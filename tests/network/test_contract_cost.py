"""What contracts cost over a network: real processes, mutual TLS."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.network.parties import OWNERS, QUERY, running, tables


def cpu_seconds(pid: int) -> float:
    """Of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_contracts_take_less_than_a_twentieth_of_a_job_over_a_network(tmp_path: Path) -> None:
    """The CPU seconds of what stands between requests and answers, beside those of clients and server."""
    with running(tmp_path, tables(100_000), measures=True) as parties:
        server = parties.processes["server"].pid
        assert server is not None
        before = cpu_seconds(server)
        result = parties.connect().train(QUERY, label="y", algorithm="sgd", epochs=5)
        found = [json.loads((tmp_path / f"{name}.measured").read_text()) for name in OWNERS]
        job = cpu_seconds(server) - before
    rules, cpu, requests = (sum(one[name] for one in found) for name in ("rules", "cpu", "requests"))
    assert requests > result.traffic.rounds
    assert rules < 0.05 * (cpu + job), f"{rules:.3f} s of {cpu:.3f} s and the server's {job:.3f} s, {requests} requests"
