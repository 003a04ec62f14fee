"""Partitions that workers make of the tables are those that one machine cuts from its joined rows, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from tests.join.cut import distribute_rows

import tablepuppet as tp
from tablepuppet.arrays import VALUES_PER_CLUSTER_SORT
from tablepuppet.contract import agree, job_contracts
from tablepuppet.job import make_job
from tablepuppet.join.build import map_tables
from tablepuppet.join.cluster import worker
from tablepuppet.join.cluster.cluster import Cluster
from tablepuppet.join.cluster.rows import ClusterRows
from tablepuppet.join.cluster.worker import Storage, Worker
from tablepuppet.join.labels import MappingRequest
from tablepuppet.join.mapping import TableMapping
from tablepuppet.sql import bind, parse
from tablepuppet.train import new_job_id
from tablepuppet.transport.link import Link

MANY = 4_000_000  # more than there are joined rows
QUERIES = {
    "many to many": "SELECT a.x, b.z, c.w, a.y FROM a JOIN b ON a.k = b.k JOIN c ON b.l = c.l",
    "outer": "SELECT a.x, b.z, c.w, a.y FROM a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON b.l = c.l",
    "label's table without features": "SELECT b.z, c.w, a.y FROM b JOIN a ON a.k = b.k JOIN c ON b.l = c.l",
    "union": "SELECT a.x, b.z, a.y FROM a JOIN b ON a.k = b.k WHERE a.x > 0 "
    "UNION ALL SELECT a.x, b.z, a.y FROM a LEFT JOIN b ON a.k = b.l",
    "one to one": "SELECT a.x, d.v, a.y FROM a JOIN d ON a.k = d.k",
    "one table": "SELECT a.x, a.y FROM a",
    "cycle": "SELECT a.x, b.z, c.w, a.y FROM a JOIN b ON a.k = b.k JOIN c ON b.l = c.l AND a.k = c.l",
}


class Neighbours:
    """Real workers in this process, called one after the other."""

    def __init__(self, size: int, place: Path) -> None:
        place.mkdir()
        self.size, self.storage, self.memory = size, Storage(str(place)), 1 << 30
        self._workers = [Worker(str(place)) for _ in range(size)]

    def put(self, value: Any) -> Any:
        return value

    def ask(self, method: str, calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        assert len(calls) <= self.size
        return (getattr(worker, method)(*call) for worker, call in zip(self._workers, calls, strict=False))


@pytest.fixture(scope="module")
def federation() -> Iterator[tp.Federation]:
    """Tables that join to more rows than a shard, and a piece of a join, has; b has more rows than are sooner sent."""
    rng = np.random.default_rng(5)
    a = pd.DataFrame({"k": rng.integers(0, 40_000, 120_000)}).assign(x=rng.normal(size=120_000))
    a = a.assign(y=rng.normal(size=len(a)))
    b = pd.DataFrame({"k": rng.integers(0, 40_000, 220_000), "z": rng.normal(size=220_000)})
    b = b.assign(l=rng.integers(0, 9, len(b)))
    c = pd.DataFrame({"l": rng.integers(0, 8, 30), "w": rng.normal(size=30)})
    d = pd.DataFrame({"k": rng.permutation(40_000), "v": rng.normal(size=40_000)})
    with tp.Federation({"a": [a[:50_000], a[50_000:]], "b": b, "c": c, "d": d}) as federation:
        yield federation


def mapped(federation: tp.Federation, query: str, cluster: Any = None) -> TableMapping:
    link, name = Link(federation._transport), new_job_id()
    bound = bind(parse(query), label="y", tables=federation._tables, link=link, job=name)
    shares = {"test_fraction": 0.2, "validation_fraction": 0.1}
    job = make_job(query, label="y", model="linear", algorithm="newton", given=shares)
    agree(job_contracts(bound, job, "train", "a test"), link, name)
    request = MappingRequest(job=name, task="number", test_fraction=0.2)
    return map_tables(bound, link, request, cluster=cast(Cluster | None, cluster))


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_workers_write_the_pieces_of_one_machine(
    federation: tp.Federation, query: str, workers: int, tmp_path: Path
) -> None:
    spread = mapped(federation, query, Neighbours(workers, tmp_path / "spread"))
    whole = mapped(federation, query)
    other = cast(Cluster, Neighbours(workers, tmp_path / "cut"))
    for name in ("train", "test", "validation"):
        found, joined = getattr(spread, name), getattr(whole, name)
        assert isinstance(found, ClusterRows)
        expected = distribute_rows(joined, other, name)
        assert found.indices == expected.indices
        np.testing.assert_array_equal(found.label_counts(), joined.label_counts())
        np.testing.assert_array_equal(found.labels, joined.labels)
        assert len(found.partitions) == len(expected.partitions)
        for one, two in zip(found.partitions, expected.partitions, strict=True):
            for given, wanted in zip((*one.used, one.labels), (*two.used, two.labels), strict=True):
                np.testing.assert_array_equal(np.arange(MANY)[given], np.arange(MANY)[wanted])
            assert_same_rows(found, one.path, expected, two.path)
    for a, b in zip(spread.multiplicity, whole.multiplicity, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_same_rows(found: ClusterRows, path: str, expected: ClusterRows, other: str) -> None:
    """The same joined rows, row numbers and lanes, as they are loaded."""
    for rows in (found, expected):
        for partition in rows.partitions:
            worker.write_labels(rows.cluster.storage, partition, "labels", rows.labels, rows.weights)
    one = worker.load(found.cluster.storage, path, "labels")
    two = worker.load(expected.cluster.storage, other, "labels")
    assert (one.rows, one.lanes) == (two.rows, two.lanes)
    np.testing.assert_array_equal(one.joined_labels(), two.joined_labels())
    for p, q in zip(one.indices, two.indices, strict=True):
        assert (p.rows, p.is_sorted, p.is_partial) == (q.rows, q.is_sorted, q.is_partial)
        np.testing.assert_array_equal(p.numbers(one.rows), q.numbers(two.rows))


def test_large_blocks_are_numbered_anew_in_each_partition(federation: tp.Federation, tmp_path: Path) -> None:
    joined = mapped(federation, QUERIES["many to many"], Neighbours(3, tmp_path / "spread")).train
    assert isinstance(joined, ClusterRows)
    assert joined.indices[1].rows > worker.MAX_ROWS_TO_SEND
    assert all(isinstance(partition.used[1], np.ndarray) for partition in joined.partitions)
    assert len(joined.partitions) == 3


def test_values_come_in_order_a_stretch_at_a_time(federation: tp.Federation, tmp_path: Path) -> None:
    query = QUERIES["many to many"]
    sides = mapped(federation, query, Neighbours(3, tmp_path / "spread")).train, mapped(federation, query).train
    found = []
    for joined in sides:
        joined.allocate("s", 1)
        values = [np.random.default_rng(1).normal(size=(p.rows, 1)).round(1) for p in joined.indices]
        joined.run(keep_scores, values, writes=("s",))
        found.append(list(joined.iterate_sorted("s")))
    assert len(found[0]) == -(-sides[1].rows // VALUES_PER_CLUSTER_SORT) > 1
    assert max(map(len, found[0])) < 0.9 * sides[1].rows
    np.testing.assert_array_equal(np.concatenate(found[0]), np.concatenate(found[1]))


def keep_scores(shard: Any) -> tuple[tuple[()], dict[str, Any]]:
    shard.state["s"][...] = shard.scores
    return (), {}


def test_what_this_machine_must_join_has_to_fit_here(
    federation: tp.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tablepuppet.join.walk_choice.default_limit", lambda cluster=None: 100 if cluster is None else 10**9
    )
    neighbours = Neighbours(2, tmp_path / "spread")
    assert mapped(federation, QUERIES["many to many"], neighbours).joined_rows > 100
    no_tree = "SELECT a.x, b.z, a.y FROM b JOIN a ON a.k = b.k JOIN d ON b.k = d.k AND a.k = d.k"
    with pytest.raises(tp.TablePuppetError, match="more than the limit of 100"):
        mapped(federation, no_tree, neighbours)
