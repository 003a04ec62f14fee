"""Alternating least squares over tables equals the same on the materialised join, block by block."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from tests.algorithms.neural_join import JOINS, Joined, federation
from tests.models.heads.head_join import SEED

import tablepuppet as tp
from tablepuppet.errors import TransportError
from tablepuppet.models.spec import l2_of
from tablepuppet.protocol.base import Predictions

torch = pytest.importorskip("torch")
Array = NDArray[np.float64]


def trained(join: str, label: str, clients: int, **given: Any) -> tuple[tp.Result, Joined]:
    query = JOINS[join].format(y=label)
    options = {"rank": 3, "epochs": 2, "seed": SEED, "shrinkage": 0.05, "solver_tolerance": 1e-13} | given
    with federation(clients) as owner:
        result = owner.train(query, label=label, algorithm="als", head="factor", **options)
        return result, Joined(owner, query, label, result, torch.float64)


def least_squares(result: tp.Result, joined: Joined) -> list[Array]:
    """Each block's ridge problem in turn, with its matrix written out."""
    assert result.head is not None
    spec, job, n = result.head.spec, result.plan.job, len(joined.labels)
    y, u = joined.labels.numpy(), spec.unit
    features = [x.numpy() for x in joined.features]
    thetas = []
    for number, block in enumerate(result.blocks):
        drawn = np.random.default_rng((SEED, number)).standard_normal(block.theta.shape)
        drawn[:, 0] = 0.0
        thetas.append(0.1 * drawn / np.sqrt(len(block.features)))
    squares = joined.loss == "squared"
    intercept = float(y.mean()) if squares else float(np.log(y.mean() / (1 - y.mean())))
    for turn in range(len(thetas) * job.epochs):
        i = turn % len(thetas)
        h = [x @ t for x, t in zip(features, thetas, strict=True)]
        vectors = [v[:, 1:] for v in h]
        score = sum(v[:, 0] for v in h)
        score = score + sum((vectors[a] * vectors[b]).sum(axis=1) for a in range(len(h)) for b in range(a))
        a = u * score + intercept
        if turn and not squares:
            intercept -= (1 / (1 + np.exp(-a)) - y).sum() / (np.tanh(a / 2) / (2 * a)).sum()
            a = u * score + intercept
        bound = np.ones(n) if squares else np.tanh(a / 2) / (2 * a)  # of a parabola above the loss that touches it
        slope = ((a - y) if squares else 1 / (1 + np.exp(-a)) - y) / u
        z = np.column_stack([np.ones(n), sum(v for k, v in enumerate(vectors) if k != i)])
        whole = np.einsum("nd,nk->ndk", features[i], z).reshape(n, -1)
        size = z.shape[1]
        matrix = (bound[:, None] * whole).T @ whole + spec.shrinkage * np.kron(
            features[i].T @ features[i], np.eye(size)
        )
        ridge = n * l2_of(job.model.l2, "", "")
        matrix += ridge * np.eye(len(matrix))
        right = whole.T @ slope + (
            spec.shrinkage * features[i].T @ h[i] + n * l2_of(job.model.l2, "", "") * thetas[i]
        ).reshape(-1)
        thetas[i] = thetas[i] - np.linalg.solve(matrix, right).reshape(thetas[i].shape)
    return thetas


@pytest.mark.one_in(5)
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("join", ["one-to-many", "many-to-many", "left"])
def test_every_block_takes_its_least_squares_step(join: str, clients: int) -> None:
    result, joined = trained(join, "number", clients)
    for block, theta in zip(result.blocks, least_squares(result, joined), strict=True):
        np.testing.assert_allclose(block.theta, theta, rtol=0, atol=1e-8)


@pytest.mark.parametrize("clients", [1, 3])
def test_logistic_loss_is_solved_under_a_bound_that_never_rises(clients: int) -> None:
    result, joined = trained("many-to-many", "flag", clients)
    for block, theta in zip(result.blocks, least_squares(result, joined), strict=True):
        np.testing.assert_allclose(block.theta, theta, rtol=0, atol=1e-8)
    assert result.history[1].objective < result.history[0].objective


def ratings(users: int = 60, items: int = 40, rows: int = 1500) -> dict[str, pa.Table]:
    random = np.random.default_rng(5)
    u, i = random.integers(0, users, rows), random.integers(0, items, rows)
    p, q = random.normal(size=(users, 2)), random.normal(size=(items, 2))
    y = 3.0 + (p[u] * q[i]).sum(axis=1) + 0.1 * random.normal(size=rows)
    return {
        "ratings": pa.table({"u": u, "i": i, "stars": y}),
        "users": pa.table({"u": np.arange(users), "uid": [f"u{k}" for k in range(users)]}),
        "items": pa.table({"i": np.arange(items), "iid": [f"i{k}" for k in range(items)]}),
    }


QUERY = "SELECT a.uid, b.iid, r.stars FROM ratings r JOIN users a ON r.u = a.u JOIN items b ON r.i = b.i"


@pytest.mark.parametrize("clients", [1, 3])
def test_ids_alone_are_matrix_factorisation_and_take_one_inner_round(clients: int) -> None:
    held: dict[str, Any] = ratings()
    held["users"] = [held["users"].slice(k * 60 // clients, 60 // clients) for k in range(clients)]
    with tp.Federation(held) as owner:
        given: dict[str, Any] = {"head": "factor", "rank": 2, "l2": 0.0, "shrinkage": 0.02, "epochs": 30}
        result = owner.train(QUERY, label="stars", algorithm="als", **given)
        sums = owner.train(QUERY, label="stars", algorithm="newton")
        plan = owner.explain(QUERY, label="stars", algorithm="als", **given)
    objectives = [record.objective for record in result.history]
    assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(objectives))
    assert result.metrics["test"]["rmse"] < 0.4 < 0.5 * sums.metrics["test"]["rmse"]
    spent = plan.cost("als", len(result.history))
    assert spent.rounds == pytest.approx(result.traffic.rounds, abs=1)
    assert spent.bytes == pytest.approx(result.traffic.bytes, rel=0.05)
    assert "als" in str(plan)


def sparse_ratings(noise: float, rows: int = 2500, users: int = 200, items: int = 120) -> dict[str, pa.Table]:
    random = np.random.default_rng(11)
    u, i = random.integers(0, users, rows), random.integers(0, items, rows)
    p, q = random.normal(size=(users, 2)), random.normal(size=(items, 2))
    biases = random.normal(size=users)[u] + random.normal(size=items)[i]
    signal = 0.0 if noise > 1 else (p[u] * q[i]).sum(axis=1)
    y = 100.0 * (biases + signal + noise * random.normal(size=rows))
    return {
        "ratings": pa.table({"u": u, "i": i, "stars": y}),
        "users": pa.table({"u": np.arange(users), "uid": [f"u{k}" for k in range(users)]}),
        "items": pa.table({"i": np.arange(items), "iid": [f"i{k}" for k in range(items)]}),
    }


def test_shrinkage_is_learned_where_nothing_is_said() -> None:
    """Much where vectors would be noise, little where they explain nearly everything."""
    with tp.Federation(sparse_ratings(2.0)) as owner:
        factor = owner.train(QUERY, label="stars", head="factor")
        sums = owner.train(QUERY, label="stars")
    assert factor.metrics["test"]["rmse"] < 1.01 * sums.metrics["test"]["rmse"]
    assert factor.history[-1].residuals["noise"] * factor.plan.unit == pytest.approx(200.0, rel=0.15)
    with tp.Federation(ratings()) as owner:
        factor = owner.train(QUERY, label="stars", head="factor", rank=4)
    assert factor.metrics["test"]["rmse"] < 0.2
    assert factor.history[-1].residuals["noise"] * factor.plan.unit == pytest.approx(0.1, rel=0.3)


def test_a_learned_shrinkage_is_the_same_for_any_split_of_a_table() -> None:
    whole: dict[str, Any] = ratings()
    parts = whole | {"users": [whole["users"].slice(20 * k, 20) for k in range(3)]}
    found = []
    for held in (whole, parts):
        with tp.Federation(held) as owner:
            found.append(owner.train(QUERY, label="stars", head="factor", rank=3, epochs=4))
    one, three = found
    assert one.objective == pytest.approx(three.objective, rel=1e-9)
    for left, right in zip(one.blocks, three.blocks, strict=True):
        np.testing.assert_allclose(left.theta, right.theta, rtol=0, atol=1e-8)


def test_als_says_what_it_cannot_train() -> None:
    with federation() as owner:
        given: dict[str, Any] = {"algorithm": "als", "epochs": 1}
        for named in (given, {"epochs": 1}):
            with pytest.raises(tp.TablePuppetError, match=r'this label has 4 classes, .* write algorithm="sgd"$'):
                owner.train(JOINS["one-to-many"].format(y="class"), label="class", head="factor", **named)
        with pytest.raises(tp.TablePuppetError, match="does not train a sum"):
            owner.train(JOINS["one-to-many"].format(y="number"), label="number", **given)


def test_factors_are_trained_by_als_where_nothing_else_is_said_and_networks_by_sgd() -> None:
    query = JOINS["one-to-many"].format(y="number")
    with federation() as owner:
        given: dict[str, Any] = {"label": "number"}
        assert owner.explain(query, head="factor", **given).job.algorithm == "als"
        assert owner.explain(query, head="mlp", **given).job.algorithm == "sgd"
        assert owner.explain(query, head="factor", model="mlp", **given).job.algorithm == "sgd"
        assert owner.explain(query, model="mlp", **given).job.algorithm == "sgd"
        assert owner.explain(query, **given).job.algorithm == "newton"
        assert owner.explain(query, head="factor", **given).job.epochs == 12
        assert "at most 12 epochs" in str(owner.explain(query, head="factor", **given))
        estimator = tp.RelationalRegressor(head="factor", rank=2).fit(owner, query, "number")
    assert estimator.result_.plan.job.algorithm == "als"


def test_an_owner_that_leaves_out_squares_is_named() -> None:
    query = JOINS["one-to-many"].format(y="number")
    with federation(1) as owner:
        name, client = next((n, c) for n, c in owner._clients.items() if n.startswith("items"))
        inner = client.answer

        def answer(message: Any) -> Any:
            given = inner(message)
            return replace(given, products=given.products[:-1]) if isinstance(given, Predictions) else given

        client.answer = answer  # type: ignore[method-assign]
        with pytest.raises(
            TransportError, match=f"client {re.escape(name)} answers a step with 3 inner products where 4"
        ):
            owner.train(query, label="number", algorithm="als", head="factor", rank=2, epochs=2)
