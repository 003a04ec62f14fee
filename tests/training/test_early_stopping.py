"""A validation split, training that stops when it no longer helps, and the best epoch's parameters as the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.neural_join import JOINS, federation, tables
from tests.joined_rows import joined_rows

import tablepuppet as tp
from tablepuppet.join.mapping import rows_here
from tablepuppet.owner.policy import LabelRules, Policy, TableRules

QUERY = JOINS["many-to-many"]
ALGORITHMS: dict[str, dict[str, Any]] = {
    "newton": {"algorithm": "newton", "l2": 0.0},
    "admm": {"algorithm": "admm", "l2": 0.0},
    "sgd": {"algorithm": "sgd", "optimizer": "adam", "learning_rate": 0.3, "batch_size": 50},
    "vfl-sgd": {"algorithm": "vfl-sgd", "optimizer": "adam", "learning_rate": 0.3, "batch_size": 50},
}
NEURAL = {
    "sgd": {"algorithm": "sgd", "model": "mlp", "optimizer": "adam", "learning_rate": 0.1, "batch_size": 50},
    "admm": {"algorithm": "admm", "model": "mlp", "local_epochs": 1, "inner_rounds": 2},
}


def train(owner: tp.Federation, **given: Any) -> tp.Result:
    return owner.train(QUERY.format(y="class"), label="class", **given)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("options", [*ALGORITHMS.values(), *NEURAL.values()], ids=[*ALGORITHMS, "mlp sgd", "mlp admm"])
def test_the_model_is_the_best_epochs(options: dict[str, Any], clients: int) -> None:
    if "model" in options:
        pytest.importorskip("torch")
    held = {"validation_fraction": 0.3, "epochs": 12}
    with federation(clients) as owner:
        stopped = train(owner, patience=2, **held, **options)
        losses = [record.metrics["validation"]["loss"] for record in stopped.history]
        assert stopped.epoch == int(np.argmin(losses)) + 1
        assert len(stopped.history) in (stopped.epoch + 2, 12)
        assert stopped.metrics["validation"]["loss"] == pytest.approx(min(losses), rel=1e-6)
        # Training until just that epoch, without patience, is the same model. (A schedule would know of the end.)
        until = train(owner, **(held | {"epochs": stopped.epoch}), **options)
        for best, last in zip(stopped.blocks, until.blocks, strict=True):
            np.testing.assert_array_equal(best.theta, last.theta)
            np.testing.assert_allclose(best.mean, last.mean, rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(stopped.encoded_intercept, until.encoded_intercept)
        assert stopped.objective == pytest.approx(until.objective, rel=1e-6)
        assert stopped.metrics["test"] == pytest.approx(until.metrics["test"], rel=1e-5)
        assert owner.predict(stopped)["prediction"].equals(owner.predict(until)["prediction"])


def test_parameters_are_kept_and_restored_at_the_clients() -> None:
    with federation(2) as owner:
        result = train(owner, patience=1, validation_fraction=0.3, **ALGORITHMS["sgd"])
    sent = result.traffic.evaluation.by_message
    assert result.epoch < len(result.history)
    assert sent["Parameters"] < 3 * sent["Restore"] + sum(8 * b.theta.size + 200 for b in result.blocks) * 2
    assert sent["Keep"] > 0


def test_validation_rows_come_from_training_rows_and_test_rows_stay() -> None:
    with federation(3) as owner:
        without, beside = train(owner), train(owner, validation_fraction=0.2)
        a, b = (joined_rows(owner, run.plan.job).mapping for run in (without, beside))
    assert a.test.rows == b.test.rows
    np.testing.assert_array_equal(rows_here(a.test).joined_labels(), rows_here(b.test).joined_labels())
    assert b.validation.rows > 0
    assert a.train.rows == b.train.rows + b.validation.rows


@pytest.mark.one_in(2)
@pytest.mark.parametrize("algorithm", ["newton", "vfl-admm", "centralized"])
def test_conditions_choose_the_rows_of_each_side(algorithm: str) -> None:
    orders, tags = tables()["orders"].to_pandas(), tables()["tags"].to_pandas()
    joined = orders.merge(tags, on="item")
    is_test = joined["t"] > 1.0
    is_validation = ~is_test & (joined["q"] < -0.5)
    with federation(2) as owner:
        result = train(owner, algorithm=algorithm, test_where="o.t > 1", validation_where="q < -0.5")
        mapping = joined_rows(owner, result.plan.job).mapping
    sides = {"train": ~is_test & ~is_validation, "validation": is_validation, "test": is_test}
    for side, rows in sides.items():
        held = getattr(mapping, side)
        assert held.rows == int(rows.sum())
        found = np.array(mapping.label.classes)[held.joined_labels().astype(int)]
        assert sorted(found) == sorted(joined["class"][rows])
    assert list(result.metrics) == ["train", "validation", "test"]


@pytest.mark.parametrize("monitor", ["accuracy", "log_loss", "auc"])
def test_another_figure_can_be_watched(monitor: str) -> None:
    given: dict[str, Any] = {"patience": 3, "validation_fraction": 0.3, **ALGORITHMS["sgd"]}
    label = "class" if monitor != "auc" else "flag"  # of two classes
    with federation() as owner:
        result = owner.train(QUERY.format(y=label), label=label, monitor=monitor, **given)
    figures = [record.metrics["validation"][monitor] for record in result.history]
    best = min(figures) if monitor == "log_loss" else max(figures)
    assert result.metrics["validation"][monitor] == pytest.approx(best)


def test_a_gain_below_min_delta_is_none() -> None:
    with federation() as owner:
        result = train(owner, patience=1, min_delta=10.0, validation_fraction=0.3)
    assert (result.epoch, len(result.history)) == (1, 2)


def test_explain_says_what_is_weighed_kept_out_and_watched() -> None:
    given: dict[str, Any] = {"label": "class", "patience": 2, "validation_where": "q > 0", "weight": "t * t"}
    with federation(2) as owner:
        plan = owner.explain(QUERY.format(y="class"), class_weight="balanced", **given)
    text = str(plan)
    assert f"{plan.shape.validation_joined:,} to validate on" in text
    assert "weighs rows by t * t and classes alike, on average 1" in text
    assert "stops after 2 epochs without a better validation loss" in text
    assert "the sample weight t * t of" in text
    assert "for which label rows q > 0 holds" in text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"patience": 3}, "patience needs validation rows"),
        ({"patience": 0, "validation_fraction": 0.1}, "patience must be at least 1"),
        ({"validation_fraction": 0.9}, "leave rows to train on"),
        ({"validation_fraction": -0.1}, "validation_fraction"),
        ({"patience": 1, "validation_fraction": 0.1, "algorithm": "centralized"}, "without epochs to stop at"),
        ({"patience": 1, "validation_fraction": 0.1, "monitor": "rmse"}, "not a metric for this label"),
        ({"patience": 1, "validation_fraction": 0.1, "monitor": "lost"}, "monitor must be one of"),
        ({"patience": 1, "validation_where": "q > 1000"}, "no joined row fell on the validation side"),
        ({"validation_where": "q"}, "must be a condition"),
        ({"test_where": "q > 0 GROUP BY q"}, "test_where is an expression over the columns of o"),
        ({"test_where": "i.price > 0"}, "no table in the FROM clause is called i"),
        ({"test_where": "q < 1000"}, "fell on the test side"),
        ({"test_where": "q > 1000"}, "test_where matches no rows"),
        ({"patience": 1, "validation_fraction": 0.1, "privacy": {"features": {"epsilon": 1.0}}}, "set epochs"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given: dict[str, Any], message: str) -> None:
    with federation() as owner, pytest.raises(tp.TablePuppetError, match=message):
        train(owner, **given)


def test_weights_and_conditions_obey_the_owners_policy() -> None:
    query = JOINS["one-to-many"].format(y="class")
    rules = TableRules(features=("q", "t"), keys=("item",), labels=("class",), filters=("t",))
    policies: dict[str, tuple[Policy, dict[str, Any]]] = {
        "may not be the label or a weight": (Policy(tables={"orders": rules}), {"weight": "t * t"}),
        "may not be filtered by": (Policy(tables={"orders": rules}), {"validation_where": "q > 0"}),
        "labels leave only randomised": (Policy(labels=LabelRules(epsilon=1.0)), {"weight": "t * t"}),
    }
    for message, (policy, given) in policies.items():
        with (
            tp.Federation(tables(), policies={"orders": policy}) as owner,
            pytest.raises(tp.TablePuppetError, match=message),
        ):
            owner.train(query, label="class", **given)
    with tp.Federation(tables(), policies={"orders": Policy(tables={"orders": rules})}) as owner:
        owner.train(query, label="class", validation_where="t > 0")


def test_a_run_that_stopped_early_is_shown_and_saved(tmp_path: Path) -> None:
    with federation() as owner:
        result = train(owner, patience=1, validation_fraction=0.3, class_weight="balanced", **ALGORITHMS["sgd"])
        result.save(tmp_path / "model")
        assert owner.evaluate(tp.load(tmp_path / "model"), rows="all") == owner.evaluate(result, rows="all")
    page = result.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "validation" in page
    assert "validation" in result._repr_html_()
    result.write_history(tmp_path / "history.csv")
    assert "validation_loss" in (tmp_path / "history.csv").read_text(encoding="utf-8")
