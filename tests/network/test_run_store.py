"""Records of runs: all of a write or nothing, whatever tears it; one process at a time; nothing is left behind."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablepuppet.network.run_store import Key, Record, RunStore, StoreError
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport.envelopes import Envelope

RUN = "0123456789abcdef"
LAST: Key = (RUN, "last", 0)


class Step(Envelope, frozen=True):
    step: int


def record(step: int, size: int) -> Record:
    return Step(step=step), [Frame(b"h", [bytes([step]) * size]), Frame(b"i")]


def content(store: RunStore, key: Key = LAST) -> tuple[int, bytes]:
    found = store.read(key, Step)
    assert found is not None
    envelope, frames = found
    return envelope.step, bytes(frames[0].buffers[0])


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.sampled_from([0, 1, 100, 9000, 3 << 19]), min_size=1, max_size=6), is_urgent=st.booleans())
def test_what_a_killed_process_wrote_is_read_whatever_the_sizes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], is_urgent: bool
) -> None:
    folder = tmp_path_factory.mktemp("store")
    with closing(RunStore(folder / "0")) as store:
        for step, size in enumerate(sizes, 1):
            store.write({LAST: record(step, size), (RUN, "setup", step): record(step, 1)}, is_urgent=is_urgent)
            shutil.copytree(folder / "0", folder / str(step))  # as kill -9 leaves it
            with closing(RunStore(folder / str(step))) as other:
                assert content(other) == (step, bytes([step]) * size)
                assert other.numbers(RUN, "setup") == list(range(1, step + 1))


@settings(max_examples=30, deadline=None)
@given(data=st.data(), sizes=st.lists(st.sampled_from([1, 2000, 30_000, 3 << 19]), min_size=2, max_size=4))
def test_a_torn_write_leaves_the_record_before(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, sizes: list[int]
) -> None:
    """Any end of what the last write added to the log may be missing."""
    folder = tmp_path_factory.mktemp("store")
    log = folder / "runs.sqlite-wal"
    *earlier, last = enumerate(sizes, 1)
    with closing(RunStore(folder)) as store:
        for step, size in earlier:
            store.write({LAST: record(step, size)})
        before = log.read_bytes()
        store.write({LAST: record(*last)}, is_urgent=False)
        after = log.read_bytes()
        shutil.copytree(folder, folder / "torn")
    if after[: len(before)] != before:  # the log began anew: what it held is in the database
        return
    cut = data.draw(st.integers(len(before), len(after)))
    (folder / "torn" / log.name).write_bytes(after[:cut] + bytes(len(after) - cut))
    with closing(RunStore(folder / "torn")) as store:
        assert content(store) in [(step, bytes([step]) * size) for step, size in (earlier[-1], last)]


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    with closing(RunStore(tmp_path)) as store:
        store.write({LAST: record(1, 10)})
        store._database.execute("PRAGMA max_page_count = 1")
        with pytest.raises(StoreError, match="No space left on device"):
            store.write({LAST: record(2, 10), (RUN, "step", 1): record(2, 1 << 20)}, remove=[(RUN, "setup")])
        assert content(store) == (1, bytes([1]) * 10)
        assert store.numbers(RUN, "step") == []


def test_a_run_that_is_forgotten_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    secret = b"a label that somebody had" * 1000
    with closing(RunStore(tmp_path)) as store:
        for step in range(1, 20):
            store.write({(RUN, "step", step): (Step(step=step), [Frame(secret)])})
        store.forget(RUN)
        store.tidy()
        assert store.runs() == []
        assert not any(secret[:25] in path.read_bytes() for path in tmp_path.iterdir())
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 100_000


def test_the_database_overwrites_what_it_removes_and_keeps_its_log_short_wherever_it_was_built(tmp_path: Path) -> None:
    asked = {
        **{"locking_mode": "exclusive", "journal_mode": "wal", "journal_size_limit": 262_144},
        **{"auto_vacuum": 1, "secure_delete": 2, "wal_autocheckpoint": 64},
    }
    with closing(RunStore(tmp_path)) as store:
        found = {name: store._database.execute(f"PRAGMA {name}").fetchone()[0] for name in asked}
        for is_urgent, synchronous in ((True, 2), (False, 1), (True, 2)):
            store.write({LAST: record(1, 1)}, is_urgent=is_urgent)
            store._synced = time.monotonic() + 60.0  # the next one need not be forced to the disk
            assert store._database.execute("PRAGMA synchronous").fetchone()[0] == synchronous
    assert found == asked


def test_only_one_process_uses_a_folder_and_nobody_else_reads_it(tmp_path: Path) -> None:
    (tmp_path / "runs.sqlite").touch(mode=0o644)
    program = (
        "import sys, pathlib; from tablepuppet.network.run_store import RunStore; RunStore(pathlib.Path(sys.argv[1]))"
    )
    with closing(RunStore(tmp_path)) as store:
        store.write({LAST: record(1, 1)})
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert f"another process uses {tmp_path}" in done.stderr
    store = RunStore(tmp_path)
    ending = threading.Timer(0.5, store.close)  # a process that was told to end, and does
    ending.start()
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 0
    ending.join()


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"x" * len(b)])
def test_a_damaged_file_is_said_when_it_is_opened_or_read(tmp_path: Path, damage: object) -> None:
    with closing(RunStore(tmp_path)) as store:
        store.write({LAST: record(1, 1 << 20)})
    path = tmp_path / "runs.sqlite"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(StoreError, match=r"move it away; runs under way must then|start the run again"):  # noqa: SIM117
        with closing(RunStore(tmp_path)) as store:
            store.read(LAST, Step)
