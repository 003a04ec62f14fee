"""The newest record of a file survives whatever tears the one that was being written."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablepuppet.errors import TransportError
from tablepuppet.network.records import Slots
from tablepuppet.protocol.codec import Frame
from tablepuppet.transport.envelopes import Envelope


class Step(Envelope, frozen=True):
    step: int


def frames(step: int, size: int) -> list[Frame]:
    return [Frame(b"h", [bytes([step]) * size])]


def content(path: Path) -> tuple[int, bytes]:
    """The newest record, as a process reads it that has just been started."""
    with closing(Slots(path)) as slots:
        envelope, kept = slots.read(Step)
    return envelope.step, bytes(kept[0].buffers[0])


@settings(max_examples=20)
@given(sizes=st.lists(st.sampled_from([0, 1, 100, 5000, 9000, 3 << 19]), min_size=1, max_size=8))
def test_the_newest_record_is_read_whatever_the_sizes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("slots") / "last"
    with closing(Slots(path)) as slots:
        for step, size in enumerate(sizes):
            slots.write(Step(step=step), frames(step, size))
            assert content(path) == (step, bytes([step]) * size)
    assert [p.name for p in path.parent.iterdir()] == ["last"]


@given(data=st.data(), sizes=st.lists(st.sampled_from([1, 100, 2000, 9000, 3 << 19]), min_size=2, max_size=6))
def test_a_torn_write_leaves_the_record_before(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, sizes: list[int]
) -> None:
    """Any part of what the last write changed may be missing from the disk."""
    path = tmp_path_factory.mktemp("slots") / "last"
    *earlier, last = enumerate(sizes)
    with closing(Slots(path)) as slots:
        for step, size in earlier:
            slots.write(Step(step=step), frames(step, size))
        if data.draw(st.booleans()):  # a new process writes the last one
            slots.read(Step)
        before, file = path.read_bytes(), path.stat().st_ino
        slots.write(Step(step=last[0]), frames(last[0], last[1]))
    after = path.read_bytes()
    if path.stat().st_ino != file:  # a new file, under the old name at once
        return
    changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    lost = data.draw(st.sampled_from(changed))
    until = data.draw(st.integers(lost + 1, len(after)))
    path.write_bytes(after[:lost] + before[lost:until] + after[until:])
    step, size = earlier[-1]
    whole = (last[0], bytes([last[0]]) * last[1])  # where nothing that counts was lost
    assert content(path) in ((step, bytes([step]) * size), whole)


@given(data=st.data(), sizes=st.lists(st.sampled_from([1, 100, 2000]), min_size=2, max_size=6))
def test_a_machine_that_goes_down_loses_nothing_that_was_on_the_disk(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, sizes: list[int]
) -> None:
    """Of what was written since the last sync, any part may be missing."""
    path = tmp_path_factory.mktemp("slots") / "last"
    with closing(Slots(path)) as slots:
        slots.write(Step(step=0), frames(0, 3000))  # room for all
        slots.write(Step(step=1), frames(1, sizes[0]), is_urgent=True)
        before = path.read_bytes()
        for step, size in enumerate(sizes, 2):
            slots.write(Step(step=step), frames(step, size))
    after = path.read_bytes()
    kept = data.draw(st.lists(st.booleans(), min_size=len(after) // 512, max_size=len(after) // 512))
    sectors = [slice(512 * i, 512 * i + 512) for i in range(len(kept))]
    path.write_bytes(b"".join((after if k else before)[s] for k, s in zip(kept, sectors, strict=True)))
    step, found = content(path)
    assert step >= 1
    assert found == bytes([step]) * (sizes[0] if step == 1 else sizes[step - 2])


def test_a_file_without_a_whole_record_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "last").write_bytes(b"x" * 8192)
    with pytest.raises(TransportError, match="is damaged"):
        content(tmp_path / "last")


def test_a_file_that_somebody_removed_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "run" / "last"
    with closing(Slots(path)) as slots:
        slots.write(Step(step=1), frames(1, 10))
        path.unlink()
        path.parent.rmdir()
        slots.write(Step(step=2), frames(2, 10))
    assert content(path) == (2, b"\2" * 10)
