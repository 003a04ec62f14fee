"""Weighted training over tables equals weighted training on the materialised join."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.class_weight import compute_sample_weight
from tests.algorithms.test_exactness import L2, parameters, split, with_labels
from tests.scenarios import Scenario, scenarios

import tablepuppet as tp

STAR, MANY, UNION = (scenarios()[i] for i in (1, 2, 6))
WEIGHT = "1 + quantity * quantity"
EXACT = {
    "newton": tp.Newton(tolerance=1e-14),
    "admm": tp.Admm(tolerance=0.0),
    "admm exact": tp.Admm(tolerance=0.0, union="exact"),
    "centralized": "centralized",
}
GIVEN: dict[str, Any] = {"label": "y", "l2": L2, "test_fraction": 0.0}
TIGHT: dict[str, Any] = {"algorithm": "newton", "tolerance": 1e-10}


def weights_of(scenario: Scenario) -> Any:
    return 1 + scenario.join()["f0"].to_numpy() ** 2  # f0 is quantity


def best(scenario: Scenario, model: str, weights: Any) -> Any:
    """scikit-learn's optimum, with weights of mean 1 so that both mean the same penalty."""
    x, y = scenario.encoded()
    given = {"sample_weight": weights / weights.mean()}
    if model == "linear":
        return Ridge(alpha=L2 * len(y), tol=1e-12).fit(x, y, **given).coef_[:, None]
    fitted = LogisticRegression(C=1 / (L2 * len(y)), tol=1e-10, max_iter=20_000).fit(x, y, **given)
    return fitted.coef_.T


@pytest.mark.one_in(4)
@pytest.mark.parametrize("model", ["linear", "logistic", "softmax"])
@pytest.mark.parametrize("scenario", [STAR, MANY, UNION], ids=lambda s: s.name)
def test_sample_weights_give_what_scikit_learn_gives(scenario: Scenario, model: str) -> None:
    scenario = with_labels(scenario, model)
    expected = best(scenario, model, weights_of(scenario))
    for parts in (1, 3):
        with split(scenario, parts) as federation:
            result = federation.train(scenario.query, weight=WEIGHT, model=model, **GIVEN)
        np.testing.assert_allclose(parameters(result)[0], expected, atol=2e-5)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("model", ["linear", "logistic", "softmax"])
@pytest.mark.parametrize("algorithm", EXACT.values(), ids=EXACT)
def test_so_does_every_algorithm_that_reaches_the_optimum(algorithm: Any, model: str) -> None:
    scenario = with_labels(UNION, model)
    with split(scenario, 2) as federation:
        given = GIVEN | {"model": model, "algorithm": algorithm, "epochs": None if algorithm == "centralized" else 60}
        result = federation.train(scenario.query, weight=WEIGHT, **given)
    np.testing.assert_allclose(parameters(result)[0], best(scenario, model, weights_of(scenario)), atol=2e-5)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("model", ["logistic", "softmax"])
@pytest.mark.parametrize("given", ["balanced", "mapping"])
def test_class_weights_give_what_scikit_learn_gives(model: str, given: str) -> None:
    scenario = with_labels(STAR, model)
    _, y = scenario.encoded()
    classes: Any = "balanced" if given == "balanced" else {int(c): 0.5 + c for c in np.unique(y)}
    expected = best(scenario, model, compute_sample_weight(classes, y))
    with split(scenario, 2) as federation:
        result = federation.train(scenario.query, model=model, class_weight=classes, **GIVEN, **TIGHT)
    np.testing.assert_allclose(parameters(result)[0], expected, atol=2e-5)


def test_both_weights_multiply_and_balanced_classes_weigh_the_same() -> None:
    scenario = with_labels(STAR, "softmax")
    weights, y = weights_of(scenario), scenario.encoded()[1]
    totals = np.bincount(y.astype(int), weights)
    with split(scenario, 2) as federation:
        given = GIVEN | TIGHT | {"weight": WEIGHT, "class_weight": "balanced"}
        result = federation.train(scenario.query, model="softmax", **given)
    expected = best(scenario, "softmax", weights / totals[y.astype(int)])
    np.testing.assert_allclose(parameters(result)[0], expected, atol=2e-5)


def test_a_row_of_weight_two_counts_as_two_rows() -> None:
    times = np.random.default_rng(5).integers(0, 4, len(MANY.tables["orders"]))
    orders = MANY.tables["orders"].append_column("times", pa.array(times))
    weighted = replace(MANY, tables=MANY.tables | {"orders": orders})
    repeated = replace(MANY, tables=MANY.tables | {"orders": orders.take(np.repeat(np.arange(len(orders)), times))})
    for algorithm in ("newton", tp.Sgd(learning_rate=0.05)):
        given = GIVEN | {"algorithm": algorithm, "standardize": False, "batch_size": None}
        with split(weighted, 2) as first, split(repeated, 2) as second:
            a = first.train(MANY.query, weight="times", **given)
            b = second.train(MANY.query, **given)
        tolerance = 1e-6 if algorithm == "newton" else 1e-9
        for found, expected in zip(parameters(a), parameters(b), strict=True):
            np.testing.assert_allclose(found, expected, atol=tolerance)
        assert a.objective == pytest.approx(b.objective, abs=1e-9)


@pytest.mark.parametrize("algorithm", ["sgd", "vfl-sgd"])
def test_full_batch_sgd_descends_the_weighted_objective(algorithm: str) -> None:
    x, y = STAR.encoded()
    weights = weights_of(STAR)
    share = weights[:, None] / weights.sum()
    theta, intercept = np.zeros((x.shape[1], 1)), np.zeros(1)
    for _ in range(12):
        residual = share * (x @ theta + intercept - y[:, None])
        theta, intercept = theta - 0.05 * (x.T @ residual + L2 * theta), intercept - 0.05 * residual.sum(axis=0)
    with split(STAR, 3) as federation:
        given = GIVEN | {"epochs": 12, "batch_size": None, "learning_rate": 0.05, "algorithm": algorithm}
        result = federation.train(STAR.query, weight=WEIGHT, **given)
    np.testing.assert_allclose(parameters(result)[0], theta, atol=1e-9)
    np.testing.assert_allclose(parameters(result)[1], intercept, atol=1e-9)


def test_a_selected_weight_is_no_feature() -> None:
    query = STAR.query.replace("o.y", "1 + o.quantity * o.quantity AS w, o.y")
    with split(STAR, 2) as federation:
        selected = federation.train(query, weight="w", **GIVEN)
        named = federation.train(STAR.query, weight=WEIGHT, **GIVEN)
        assert "o.w" not in selected.coefficients()["feature"].tolist()
        np.testing.assert_array_equal(parameters(selected)[0], parameters(named)[0])


def test_weights_are_counted_as_traffic_of_their_own() -> None:
    with split(STAR, 2) as federation:
        plain, weighted = federation.train(STAR.query, **GIVEN), federation.train(STAR.query, weight=WEIGHT, **GIVEN)
    assert "Weights" not in plain.traffic.setup.by_message
    assert weighted.traffic.setup.by_message["Weights"] > 8 * STAR.tables["orders"].num_rows


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weight": "weigth"}, "no column of o is called weigth"),
        ({"weight": "i.price"}, "no table in the FROM clause is called i"),
        ({"weight": "quantity"}, "negative"),
        ({"weight": "hour"}, "NULL"),
        ({"weight": "0 * quantity"}, "weights of all training rows are 0"),
        ({"weight": "'heavy'"}, "names no column"),
        ({"weight": "quantity, y"}, "more than one expression"),
        ({"weight": "quantity > 0"}, None),
        ({"class_weight": "balanced"}, "needs a label with classes"),
        ({"class_weight": "even"}, "class_weight"),
        ({"class_weight": {"a": -1.0}}, "must be at least 0"),
        ({"class_weight": {"a": "much"}}, "class_weight"),
        (
            {"weight": WEIGHT, "privacy": {"label": {"epsilon": 1.0, "bounds": (-3.0, 3.0), "mechanism": "bins"}}},
            "hides",
        ),
    ],
)
def test_weights_that_cannot_be_are_refused_in_words(given: dict[str, Any], message: str | None) -> None:
    with split(STAR, 2) as federation:
        if message is None:
            federation.train(STAR.query, **GIVEN, **given)
            return
        with pytest.raises(tp.TablePuppetError, match=message):
            federation.train(STAR.query, **GIVEN, **given)


def test_an_unknown_class_is_named_as_the_user_wrote_it() -> None:
    scenario = with_labels(STAR, "logistic")
    with split(scenario, 1) as federation, pytest.raises(tp.TablePuppetError, match="names '7', which is none"):
        federation.train(scenario.query, model="logistic", class_weight={7: 2.0}, **GIVEN)


def test_an_item_that_was_the_weight_is_the_weight_of_a_query_that_is_evaluated() -> None:
    """And no feature that the model was not trained on."""
    random = np.random.default_rng(0)
    table = pa.table({"x": random.normal(size=200), "y": random.normal(size=200), "w": random.uniform(1, 2, 200)})
    query = "SELECT t.x, t.y, t.w FROM t"
    with tp.Federation({"t": table}) as federation:
        model = federation.train(query, label="y", weight="w").model
        own = federation.evaluate(model).metrics
        assert federation.evaluate(model, query).metrics == own
        assert federation.evaluate(model, "SELECT t.x, t.y FROM t").metrics == own  # of rows alike
