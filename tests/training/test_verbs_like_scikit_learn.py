"""Importance, curves, baselines, folds and the report hold scikit-learn's figures on the pooled test rows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.inspection import partial_dependence
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import PredefinedSplit, cross_val_score

import tablepuppet as tp

RNG = np.random.default_rng(4)
ORDERS = pd.DataFrame(
    {"number": range(360), "user": (30 * RNG.random(360) ** 2).astype(int), "x": RNG.normal(size=360)}
)
USERS = pd.DataFrame({"user": range(30), "age": RNG.normal(size=30), "income": RNG.normal(size=30)})
SCORE = ORDERS["x"] + USERS["age"].to_numpy()[ORDERS["user"]] + RNG.normal(size=360)
ORDERS["late"] = (SCORE > 0.4).astype(int)
ORDERS["price"] = 3.0 * SCORE + 7.0
ORDERS["visits"] = RNG.poisson(np.exp(SCORE / 3))
ORDERS["fold"] = RNG.integers(0, 4, 360)
IS_TEST = ORDERS["number"].to_numpy() % 3 == 0
POOLED = ORDERS.merge(USERS, on="user", how="left").sort_values("number")
FEATURES = {"o.x": POOLED["x"], "u.age": POOLED["age"], "u.income": POOLED["income"]}
TEST = pd.DataFrame({name: column[IS_TEST].to_numpy() for name, column in FEATURES.items()})
LOSS: dict[str, Any] = {
    "late": lambda model, rows: sk.log_loss(ORDERS["late"][IS_TEST], model.predict_proba(rows)),
    "price": lambda model, rows: sk.mean_squared_error(ORDERS["price"][IS_TEST], model.predict(rows)),
    "visits": lambda model, rows: sk.mean_poisson_deviance(ORDERS["visits"][IS_TEST], model.predict(rows)),
}
MODELS = {"late": "logistic", "price": "linear", "visits": "poisson"}


@pytest.fixture(scope="module")
def federation() -> Iterator[tp.Federation]:
    with tp.Federation({"orders": ORDERS, "users": USERS}) as found:
        yield found


def train(federation: tp.Federation, label: str, **options: Any) -> tp.Result:
    query = f"SELECT o.x, u.age, u.income, o.{label} FROM orders o JOIN users u ON o.user = u.user"
    return federation.train(query, label=label, test_where="o.number % 3 = 0", **options)


def check_rises(found: pd.Series, loss: Any, names: list[str]) -> None:
    """The mean rise of the loss, and its spread, where the columns are shuffled in joined rows; orders differ."""
    random, rises = np.random.default_rng(0), []
    for _ in range(16):
        order = random.permutation(len(TEST))
        rises.append(loss(TEST.assign(**{name: TEST[name].to_numpy()[order] for name in names})) - loss(TEST))
    assert found["importance"] == pytest.approx(np.mean(rises), abs=4 * np.std(rises) / 8**0.5)
    assert found["std"] == pytest.approx(np.std(rises), rel=0.6)


@pytest.mark.parametrize("label", MODELS)
def test_what_is_shuffled_costs_what_it_costs_in_the_pooled_test_rows(federation: tp.Federation, label: str) -> None:
    result = train(federation, label, model=MODELS[label])
    model = result.model.to_sklearn()
    tables = federation.importance(result, by="table", repeats=16).set_index("table")
    check_rises(tables.loc["orders"], lambda rows: LOSS[label](model, rows), ["o.x"])
    check_rises(tables.loc["users"], lambda rows: LOSS[label](model, rows), ["u.age", "u.income"])
    features = federation.importance(result, repeats=16).set_index("feature")
    check_rises(features.loc["o.x"], lambda rows: LOSS[label](model, rows), ["o.x"])


def test_features_of_trees_are_shuffled_in_joined_rows(federation: tp.Federation, tmp_path: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    result = train(federation, "price", model="boosted", trees=8)
    names = list(result.model.save_lightgbm(tmp_path / "trees.txt"))
    booster = lightgbm.Booster(model_file=str(tmp_path / "trees.txt"))

    def loss(rows: pd.DataFrame) -> float:
        return float(sk.mean_squared_error(ORDERS["price"][IS_TEST], booster.predict(rows[names].to_numpy())))

    found = federation.importance(result, repeats=16).set_index("feature")
    for name in ("o.x", "u.age"):
        check_rises(found.loc[name], loss, [name])
    tables = federation.importance(result, by="table", repeats=16).set_index("table")
    check_rises(tables.loc["users"], loss, ["u.age", "u.income"])


@pytest.mark.parametrize("label", MODELS)
def test_partial_dependence_is_that_of_the_pooled_test_rows(federation: tp.Federation, label: str) -> None:
    result = train(federation, label, model=MODELS[label])
    expected = partial_dependence(
        result.model.to_sklearn(), TEST, ["u.age"], grid_resolution=4, method="brute", response_method="auto"
    )
    found = federation.partial_dependence(result, feature="u.age", values=expected["grid_values"][0])
    np.testing.assert_allclose(found.iloc[:, 1], expected["average"][0], rtol=1e-9)


def test_curves_and_report_of_two_classes_are_scikit_learns(federation: tp.Federation) -> None:
    result = train(federation, "late", model="logistic")
    y, p = ORDERS["late"][IS_TEST], result.model.to_sklearn().predict_proba(TEST)[:, 1]
    curves = result.curves["test"]
    false, true, _ = sk.roc_curve(y, p, drop_intermediate=False)
    found = curves.roc()[::-1]
    np.testing.assert_allclose(found[["false_positive_rate", "true_positive_rate"]], np.stack([false, true], 1)[1:])
    precision, recall, _ = sk.precision_recall_curve(y, p)
    np.testing.assert_allclose(
        curves.precision_recall()[["precision", "recall"]], np.stack([precision, recall], 1)[:-1]
    )
    kept = json.loads(result.to_json())  # which the report draws
    drawn = kept["curves"]["test"]
    points = set(zip(precision.round(9), recall.round(9), strict=True))
    drawn_points = zip(*(np.round(drawn["precision_recall"][name], 9) for name in ("precision", "recall")), strict=True)
    assert points.issuperset(drawn_points)
    np.testing.assert_array_equal(drawn["confusion"], sk.confusion_matrix(y, p >= 0.5))
    observed, predicted = calibration_curve(y, p, n_bins=10)
    np.testing.assert_allclose(drawn["calibration"]["predicted"], predicted)
    np.testing.assert_allclose(drawn["calibration"]["observed"], observed)
    alone = DummyClassifier(strategy="prior").fit(TEST, ORDERS["late"][~IS_TEST][: len(TEST)])
    alone.class_prior_ = np.bincount(ORDERS["late"][~IS_TEST]) / (~IS_TEST).sum()
    expected = {
        "accuracy": sk.accuracy_score(y, alone.predict(TEST)),
        "log_loss": sk.log_loss(y, alone.predict_proba(TEST)),
    }
    assert {name: kept["baseline"][name] for name in expected} == pytest.approx(expected, rel=1e-9)


def test_residuals_and_baseline_of_a_number_are_those_of_the_pooled_test_rows(federation: tp.Federation) -> None:
    result = train(federation, "price", model="linear")
    y, guess = ORDERS["price"][IS_TEST].to_numpy(), result.model.to_sklearn().predict(TEST)
    for frame, values in (
        (result.curves["test"].residuals().set_index("residual")["rows"], y - guess),
        (result.curves["test"].predicted_actual().sum(axis=0), guess),
        (result.curves["test"].predicted_actual().sum(axis=1), y),
    ):
        centres = frame.index.to_numpy()
        half = (centres[1] - centres[0]) / 2
        borders = np.append(centres - half, centres[-1] + half)
        counts, _ = np.histogram(np.clip(values, borders[0], borders[-1]), borders)
        np.testing.assert_array_equal(frame, counts)
    alone = DummyRegressor().fit(TEST, ORDERS["price"][IS_TEST])
    alone.constant_[:] = ORDERS["price"][~IS_TEST].mean()
    expected = {"rmse": sk.root_mean_squared_error(y, alone.predict(TEST)), "r2": sk.r2_score(y, alone.predict(TEST))}
    assert {name: result.baseline[name] for name in expected} == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_folds_measure_what_cross_val_score_does(federation: tp.Federation) -> None:
    query = "SELECT o.x, u.age, u.income, o.price FROM orders o JOIN users u ON o.user = u.user"
    found = tp.cross_validate(federation, query, label="price", group="o.fold", folds=4, l2=0.0)
    rows, split = pd.DataFrame({n: c.to_numpy() for n, c in FEATURES.items()}), PredefinedSplit(ORDERS["fold"])
    expected = -cross_val_score(
        LinearRegression(), rows, ORDERS["price"], cv=split, scoring="neg_root_mean_squared_error"
    )
    assert sorted(found.folds["rmse"]) == pytest.approx(sorted(expected), rel=1e-9)
