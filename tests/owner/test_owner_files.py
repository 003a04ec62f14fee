"""An owner's log holds every event in a chain, and nobody can make it grow without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tablepuppet.errors import PolicyError
from tablepuppet.owner import owner_files
from tablepuppet.owner.owner_files import OwnerLog, read_log, verify


def test_refusals_beyond_an_hours_lines_are_counted_in_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_files, "_MOST_AN_HOUR", 10)
    path = tmp_path / "log.jsonl"
    log = OwnerLog(path)
    hour = ["2026-11-17T08"]
    monkeypatch.setattr(log, "_has_room", lambda now: OwnerLog._has_room(log, hour[0]))
    log.write("agreed", "first")
    for _ in range(500):
        log.write("refused", "second", detail={"why": "the policy does not grant it"})
    assert len(read_log(path)) == 10
    with pytest.raises(PolicyError, match="10 lines an hour and is full; nothing leaves before it is logged"):
        log.write("agreed", "third")
    log.write("disclosed", "first", detail={"scores": 7})  # it was agreed to before
    assert read_log(path)[-1].detail == {"scores": 7, "refusals not written": 491}
    log.write("refused", "second")
    hour[0] = "2026-11-17T09"
    log.write("agreed", "third")
    assert read_log(path)[-1].detail == {"refusals not written": 1}
    assert verify(path) == 12
