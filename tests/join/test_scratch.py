"""Folders for what does not fit in memory are left by nobody for long."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tablepuppet.join.duckdb_join import scratch_folder

_HOLD = """
import sys, tempfile
from tablepuppet.join.duckdb_join import scratch_folder
tempfile.tempdir = sys.argv[1]
with scratch_folder() as folder:
    (folder / "spilled").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_at_the_end(place: Path) -> None:
    with scratch_folder() as folder:
        (folder / "spilled").write_bytes(b"x")
    assert not list(place.iterdir())


def test_what_a_killed_process_left_goes_and_what_a_living_one_uses_stays(place: Path) -> None:
    command = [sys.executable, "-c", _HOLD, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        _grow_old(folder)
        with scratch_folder() as other:
            assert sorted(place.iterdir()) == sorted([folder, other])
        holder.kill()
    assert (folder / "spilled").exists()
    with scratch_folder() as other:
        assert list(place.iterdir()) == [other]


def test_a_folder_that_is_being_made_is_left_alone(place: Path) -> None:
    young = place / "tablepuppet-join-young"
    young.mkdir()
    (young / "lock").touch()
    with scratch_folder():
        assert young.exists()


def _grow_old(folder: Path) -> None:
    before = time.time() - 3600
    os.utime(folder, (before, before))
