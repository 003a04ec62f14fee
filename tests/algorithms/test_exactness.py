"""Every algorithm equals the centralised answer on the materialised join, however tables are split."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from tests.algorithms.oracle import gradient_descent, objective
from tests.scenarios import Scenario, scenarios, slices

import tablepuppet as tp
from tablepuppet.owner.row_sets import order_bits

SCENARIOS = scenarios()
L2 = 1e-3
GIVEN: dict[str, Any] = {"label": "y", "l2": L2, "test_fraction": 0.0}


def with_labels(scenario: Scenario, model: str) -> Scenario:
    """The scenario with its numeric label turned into what the model predicts."""
    if model == "linear":
        return scenario
    tables = {}
    for name, table in scenario.tables.items():
        if "y" in table.column_names:
            y = table["y"].to_numpy()
            classes = (y > 0).astype(int) if model == "logistic" else np.digitize(y, [-0.5, 0.5])
            table = table.set_column(table.column_names.index("y"), "y", pa.array(classes))
        tables[name] = table
    return replace(scenario, tables=tables)


def split(scenario: Scenario, parts: int) -> tp.Federation:
    return tp.Federation({name: slices(table, parts) for name, table in scenario.tables.items()})


def parameters(result: tp.Result) -> Any:
    return np.concatenate([b.theta for b in result.blocks]), result.encoded_intercept


@pytest.mark.one_in(11)
@pytest.mark.parametrize("model", ["linear", "logistic", "softmax"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_full_batch_sgd_is_gradient_descent_on_the_join(scenario: Scenario, model: str) -> None:
    scenario = with_labels(scenario, model)
    x, y = scenario.encoded()
    steps, rate = 12, 0.05
    theta, intercept, value = gradient_descent(x, y, model, steps=steps, rate=rate, l2=L2)
    for parts in (1, 3):
        with split(scenario, parts) as federation:
            result = federation.train(
                scenario.query,
                model=model,
                algorithm=tp.Sgd(learning_rate=rate),
                epochs=steps,
                batch_size=None,
                **GIVEN,
            )
        found, shift = parameters(result)
        np.testing.assert_allclose(found, theta, atol=1e-9)
        np.testing.assert_allclose(shift, intercept, atol=1e-9)
        assert result.objective == pytest.approx(value, abs=1e-9)


def test_momentum_and_adam_follow_their_textbook_updates() -> None:
    torch = pytest.importorskip("torch")
    scenario = SCENARIOS[1]
    x, y = scenario.encoded()
    for optimizer, momentum in (("sgd", 0.9), ("adam", 0.0)):
        weights = torch.zeros(x.shape[1], 1, dtype=torch.float64, requires_grad=True)
        shift = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        reference: Any = (
            torch.optim.SGD([weights, shift], lr=0.05, momentum=momentum)
            if optimizer == "sgd"
            else torch.optim.Adam([weights, shift], lr=0.05)
        )
        for _ in range(15):
            reference.zero_grad()
            error = torch.tensor(x) @ weights + shift - torch.tensor(y)[:, None]
            (0.5 * (error**2).mean() + 0.5 * L2 * (weights**2).sum()).backward()
            reference.step()
        with split(scenario, 2) as federation:
            options = tp.Sgd(learning_rate=0.05, optimizer=optimizer, momentum=momentum)  # type: ignore[arg-type]
            result = federation.train(
                scenario.query, model="linear", algorithm=options, epochs=15, batch_size=None, **GIVEN
            )
        found, intercept = parameters(result)
        np.testing.assert_allclose(found, weights.detach().numpy(), atol=1e-9)
        np.testing.assert_allclose(intercept, shift.detach().numpy(), atol=1e-9)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("scenario", [SCENARIOS[1], SCENARIOS[3], SCENARIOS[6]], ids=lambda s: s.name)
@pytest.mark.parametrize("model", ["linear", "logistic", "softmax"])
@pytest.mark.parametrize(
    "algorithm",
    [tp.Sgd(), tp.Sgd(optimizer="adam"), tp.Newton(), tp.Admm(union="exact")],
    ids=["sgd", "adam", "newton", "admm exact"],
)
def test_splitting_tables_among_clients_changes_nothing(algorithm: Any, model: str, scenario: Scenario) -> None:
    scenario = with_labels(scenario, model)
    answers = []
    for parts in (1, 2, 7):
        with split(scenario, parts) as federation:
            given = GIVEN | {"test_fraction": 0.2}
            result = federation.train(
                scenario.query, model=model, algorithm=algorithm, epochs=3, batch_size=100, **given
            )
        answers.append(parameters(result)[0])
    for other in answers[1:]:
        np.testing.assert_allclose(other, answers[0], atol=1e-8)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_newton_reaches_the_centralised_optimum_in_ten_rounds(scenario: Scenario) -> None:
    x, y = scenario.encoded()
    ridge = Ridge(alpha=L2 * len(y), tol=1e-12).fit(x, y)
    best = objective(x, y, "linear", ridge.coef_[:, None], np.array([ridge.intercept_]), L2)
    binary = with_labels(scenario, "logistic")
    xb, yb = binary.encoded()
    logistic = LogisticRegression(C=1 / (L2 * len(yb)), tol=1e-12, max_iter=10_000, solver="newton-cholesky").fit(
        xb, yb
    )
    best_binary = objective(xb, yb, "logistic", logistic.coef_.T, logistic.intercept_, L2)
    for given, model, value, coefficients in (
        (scenario, "linear", best, ridge.coef_),
        (binary, "logistic", best_binary, logistic.coef_[0]),
    ):
        for parts in (1, 3):
            with split(given, parts) as federation:
                result = federation.train(given.query, model=model, algorithm="newton", epochs=10, **GIVEN)
            assert result.objective == pytest.approx(value, abs=1e-8)
            np.testing.assert_allclose(parameters(result)[0][:, 0], coefficients, atol=1e-4)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("scenario", SCENARIOS[1:5], ids=lambda s: s.name)
def test_newton_reaches_the_softmax_optimum_in_thirty_rounds(scenario: Scenario) -> None:
    scenario = with_labels(scenario, "softmax")
    x, y = scenario.encoded()
    reference = LogisticRegression(C=1 / (L2 * len(y)), tol=1e-10, max_iter=10_000).fit(x, y)
    best = objective(x, y, "softmax", reference.coef_.T, reference.intercept_, L2)
    with split(scenario, 2) as federation:
        result = federation.train(scenario.query, model="softmax", algorithm="newton", **GIVEN)
    assert len(result.history) <= 30
    assert result.objective <= best + 1e-6


@pytest.mark.one_in(7)
@pytest.mark.parametrize("model", ["linear", "logistic", "softmax"])
@pytest.mark.parametrize("union", ["consensus", "exact"])
@pytest.mark.parametrize("scenario", [SCENARIOS[1], SCENARIOS[3]], ids=lambda s: s.name)
def test_admm_reaches_the_same_optimum_whatever_the_union(scenario: Scenario, union: Any, model: str) -> None:
    scenario = with_labels(scenario, model)
    with split(scenario, 1) as federation:
        best = federation.train(scenario.query, model=model, algorithm="centralized", **GIVEN).objective
    with split(scenario, 3) as federation:
        result = federation.train(scenario.query, model=model, algorithm=tp.Admm(union=union), epochs=40, **GIVEN)
    gaps = [(record.objective - best) / best for record in result.history]
    assert gaps[min(9, len(gaps) - 1)] <= 1e-3
    assert gaps[-1] <= 1e-5
    assert all(b <= a + 1e-12 for a, b in pairwise(gaps))


def test_the_published_admm_update_is_available_and_unlike_the_sharing_form() -> None:
    scenario = SCENARIOS[1]
    with split(scenario, 1) as federation:
        sharing = federation.train(scenario.query, model="linear", algorithm="admm", epochs=10, **GIVEN)
        published = federation.train(
            scenario.query, model="linear", algorithm=tp.Admm(variant="published", rho=1.0), epochs=10, **GIVEN
        )
    assert published.objective > sharing.objective


@pytest.mark.parametrize(("plain", "expanded"), [("sgd", "vfl-sgd"), ("admm", "vfl-admm")])
def test_the_vfl_baselines_compute_the_same_model_from_more_bytes(plain: str, expanded: str) -> None:
    for scenario in (SCENARIOS[1], SCENARIOS[3]):
        with split(scenario, 2) as federation:
            few = federation.train(scenario.query, model="linear", algorithm=plain, epochs=3, batch_size=None, **GIVEN)
            many = federation.train(
                scenario.query, model="linear", algorithm=expanded, epochs=3, batch_size=None, **GIVEN
            )
        if plain == "sgd":
            np.testing.assert_allclose(parameters(few)[0], parameters(many)[0], atol=1e-9)
        assert many.objective == pytest.approx(few.objective, rel=1e-3)
        assert many.traffic.bytes > few.traffic.bytes


def test_the_centralised_baseline_agrees_with_scikit_learn() -> None:
    for scenario in SCENARIOS:
        x, y = scenario.encoded()
        ridge = Ridge(alpha=L2 * len(y), tol=1e-12).fit(x, y)
        with split(scenario, 2) as federation:
            result = federation.train(scenario.query, model="linear", algorithm="centralized", **GIVEN)
        np.testing.assert_allclose(parameters(result)[0][:, 0], ridge.coef_, atol=1e-8)


def test_without_a_penalty_the_solution_of_minimum_norm_is_found() -> None:
    scenario = SCENARIOS[1]  # one-hot columns and the intercept are collinear
    x, y = scenario.encoded()
    centred = x - x.mean(axis=0)
    expected = np.linalg.pinv(centred) @ (y - y.mean())
    given = GIVEN | {"l2": 0.0}
    with split(scenario, 2) as federation:
        result = federation.train(scenario.query, model="linear", algorithm="newton", **given)
    theta, intercept = parameters(result)
    value = objective(x, y, "linear", expected[:, None], np.array([y.mean() - x.mean(axis=0) @ expected]), 0.0)
    assert result.objective == pytest.approx(value, abs=1e-8)
    np.testing.assert_allclose(
        x @ theta[:, 0] + intercept, x @ expected + y.mean() - x.mean(axis=0) @ expected, atol=1e-5
    )


def test_mini_batches_follow_the_documented_permutation() -> None:
    scenario = SCENARIOS[0]
    x, y = scenario.encoded()
    frame = scenario.join()
    orders = scenario.tables["orders"]
    bits = order_bits(b"", "orders None", 5, 0, orders.num_rows)
    place = dict(zip(orders["y"].to_pylist(), bits, strict=True))
    by_row = np.argsort([place[v] for v in frame["y"]])  # joined rows are ordered by the label's shown row
    x, y = x[by_row], y[by_row]
    theta, intercept = np.zeros(x.shape[1]), 0.0
    for epoch in range(2):
        order = np.random.default_rng((5, epoch)).permutation(len(y))
        for start in range(0, len(y), 64):
            batch = order[start : start + 64]
            residual = (x[batch] @ theta + intercept - y[batch]) / len(batch)
            theta, intercept = theta - 0.1 * (x[batch].T @ residual + L2 * theta), intercept - 0.1 * residual.sum()
    with split(scenario, 2) as federation:
        result = federation.train(
            scenario.query,
            model="linear",
            algorithm=tp.Sgd(learning_rate=0.1),
            epochs=2,
            batch_size=64,
            seed=5,
            **GIVEN,
        )
    np.testing.assert_allclose(parameters(result)[0][:, 0], theta, atol=1e-9)
    assert result.encoded_intercept[0] == pytest.approx(intercept, abs=1e-9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("algorithm", ["sgd", "admm", "newton"])
def test_the_same_seed_gives_the_same_bits(algorithm: str) -> None:
    scenario = SCENARIOS[1]
    runs = []
    for _ in range(2):
        with split(scenario, 2) as federation:
            given = GIVEN | {"test_fraction": 0.15}
            runs.append(
                federation.train(scenario.query, model="linear", algorithm=algorithm, epochs=4, batch_size=50, **given)
            )
    assert all(np.array_equal(a.theta, b.theta) for a, b in zip(runs[0].blocks, runs[1].blocks, strict=True))
    assert runs[0].objective == runs[1].objective
    assert runs[0].metrics == runs[1].metrics


def test_weights_on_the_original_scale_predict_the_same() -> None:
    scenario = SCENARIOS[3]
    frame = scenario.join()
    with split(scenario, 2) as federation:
        result = federation.train(scenario.query, model="linear", algorithm="newton", **GIVEN)
    weights = dict(zip(result.coefficients()["feature"], result.coefficients()["weight"], strict=True))
    found = frame["found_c"].to_numpy(float)
    scores = (
        result.intercept
        + frame["f0"].to_numpy() * weights["o.quantity"]
        + frame["f1"].fillna(0).to_numpy() * weights["c.credit"]
        + frame["f2"].fillna(0).to_numpy() * weights["c.is_gold"]
        + found * weights["c IS NOT NULL"]
    )
    x, _ = scenario.encoded()
    theta, intercept = parameters(result)
    np.testing.assert_allclose(scores, x @ theta[:, 0] + intercept[0], atol=1e-9)


def test_a_label_of_text_becomes_classes() -> None:
    orders = SCENARIOS[0].tables["orders"]
    said = pc.if_else(pc.greater(orders["y"], 0.0), "yes", "no")
    federation = tp.Federation({"orders": orders.append_column("said", said)})
    result = federation.train("SELECT quantity, hour, said FROM orders", label="said", model="logistic")
    assert result.classes == ("no", "yes")
    assert set(result.coefficients()["class_"]) == {"yes"}


@pytest.mark.parametrize("memory", [0, 2])
def test_newton_works_with_little_memory(memory: int) -> None:
    scenario = SCENARIOS[1]
    with split(scenario, 2) as federation:
        best = federation.train(scenario.query, model="linear", algorithm="centralized", **GIVEN).objective
        result = federation.train(scenario.query, model="linear", algorithm=tp.Newton(memory=memory), **GIVEN)
    assert result.objective == pytest.approx(best, rel=1e-4)


def test_newton_is_not_held_up_by_tables_that_correlate() -> None:
    rng = np.random.default_rng(11)
    rows, groups = 3000, 60
    hidden = rng.normal(size=(groups, 5))
    left = pa.table(
        {
            "k": np.repeat(np.arange(groups), rows // groups),
            **{
                f"a{i}": (hidden[:, i] + 0.1 * rng.normal(size=groups))[np.repeat(np.arange(groups), rows // groups)]
                for i in range(5)
            },
            "c": pa.array(rng.choice(list("pqrs"), rows)),
            "y": rng.normal(size=rows),
        }
    )
    right = pa.table(
        {"k": np.arange(groups), **{f"b{i}": hidden[:, i] for i in range(5)}, "d": [str(g % 4) for g in range(groups)]}
    )
    query = f"SELECT {', '.join(f'l.a{i}' for i in range(5))}, l.c, {', '.join(f'r.b{i}' for i in range(5))}, r.d, l.y"
    with tp.Federation({"l": left, "r": right}) as federation:
        given: dict[str, Any] = {"label": "y", "model": "linear", "test_fraction": 0.0}
        best = federation.train(f"{query} FROM l JOIN r USING (k)", algorithm="centralized", **given).objective
        result = federation.train(f"{query} FROM l JOIN r USING (k)", algorithm="newton", epochs=10, **given)
    assert result.objective <= best + 1e-8
