"""An owner's log holds every event in a chain, and nobody can make it grow without end."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tablepuppet.errors import PolicyError
from tablepuppet.owner.owner_files import OwnerLog, verify


def test_refusals_beyond_an_hours_lines_are_counted_in_the_next_line(tmp_path: Path) -> None:
    hour = [8]
    log = OwnerLog(clock=lambda: datetime(2026, 11, 17, hour[0], tzinfo=UTC))
    log.write("agreed", "first")
    for _ in range(10_490):
        log.write("refused", "second", detail={"why": "the policy does not grant it"})
    assert len(log.entries) == 10_000
    with pytest.raises(PolicyError, match="10,000 lines an hour and is full; nothing leaves before it is logged"):
        log.write("agreed", "third")
    log.write("disclosed", "first", detail={"scores": 7})  # it was agreed to before
    assert log.entries[-1].detail == {"scores": 7, "refusals not written": 491}
    log.write("refused", "second")
    hour[0] = 9
    log.write("agreed", "third")
    assert log.entries[-1].detail == {"refusals not written": 1}
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, log.entries)))
    assert verify(path) == 10_002
