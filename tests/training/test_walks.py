"""Training over a join's tree and over drawn rows: what they give, what they say, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.errors import JobError, MappingError, TrainingError
from tablepuppet.join.walk_choice import MIN_FACTORISED
from tablepuppet.training.result import Result

QUERY = "SELECT a.{0}, a.x, b.z, c.w, c.kind FROM a JOIN b ON a.k = b.k LEFT JOIN c ON b.m = c.m"
UNION = "{0} WHERE a.x > 0 UNION ALL {0} WHERE a.x <= 0"


def tables(rows: int = 80, keys: int = 9) -> dict[str, Any]:
    rng = np.random.default_rng(3)

    def keyed(n: int) -> dict[str, Any]:
        return {"k": rng.integers(0, keys, n), "m": rng.integers(0, 2 * keys, n)}

    x = rng.normal(size=rows)
    a = keyed(rows) | {"x": x, "y": x + rng.normal(size=rows), "p": (x + rng.normal(size=rows) > 0).astype(int)}
    a |= {
        "c": rng.poisson(np.exp(0.3 * x)),
        "g": rng.gamma(2.0, np.exp(0.3 * x)),
        "weight": rng.integers(0, 3, rows).astype(float),
    }
    a |= {"side": rng.integers(0, 4, rows)}
    c = keyed(rows) | {"w": rng.normal(size=rows), "kind": [f"kind {i % 3}" for i in range(rows)]}
    b = pa.table(keyed(rows) | {"z": rng.normal(size=rows)})
    return {"a": pa.table(a), "b": [b.slice(0, 50), b.slice(50)], "c": pa.table(c)}


@pytest.fixture(scope="module")
def federation() -> tp.Federation:
    return tp.Federation(tables())


def assert_close(found: Result, expected: Result) -> None:
    assert found.objective == pytest.approx(expected.objective, rel=1e-9)
    for side, metrics in expected.metrics.items():
        assert found.metrics[side] == pytest.approx(metrics, rel=1e-6)
    for own, other in zip(found.blocks, expected.blocks, strict=True):
        assert np.allclose(own.theta, other.theta, atol=1e-6)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("model", "label"), [("linear", "y"), ("logistic", "p"), ("poisson", "c"), ("gamma", "g")])
@pytest.mark.parametrize("given", [{}, {"weight": "a.weight", "validation_fraction": 0.1}], ids=["plain", "weighted"])
@pytest.mark.parametrize("is_union", [False, True], ids=["LEFT JOIN", "UNION ALL"])
def test_both_walks_give_the_same_model(
    federation: tp.Federation, model: str, label: str, given: dict[str, Any], is_union: bool
) -> None:
    query = UNION.format(QUERY.format(label)) if is_union else QUERY.format(label)
    walks = ("materialised", "factorised")
    rows, trees = (federation.train(query, label=label, model=model, walk=walk, **given) for walk in walks)
    assert trees.plan.mapping.walk == "factorised"
    assert_close(trees, rows)
    assert not trees.measured, "all rows of a small join are measured"


def test_runs_over_a_tree_agree_bit_for_bit(federation: tp.Federation) -> None:
    """Keys are other random numbers in every run."""
    first, second = (federation.train(QUERY.format("p"), label="p", walk="factorised") for _ in range(2))
    assert [h.objective for h in first.history] == [h.objective for h in second.history]
    for own, other in zip(first.blocks, second.blocks, strict=True):
        np.testing.assert_array_equal(own.theta, other.theta)


def test_a_model_goes_on_from_another_over_the_tree(federation: tp.Federation) -> None:
    query = QUERY.format("p")
    first = federation.train(query, label="p", walk="materialised", epochs=2)
    walks = ("materialised", "factorised")
    rows, trees = (federation.train(query, label="p", walk=walk, warm_start=first) for walk in walks)
    assert_close(trees, rows)


def test_joins_are_written_down_unless_they_are_large(
    federation: tp.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = QUERY.format("p")
    assert federation.explain(query, label="p").mapping.walk == "materialised"
    monkeypatch.setattr("tablepuppet.join.walk_choice.MIN_FACTORISED", 10)
    monkeypatch.setattr("tablepuppet.join.walk_choice.MIN_FAN_OUT", 1)
    plan = federation.explain(query, label="p")
    assert plan.mapping.walk == "factorised"
    assert "walk factorised: " in str(plan)
    assert "K = 40 frequencies" in " ".join(str(plan).split())
    assert federation.explain(query, label="p", model="mlp").mapping.walk == "materialised"


def test_what_sees_joined_rows_one_by_one_trains_on_drawn_rows_of_a_join_that_is_too_large(
    federation: tp.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tablepuppet.join.walk_choice.default_limit", lambda cluster=None: 500)
    query = QUERY.format("p")
    assert federation.explain(query, label="p").mapping.walk == "factorised"
    result = federation.train(query, label="p", algorithm="sgd", epochs=1)
    whole = result.plan.mapping.whole
    assert whole is not None
    assert (result.plan.mapping.train_rows, result.plan.mapping.test_rows) == (500, min(500, whole.test))
    assert f"trained on 500 of {whole.train:,} joined rows" in str(result)
    assert "walk drawn: 500 of " in str(result.plan)
    on = result.measured["train"]
    assert (on.rows, on.of) == (500, whole.train)
    assert 0 < on.standard_errors["accuracy"] < 0.1
    record = json.loads(result.to_json())
    assert record["measured"]["train"]["standard_errors"]["auc"] == on.standard_errors["auc"]
    assert f"measured on 500 of {whole.train:,} joined rows" in " ".join(record["notes"])


def test_a_model_is_evaluated_on_drawn_rows_of_a_join_that_is_too_large(
    federation: tp.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = QUERY.format("p")
    result = federation.train(query, label="p", walk="factorised")
    whole = federation.evaluate(result)
    monkeypatch.setattr("tablepuppet.join.walk_choice.default_limit", lambda cluster=None: 300)
    found = federation.evaluate(result)
    assert f"300 drawn rows of {result.plan.mapping.test_rows:,} rows that the model was not trained on" in str(found)
    assert found.metrics["accuracy"] == pytest.approx(whole.metrics["accuracy"], abs=0.15)


def test_predictions_of_a_join_that_is_too_large_are_made_for_some_keys_at_a_time(federation: tp.Federation) -> None:
    result = federation.train(QUERY.format("p"), label="p", walk="factorised")
    with pytest.raises(MappingError, match=r"more than the limit of 1,000; predict some keys at a time, as in keys="):
        federation.predict(result, key="k", max_joined_rows=1000)
    parts = [federation.predict(result, key="k", keys=[key], max_joined_rows=1000) for key in range(9)]
    found, whole = pa.concat_tables(parts), federation.predict(result, key="k")
    np.testing.assert_array_equal(np.sort(found["probability"]), np.sort(whole["probability"]))


def test_a_limit_that_the_user_gives_still_refuses(federation: tp.Federation) -> None:
    with pytest.raises(MappingError, match="more than the limit of 100"):
        federation.train(QUERY.format("p"), label="p", max_joined_rows=100)


def test_boosted_trees_are_measured_on_drawn_rows(federation: tp.Federation) -> None:
    result = federation.train(QUERY.format("y"), label="y", model="boosted", trees=3, walk="drawn", max_joined_rows=300)
    assert result.measured["train"].rows == 300
    assert result.measured["train"].standard_errors["rmse"] > 0


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_metrics_of_a_sample_come_with_errors_and_those_of_sums_are_exact(
    federation: tp.Federation, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    label = {"linear": "y", "logistic": "p"}[model]
    query = QUERY.format(label)
    expected = federation.train(query, label=label, walk="materialised")
    monkeypatch.setattr("tablepuppet.join.factorised.rows.SAMPLE", 1000)
    result = federation.train(query, label=label, walk="factorised")
    assert result.objective == pytest.approx(expected.objective, rel=1e-9)
    on = result.measured["train"]
    assert (on.rows, on.of) == (1000, expected.plan.mapping.train_rows)
    exact = {"linear": {"rmse", "r2"}, "logistic": {"log_loss"}}[model]
    for name, value in expected.metrics["train"].items():
        if name in exact:
            assert name not in on.standard_errors
            # The penalised objective is at its minimum, where other ends hardly differ; its loss alone is not.
            assert result.metrics["train"][name] == pytest.approx(value, rel=1e-8)
        elif name != "mape":
            assert abs(result.metrics["train"][name] - value) < 6 * on.standard_errors[name]


def test_a_join_just_above_the_switch_is_summed_as_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is the optimum of DuckDB's sums over all 2²⁴ + 2¹² joined rows."""
    monkeypatch.setattr("tablepuppet.join.factorised.rows.SAMPLE", 1000)
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 4097))
    a = pa.table({"k": np.zeros(4096, int), "x": x[:-1], "y": x[:-1] + rng.normal(size=4096)})
    b = pa.table({"k": np.zeros(4097, int), "z": z})
    given: dict[str, Any] = {"test_fraction": 0.0, "l2": 0.0, "standardize": False}
    with tp.Federation({"a": a, "b": b}) as federation:
        result = federation.train("SELECT a.y, a.x, b.z FROM a JOIN b ON a.k = b.k", label="y", **given)
    assert result.plan.mapping.walk == "factorised"
    u, v = (float(block.theta[0, 0]) for block in result.blocks)
    error = f"(y - {u!r} * x - {v!r} * z - {float(result.encoded_intercept[0])!r})"
    sums = f"SELECT count(*), avg({error}), avg({error} * x), avg({error} * z), avg({error} * {error}) FROM a, b"
    with duckdb.connect() as database:
        rows, *gradient, squared = database.register("a", a).register("b", b).sql(sums).fetchall()[0]
    assert rows == result.plan.mapping.train_rows > MIN_FACTORISED
    assert gradient == pytest.approx([0.0, 0.0, 0.0], abs=1e-9)
    assert result.objective == pytest.approx(squared / 2.0, rel=1e-9)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"model": "mlp", "walk": "factorised"}, MappingError, 'walk="drawn"'),
    ({"algorithm": "admm", "walk": "factorised"}, MappingError, 'walk="drawn"'),
    ({"walk": "drawn", "negatives": 1}, JobError, "negatives"),
    ({"walk": "sideways"}, JobError, "walk"),
]


@pytest.mark.parametrize(("given", "kind", "text"), REFUSED)
def test_what_a_walk_cannot_do_is_refused(
    federation: tp.Federation, given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        federation.train(QUERY.format("p"), label="p", **given)


def test_a_cyclic_join_has_no_tree(federation: tp.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "SELECT a.p, a.x, b.z, c.w FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m AND a.k = c.k"
    with pytest.raises(MappingError, match="has a cycle"):
        federation.train(query, label="p", walk="factorised")
    monkeypatch.setattr("tablepuppet.join.walk_choice.default_limit", lambda cluster=None: 10)
    with pytest.raises(MappingError, match="forms no tree from which rows could be drawn; add a WHERE"):
        federation.train(query, label="p")


def test_more_joined_rows_than_can_be_counted_are_refused() -> None:
    rows = 300_000
    same = pa.table({"k": np.zeros(rows, np.int64), "x": np.arange(rows) % 7, "y": np.arange(rows) % 2})
    with tp.Federation({"a": same, "b": same, "c": same}) as federation:
        query = "SELECT a.y, a.x, b.x, c.x FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k"
        with pytest.raises(MappingError, match=r"joins to 2\.70e\+16 rows"):
            federation.explain(query, label="y")


def test_scores_of_separable_classes_stay_finite_or_are_refused_with_a_reason() -> None:
    x = np.concatenate([np.linspace(-2000, -1000, 40), np.linspace(1000, 2000, 40)])
    a = pa.table({"k": np.arange(80) % 4, "x": x, "y": (x > 0).astype(int)})
    b = pa.table({"k": np.arange(40) % 4, "z": np.random.default_rng(0).normal(size=40)})
    with tp.Federation({"a": a, "b": b}) as federation:
        given: dict[str, Any] = {"label": "y", "walk": "factorised", "l2": 1e-12}
        query = "SELECT a.y, a.x, b.z FROM a JOIN b ON a.k = b.k"
        try:
            result = federation.train(query, **given)
        except TrainingError as error:
            assert "separable" in str(error)  # noqa: PT017
        else:
            assert np.isfinite(result.objective)
            assert result.objective < 1e-3
