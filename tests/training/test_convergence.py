"""A run says whether it converged, when a constant would have been better, and how to go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.dummy import DummyClassifier
from tests.joined_rows import joined_rows

import tablepuppet as tp
from tablepuppet.cli.screen import Screen
from tablepuppet.cli.train import show_result
from tablepuppet.training.convergence import constant_loss, seen_labels

QUERY = "SELECT a.y, a.u, b.v FROM a JOIN b ON a.id = b.id"

NOISY_NUMBERS = {"epsilon": 50.0, "bounds": (-9.0, 9.0), "mechanism": "laplace"}


def federation(label: Any, rows: int = 300) -> tp.Federation:
    drawn = np.random.default_rng(1).normal(size=(2, rows))
    a = pa.table({"id": np.arange(rows), "y": label(*drawn), "u": drawn[0]})
    return tp.Federation({"a": a, "b": pa.table({"id": np.arange(rows), "v": drawn[1]})})


def linear(u: Any, v: Any) -> Any:
    return 3.0 * u - v + 0.1 * np.random.default_rng(2).normal(size=len(u))


def noise(u: Any, v: Any) -> Any:
    return np.random.default_rng(3).normal(size=len(u))


def test_a_run_that_reaches_its_optimum_has_converged_and_nothing_to_note() -> None:
    with federation(linear) as owner:
        for algorithm in ("newton", "admm", "sgd", "centralized"):
            result = owner.train(QUERY, label="y", algorithm=algorithm)
            assert (result.converged, result.notes) == (True, ())
            assert str(result) == repr(result)


def test_a_run_that_was_cut_short_says_so_everywhere(tmp_path: Path) -> None:
    with federation(linear) as owner:
        result = owner.train(QUERY, label="y", algorithm="sgd", learning_rate=0.01, batch_size=None, epochs=10)
    assert not result.converged
    assert "sgd did not converge" in result.notes[0]
    assert 'epochs=20, or by algorithm="newton"' in result.notes[0]
    assert result.notes[0] in str(result)
    record = json.loads(result.to_json())
    assert record["converged"] is False
    assert record["notes"] == list(result.notes)
    assert "sgd did not converge" in result.report(tmp_path / "run.html").read_text()
    assert "sgd did not converge" in result._repr_html_()


def test_a_model_that_is_worse_than_a_constant_says_so() -> None:
    with federation(noise, rows=40) as owner:
        result = owner.train(QUERY.replace("a.u", "a.u, a.u * a.u AS w, a.u * a.u * a.u AS x"), label="y")
    assert result.metrics["test"]["r2"] < 0 < result.metrics["train"]["r2"]
    assert "worse than a constant" in str(result)
    assert "rows this may be chance: cross-validate; raise l2" in str(result)


def test_test_rows_of_one_class_are_noted_and_have_no_curves_that_need_two(tmp_path: Path) -> None:
    with federation(lambda u, v: (np.arange(len(u)) < 200) & (u > 0)) as owner:
        result = owner.train(QUERY, label="y", test_where="a.id >= 200")
        evaluated = owner.evaluate(result)
    assert "all test rows have the same label" in str(result)
    assert "worse than a constant" not in str(result)
    assert "nan" not in str(result) + str(evaluated)
    assert result.curves["test"].roc()["true_positive_rate"].isna().all()
    page = result.report(tmp_path / "run.html").read_text()
    assert "Calibration</figcaption>" in page
    for absent in ("nothing to draw", "ROC</figcaption>", "“ROC”", "test AUC</figcaption>"):
        assert absent not in page


@pytest.mark.parametrize("head", ["factor", "mlp"])
def test_a_head_that_is_worse_than_a_constant_is_told_to_compare_the_sum(head: str) -> None:
    pytest.importorskip("torch")
    with federation(noise, rows=60) as owner:
        given: dict[str, Any] = {"label": "y", "algorithm": "sgd", "learning_rate": 0.05, "optimizer": "adam"}
        result = owner.train(QUERY, head=head, epochs=40, **given)
        assert result.metrics["test"]["r2"] < 0
        note = next(note for note in result.notes if "worse than a constant" in note)
        assert "leave head out: newton then trains the sum of tables" in note
        assert 'by algorithm="newton"' not in note  # which trains no heads


def test_a_label_that_never_changes_says_so() -> None:
    with federation(lambda u, v: np.full(len(u), 3.5)) as owner:
        for algorithm in ("newton", "sgd", "centralized"):
            result = owner.train(QUERY, label="y", algorithm=algorithm)
            assert result.metrics["test"]["rmse"] == pytest.approx(0.0, abs=1e-9)
            assert "the label is the same in all training rows" in str(result)


def test_figures_without_a_test_row_are_said_to_be_of_training_rows() -> None:
    with federation(linear, rows=3) as owner:
        result = owner.train(QUERY, label="y", algorithm="newton", seed=1)
        assert not result.metrics["test"]
        assert "no joined row is a test row" in str(result)
        asked = owner.train(QUERY, label="y", algorithm="newton", test_fraction=0.0)
    assert "test side" not in str(asked)


def test_dates_that_are_written_as_text_are_pointed_at() -> None:
    with federation(linear) as owner:
        named = owner.train(QUERY.replace("a.u", "CAST(a.u AS VARCHAR) AS day"), label="y")
        kept = owner.train(QUERY.replace("a.u", "CAST(a.u AS VARCHAR) AS day"), label="y", max_categories=3)
    assert "day has 2" in str(named)
    assert "CAST(… AS DATE)" in str(named)
    assert "different texts" not in str(kept)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_best_constant_is_that_of_the_class_shares(classes: int) -> None:
    with federation(lambda u, v: [f"c{k}" for k in np.clip(np.round(u + 1), 0, classes - 1).astype(int)]) as owner:
        plan = owner.explain(QUERY, label="y", algorithm="newton", model="logistic" if classes == 2 else "softmax")
        train = joined_rows(owner, plan.job).mapping.train
    labels = np.repeat(train.labels, train.label_counts())
    expected = DummyClassifier(strategy="prior").fit(np.zeros((len(labels), 1)), labels).class_prior_
    scores = plan.loss.best_constant(*seen_labels(train, train.weights))
    shares = np.append(0.0, scores) if classes == 2 else scores
    np.testing.assert_allclose(np.exp(shares) / np.exp(shares).sum(), expected, atol=1e-9)
    assert constant_loss(train, plan.loss, scores) == pytest.approx(-(expected @ np.log(expected)))


@pytest.mark.parametrize("algorithm", ["newton", "admm", "elastic"])
def test_a_run_that_ran_out_of_epochs_has_not_converged(algorithm: str) -> None:
    def classes(u: Any, v: Any) -> Any:
        return (linear(u, v) > 0).astype(int)

    with federation(classes) as owner:
        given: dict[str, Any] = {"l1": 1e-4} if algorithm == "elastic" else {}
        short = owner.train(QUERY, label="y", algorithm=algorithm, epochs=1, **given)
        whole = owner.train(QUERY, label="y", algorithm=algorithm, epochs=2_000, **given)
    assert not short.converged
    assert f"{algorithm} did not converge: the objective changed by" in short.notes[0]
    assert whole.converged


def test_a_run_that_ends_above_a_constant_says_by_how_much_it_still_changes() -> None:
    with federation(noise) as owner:
        result = owner.train(QUERY, label="y", algorithm="sgd", learning_rate=0.9, batch_size=4, epochs=3)
    assert not result.converged
    share = float(result.notes[0].split("changed by ")[1].split(" %")[0])
    assert 0 < share <= 100


def test_boosted_trees_that_are_worse_than_a_constant_say_so() -> None:
    with federation(noise, rows=200) as owner:
        result = owner.train(QUERY, label="y", model="boosted", trees=50)
    assert result.metrics["test"]["r2"] < 0
    (note,) = (note for note in result.notes if "worse than a constant" in note)
    assert "fewer or smaller trees" in note


def test_a_model_that_is_as_good_as_a_constant_is_not_blamed() -> None:
    with federation(lambda u, v: np.random.default_rng(5).integers(0, 2, len(u)), rows=2_000) as owner:
        result = owner.train(QUERY, label="y", l2=1e4)
    assert result.metrics["test"]["log_loss"] == pytest.approx(np.log(2), abs=2e-3)
    assert result.notes == ()


@pytest.mark.parametrize(
    ("label", "options"),
    [
        (linear, {}),
        (linear, {"algorithm": "centralized"}),
        (lambda u, v: (linear(u, v) > 1).astype(int), {}),
        (lambda u, v: (linear(u, v) > 1).astype(int), {"model": "boosted", "trees": 40}),
        (linear, {"model": "boosted"}),
    ],
)
def test_a_copy_of_the_label_is_pointed_at(label: Any, options: dict[str, Any]) -> None:
    with federation(label, rows=600) as owner:
        plain = owner.train(QUERY.replace(", b.v", ""), label="y", **options)
        copied = owner.train(QUERY.replace("a.u", "a.u, a.y + 0 AS late_fee"), label="y", **options)
    assert "under another name" not in str(plain)
    assert "perfectly, and a.late_fee weighs most" in str(copied) or (
        "test rows are predicted well by a.late_fee alone" in str(copied)
    )


@pytest.mark.parametrize(
    ("label", "copy", "options"),
    [
        ("a.y", "a.y * a.y * a.y", {}),
        ("a.y", "ln(a.y + 10)", {}),
        ("a.y", "sqrt(a.y + 10)", {"model": "huber"}),
        ("a.y", "round(a.y * 5)", {}),
        ("a.y > 0", "CASE WHEN a.id % 75 = 7 THEN 0 ELSE CAST(a.y > 0 AS INTEGER) END", {}),
        (
            "a.y > 0",
            "CASE WHEN (a.id % 75 = 7) = (a.y > 0) THEN 'n' ELSE 'y' END",
            {"model": "boosted", "trees": 9},
        ),
    ],
)
def test_a_feature_that_tells_the_label_in_another_form_is_pointed_at(label: str, copy: str, options: Any) -> None:
    query = QUERY.replace("a.y", f"{label} AS y").replace("a.u", f"a.u, {copy} AS late_fee")
    with federation(lambda u, v: np.random.default_rng(5).normal(size=len(u)), rows=1_000) as owner:
        result = owner.train(query, label="y", **options)
        plain = owner.train(query.replace(f"{copy} AS", "a.id AS"), label="y", **options)
    assert any("predicted well by" in note and "late_fee alone: is it the label" in note for note in result.notes)
    assert "under another name" not in str(plain)


def test_metrics_of_noisy_labels_are_called_estimates() -> None:
    with federation(lambda u, v: (linear(u, v) > 0).astype(int), rows=600) as owner:
        result = owner.train(QUERY, label="y", model="logistic", privacy={"label": {"epsilon": 1.0}})
        private = owner.train(
            "SELECT a.u, b.v FROM a JOIN b ON a.id = b.id", label="u", privacy={"label": NOISY_NUMBERS}
        )
    held = result.plan.mapping.test_rows
    off = 0.98 / np.tanh(0.5) / held**0.5
    assert (
        f"metrics are estimates, which may lie beyond their range; the accuracy of test rows may be off by {off:.2g}"
        in (str(result))
    )
    assert 0.0 <= result.metrics["test"]["auc"] <= 1.0
    assert "accuracy of" not in str(private)
    assert "metrics are estimates" in str(private)
    assert "under another name" not in str(result) + str(private)


def test_labels_at_zero_have_no_relative_error() -> None:
    with federation(lambda u, v: np.where(u > 0, linear(u, v), 0.0)) as owner:
        result = owner.train(QUERY, label="y")
    assert "mape" not in result.metrics["test"]
    with federation(lambda u, v: 10.0 + linear(u, v)) as owner:
        assert 0 < owner.train(QUERY, label="y").metrics["test"]["mape"] < 1


def test_trees_are_not_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with federation(linear) as owner:
        result = owner.train(QUERY, label="y", model="boosted", trees=30)
    assert len(result.history) != 30
    show_result(Screen(False), result)
    shown = capsys.readouterr().out
    assert "30" in shown
    assert " of " not in shown.split("What it took")[1]
    assert "epoch of the model" not in result.report(tmp_path / "trees.html").read_text()


@pytest.mark.parametrize("given", [{"epochs": 1}, {"epochs": 8, "learning_rate": 1e-5}])
def test_a_run_that_hardly_moves_has_not_converged(given: dict[str, Any]) -> None:
    with federation(linear) as owner:
        result = owner.train(QUERY, label="y", algorithm="sgd", **given)
    assert not result.converged


@pytest.mark.parametrize("given", [{"model": "quantile", "quantile": 0.9}, {"head": "factor"}])
def test_where_no_optimum_is_promised_a_change_that_nobody_sees_is_no_lack_of_convergence(
    given: dict[str, Any],
) -> None:
    with federation(noise, rows=1_000) as owner:
        query = QUERY.replace("a.u", "a.u, a.u * a.u AS w, a.u * a.u * a.u AS x")
        result = owner.train(query, label="y", **given)
    assert (result.converged, [note for note in result.notes if "did not converge" in note]) == (True, [])
