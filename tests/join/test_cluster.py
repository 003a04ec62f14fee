"""Training on a real Ray cluster of several nodes: the same model bit for bit, also when nodes are lost."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from benchmarks.cases import make_case
from benchmarks.fan_out import make_tables

import tablepuppet as tp
from tablepuppet.errors import TablePuppetError, TrainingError
from tablepuppet.join.cluster.cluster import Cluster, at_work
from tablepuppet.join.cluster.worker import Storage

os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}  # before Ray reads it
ray = pytest.importorskip("ray")
_STORE = 80 << 20
MANY = 300_000  # joined rows: several lanes of shards


class Nodes:
    """A cluster of a head, which runs nothing, and of nodes that tests add and take away."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": _STORE, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []

    def fill(self, nodes: int) -> None:
        """At least so many nodes."""
        while len(self.nodes) < nodes:
            self.nodes.append(self.cluster.add_node(num_cpus=1, object_store_memory=_STORE))
        self.cluster.wait_for_nodes()

    def lose_one(self) -> None:
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    started = Nodes()
    ray.init(address=started.cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    yield started
    ray.shutdown()
    started.cluster.shutdown()


def trained(name: str, rows: int, engine: Any, **options: Any) -> tp.Result:
    case = make_case(name, rows, None)
    with tp.Federation(case.tables) as federation:
        return federation.train(case.query, label=case.label, engine=engine, **options)


def assert_same(a: tp.Result, b: tp.Result) -> None:
    """Bit for bit: the model, its metrics and every epoch's."""
    assert [h.objective for h in a.history] == [h.objective for h in b.history]
    assert a.metrics == b.metrics
    np.testing.assert_array_equal(a.encoded_intercept, b.encoded_intercept)
    for one, other in zip(a.blocks, b.blocks, strict=True):
        np.testing.assert_array_equal(one.theta, other.theta)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "no.such.host.invalid:6379", "127.0.0.1:x"])
def test_an_address_that_nobody_answers_is_said_at_once(address: str) -> None:
    said = pytest.raises(TrainingError, match=f"cannot reach the Ray cluster at {address}.*check tp.Ray")
    with said, at_work(tp.Ray(address=address)):
        raise AssertionError("there is no such cluster")


@pytest.mark.parametrize("mode", ["token", "disabled", None])
def test_a_run_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch, mode: str | None) -> None:
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    if mode is None:
        monkeypatch.delenv("RAY_AUTH_MODE")
    else:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    before = dict(os.environ)
    with pytest.raises(TablePuppetError), at_work(tp.Ray(address="127.0.0.1:1")):
        raise AssertionError("there is no such cluster")
    assert dict(os.environ) == before


def test_a_run_on_a_cluster_leaves_the_environment_as_it_was(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.fill(1)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    before = dict(os.environ)
    with at_work(tp.Ray(workers=1)):
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert dict(os.environ) == before


OPEN = """
import logging, os, sys
import ray
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, logging_level=logging.ERROR)
os.environ["RAY_AUTH_MODE"] = sys.argv[1]
import pandas as pd
import tablepuppet as tp
try:
    tp.Federation({"t": pd.DataFrame({"x": [1.0, 2.0, 3.0] * 9, "y": [0, 1, 0] * 9})}).train(
        "SELECT x, y FROM t", label="y", engine=tp.Ray(workers=1)
    )
except tp.TablePuppetError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "says"), [("disabled", "Ray would let anybody in"), ("token", "a Ray node lets anybody in")]
)
def test_a_cluster_that_lets_anybody_in_is_refused(mode: str, says: str) -> None:
    """`token`: only the driver says so."""
    given = {"env": os.environ | {"RAY_AUTH_MODE": "disabled"}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", OPEN, mode], **given, check=True)  # type: ignore[call-overload]
    assert says in done.stdout
    assert "RAY_AUTH_MODE=token" in done.stdout


def test_a_cluster_trains_the_same_model_and_survives_the_loss_of_a_node(
    nodes: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.fill(2)
    options: dict[str, Any] = {"model": "logistic", "algorithm": "admm", "epochs": 4}
    alone = trained("many", MANY, "local", **options)

    def on_round(event: Any) -> None:
        if event.epoch == 2:
            nodes.lose_one()

    with caplog.at_level(logging.WARNING, logger="tablepuppet"):
        engine = tp.Ray(workers=2, storage=str(tmp_path))
        spread = trained("many", MANY, engine, on_round=on_round, **options)
    assert "Ray lost a worker" in caplog.text
    assert "each makes its own joined rows" in spread.plan.explain()
    assert_same(spread, alone)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.one_in(2)
@pytest.mark.parametrize("label", ["binary", "number"])
def test_a_cluster_grows_the_same_trees(nodes: Nodes, tmp_path: Path, label: str) -> None:
    nodes.fill(2)
    options: dict[str, Any] = {"model": "boosted", "trees": 2, "depth": 3, "validation_fraction": 0.1}
    options |= {"class_weight": "balanced"} if label == "binary" else {"loss": "squared"}
    alone = trained("many", MANY, "local", **options)
    spread = trained("many", MANY, tp.Ray(workers=2, storage=str(tmp_path)), **options)
    assert spread.trees == alone.trees
    assert [block.splits for block in spread.blocks] == [block.splits for block in alone.blocks]
    assert_same(spread, alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("linear", {"algorithm": "newton"}),
        ("logistic", {"algorithm": "newton", "test_fraction": 0.0}),
        ("logistic", {"algorithm": "sgd", "epochs": 2, "batch_size": 500}),
        ("logistic", {"algorithm": tp.Admm(variant="published", rho=2.0), "epochs": 3}),
        ("softmax", {"algorithm": "admm", "epochs": 3}),
        ("logistic", {"algorithm": "sgd", "epochs": 2, "validation_fraction": 0.2, "class_weight": "balanced"}),
    ],
    ids=["newton", "without test rows", "sgd", "published admm", "softmax", "weights and validation rows"],
)
@pytest.mark.parametrize("name", ["star", "chain"])
def test_every_algorithm_gives_the_same_model_on_a_cluster(
    nodes: Nodes, name: str, model: str, options: dict[str, Any]
) -> None:
    nodes.fill(2)
    rows = 300_000  # compiled loops, and several lanes
    options = {"model": model} | options
    assert_same(trained(name, rows, tp.Ray(workers=2), **options), trained(name, rows, "local", **options))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["newton", "admm", "sgd"])
def test_nodes_may_go_while_they_work(nodes: Nodes, algorithm: str, caplog: pytest.LogCaptureFixture) -> None:
    nodes.fill(3)
    options: dict[str, Any] = {"model": "logistic", "algorithm": algorithm, "epochs": 4}
    alone = trained("many", 1_000_000, "local", **options)
    threads: list[threading.Thread] = []

    def on_round(event: Any) -> None:
        if event.record and len(threads) < 2:
            threads.append(threading.Thread(target=nodes.lose_one))
            threads[-1].start()

    with caplog.at_level(logging.WARNING, logger="tablepuppet"):
        spread = trained("many", 1_000_000, tp.Ray(workers=3), on_round=on_round, **options)
    for thread in threads:
        thread.join()
    assert "Ray lost a worker" in caplog.text
    assert_same(spread, alone)


@pytest.mark.slow
def test_a_folder_that_nodes_do_not_see_is_named(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes.fill(1)
    monkeypatch.setattr(Storage, "create", lambda self: None)
    with pytest.raises(tp.TablePuppetError, match="does not see the folder"):
        trained("star", 2000, tp.Ray(workers=1, storage=str(tmp_path)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("when", ["collect", "write"])
def test_a_node_may_go_while_the_tables_are_joined(
    nodes: Nodes, when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.fill(2)
    ask = Cluster.ask
    lost: list[str] = []

    def interrupted(cluster: Cluster, method: str, calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        if method == when and cluster._workers and not lost:
            lost.append(method)
            nodes.lose_one()
        return ask(cluster, method, calls)

    options: dict[str, Any] = {"model": "logistic", "algorithm": "newton", "epochs": 2}
    alone = trained("many", MANY, "local", **options)
    monkeypatch.setattr(Cluster, "ask", interrupted)
    with caplog.at_level(logging.WARNING, logger="tablepuppet"):
        spread = trained("many", MANY, tp.Ray(workers=2), **options)
    assert lost == [when]
    assert "Ray lost a worker" in caplog.text
    assert_same(spread, alone)


def test_a_join_that_is_no_tree_is_made_here_and_trained_there(nodes: Nodes) -> None:
    nodes.fill(2)
    tables = make_case("many", MANY, None).tables
    groups = np.unique(tables["a"]["g"].to_numpy())
    cyclic = {**tables, "c": pa.table({"g": groups, "w": np.sin(groups)})}
    query = "SELECT a.x, b.z, c.w, a.y FROM a JOIN b ON a.g = b.g JOIN c ON c.g = a.g AND c.g = b.g"
    with tp.Federation(cyclic) as federation:
        given: dict[str, Any] = {"label": "y", "model": "logistic", "algorithm": "newton"}
        spread, alone = (federation.train(query, engine=e, **given) for e in (tp.Ray(workers=2), "local"))
    assert "joined here first" in spread.plan.explain()
    assert_same(spread, alone)


UNION = "{0} WHERE a.x > 0 UNION ALL {0} WHERE a.x <= 0"
TREE = "SELECT a.{}, a.x, b.z, c.w FROM a JOIN b ON a.k = b.k LEFT JOIN c ON b.m = c.m"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("label", "given", "shares"),
    [
        ("p", {"walk": "factorised"}, "workers share a walk's frequencies"),
        ("y", {"walk": "factorised"}, "the server makes each walk by itself"),
        ("p", {"walk": "drawn", "max_joined_rows": 5000}, "of the joined table with workers; joined here first"),
    ],
    ids=["logistic", "linear", "drawn"],
)
def test_workers_walk_over_trees_and_drawn_rows(nodes: Nodes, label: str, given: dict[str, Any], shares: str) -> None:
    nodes.fill(2)
    query = UNION.format(TREE.format(label))
    with tp.Federation(make_tables(300, 10)) as federation:
        spread, alone = (
            federation.train(query, label=label, engine=engine, validation_fraction=0.1, **given)
            for engine in (tp.Ray(workers=2), "local")
        )
    assert shares in spread.plan.explain()
    assert_same(spread, alone)
