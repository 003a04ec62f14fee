"""L1, elastic net, signs and an l2 for each table: the optimum on the join, with the zeros that it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from tests.algorithms.oracle import Array

import tablepuppet as tp
from tablepuppet.algorithms.elastic.client import propose, solve
from tablepuppet.models.spec import Penalty

ROWS, USERS = 1200, 60
NUMBERS = {"o": ["x0", "x1", "x2"], "u": ["u0", "u1", "u2", "u3"]}
QUERY = (
    "SELECT o.x0, o.x1, o.x2, o.shop, u.u0, u.u1, u.u2, u.u3, u.city, o.{label} "
    "FROM orders o JOIN users u ON o.user_id = u.user_id"
)


@pytest.fixture(scope="module")
def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(8)
    users = pd.DataFrame({"user_id": np.arange(USERS), **{f"u{i}": rng.normal(size=USERS) for i in range(4)}})
    users["city"] = rng.choice(list("abcdef"), USERS)
    orders = pd.DataFrame(
        {"user_id": rng.integers(0, USERS, ROWS), **{f"x{i}": rng.normal(size=ROWS) for i in range(3)}}
    )
    orders["x1"] += 2.0 * users["u0"].to_numpy()[orders["user_id"]]  # the tables say in part the same
    orders["shop"] = rng.choice(list("pqrs"), ROWS)
    score = orders.x0 + 0.5 * orders.x1 - users["u1"].to_numpy()[orders["user_id"]] + 0.7 * (orders["shop"] == "p")
    orders["price"] = score + rng.normal(size=ROWS)
    orders["late"] = (orders["price"] > 0).astype(int)
    orders["visits"] = rng.poisson(np.exp(np.clip(score, -3, 3) / 2))
    orders["grade"] = np.digitize(orders["price"], [-1.0, 0.7])
    return orders, users


@pytest.fixture(scope="module", params=["one owner each", "several owners"])
def federation(request: pytest.FixtureRequest, tables: tuple[pd.DataFrame, pd.DataFrame]) -> Iterator[tp.Federation]:
    orders, users = tables
    cut = request.param == "several owners"
    sources: dict[str, Any] = {"orders": orders, "users": [users[:25], users[25:40], users[40:]] if cut else users}
    with tp.Federation(sources) as found:
        yield found


def encoded(tables: tuple[pd.DataFrame, pd.DataFrame]) -> Array:
    """The joined table as TablePuppet encodes it."""
    orders, users = tables
    joined = users.set_index("user_id").loc[orders["user_id"]].reset_index(drop=True)
    columns = []
    for frame, numbers, text in ((orders, NUMBERS["o"], "shop"), (joined, NUMBERS["u"], "city")):
        values = frame[numbers].to_numpy()
        columns += [(values - values.mean(axis=0)) / values.std(axis=0), pd.get_dummies(frame[text]).to_numpy(float)]
    return np.concatenate(columns, axis=1)


def weights(result: tp.Result) -> Array:
    return np.concatenate([block.theta for block in result.blocks])


def test_elastic_net_is_scikit_learns(federation: tp.Federation, tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    x, y = encoded(tables), tables[0]["price"].to_numpy()
    for l1, l2 in ((0.2, 0.0), (0.03, 1e-3), (0.004, 1e-4)):
        result = federation.train(QUERY.format(label="price"), label="price", l1=l1, l2=l2, test_fraction=0.0)
        best = ElasticNet(alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), tol=1e-12, max_iter=100_000).fit(x, y)
        expected = 0.5 * np.mean((y - best.predict(x)) ** 2) + Penalty(l2, l1).value(best.coef_)
        assert result.converged
        assert result.objective == pytest.approx(expected, rel=1e-9)
        np.testing.assert_array_equal(weights(result)[:, 0] != 0, best.coef_ != 0)
        np.testing.assert_allclose(weights(result)[:, 0], best.coef_, atol=1e-5)


def test_sparse_logistic_regression_is_scikit_learns(
    federation: tp.Federation, tables: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    x, y, l1, l2 = encoded(tables), tables[0]["late"].to_numpy(), 0.01, 1e-3
    result = federation.train(QUERY.format(label="late"), label="late", l1=l1, l2=l2, test_fraction=0.0)
    best = LogisticRegression(
        solver="saga", C=1 / (ROWS * (l1 + l2)), l1_ratio=l1 / (l1 + l2), tol=1e-9, max_iter=5000
    ).fit(x, y)
    a = best.decision_function(x)
    expected = np.mean(np.logaddexp(0, a) - y * a) + Penalty(l2, l1).value(best.coef_)
    assert result.objective == pytest.approx(expected, rel=1e-9)
    np.testing.assert_array_equal(weights(result)[:, 0] != 0, best.coef_[0] != 0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("label", "model"), [("visits", "poisson"), ("grade", "softmax"), ("price", "huber")])
def test_other_losses_meet_the_conditions_of_an_optimum(
    federation: tp.Federation, tables: tuple[pd.DataFrame, pd.DataFrame], label: str, model: str
) -> None:
    x, y, l1, l2 = encoded(tables), tables[0][label].to_numpy(float), 0.01, 1e-3
    result = federation.train(QUERY.format(label=label), label=label, model=model, l1=l1, l2=l2, test_fraction=0.0)
    theta = weights(result)
    slope = x.T @ result.plan.loss.gradient(x @ theta + result.encoded_intercept, y) / ROWS + l2 * theta
    is_zero = theta == 0
    assert 0 < is_zero.sum() < is_zero.size
    np.testing.assert_allclose(slope[~is_zero], -l1 * np.sign(theta[~is_zero]), atol=1e-5)
    assert np.abs(slope[is_zero]).max() <= l1 * (1 + 1e-3)


def test_signs_give_the_optimum_within_them(
    federation: tp.Federation, tables: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    x, y, l2 = encoded(tables), tables[0]["price"].to_numpy(), 1e-3
    signs = {"x1": -1, "u.u1": 1, "o.x0": 1}
    result = federation.train(QUERY.format(label="price"), label="price", l2=l2, signs=signs, test_fraction=0.0)
    bounds: list[tuple[float | None, float | None]] = [(None, None)] * (x.shape[1] + 1)
    bounds[0], bounds[1], bounds[8] = (0, None), (None, 0), (0, None)
    design = np.column_stack([x, np.ones(ROWS)])

    def objective(w: Array) -> tuple[float, Array]:
        error = design @ w - y
        ridge = np.append(w[:-1], 0.0)
        return 0.5 * np.mean(error**2) + 0.5 * l2 * ridge @ ridge, design.T @ error / ROWS + l2 * ridge

    best = scipy.optimize.minimize(
        objective,
        np.zeros(len(bounds)),
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-10},
    )
    assert result.objective == pytest.approx(best.fun, rel=1e-9)
    found = result.coefficients().set_index("feature")["weight"]
    assert found["o.x0"] > 0
    assert found["o.x1"] == found["u.u1"] == 0.0


def test_sample_weights_and_missing_partners_are_no_obstacle(tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    orders, users = tables
    query = QUERY.format(label="price").replace("JOIN", "LEFT JOIN")
    given: dict[str, Any] = {"label": "price", "l1": 0.02, "l2": 1e-4, "test_fraction": 0.0}
    with tp.Federation({"orders": orders.assign(w=orders.index % 3 + 1.0), "users": users[:40]}) as owner:
        result = owner.train(query, weight="w", **given)
    heavy = orders.loc[orders.index.repeat(orders.index % 3 + 1)]
    with tp.Federation({"orders": heavy, "users": users[:40]}) as owner:
        doubled = owner.train(query, standardize=False, **given)
    with tp.Federation({"orders": orders.assign(w=orders.index % 3 + 1.0), "users": users[:40]}) as owner:
        result = owner.train(query, weight="w", standardize=False, **given)
    assert result.objective == pytest.approx(doubled.objective, rel=1e-9)
    np.testing.assert_allclose(weights(result), weights(doubled), atol=1e-6)


def test_classes_that_are_nearly_separable_are_learned_too(federation: tp.Federation) -> None:
    query = QUERY.format(label="x0").replace("o.x0 FROM", "floor(o.x0) AS band FROM")
    best = federation.train(query, label="band", model="softmax")
    found = federation.train(query, label="band", model="softmax", algorithm="elastic", epochs=40)
    assert best.objective < found.objective < 1.5 * best.objective
    one = federation.train(query, label="band", model="softmax", algorithm="elastic", epochs=1)
    assert not one.converged


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("label", "model"), [("price", Ridge()), ("late", LogisticRegression(tol=1e-10, max_iter=999))]
)
def test_an_l2_left_open_is_that_of_scikit_learn(
    federation: tp.Federation, tables: tuple[pd.DataFrame, pd.DataFrame], label: str, model: Any
) -> None:
    given: dict[str, Any] = {"label": label, "test_fraction": 0.0}
    result = federation.train(QUERY.format(label=label), **given)
    best = model.fit(encoded(tables), tables[0][label])
    np.testing.assert_allclose(weights(result)[:, 0], best.coef_.ravel(), atol=1e-4)
    assert result.plan.job.model.l2 == result.model.metadata["l2"] == 1 / ROWS
    assert f"l2 {1 / ROWS:.3g} (1 / joined rows)" in result.explain()
    named = federation.train(QUERY.format(label=label), l2=1 / ROWS, **given)
    auto = federation.train(QUERY.format(label=label), l2="auto", **given)
    assert named.objective == auto.objective == result.objective


def test_a_search_leaves_l2_open_in_every_fold(federation: tp.Federation) -> None:
    settings: list[dict[str, Any]] = [{"l2": "auto"}, {"l2": 1 / (ROWS * 3 // 4)}, {"l2": 10.0}]
    found = tp.search(federation, QUERY.format(label="price"), settings, label="price", folds=4, test_fraction=0.0)
    by = found.table.set_index("l2")["rmse"]
    assert by["auto"] == pytest.approx(by[settings[1]["l2"]], rel=1e-4)
    assert by["auto"] < by[10.0]


@pytest.mark.parametrize(
    "privacy",
    [{"features": {"noise": 1.0}, "allow_reconstruction": True}, {"label": {"epsilon": 2.0}}],
    ids=["features", "labels"],
)
def test_private_jobs_keep_a_penalty_that_does_not_count_rows(
    federation: tp.Federation, privacy: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"label": "late", "model": "logistic", "algorithm": "sgd", "standardize": False}
    plan = federation.explain(QUERY.format(label="late"), privacy=privacy, **given)
    assert (plan.job.model.l2, plan.job.model.l2_by_rows) == (1e-4, 0.0)


@pytest.mark.parametrize("algorithm", ["newton", "admm"])
def test_an_l2_for_each_table_is_that_of_columns(
    federation: tp.Federation, tables: tuple[pd.DataFrame, pd.DataFrame], algorithm: str
) -> None:
    x, y = encoded(tables), tables[0]["price"].to_numpy()
    given: dict[str, Any] = {"label": "price", "algorithm": algorithm, "test_fraction": 0.0, "epochs": 60}
    result = federation.train(QUERY.format(label="price"), l2={"users": 0.5, "o": 0.01}, **given)
    ridge = np.concatenate([np.full(7, 0.01), np.full(10, 0.5), [0.0]])
    design = np.column_stack([x, np.ones(ROWS)])
    best = np.linalg.solve(design.T @ design / ROWS + np.diag(ridge), design.T @ y / ROWS)
    expected = 0.5 * np.mean((design @ best - y) ** 2) + 0.5 * ridge @ best**2
    assert result.objective == pytest.approx(expected, rel=1e-8)
    np.testing.assert_allclose(weights(result)[:, 0], best[:-1], atol=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"l1": 0.1, "algorithm": "admm"}, 'train a linear model with algorithm="elastic"'),
        ({"l1": 0.1, "model": "mlp"}, 'train a linear model with algorithm="elastic"'),
        ({"l1": 0.1, "model": "boosted"}, "cannot train with l1"),
        ({"l1": -1.0}, "l1 must be at least 0, not -1.0"),
        ({"l2": {"user": 1.0}}, "did you mean 'users'"),
        ({"l2": {"users": -1.0}}, "l2 must be at least 0"),
        ({"l2": {"users": 1.0}, "model": "boosted"}, "give one number"),
        ({"signs": {"shop": 1}}, "only a number can be bound to a sign"),
        ({"signs": {"x9": 1}}, "not a feature of the query"),
        ({"signs": {"x0": 2}}, "signs must be 1"),
        ({"l1": 0.1, "privacy": {"features": {"epsilon": 1.0}}}, "no private form"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    tables: tuple[pd.DataFrame, pd.DataFrame], given: dict[str, Any], message: str
) -> None:
    orders, users = tables
    with tp.Federation({"orders": orders, "users": users}) as owner, pytest.raises(tp.TablePuppetError, match=message):
        owner.train(QUERY.format(label="price"), label="price", **given)


def test_a_wide_table_is_trained_too() -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(2500)])
    orders = pd.DataFrame({"word": np.concatenate([words, rng.choice(words[:40], 2000)])})
    orders["y"] = (orders["word"].isin(words[:20])) * 2.0 + rng.normal(size=len(orders))
    keys = pd.DataFrame({"word": words, "x": rng.normal(size=2500)})
    with tp.Federation({"orders": orders, "words": keys}) as owner:
        query = "SELECT o.word, w.x, o.y FROM orders o JOIN words w ON o.word = w.word"
        result = owner.train(query, label="y", l1=1e-3, l2=1e-4, test_fraction=0.0, epochs=300)
    x = np.column_stack(
        [pd.get_dummies(orders["word"]).to_numpy(float), keys.set_index("word").loc[orders["word"], "x"]]
    )
    x[:, -1] = (x[:, -1] - x[:, -1].mean()) / x[:, -1].std()
    best = ElasticNet(alpha=1.1e-3, l1_ratio=1e-3 / 1.1e-3, tol=1e-10, max_iter=20_000).fit(x, orders["y"])
    expected = 0.5 * np.mean((orders["y"] - best.predict(x)) ** 2) + Penalty(1e-4, 1e-3).value(best.coef_)
    assert result.objective == pytest.approx(expected, rel=1e-6)


@given(
    seed=st.integers(0, 10_000),
    width=st.integers(1, 8),
    l1=st.sampled_from([0.0, 0.1, 1.0]),
    l2=st.sampled_from([0.01, 1.0]),
    is_bound=st.booleans(),
)
def test_a_blocks_own_problem_is_solved(seed: int, width: int, l1: float, l2: float, is_bound: bool) -> None:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(max(1, width - 1), width))  # singular: one direction costs the penalty alone
    matrix, slope, centre = root.T @ root, rng.normal(size=(width, 1)), rng.normal(size=(width, 1))
    penalty = Penalty(l2, l1, tuple(rng.integers(-1, 2, width).tolist()) if is_bound else ())
    found = solve(matrix, 1.3, slope, centre, np.zeros((width, 1)), penalty)

    def value(theta: Array) -> float:
        away = theta - centre
        return float(np.vdot(slope, theta) + 0.65 * np.vdot(away, matrix @ away)) + penalty.value(theta)

    lower, upper = penalty.bounds(width)
    assert ((found[:, 0] >= lower) & (found[:, 0] <= upper)).all()
    for _ in range(30):
        other = np.clip(found + 0.1 * rng.normal(size=(width, 1)), lower[:, None], upper[:, None])
        assert value(found) <= value(other) + 1e-9
    diagonal = np.diag(matrix)
    apart, _ = propose(centre, centre, slope, diagonal[:, None], 1.3, 0.0, penalty)
    np.testing.assert_allclose(apart, solve(np.diag(diagonal), 1.3, slope, centre, apart * 0, penalty), atol=1e-9)
