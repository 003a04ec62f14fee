"""Again and again: training begins with an earlier model, models are compared, drift is seen, features are shuffled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from sklearn.linear_model import Lasso

import tablepuppet as tp
from tablepuppet.owner.policy import Policy

ROWS, USERS = 2_000, 80
QUERY = "SELECT o.x, u.age, u.city, o.{label} FROM orders o JOIN users u ON o.user_id = u.user_id"


def _tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(3)
    users = pd.DataFrame({"user_id": np.arange(USERS), "age": rng.normal(40, 9, USERS)})
    users["city"] = rng.choice(list("abc"), USERS)
    orders = pd.DataFrame({"user_id": rng.integers(0, USERS, ROWS), "x": rng.normal(3, 2, ROWS)})
    age = users["age"].to_numpy()[orders["user_id"]]
    orders["price"] = 0.5 * orders.x + 0.1 * age + rng.normal(size=ROWS)
    orders["late"] = (orders["price"] > orders["price"].median()).astype(int)
    return orders, users


ORDERS, PEOPLE = _tables()


@pytest.fixture(scope="module")
def before() -> Any:
    with tp.Federation({"orders": ORDERS[:1_500], "users": PEOPLE}) as found:
        yield found


@pytest.fixture(scope="module")
def after() -> Any:
    """More rows, a new city, users with three owners, and older."""
    people = PEOPLE.assign(age=PEOPLE["age"] + 9, city=PEOPLE["city"].where(PEOPLE["user_id"] < 70, "new"))
    with tp.Federation({"orders": ORDERS, "users": [people[:20], people[20:50], people[50:70], people[70:]]}) as found:
        yield found


@pytest.mark.parametrize(("label", "given"), [("price", {}), ("late", {}), ("price", {"l1": 1e-3})])
def test_training_that_begins_with_a_model_ends_where_it_would_have(
    before: tp.Federation, after: tp.Federation, label: str, given: dict[str, Any]
) -> None:
    old = before.train(QUERY.format(label=label), label=label, **given)
    again = before.train(QUERY.format(label=label), label=label, warm_start=old, **given)
    assert again.objective == pytest.approx(old.objective, rel=1e-9)
    assert len(again.history) < len(old.history)
    assert again.history[0].objective == pytest.approx(old.objective, rel=1e-6)
    cold = after.train(QUERY.format(label=label), label=label, **given)
    warm = after.train(QUERY.format(label=label), label=label, warm_start=old, **given)
    assert warm.objective == pytest.approx(cold.objective, rel=1e-8)
    assert warm.history[0].objective <= cold.history[0].objective


def test_a_model_that_cannot_be_begun_with_is_refused(before: tp.Federation) -> None:
    old = before.train(QUERY.format(label="price"), label="price")
    others: tuple[dict[str, Any], ...] = ({"algorithm": "sgd"}, {"model": "mlp"}, {"head": "factor"})
    for given in others:
        pytest.importorskip("torch") if given.get("model") else None
        with pytest.raises(tp.TablePuppetError, match="weights that another begins with"):
            before.train(QUERY.format(label="price"), label="price", warm_start=old, **given)
    held = before.train(QUERY.format(label="price"), label="price", release=False)
    with pytest.raises(tp.TablePuppetError, match="stay with their owners"):
        before.train(QUERY.format(label="price"), label="price", warm_start=held)
    with pytest.raises(tp.TablePuppetError, match="it belongs to train"):
        tp.cross_validate(before, QUERY.format(label="price"), label="price", warm_start=old)


def test_an_owner_that_lets_no_model_be_applied_lets_none_be_begun_with(before: tp.Federation) -> None:
    old = before.train(QUERY.format(label="price"), label="price")
    shut = {"users": Policy(predictions=False)}
    with tp.Federation({"orders": ORDERS, "users": PEOPLE}, policies=shut) as found:
        found.train(QUERY.format(label="price"), label="price")
        with pytest.raises(tp.TablePuppetError, match="predictions"):
            found.train(QUERY.format(label="price"), label="price", warm_start=old)


def test_two_models_are_compared_row_by_row(before: tp.Federation) -> None:
    good = before.train(QUERY.format(label="price"), label="price", test_fraction=0.0)
    poor = before.train(QUERY.format(label="price"), label="price", test_fraction=0.0, l2=10.0)
    found = before.compare(good, poor, rows="all")
    y = ORDERS["price"][:1_500].to_numpy()
    losses = [0.5 * (y - before.predict(m, key=[])["prediction"].to_numpy()) ** 2 for m in (good, poor)]
    gained = losses[1] - losses[0]
    assert found.difference == pytest.approx(gained.mean(), rel=1e-9)
    assert found.standard_error == pytest.approx(gained.std() / np.sqrt(len(y)), rel=1e-9)
    assert found.is_worse
    assert not found.is_better
    assert found.margin == pytest.approx(1.96 * found.standard_error, rel=2e-3)
    twin = replace(good.model, encoded_intercept=good.model.encoded_intercept + 1e-9)
    assert not before.compare(good, twin, rows="all").is_worse  # surely another, and no worse
    assert found.first == before.evaluate(good, rows="all")
    assert found.table.set_index("metric").loc["rmse", "difference"] > 0
    assert before.compare(good, good, rows="all").difference == 0.0


def test_rows_that_share_a_label_are_one_witness(before: tp.Federation) -> None:
    query = "SELECT o.x, u.age, u.user_id AS label FROM orders o JOIN users u ON o.user_id = u.user_id"
    models = [before.train(query, label="label", test_fraction=0.0, l2=l2) for l2 in (1e-4, 1.0)]
    found = before.compare(models[0], models[1], rows="all")
    rows = [before.predict(model, key="user_id").to_pandas().sort_values("user_id") for model in models]
    gained = pd.Series(0.5 * (rows[1].prediction - rows[1].user_id) ** 2).to_numpy()
    gained = gained - 0.5 * (rows[0].prediction - rows[0].user_id).to_numpy() ** 2
    totals = pd.Series(gained - gained.mean()).groupby(rows[0].user_id.to_numpy()).sum()
    assert found.difference == pytest.approx(gained.mean(), rel=1e-9)
    assert found.standard_error == pytest.approx(np.sqrt((totals**2).sum()) / len(gained), rel=1e-9)


def test_drift_is_told_by_means_categories_and_matches(before: tp.Federation, after: tp.Federation) -> None:
    model = before.train(QUERY.format(label="price"), label="price", test_fraction=0.0)
    assert before.drift(model).found() == []
    found = after.drift(model)
    by_name = {f.feature: f for f in found.features}
    users = ORDERS["user_id"].to_numpy()
    then = PEOPLE["age"].to_numpy()[users[:1_500]]
    now = PEOPLE["age"].to_numpy()[users] + 9
    assert by_name["u.age"].shift == pytest.approx((now.mean() - then.mean()) / then.std(), rel=1e-9)
    assert by_name["u.age"].spread == pytest.approx(now.std() / then.std(), rel=1e-9)
    assert by_name["u.city"].new_categories == 1
    assert len(found.found()) == 2
    assert after.drift(model).found(shift=10) == [f"{by_name['u.city'].feature}: 1 categories are new"]
    with tp.Federation({"orders": ORDERS, "users": PEOPLE[:40]}) as half:
        said = half.drift(model).found()
    assert any("of its rows find partners" in text for text in said)


def test_shuffled_features_and_tables_cost_what_they_were_worth(before: tp.Federation) -> None:
    model = before.train(QUERY.format(label="price"), label="price", test_fraction=0.0)
    rows = ORDERS[:1_500]
    weights = model.coefficients().set_index("feature")["weight"]
    found = before.importance(model, repeats=10, rows="all").set_index("feature")
    assert list(found.index)[:2] == ["u.age", "o.x"] or list(found.index)[:2] == ["o.x", "u.age"]
    # Shuffling x moves predictions by w (x' − x): E(...)² is 2 w² var(x), where x is independent of the rest.
    assert found.loc["o.x", "importance"] == pytest.approx(2 * weights["o.x"] ** 2 * rows["x"].var(), rel=0.1)
    assert abs(found.loc["u.city", "importance"]) < 0.05 * found.loc["o.x", "importance"]
    tables = before.importance(model, by="table", repeats=10, rows="all").set_index("table")
    assert tables.loc["orders", "importance"] == pytest.approx(found.loc["o.x", "importance"], rel=0.1)


def test_trees_are_shuffled_by_their_bits(before: tp.Federation) -> None:
    model = before.train(QUERY.format(label="price"), label="price", model="boosted", trees=10, depth=3)
    found = before.importance(model, rows="all").set_index("feature")["importance"]
    assert found["o.x"] > 0.1 > found["u.city"]


def test_a_shuffle_counts_as_one_more_model(before: tp.Federation) -> None:
    model = before.train(QUERY.format(label="price"), label="price", test_fraction=0.0)
    strict = {"orders": Policy(allow_reconstruction=False)}
    found = tp.Federation({"orders": ORDERS, "users": PEOPLE}, policies=strict)
    with found, pytest.raises(tp.TablePuppetError, match="allow_reconstruction"):
        found.importance(model, rows="all")


def test_a_path_is_that_of_scikit_learn(before: tp.Federation) -> None:
    rows = ORDERS[:1_500]
    joined = PEOPLE.set_index("user_id").loc[rows["user_id"]]
    numbers = np.column_stack([rows["x"], joined["age"]])
    x = np.column_stack([(numbers - numbers.mean(0)) / numbers.std(0), pd.get_dummies(joined["city"]).to_numpy(float)])
    y = rows["price"].to_numpy()
    found = tp.path(before, QUERY.format(label="price"), label="price", l1=[1e-3, 0.1, 1.0], l2=0.0, test_fraction=0.0)
    assert found.table["l1"].tolist() == [1.0, 0.1, 1e-3]
    for result in found.results:
        l1 = result.plan.job.model.l1
        best = Lasso(alpha=l1, tol=1e-12, max_iter=100_000).fit(x, y)
        objective = 0.5 * np.mean((y - best.predict(x)) ** 2) + l1 * np.abs(best.coef_).sum()
        assert result.objective == pytest.approx(objective, rel=1e-6)
    assert found.table["weights"].is_monotonic_increasing
    assert found.coefficients.shape == (5, 3)
    assert "3 models" in repr(found)
