"""What is estimated is what the meter counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.plan.jobs import LABELS, shop

import tablepuppet as tp
from tablepuppet.plan.plan import Plan
from tablepuppet.sources.encoding import encoded_width


def trained(model: str, algorithm: Any, orders: int, items: int, **options: Any) -> tuple[Plan, tp.Result]:
    label, query = LABELS[model]
    with shop(orders, items) as federation:
        result = federation.train(query, label=label, model=model, algorithm=algorithm, epochs=4, **options)
    return replace(
        result.plan, widths=tuple(sum(map(encoded_width, block.encoders)) for block in result.blocks)
    ), result


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("orders", "items"), [(1, 1), (2, 3)])
@pytest.mark.parametrize("algorithm", ["newton", "admm", tp.Admm(union="exact"), "vfl-admm", "centralized"], ids=str)
@pytest.mark.parametrize("model", ["linear", "logistic", "softmax"])
def test_rounds_and_arrays_are_estimated_to_the_byte(model: str, algorithm: Any, orders: int, items: int) -> None:
    plan, result = trained(model, algorithm, orders, items)
    estimate = plan.cost(plan.job.algorithm, len(result.history))
    assert estimate.rounds == result.traffic.rounds
    assert estimate.payload_down == result.traffic.payload_down
    assert estimate.payload_up == result.traffic.payload_up


@pytest.mark.one_in(3)
@pytest.mark.parametrize("orders", [1, 3])
@pytest.mark.parametrize("algorithm", ["sgd", "vfl-sgd"])
@pytest.mark.parametrize("batch_size", [100, None])
def test_batches_are_estimated_within_two_per_cent(algorithm: str, orders: int, batch_size: int | None) -> None:
    plan, result = trained("logistic", algorithm, orders, 1, batch_size=batch_size)
    estimate = plan.cost(algorithm, len(result.history))
    assert estimate.rounds == result.traffic.rounds
    assert estimate.payload_down == pytest.approx(result.traffic.payload_down, rel=0.02)
    assert estimate.payload_up == pytest.approx(result.traffic.payload_up, rel=0.02)


@pytest.mark.parametrize("algorithm", ["newton", "admm", "sgd"])
def test_headers_and_seconds_are_estimated_within_five_per_cent(algorithm: str) -> None:
    plan, result = trained("softmax", algorithm, 3, 1)
    estimate = plan.cost(algorithm, len(result.history))
    assert estimate.bytes == pytest.approx(result.traffic.bytes, rel=0.05)
    assert estimate.seconds("us-uk") == pytest.approx(result.traffic.seconds("us-uk"), rel=0.05)


def test_single_precision_halves_the_arrays() -> None:
    whole, _ = trained("linear", "newton", 1, 1)
    half, result = trained("linear", "newton", 1, 1, wire="float32")
    assert half.cost("newton", 3).payload == whole.cost("newton", 3).payload / 2
    assert half.cost("newton", len(result.history)).payload == result.traffic.payload_down + result.traffic.payload_up


def test_the_formulae_of_the_documentation_hold() -> None:
    plan, _ = trained("logistic", "newton", 1, 1)
    rows = sum(block.rows for block in plan.shape.blocks)
    joined = plan.shape.joined
    products = 8 * 2 * 3**2  # of θ, the direction and one earlier direction, in both blocks
    others = 8 * (4**2 + 2**2)  # a block with one-hot columns has one more, and one of a single column no earlier one
    facts = sum(block.rows for block in plan.shape.blocks if block.is_identity)
    assert facts > 0
    assert plan.cost("newton", 1, after=1).payload == 8 * (3 * rows - facts) + others
    assert plan.cost("admm", 1, after=1).payload == 8 * 2 * rows + products
    assert plan.cost("vfl-admm", 1, after=1).payload == 8 * 2 * 2 * joined + products


def test_a_network_is_estimated_from_its_layers() -> None:
    pytest.importorskip("torch")
    network, trained_network = trained("mlp", tp.Sgd(learning_rate=0.1), 2, 1, batch_size=None)
    estimate = network.cost("sgd", len(trained_network.history))
    assert estimate.rounds == trained_network.traffic.rounds
    counted = trained_network.traffic.payload_down + trained_network.traffic.payload_up
    assert estimate.payload == pytest.approx(counted, rel=0.02)
    assert [row.algorithm for row in network.costs] == ["admm", "sgd", "vfl-admm", "vfl-sgd", "centralized"]
    assert network.advice.algorithm == "sgd"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("label", ["y", "c"])
def test_estimated_rounds_and_bytes_of_trees_are_near_those_counted(label: str) -> None:
    """They depend on the data; the estimate is what runs on real tables took."""
    rng = np.random.default_rng(0)
    rows, dimension = 30_000, 1_500
    item = rng.integers(0, dimension, rows)
    x, z = rng.normal(size=rows), rng.normal(size=dimension)
    y = x * z[item] + np.abs(x) + rng.normal(size=rows)
    tables = {
        "facts": pa.table({"item": item, "x": x, "u": rng.normal(size=rows), "y": y, "c": y > 1}),
        "items": pa.table({"item": np.arange(dimension), "z": z, "v": rng.normal(size=dimension)}),
    }
    query = f"SELECT f.x, f.u, i.z, i.v, f.{label} FROM facts f JOIN items i ON f.item = i.item"
    for reveal, least, most in (("splits", 0.7, 1.4), ("columns", 0.4, 2.5)):
        options = tp.Boosting(trees=30, reveal=reveal)  # type: ignore[arg-type]
        result = tp.Federation(tables).train(query, label=label, model="boosted", algorithm=options)
        estimated, counted = result.plan.cost("boosting", 30), result.traffic
        assert least < estimated.rounds / counted.rounds < most
        assert least < estimated.bytes / counted.bytes < most


@pytest.mark.one_in(5)
@pytest.mark.parametrize("leaves", [3, 31])
@pytest.mark.parametrize(
    ("label", "columns", "clients"), [("y", 1, 1), ("y", 8, 3), ("c", 4, 1), ("c", 4, 2), ("k", 6, 1), ("k", 3, 2)]
)
def test_the_rounds_of_trees_lie_in_the_range_that_explain_names(
    label: str, columns: int, clients: int, leaves: int
) -> None:
    rng = np.random.default_rng(columns)
    rows, dimension = 400, 40
    item, x = rng.integers(0, dimension, rows), rng.normal(size=(rows, columns))
    z = rng.normal(size=dimension)
    y = x[:, 0] * z[item] + np.abs(x).sum(axis=1) + rng.normal(size=rows)
    named = {f"x{k}": x[:, k] for k in range(columns)}
    facts = pa.table({"item": item, **named, "b": x[:, 0] > 1, "y": y, "c": y > 1, "k": np.digitize(y, [1, 2, 4])})
    items = pa.table({"item": np.arange(dimension), "z": z, "t": rng.choice(list("pqr"), dimension)})
    query = f"SELECT f.* EXCLUDE (item, y, c, k), i.z, i.t, f.{label} FROM facts f JOIN items i ON f.item = i.item"
    parts = [facts.take(np.arange(k, rows, clients)) for k in range(clients)]
    query = query if label != "k" else query.replace("f.k FROM", "CAST(f.k AS VARCHAR) AS k FROM")
    with tp.Federation({"facts": parts, "items": items}) as federation:
        result = federation.train(query, label=label, model="boosted", trees=12, leaves=leaves)
    low, high = result.plan.cost("boosting", 12).round_range
    assert low <= result.traffic.rounds <= high
    assert f"{low}–{high}" in result.explain()
