"""The newest record of a file survives whatever tears the one that was being written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablepuppet.errors import TransportError
from tablepuppet.network.slots import read_newest, write_newest
from tablepuppet.transport.codec import Frame
from tablepuppet.transport.parcels import Envelope


class Step(Envelope, frozen=True):
    step: int


def frames(step: int, size: int) -> list[Frame]:
    return [Frame(b"h", [bytes([step]) * size])]


def content(path: Path) -> tuple[int, bytes]:
    _, (envelope, kept) = read_newest(path, Step)
    return envelope.step, bytes(kept[0].buffers[0])


@settings(max_examples=20)
@given(sizes=st.lists(st.sampled_from([0, 1, 100, 5000, 9000, 3 << 19]), min_size=1, max_size=8))
def test_the_newest_record_is_read_whatever_the_sizes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path, slot = tmp_path_factory.mktemp("slots") / "last", 0
    for step, size in enumerate(sizes):
        slot = write_newest(path, slot, Step(step=step), frames(step, size))
        assert read_newest(path, Step)[0] == slot
        assert content(path) == (step, bytes([step]) * size)
    assert [p.name for p in path.parent.iterdir()] == ["last"]


@given(data=st.data(), sizes=st.lists(st.sampled_from([1, 100, 2000, 9000]), min_size=2, max_size=6))
def test_a_torn_write_leaves_the_record_before(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, sizes: list[int]
) -> None:
    """Any part of what the last write changed may be missing from the disk."""
    path, slot = tmp_path_factory.mktemp("slots") / "last", 0
    *earlier, last = enumerate(sizes)
    for step, size in earlier:
        slot = write_newest(path, slot, Step(step=step), frames(step, size))
    before = path.read_bytes()
    write_newest(path, slot, Step(step=last[0]), frames(last[0], last[1]))
    after = path.read_bytes()
    if len(before) != len(after):  # a new file, under the old name at once
        return
    changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    lost = data.draw(st.sampled_from(changed))
    until = data.draw(st.integers(lost + 1, len(after)))
    path.write_bytes(after[:lost] + before[lost:until] + after[until:])
    step, size = earlier[-1]
    whole = (last[0], bytes([last[0]]) * last[1])  # where nothing that counts was lost
    assert content(path) in ((step, bytes([step]) * size), whole)


def test_a_file_without_a_whole_record_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "last").write_bytes(b"x" * 8192)
    with pytest.raises(TransportError, match="is damaged"):
        read_newest(tmp_path / "last", Step)
