"""Rows that walks number in their own way: nobody outside a walk can tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.mapping.counted import multiplicities

from tablepuppet.mapping.cluster.partitions import Storage, load, partition_specs, write_labels
from tablepuppet.mapping.rows import index as module
from tablepuppet.mapping.rows import joined as joined_module
from tablepuppet.mapping.rows.index import FAR, distinct, moved_rows
from tablepuppet.mapping.rows.joined import JoinedRows, RowIndex
from tablepuppet.mapping.rows.materialize import make_partition

ROWS, BLOCK = 5000, 60


@pytest.fixture(params=[0, -1], ids=["inner", "outer"])
def indices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[RowIndex, RowIndex]:
    """The same row numbers, as they are and arranged."""
    monkeypatch.setattr(module, "FAR", 10)
    monkeypatch.setattr(module, "COMPILED_FROM", 0)
    monkeypatch.setattr(joined_module, "SHARD", 700)
    rng = np.random.default_rng(0)
    numbers = np.concatenate([rng.permutation(BLOCK), rng.integers(request.param, BLOCK, ROWS - BLOCK)])
    plain = RowIndex.of(numbers, BLOCK)
    return plain, plain.arranged()


def echo(shard: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    return (np.hstack([shard.scores, *shard.columns]),), {}


def joined(*indices: RowIndex) -> JoinedRows:
    identity = RowIndex.of(np.arange(ROWS), ROWS)
    return JoinedRows(ROWS, indices, identity, np.zeros(ROWS))


def test_rows_are_numbered_as_they_appear(indices: tuple[RowIndex, RowIndex]) -> None:
    plain, arranged = indices
    assert arranged.order is not None
    assert arranged.index is not None
    assert arranged.index[:BLOCK].tolist() == list(range(BLOCK))
    np.testing.assert_array_equal(arranged.numbers(ROWS), plain.index)
    np.testing.assert_array_equal(arranged.take(np.arange(0, ROWS, 7)), plain.take(np.arange(0, ROWS, 7)))


def test_walks_give_the_same_bits_in_either_order(indices: tuple[RowIndex, RowIndex], tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values, columns = [rng.normal(size=(BLOCK, 1))], [rng.normal(size=(BLOCK, 2))]
    found = []
    for p in indices:
        rows = joined(p)
        found.append(rows.run(echo, values, columns=columns, signals=1).signals[0][0])
        found.append(np.zeros_like(found[0]))
        storage = Storage(str(tmp_path / f"{p.order is None}"))
        storage.create()
        for spec in partition_specs(rows.lanes_of_shards, 3, "train"):
            partition = make_partition(rows, storage, spec)
            write_labels(storage, partition, "labels", rows.labels, None)
            used = partition.used[0]
            part = load(storage, partition.path, "labels")
            done = part.run(echo, [values[0][used]], columns=[columns[0][used]], signals=1)
            found[-1][used] += done.signals[0][0]
            np.testing.assert_array_equal(
                partition.number(0, part.indices[0].numbers(part.rows)),
                rows.indices[0].take(np.arange(partition.first, partition.first + partition.rows)),
            )
        np.testing.assert_array_equal(rows.expand(0, values[0]), joined(indices[0]).expand(0, values[0]))
        np.testing.assert_array_equal(multiplicities(rows)[0], multiplicities(joined(indices[0]))[0])
    np.testing.assert_array_equal(found[0], found[2])
    for in_pieces in (found[1], found[3]):
        np.testing.assert_allclose(in_pieces, found[0], rtol=1e-12, atol=1e-12)


def test_rows_that_come_in_order_or_stay_near_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPILED_FROM", 0)
    near = RowIndex.of(np.array([3, 1, 0, 2] * 10), 4)
    assert near.arranged() is near
    monkeypatch.setattr(module, "FAR", 2)
    assert near.arranged() is not near
    for numbers in (np.repeat(np.arange(4), 10), np.arange(40)):
        ordered = RowIndex.of(numbers, int(numbers[-1]) + 1)
        assert ordered.arranged() is ordered
    seldom = RowIndex.of(np.array([1, 0, 2, 3, 2]), 4)
    assert seldom.arranged() is seldom


def test_joined_rows_count_twice_where_a_large_block_is_met_in_no_order() -> None:
    index = np.zeros(10, np.int32)
    near, far = RowIndex(FAR - 1, index), RowIndex(FAR, index)
    assert moved_rows(10, [near, RowIndex(FAR, index, is_sorted=True), RowIndex(10, None, is_sorted=True)]) == 10
    assert moved_rows(10, [near, far]) == 20


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("rows", "size"), [(1 << 16, 1 << 15), (1 << 16, 1 << 22), (300, 200), (300, 1 << 20)])
def test_the_different_rows_of_a_batch_are_found_whatever_their_order(rows: int, size: int, is_sorted: bool) -> None:
    drawn = np.random.default_rng(0).integers(-1, size, rows).astype(np.int32)
    drawn = np.sort(drawn) if is_sorted else drawn
    found, where = distinct(drawn, size)
    expected, inverse = np.unique(drawn, return_inverse=True)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(where, inverse)
