"""Across an ocean: the time that a run takes is the time that its traffic says.

136 ms from a word to its answer and 0.42 Gbit/s: by a relay of our own, which delays and slows the bytes of every
client, and by the kernel (netem) where it can and we may. What communication took is what the run takes longer than
next door.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.network import party
from tests.network.namespaces import has_netem, hosts, needs_root
from tests.network.parties import OWNERS, QUERY, Parties, running, tables
from tests.network.relay import Relay
from tests.ports import free_port

from tablepuppet.training.result import Result
from tablepuppet.transport.meter import NETWORKS

US_UK = NETWORKS["us-uk"]
JOB: dict[str, Any] = {"label": "y", "algorithm": "newton", "epochs": 4, "tolerance": 0.0}


def timed(parties: Parties) -> tuple[Result, float]:
    """A run whose processes have all been used before."""
    parties.connect().train(QUERY, **JOB)
    began = time.perf_counter()
    result = parties.connect().train(QUERY, **JOB)
    return result, time.perf_counter() - began


def through_relays(folder: Path, rows: int, **link: Any) -> tuple[Result, float]:
    folder.mkdir()
    port = free_port()
    relays = {name: Relay(port, **link) for name in OWNERS}
    with running(folder, tables(rows), port=port, relays=relays, heartbeat=5.0) as parties:
        return timed(parties)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [400, 300_000], ids=["small messages", "megabytes"])
def test_a_run_across_a_relay_takes_as_long_as_its_traffic_says(tmp_path: Path, rows: int) -> None:
    _, near = through_relays(tmp_path / "near", rows)
    result, far = through_relays(tmp_path / "far", rows, delay=US_UK.latency / 2, rate=US_UK.bandwidth * 1e9 / 8)
    traffic = result.traffic
    expected = sum(account.seconds("us-uk") for account in (traffic, traffic.setup, traffic.evaluation))
    assert far - near == pytest.approx(expected, rel=0.2)


@pytest.mark.slow
@pytest.mark.root
@needs_root
def test_a_run_across_netem_takes_as_long_as_its_traffic_says(tmp_path: Path) -> None:
    if not has_netem():
        pytest.skip("this kernel has no netem; the relay stands in for it")
    (tmp_path / "job.toml").write_text(
        f'query = "{QUERY}"\nlabel = "y"\nalgorithm = "newton"\nepochs = 4\ntolerance = 0.0\n'
    )
    with hosts(["server", *OWNERS]) as made:
        parties = Parties(tmp_path, host=made.addresses["server"], port=8470, namespaces=made.namespaces)
        parties.heartbeat = 5.0
        parties.write(tables())
        parties.start()
        took = []
        for is_far in (False, True):
            if is_far:
                for name in OWNERS:
                    made.slow_down(name, delay=US_UK.latency / 2, rate=US_UK.bandwidth * 1e9)
            for _ in range(2):  # the first one warms everybody up
                began = time.perf_counter()
                command = ["train", f"{tmp_path}/job.toml", "--federation", str(parties.federation)]
                user = party.start(command, tmp_path / "user.log", namespace=made.namespaces["server"])
                user.join(120)
                assert user.exitcode == 0, parties.logs()
            took.append(time.perf_counter() - began)
        parties.stop()
    (tmp_path / "again").mkdir()
    with running(tmp_path / "again", tables()) as near:
        traffic = near.connect().train(QUERY, **JOB).traffic
    expected = sum(account.seconds("us-uk") for account in (traffic, traffic.setup, traffic.evaluation))
    assert took[1] - took[0] == pytest.approx(expected, rel=0.2)
