"""Files are forced to the disk at once after a pause, and now and then in a rush."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tablepuppet.network.records import PERIOD, Syncing


def test_a_rush_of_writes_is_synced_now_and_then_and_a_slow_one_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, synced = 100.0, 0

    def sync(_: int) -> None:
        nonlocal synced
        synced += 1

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(os, "fdatasync", sync)
    syncing = Syncing()
    with (tmp_path / "file").open("wb") as file:
        for _ in range(100):  # a write a millisecond
            syncing.note_write(file)
            now += 0.001
        assert synced == round(0.1 / PERIOD)
        syncing.finish()
        assert syncing.is_finished
        syncing.finish()
        assert synced == round(0.1 / PERIOD) + 1
        for _ in range(10):
            now += 2 * PERIOD
            syncing.note_write(file)
        assert synced == round(0.1 / PERIOD) + 11
        syncing.note_write(file, is_urgent=True)
        assert synced == round(0.1 / PERIOD) + 12
