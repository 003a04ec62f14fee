"""Every metric, curve and matrix of a result is what scikit-learn says of the same predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

import tablepuppet as tp
from tablepuppet.models.metrics import Spread
from tablepuppet.report.record import read_record, to_json
from tablepuppet.report.recording import record_of

EXACT = 1e-9


@pytest.fixture(scope="module")
def orders() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"number": np.arange(900), "user": rng.integers(0, 60, 900), "x": rng.normal(size=900)})
    score = frame.x + np.sin(frame.user) + rng.normal(size=900)
    frame["late"] = (score > 0.5).astype(int)
    frame["grade"] = np.array(["a", "b", "c", "d"])[np.digitize(score, [-1.5, -0.3, 1.0])]
    frame["price"] = score + 7.0
    frame["moment"] = score + 1.7e9  # seconds since 1970
    frame["seldom"] = (rng.random(900) < 0.02).astype(int)
    frame["visits"] = rng.poisson(np.exp(score / 2))
    return frame


@pytest.fixture(scope="module")
def federation(orders: pd.DataFrame) -> Iterator[tp.Federation]:
    users = pd.DataFrame({"user": np.arange(60), "age": np.sin(np.arange(60))})
    with tp.Federation({"orders": [orders[:500], orders[500:]], "users": users}) as found:
        yield found


def query(label: str) -> str:
    return f"SELECT o.x, u.age, o.{label} FROM orders o JOIN users u ON o.user = u.user"


def trained(
    federation: tp.Federation, orders: pd.DataFrame, label: str, **options: Any
) -> tuple[tp.Result, pd.DataFrame]:
    """A result over all rows, and its predictions in their order."""
    result = federation.train(query(label), label=label, test_fraction=0.0, **options)
    return result, federation.predict(result, key="number").to_pandas().sort_values("number")


UNSEEN: dict[str, tuple[str, Callable[[Any, Any], dict[str, float]]]] = {
    "late": (
        "auto",
        lambda y, found: {
            "accuracy": sk.accuracy_score(y, found["prediction"]),
            "log_loss": sk.log_loss(y, found["probability"]),
            "auc": sk.roc_auc_score(y, found["probability"]),
            "f1": sk.f1_score(y, found["prediction"]),
        },
    ),
    "grade": (
        "softmax",
        lambda y, found: {
            "accuracy": sk.accuracy_score(y, found["prediction"]),
            "log_loss": sk.log_loss(y, found[[f"probability_{c}" for c in "abcd"]]),
            "f1": sk.f1_score(y, found["prediction"], average="macro"),
        },
    ),
    "price": ("linear", lambda y, found: {"rmse": sk.root_mean_squared_error(y, found["prediction"])}),
    "visits": ("poisson", lambda y, found: {"deviance": sk.mean_poisson_deviance(y, found["prediction"])}),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("label", UNSEEN)
def test_every_verb_measures_the_rows_that_no_model_was_trained_on(
    federation: tp.Federation, orders: pd.DataFrame, label: str
) -> None:
    model, measure = UNSEEN[label]
    result = federation.train(query(label), label=label, model=model, test_where="o.number % 4 = 0")
    found = federation.predict(result, key="number").to_pandas().sort_values("number")
    is_test = orders["number"].to_numpy() % 4 == 0
    expected = measure(orders[label][is_test], found[is_test])
    compared = federation.compare(result, result)
    for measured in (result.metrics["test"], federation.evaluate(result), compared.first, compared.second):
        assert {name: measured[name] for name in expected} == pytest.approx(expected, rel=EXACT)
    if label in ("late", "grade"):
        matrix = result.curves["test"].confusion_matrix().to_numpy()
        np.testing.assert_array_equal(matrix, sk.confusion_matrix(orders[label][is_test], found["prediction"][is_test]))


@pytest.mark.parametrize("model", ["logistic", "boosted", "mlp"])
def test_metrics_of_two_classes_are_scikit_learns(federation: tp.Federation, orders: pd.DataFrame, model: str) -> None:
    options: dict[str, Any] = (
        {"trees": 10} if model == "boosted" else {"algorithm": "sgd", "epochs": 2} if model == "mlp" else {}
    )
    result, found = trained(federation, orders, "late", model=model, **options)
    y, guess, p = orders["late"], found["prediction"], found["probability"]
    expected = {
        "accuracy": sk.accuracy_score(y, guess),
        "log_loss": sk.log_loss(y, p),
        "auc": sk.roc_auc_score(y, p),
        "precision": sk.precision_score(y, guess),
        "recall": sk.recall_score(y, guess),
        "f1": sk.f1_score(y, guess),
        "pr_auc": sk.average_precision_score(y, p),
    }
    assert result.metrics["train"] == pytest.approx(expected, rel=EXACT, abs=EXACT)
    assert federation.evaluate(result, rows="all") == pytest.approx(expected, rel=EXACT, abs=EXACT)
    curves = result.curves["train"]
    np.testing.assert_array_equal(curves.confusion_matrix().to_numpy(), sk.confusion_matrix(y, guess))
    observed, predicted = calibration_curve(y, p, n_bins=20)
    np.testing.assert_allclose(
        curves.calibration_curve(20)[["predicted", "observed"]], np.stack([predicted, observed], 1)
    )


def test_metrics_of_several_classes_are_scikit_learns(federation: tp.Federation, orders: pd.DataFrame) -> None:
    result, found = trained(federation, orders, "grade", model="softmax")
    y, guess = orders["grade"], found["prediction"]
    probabilities = found[[f"probability_{c}" for c in "abcd"]].to_numpy()
    expected = {
        "accuracy": sk.accuracy_score(y, guess),
        "log_loss": sk.log_loss(y, probabilities),
        "auc": sk.roc_auc_score(y, probabilities, multi_class="ovr"),
        "precision": sk.precision_score(y, guess, average="macro", zero_division=0),
        "recall": sk.recall_score(y, guess, average="macro"),
        "f1": sk.f1_score(y, guess, average="macro"),
    }
    assert result.metrics["train"] == pytest.approx(expected, rel=EXACT, abs=EXACT)
    assert federation.evaluate(result, rows="all") == pytest.approx(expected, rel=EXACT, abs=EXACT)
    matrix = result.curves["train"].confusion_matrix()
    assert list(matrix.columns) == list(matrix.index) == ["a", "b", "c", "d"]
    np.testing.assert_array_equal(matrix.to_numpy(), sk.confusion_matrix(y, guess))
    with pytest.raises(tp.TablePuppetError, match="two classes"):
        result.threshold()


@pytest.mark.parametrize(
    ("label", "model"), [("price", "linear"), ("moment", "linear"), ("price", "quantile"), ("visits", "poisson")]
)
def test_metrics_of_numbers_are_scikit_learns(
    federation: tp.Federation, orders: pd.DataFrame, label: str, model: str
) -> None:
    options: dict[str, Any] = {"algorithm": "admm", "quantile": 0.7, "epochs": 20} if model == "quantile" else {}
    result, found = trained(federation, orders, label, model=model, **options)
    y, guess = orders[label], found["prediction"]
    expected = {
        "rmse": sk.root_mean_squared_error(y, guess),
        "mae": sk.mean_absolute_error(y, guess),
        "r2": sk.r2_score(y, guess),
        **({} if model == "poisson" else {"mape": sk.mean_absolute_percentage_error(y, guess)}),
        **({"deviance": sk.mean_poisson_deviance(y, guess)} if model == "poisson" else {}),
        **({"pinball": sk.mean_pinball_loss(y, guess, alpha=0.7)} if model == "quantile" else {}),
        **({"coverage": (y <= guess).mean()} if model == "quantile" else {}),
    }
    assert result.metrics["train"] == pytest.approx(expected, rel=EXACT, abs=EXACT)
    assert federation.evaluate(result, rows="all") == pytest.approx(expected, rel=EXACT, abs=EXACT)
    assert set(result.curves) == {"train"}


def test_a_threshold_is_the_best_there_is_and_predictions_follow_it(
    federation: tp.Federation, orders: pd.DataFrame
) -> None:
    result, found = trained(federation, orders, "late")
    y, p = orders["late"].to_numpy(), found["probability"].to_numpy()
    tried = np.unique(p)
    false, true, _ = sk.roc_curve(y, p, drop_intermediate=False)  # shares of rows at every threshold there is
    precise, recalled, _ = sk.precision_recall_curve(y, p)
    best = {
        "f1": (sk.f1_score, 2 * precise * recalled / np.maximum(precise + recalled, 1e-300)),
        "accuracy": (sk.accuracy_score, true * y.mean() + (1 - false) * (1 - y.mean())),
        "youden": (sk.balanced_accuracy_score, (true + 1 - false) / 2),
    }
    for name, (score, reached) in best.items():
        assert score(y, p >= result.threshold(name)) == pytest.approx(reached.max(), rel=1e-12)
    chosen = result.threshold(costs=(1.0, 5.0))
    cost = [((p >= t) & (y == 0)).sum() + 5 * ((p < t) & (y == 1)).sum() for t in tried]
    assert ((p >= chosen) & (y == 0)).sum() + 5 * ((p < chosen) & (y == 1)).sum() == min(cost)
    assert sk.precision_score(y, p >= result.threshold(precision=0.9)) >= 0.9
    assert sk.recall_score(y, p >= result.threshold(recall=0.95)) >= 0.95
    again = federation.predict(result, key="number", threshold=chosen).to_pandas().sort_values("number")
    np.testing.assert_array_equal(again["prediction"], p >= chosen)
    curves = result.curves["train"]
    np.testing.assert_array_equal(curves.confusion_matrix(chosen).to_numpy(), sk.confusion_matrix(y, p >= chosen))
    with pytest.raises(tp.TablePuppetError, match="no threshold reaches precision"):
        curves.threshold(precision=1.1)
    with pytest.raises(tp.TablePuppetError, match="from 0 to 1"):
        federation.predict(result, threshold=7.0)


def test_a_threshold_of_1_says_that_no_row_is_worth_it(federation: tp.Federation, orders: pd.DataFrame) -> None:
    result, found = trained(federation, orders, "seldom")
    y, p = orders["seldom"].to_numpy(), found["probability"].to_numpy()
    assert sk.accuracy_score(y, p >= result.threshold("accuracy")) == max(
        sk.accuracy_score(y, p >= t) for t in [*np.unique(p), 1.0]
    )
    assert result.threshold(costs=(50.0, 1.0)) == 1.0
    matrix = result.curves["train"].confusion_matrix(1.0).to_numpy()
    np.testing.assert_array_equal(matrix, sk.confusion_matrix(y, np.zeros(900, int)))
    for wrong, message in (
        ({"recall": 2.0}, "no threshold reaches recall"),
        ({"costs": (1.0, -1.0)}, "costs are two numbers"),
        ({"recall": 0.5, "precision": 0.5}, "give one of"),
    ):
        with pytest.raises(tp.TablePuppetError, match=message):
            result.threshold(**wrong)


def test_spreads_add_up_however_rows_are_cut() -> None:
    labels = np.random.default_rng(0).normal(1e9, 1.0, 1000)
    parts = [Spread.of(part) for part in np.split(labels, [3, 3, 4, 700])]
    found = sum(parts, Spread.of(labels[:0]))
    assert found.squares == pytest.approx(np.var(labels - 1e9) * 1000, rel=1e-12)


def test_a_threshold_is_chosen_on_validation_rows_where_there_are_any(federation: tp.Federation) -> None:
    result = federation.train(query("late"), label="late", validation_fraction=0.2)
    assert result.threshold() == result.curves["validation"].threshold()
    assert set(result.curves) == {"train", "validation", "test"}


def test_noisy_labels_leave_out_what_they_cannot_say(federation: tp.Federation) -> None:
    result = federation.train(query("late"), label="late", model="logistic", privacy={"label": {"epsilon": 3.0}})
    assert set(result.metrics["train"]) == {"accuracy", "log_loss", "auc"}
    assert not result.curves


def test_the_report_draws_what_a_classifier_predicts(federation: tp.Federation, tmp_path: Path) -> None:
    result = federation.train(query("late"), label="late")
    page = result.report(tmp_path / "report.html").read_text()
    assert "What it predicts" in page
    assert "Calibration" in page
    (tmp_path / "run.json").write_text(result.to_json())
    record = read_record(tmp_path / "run.json")
    assert record.curves["test"].confusion == result.curves["test"].confusion.tolist()
    assert to_json(record) == to_json(record_of(result)).replace(record_of(result).created, record.created)
    number = federation.train(query("price"), label="price")
    assert "Residuals" in number.report(tmp_path / "number.html").read_text()
