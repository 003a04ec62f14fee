"""Cross-validation and search: every fold's figures are those of a model that was trained without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.stats import loguniform
from sklearn import metrics as sk
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score

import tablepuppet as tp
from tablepuppet.api.search import drawn_settings
from tablepuppet.owner.split import Split, fold_numbers
from tablepuppet.protocol.columns import ColumnInfo

ROWS, USERS, FOLDS = 1000, 50, 4
QUERY = "SELECT o.x0, o.x1, u.age, u.city, o.{label} FROM orders o JOIN users u ON o.user_id = u.user_id"


@pytest.fixture(scope="module")
def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(5)
    users = pd.DataFrame({"user_id": np.arange(USERS), "age": rng.normal(size=USERS)})
    users["city"] = rng.choice(list("abcd"), USERS)
    orders = pd.DataFrame({"x0": rng.normal(size=ROWS), "x1": rng.normal(size=ROWS), "day": rng.permutation(ROWS)})
    orders["user_id"] = rng.integers(0, USERS, ROWS)
    orders["price"] = orders.x0 + 0.5 * users["age"].to_numpy()[orders["user_id"]] + rng.normal(size=ROWS)
    orders["late"] = (orders["price"] > 0).astype(int)
    orders["w"] = rng.uniform(0.5, 2.0, ROWS)
    return orders, users


@pytest.fixture(scope="module", params=["one owner each", "several owners of users"])
def federation(request: pytest.FixtureRequest, tables: tuple[pd.DataFrame, pd.DataFrame]) -> Iterator[tp.Federation]:
    orders, users = tables
    cut = [users[:15], users[15:30], users[30:]] if request.param != "one owner each" else users
    with tp.Federation({"orders": orders, "users": cut}) as found:
        yield found


def encoded(tables: tuple[pd.DataFrame, pd.DataFrame]) -> Any:
    orders, users = tables
    joined = users.set_index("user_id").loc[orders["user_id"]]
    numbers = np.column_stack([orders[["x0", "x1"]], joined["age"]])
    numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    return np.column_stack([numbers, pd.get_dummies(joined["city"]).to_numpy(float)])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("algorithm", ["newton", "admm", "elastic"])
def test_folds_by_time_are_those_of_ridge_on_the_rows_before(
    federation: tp.Federation, tables: tuple[pd.DataFrame, pd.DataFrame], algorithm: str
) -> None:
    x, y = encoded(tables), tables[0]["price"].to_numpy()
    given: dict[str, Any] = {"label": "price", "algorithm": algorithm, "epochs": 100, "folds": FOLDS, "time": "day"}
    found = tp.search(federation, QUERY.format(label="price"), {"l2": [1e-3, 0.1]}, **given)
    chunk = tables[0]["day"].to_numpy() * (FOLDS + 1) // ROWS
    for fit in found.fits:
        train, test = chunk <= fit.fold, chunk == fit.fold + 1
        assert (fit.train_rows, fit.test_rows) == (train.sum(), test.sum())
        best = Ridge(alpha=found.settings[fit.setting]["l2"] * train.sum()).fit(x[train], y[train])
        expected = sk.root_mean_squared_error(y[test], best.predict(x[test]))
        assert fit.metrics["rmse"] == pytest.approx(expected, rel=1e-5)
        assert fit.metrics["r2"] == pytest.approx(sk.r2_score(y[test], best.predict(x[test])), abs=1e-4)


def test_many_penalties_at_once_are_those_of_ridge_one_by_one(
    federation: tp.Federation, tables: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    """More than go into one message, one of them by table; rows have weights."""
    x, y, w = encoded(tables), tables[0]["price"].to_numpy(), tables[0]["w"].to_numpy()
    penalties: list[Any] = [0.0, *np.logspace(-8, 1, 9), {"orders": 1e-3, "users": 0.3}]
    given: dict[str, Any] = {"label": "price", "weight": "w", "folds": 3, "time": "day"}
    found = tp.search(federation, QUERY.format(label="price"), {"l2": penalties}, **given)
    assert {fit.setting for fit in found.fits} == set(range(len(penalties)))
    chunk = tables[0]["day"].to_numpy() * 4 // ROWS
    for fit in found.fits:
        train, test = chunk <= fit.fold, chunk == fit.fold + 1
        l2 = found.settings[fit.setting]["l2"]
        scale = np.array([1.0] * 2 + [np.sqrt(l2["orders"] / l2["users"])] * 5 if isinstance(l2, dict) else [1.0] * 7)
        alpha = max(l2["orders"] if isinstance(l2, dict) else l2, 1e-12) * w[train].sum()  # 0: one column too many
        best = Ridge(alpha=alpha, solver="svd").fit(x[train] * scale, y[train], sample_weight=w[train])
        expected = sk.root_mean_squared_error(y[test], best.predict(x[test] * scale))
        assert fit.metrics["rmse"] == pytest.approx(expected, rel=1e-6)


def test_directions_of_one_fold_serve_the_next(federation: tp.Federation) -> None:
    found = tp.search(federation, QUERY.format(label="price"), {"l2": [1e-4, 1e-2, 1.0]}, label="price", folds=4)
    rounds = [{fit.epochs for fit in found.fits if fit.fold == fold} for fold in range(4)]
    assert all(len(of_fold) == 1 for of_fold in rounds)  # all settings of a fold at once
    assert max(rounds[3]) < max(rounds[0])
    apart = tp.cross_validate(federation, QUERY.format(label="price"), l2=1e-2, label="price", folds=4)
    assert found.traffic.rounds < 2 * apart.traffic.rounds


def test_folds_of_a_classifier_with_weights(
    federation: tp.Federation, tables: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    x, y, w = encoded(tables), tables[0]["late"].to_numpy(), tables[0]["w"].to_numpy()
    found = tp.cross_validate(
        federation, QUERY.format(label="late"), label="late", weight="w", l2=1e-2, folds=FOLDS, time="day"
    )
    chunk = tables[0]["day"].to_numpy() * (FOLDS + 1) // ROWS
    for fit in found.fits:
        train, test = chunk <= fit.fold, chunk == fit.fold + 1
        best = LogisticRegression(C=1 / (1e-2 * w[train].sum()), tol=1e-9, max_iter=1000)
        best.fit(x[train], y[train], sample_weight=w[train])
        p = best.predict_proba(x[test])[:, 1]
        assert fit.metrics["log_loss"] == pytest.approx(sk.log_loss(y[test], p), rel=1e-5)
        assert fit.metrics["auc"] == pytest.approx(sk.roc_auc_score(y[test], p), abs=1e-4)


def test_a_table_has_mean_and_spread_and_the_best_first(federation: tp.Federation) -> None:
    found = tp.search(federation, QUERY.format(label="price"), {"l2": [10.0, 1e-4, 0.1]}, label="price", folds=3)
    assert found.best == {"l2": 1e-4}
    assert found.table["l2"].tolist() == [1e-4, 0.1, 10.0]
    assert found.table["rank"].tolist() == [1, 2, 3]
    own = found.folds.loc[found.folds["l2"] == 0.1, "rmse"]
    row = found.table.loc[found.table["l2"] == 0.1].iloc[0]
    assert (row["rmse"], row["rmse_std"]) == (pytest.approx(own.mean()), pytest.approx(own.std(ddof=0)))
    assert found.folds.groupby("l2")["rows"].sum().tolist() == [ROWS] * 3
    assert found.by("r2").best == {"l2": 1e-4}
    assert "3 settings on 3 folds" in repr(found)
    with pytest.raises(tp.TablePuppetError, match="metric must be one of"):
        found.by("auc")


def test_where_a_model_begins_changes_nothing(federation: tp.Federation) -> None:
    given: dict[str, Any] = {"label": "late", "folds": 3}
    together = tp.search(federation, QUERY.format(label="late"), {"l2": [1.0, 1e-3]}, **given)
    apart = tp.cross_validate(federation, QUERY.format(label="late"), l2=1e-3, **given)
    for one, other in zip([f for f in together.fits if f.setting == 1], apart.fits, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-4, abs=1e-4)


@pytest.mark.one_in(2)
def test_networks_are_trained_anew_in_every_fold(federation: tp.Federation) -> None:
    pytest.importorskip("torch")
    given: dict[str, Any] = {"label": "price", "model": "mlp", "algorithm": "sgd", "epochs": 2, "folds": 2}
    found = tp.search(federation, QUERY.format(label="price"), {"hidden": [(4,), (8,)]}, **given)
    apart = tp.cross_validate(federation, QUERY.format(label="price"), hidden=(8,), **given)
    for one, other in zip([f for f in found.fits if f.setting == 1], apart.fits, strict=True):
        assert one.metrics == other.metrics


@pytest.mark.one_in(2)
def test_boosted_trees_are_trained_apart_on_the_same_rows(federation: tp.Federation) -> None:
    given: dict[str, Any] = {"label": "price", "model": "boosted", "folds": 3}
    found = tp.search(federation, QUERY.format(label="price"), {"trees": [1, 12], "depth": [3]}, **given)
    assert found.best == {"trees": 12, "depth": 3}
    assert found.folds.groupby("fold")["rows"].nunique().tolist() == [1, 1, 1]
    assert abs(found.folds["rows"].mean() - ROWS / 3) < 60
    alone = federation.train(
        QUERY.format(label="price"), label="price", model="boosted", trees=12, depth=3, seed=1, test_fraction=1 / 3
    )
    fit = next(f for f in found.fits if (f.setting, f.fold) == (1, 1))
    assert fit.metrics["rmse"] == alone.metrics["test"]["rmse"]
    assert fit.metrics["loss"] == pytest.approx(0.5 * fit.metrics["rmse"] ** 2)
    assert found.traffic.rounds > alone.traffic.rounds


def test_groups_stay_in_one_fold_and_rows_are_shared_evenly() -> None:
    sides = Split(0, 3, 0.0)
    column = pa.chunked_array([pa.array(np.arange(5000) % 97)])
    folds = fold_numbers(5000, sides, 4, "group", (column, ColumnInfo("g", "integer")), None)
    by_group = pd.Series(folds).groupby(np.arange(5000) % 97).nunique()
    assert (by_group == 1).all()
    assert set(folds) == {0, 1, 2, 3}
    few = pa.chunked_array([[1] * 40 + [2] * 30 + [3] * 30 + [None] * 20])
    dealt = fold_numbers(120, sides, 4, "group", (few, ColumnInfo("g", "integer")), None, is_alone=True)
    assert sorted(np.bincount(dealt)) == [20, 30, 30, 40]  # as many groups as folds are enough
    rows = fold_numbers(50_000, sides, 5, "row", None, None)
    assert np.bincount(rows).min() > 9_500
    moved = fold_numbers(49_000, Split(1000, 3, 0.0), 5, "row", None, None)
    np.testing.assert_array_equal(rows[1000:], moved)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"folds": 1}, "folds must be a whole number from 2 to"),
        ({"group": "day", "time": "day"}, "by group or by time"),
        ({"model": "boosted", "group": "day"}, "held out by chance"),
        ({"patience": 2, "validation_fraction": 0.2}, "takes no patience"),
        ({"algorithm": "centralized"}, "shares one mapping among its models"),
        ({"time": "nothing"}, "nothing"),
    ],
)
def test_what_cannot_be_searched_is_refused(federation: tp.Federation, given: dict[str, Any], message: str) -> None:
    with pytest.raises(tp.TablePuppetError, match=message):
        tp.cross_validate(federation, QUERY.format(label="price"), **{"label": "price", **given})


def test_a_setting_that_changes_the_rows_is_refused(federation: tp.Federation) -> None:
    with pytest.raises(tp.TablePuppetError, match="standardize changes more than that"):
        tp.search(federation, QUERY.format(label="price"), {"standardize": [True, False]}, label="price")


def test_penalties_with_and_without_kinks_are_compared_by_one_algorithm(federation: tp.Federation) -> None:
    query = QUERY.format(label="price")
    given: dict[str, Any] = {"label": "price", "folds": 2}
    found = tp.search(federation, query, {"l1": [0, 0.3], "l2": [1e-3]}, **given).table.set_index("l1")
    plain = tp.cross_validate(federation, query, l2=1e-3, **given).table
    assert found.loc[0, "loss"] == pytest.approx(plain.loc[0, "loss"], rel=1e-6)
    assert found.loc[0.3, "loss"] > found.loc[0, "loss"]


@pytest.mark.parametrize(
    ("grid", "given", "message"),
    [
        ("l2", {}, "grid must be a dict"),
        (["l2"], {}, "values by option"),
        ({"l2": []}, {}, "l2 has none"),
        ({"l2": 0.1}, {"samples": 2}, "l2 has none"),
        ({"l2": [0.1]}, {"samples": 0}, "samples must be"),
        ({"l2": [0.1]}, {"folds": 2.5}, "folds must be"),
        ({"algorithm": ["newton", "admm"]}, {}, "run one search for each"),
    ],
)
def test_a_grid_that_says_nothing_is_refused(
    federation: tp.Federation, grid: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(tp.TablePuppetError, match=message):
        tp.search(federation, QUERY.format(label="price"), grid, label="price", **given)


def test_settings_are_drawn_from_lists_and_distributions() -> None:
    found = drawn_settings({"l2": loguniform(1e-4, 1.0), "memory": [4, 8]}, 20, 1)
    assert len({setting["l2"] for setting in found}) == 20
    assert {setting["memory"] for setting in found} == {4, 8}
    assert found == drawn_settings({"l2": loguniform(1e-4, 1.0), "memory": [4, 8]}, 20, 1)
    with pytest.raises(tp.TablePuppetError, match="samples=20 draws from it"):
        drawn_settings({"l2": loguniform(1e-4, 1.0)}, None, 0)


def test_scikit_learns_own_search_names_ours(federation: tp.Federation) -> None:
    with pytest.raises(tp.TablePuppetError, match=r"tp\.cross_validate"):
        cross_val_score(tp.RelationalRegressor(), federation)
    with pytest.raises(tp.TablePuppetError, match=r"tp\.search"):
        GridSearchCV(tp.RelationalRegressor(), {"l2": [1.0]}).fit(federation, QUERY.format(label="price"))
