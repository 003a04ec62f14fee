"""Partitions of a joined table give what the whole gives, bit for bit, from memory and again from disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.join.cut import make_partition

from tablepuppet.join.cluster.worker import (
    Kept,
    Partition,
    Source,
    Storage,
    Walk,
    Worker,
    load,
    partition_specs,
    write_labels,
)
from tablepuppet.join.joined_rows import JoinedRows, RowIndex, Work, add_sums

ROWS = 1_500_000  # ten lanes of shards
LARGE = 140_000  # rows of a block, more than are sooner sent than numbered anew


def table(shape: str, seed: int = 0) -> JoinedRows:
    """Joined rows over an identity, a sorted and an unsorted or partial block."""
    rng = np.random.default_rng(seed)
    indices = (
        RowIndex.of(np.arange(ROWS), ROWS),
        RowIndex.of(np.sort(rng.integers(0, 7000, ROWS)), 7000),
        RowIndex.of(rng.integers(-1 if shape == "partial" else 0, LARGE, ROWS), LARGE),
    )
    label = RowIndex.of(rng.permutation(ROWS) if shape == "scattered labels" else np.arange(ROWS), ROWS)
    return JoinedRows(ROWS, indices, label, rng.normal(size=ROWS), weights=rng.uniform(size=ROWS))


def add_up(shard: Any, *, factor: float) -> tuple[Sequence[Any], dict[str, Any]]:
    """A join step with memory: what it sends depends on what it wrote before."""
    shard.state["u"][...] += np.sin(shard.scores * factor) + shard.labels[:, None]
    return (shard.state["u"] * shard.scores,), {"total": float(shard.state["u"].sum())}


@pytest.fixture(params=["plain", "partial", "scattered labels"])
def joined(request: pytest.FixtureRequest) -> JoinedRows:
    return table(request.param)


def cut(joined: JoinedRows, partitions: int, storage: Storage) -> list[Partition]:
    """Joined rows and their labels, on disk."""
    found = [make_partition(joined, storage, of) for of in partition_specs(joined.lanes_of_shards, partitions, "train")]
    for partition in found:
        write_labels(storage, partition, "labels", joined.labels, joined.weights)
    return found


def walked(workers: list[Worker], joined: JoinedRows, given: list[Any], number: int, kept: Kept, values: Any) -> Any:
    """One walk over all partitions: signals and sums as the whole would give them."""
    walk = Walk(number, Work(add_up, 1, ("u",), {"factor": 0.3}), len(joined.indices), {"u": kept})
    totals = [np.zeros((p.rows, 1)) for p in joined.indices]
    sums = []
    for worker, partition in zip(workers, given, strict=True):
        for blocks, lane_sums in worker.walk(
            Source(partition.path, "labels"), walk, *(v[u] for v, u in zip(values, partition.used, strict=True))
        ):
            for i, (base, out) in enumerate(blocks[0]):
                rows = np.arange(joined.indices[i].rows)[partition.used[i]]
                totals[i][rows[base : base + len(out)]] += out
            sums.append(lane_sums)
    return totals, add_sums(sums)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("partitions", [1, 3, 100])
def test_pieces_give_what_the_whole_gives(joined: JoinedRows, partitions: int, tmp_path: Path) -> None:
    given = cut(joined, partitions, Storage(str(tmp_path)))
    assert len(given) == min(partitions, len(joined.lanes_of_shards))
    assert all(isinstance(partition.used[2], np.ndarray) for partition in given)  # numbered anew
    workers = [Worker(str(tmp_path)) for _ in given]
    rng = np.random.default_rng(1)
    joined.allocate("u", 1, np.float32)
    kept = Kept(1, "<f4")
    for number in (1, 2, 3):
        values = [rng.normal(size=(p.rows, 1)) for p in joined.indices]
        totals, sums = walked(workers, joined, given, number, kept, values)
        done = joined.run(add_up, values, signals=1, writes=("u",), factor=0.3)
        kept = Kept(1, "<f4", number)
        assert sums == done.sums
        for ours, whole in zip(totals, done.signals[0], strict=True):
            np.testing.assert_array_equal(ours, whole)


@pytest.mark.one_in(3)
def test_a_new_worker_takes_over_where_a_lost_one_stood_even_if_it_had_gone_on(
    joined: JoinedRows, tmp_path: Path
) -> None:
    given = cut(joined, 2, Storage(str(tmp_path)))
    values = [np.ones((p.rows, 1)) for p in joined.indices]
    first = [Worker(str(tmp_path)) for _ in given]
    for number, kept in ((1, Kept(1, "<f8")), (2, Kept(1, "<f8", 1)), (3, Kept(1, "<f8", 2))):
        before = walked(first, joined, given, number, kept, values)
    again = walked([Worker(str(tmp_path)), first[1]], joined, given, 3, Kept(1, "<f8", 2), values)
    assert again[1] == before[1]
    for a, b in zip(again[0], before[0], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.one_in(3)
def test_old_states_do_not_pile_up_on_disk(joined: JoinedRows, tmp_path: Path) -> None:
    given = cut(joined, 1, Storage(str(tmp_path)))
    worker = Worker(str(tmp_path))
    values = [np.ones((p.rows, 1)) for p in joined.indices]
    for number in range(1, 6):
        walked([worker], joined, given, number, Kept(1, "<f8", number - 1), values)
    assert sorted(p.name for p in tmp_path.glob("*-u-*")) == ["train-0-labels-u-4.arrow", "train-0-labels-u-5.arrow"]


def test_joined_rows_are_looked_up_by_their_own_numbers(joined: JoinedRows, tmp_path: Path) -> None:
    storage = Storage(tmp_path.as_uri())
    rng = np.random.default_rng(2)
    for partition in cut(joined, 4, storage):
        own = rng.integers(0, partition.rows, 50)
        found, labels, weights = load(storage, partition.path, "labels").look_up(own)
        expected, expected_labels, expected_weights = joined.look_up(own + partition.first)
        assert weights is not None
        assert expected_weights is not None
        np.testing.assert_array_equal(weights, expected_weights)
        np.testing.assert_array_equal(labels, expected_labels)
        for block, numbers in enumerate(found):
            np.testing.assert_array_equal(partition.number(block, numbers), expected[block])


def test_a_walk_cannot_write_what_it_did_not_name() -> None:
    joined = table("plain")
    joined.allocate("u", 1)
    values: list[NDArray[np.float64]] = [np.ones((p.rows, 1)) for p in joined.indices]
    with pytest.raises(ValueError, match="read-only"):
        joined.run(add_up, values, factor=1.0)
