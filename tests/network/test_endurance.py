"""18,000 rounds over TLS: no process of a federation holds more at their end than after the first of them."""

from __future__ import annotations

import json
import resource
import urllib.request
from pathlib import Path

import pytest
from tests.network.parties import QUERY, Parties, running, tables

ROUNDS, EARLY = 18_000, 2_000
GROWTH = 16 << 20  # bytes


def resident(parties: Parties) -> dict[str, int]:
    """The memory of every process, that of the run too."""
    with urllib.request.urlopen(f"http://127.0.0.1:{parties.health}/status", timeout=10) as answer:
        run = json.loads(answer.read())["process"]
    pids = {name: process.pid for name, process in parties.processes.items()} | {"run": run}
    pages = {name: Path(f"/proc/{pid}/statm").read_text().split()[1] for name, pid in pids.items()}
    return {name: int(held) * resource.getpagesize() for name, held in pages.items()}


@pytest.mark.slow
def test_many_rounds_take_no_memory(tmp_path: Path) -> None:
    with running(tmp_path, tables(120)) as parties:
        desk = parties.connect()
        run = desk.submit(QUERY, label="y", algorithm="sgd", epochs=ROUNDS // 72, batch_size=2, test_fraction=0.2)
        parties.await_status(lambda s: s["steps"] > EARLY, 900)
        early = resident(parties)
        parties.await_status(lambda s: s["steps"] > ROUNDS, 3000)
        late = resident(parties)
        rounds = desk.wait(run).traffic.rounds
    assert rounds > ROUNDS
    print({name: f"{early[name] >> 20} → {late[name] >> 20} MiB" for name in late})
    assert all(late[name] - early[name] < GROWTH for name in late), (early, late)
