"""Verdicts are about rows that no compared model was trained on, unless somebody asks for others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

import tablepuppet as tp
from tablepuppet.client import Client
from tablepuppet.errors import ModelError
from tablepuppet.exchanges.keys import SendKeys
from tablepuppet.exchanges.labels import DescribeLabels, SendLabels
from tablepuppet.owner.policy import Policy
from tablepuppet.protocol.base import Message

ROWS, USERS = 1_200, 60
QUERY = "SELECT o.x, o.z, u.age, o.y FROM orders o JOIN users u ON o.user_id = u.user_id"


def coins(seed: int, rows: int = ROWS) -> dict[str, pd.DataFrame]:
    """Labels that nothing predicts."""
    rng = np.random.default_rng(seed)
    orders = pd.DataFrame({"user_id": rng.integers(0, USERS, rows), "day": np.arange(rows) % 30})
    orders = orders.assign(x=rng.normal(size=rows), z=rng.normal(size=rows), y=rng.integers(0, 2, rows))
    return {"orders": orders, "users": pd.DataFrame({"user_id": np.arange(USERS), "age": rng.normal(size=USERS)})}


@pytest.fixture(scope="module")
def shop() -> Iterator[tp.Federation]:
    with tp.Federation(coins(0)) as found:
        yield found


def split(shop: tp.Federation, result: Any) -> pd.Series:
    """The side of every row, in the order of the label's rows."""
    return shop.predict(result, key=[], split=True).to_pandas()["split"]


def test_trees_that_know_coin_flips_by_heart_are_better_on_training_rows_only() -> None:
    with tp.Federation(coins(0)) as found:
        linear = found.train(QUERY, label="y")
        trees = found.train(QUERY, label="y", model="boosted", trees=30)
        assert not found.compare(linear, trees).is_better
        assert found.compare(linear, trees, rows="all").is_better


@pytest.mark.slow  # twenty tables, so that chance evens out
def test_no_model_of_coin_flips_is_better_and_no_column_matters() -> None:
    verdicts, rises, seen = [], [], []
    for seed in range(20):
        with tp.Federation(coins(seed)) as found:
            linear = found.train(QUERY, label="y", seed=seed)
            trees = found.train(QUERY, label="y", seed=seed, model="boosted", trees=30)
            verdicts.append(found.compare(linear, trees).is_better)
            seen.append(found.compare(linear, trees, rows="all").is_better)
            rises.append(found.importance(trees, by="table")["importance"].to_numpy())
    assert not any(verdicts)
    assert all(seen)  # as it was when training rows were among them
    assert abs(np.mean(rises)) < 0.01


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"algorithm": "sgd", "epochs": 1},
        {"algorithm": "admm", "epochs": 2},
        {"algorithm": "centralized"},
        {"algorithm": "vfl-sgd", "epochs": 1},
        {"l1": 1e-3},
        {"model": "mlp", "epochs": 1},
        {"head": "factor", "rank": 2, "algorithm": "sgd", "epochs": 1},
        {"model": "boosted", "trees": 5},
        {"validation_fraction": 0.2, "patience": 2, "algorithm": "sgd", "epochs": 3},
        {"test_where": "day >= 24"},
        {"test_where": "day >= 24", "validation_fraction": 0.2},
        {"validation_where": "day >= 24"},
    ],
)
def test_an_evaluation_is_that_of_test_rows(shop: tp.Federation, options: dict[str, Any]) -> None:
    result = shop.train(QUERY, label="y", seed=3, **options)
    sides = split(shop, result)
    for side in ("test", "train"):
        found = shop.evaluate(result, rows=side)
        assert dict(found) == pytest.approx(result.metrics[side], rel=1e-6)
        assert found.rows.joined == (sides == side).sum()
        curve = shop.partial_dependence(result, "x", values=[0.0], rows=side)
        assert curve.attrs["rows"] == found.rows.joined
    assert str(shop.evaluate(result)).endswith(f"{(sides == 'test').sum()} rows that the model was not trained on")
    assert shop.evaluate(result, rows="all").rows.joined == ROWS


def test_metrics_are_those_of_scikit_learn_on_the_same_rows(shop: tp.Federation) -> None:
    result = shop.train(QUERY, label="y")
    rows = shop.predict(result, key=[], split=True).to_pandas().assign(y=coins(0)["orders"]["y"])
    rows = rows[rows["split"] == "test"]
    found = shop.evaluate(result)
    assert found["accuracy"] == accuracy_score(rows["y"], rows["prediction"])
    assert found["log_loss"] == pytest.approx(log_loss(rows["y"], rows["probability"]), rel=1e-9)
    assert found["auc"] == pytest.approx(roc_auc_score(rows["y"], rows["probability"]), rel=1e-9)


def test_two_models_are_compared_on_rows_that_neither_has_seen(shop: tp.Federation) -> None:
    models = [
        shop.train(QUERY, label="y", seed=1),
        shop.train(QUERY, label="y", seed=2, test_fraction=0.4),
        shop.train(QUERY, label="y", test_where="day >= 15"),
    ]
    sides = [split(shop, model) for model in models]
    for i, k in ((0, 0), (0, 1), (1, 2), (0, 2)):
        found = shop.compare(models[i], models[k])
        assert found.rows.joined == ((sides[i] == "test") & (sides[k] == "test")).sum()
        assert "rows that neither model was trained on" in str(found)
        assert ("models are equal" in str(found)) == (i == k)
        assert found.to_dict()["which_rows"] == "test"
        trained = shop.compare(models[i], models[k], rows="train").rows.joined
        assert trained == ((sides[i] == "train") & (sides[k] == "train")).sum()


def test_rows_that_were_added_are_new() -> None:
    tables = coins(4)
    orders = tables["orders"]
    with tp.Federation({**tables, "orders": [orders[:400], orders[400:1_000]]}) as before:
        model = before.train(QUERY, label="y").model
        whole = before.train(QUERY, label="y", test_fraction=0.0).model
        known = split(before, model)
        with pytest.raises(tp.TablePuppetError, match=r'no row that the model was not trained on.*rows="all"'):
            before.evaluate(whole)
    more = pd.concat([orders[:400], coins(5)["orders"][:50]])
    with tp.Federation({**tables, "orders": [more, orders[400:]]}) as after:
        assert after.evaluate(whole).rows.joined == 250
        assert after.evaluate(model).rows.joined == (known == "test").sum() + 250
        assert after.evaluate(model, rows="train").rows.joined == (known == "train").sum()
        predicted = after.predict(model, key=[]).to_pandas()["prediction"]
        y = np.concatenate([more["y"], orders["y"][400:]])
        new = np.r_[400:450, 1_050:1_250]
        tested = np.flatnonzero(known == "test")
        unseen = np.concatenate([np.where(tested < 400, tested, tested + 50), new])
        assert after.evaluate(model)["accuracy"] == accuracy_score(y[unseen], predicted.to_numpy()[unseen])
    with tp.Federation({**tables, "orders": [orders[:400], orders[400:900]]}) as less:
        with pytest.raises(ModelError, match="fewer rows than in training"):
            less.evaluate(model)
        assert less.evaluate(model, rows="all").rows.joined == 900
    named = {"x": ["orders"], "z": ["orders"]}
    cut = {**tables, "orders": [orders[:300], orders[300:]]}
    with tp.Federation(cut, owners=named) as other, pytest.raises(ModelError, match="or other owners"):
        other.evaluate(model)
    with tp.Federation({**tables, "orders": [orders[:400], orders[400:1_000]]}, owners=named) as same:
        assert same.evaluate(model).rows.joined == (known == "test").sum()


def test_what_another_query_reads_is_unseen_or_nobody_knows() -> None:
    tables = coins(6)
    later = coins(7, 300)["orders"]
    with tp.Federation({**tables, "later": later}) as shop:
        model = shop.train(QUERY, label="y").model
        by_day = shop.train(QUERY, label="y", test_where="day >= 20").model
        other = QUERY.replace("FROM orders o", "FROM later o")
        filtered = QUERY + " WHERE o.day >= 10"
        assert shop.evaluate(model, other).rows.joined == 300
        with pytest.raises(tp.TablePuppetError, match="no row that the model was trained on"):
            shop.evaluate(model, other, rows="train")
        with pytest.raises(ModelError, match=r"reads other rows of orders.*test_where.*rows=\"all\""):
            shop.evaluate(model, filtered)
        assert shop.evaluate(by_day, filtered).rows.joined == (tables["orders"]["day"] >= 20).sum()
        with pytest.raises(tp.TablePuppetError, match="rows must be"):
            shop.evaluate(model, rows="some")  # type: ignore[arg-type]
        del model.metadata["split"]
        with pytest.raises(ModelError, match="earlier release"):
            shop.evaluate(model)


def test_the_union_of_two_tables_has_a_side_for_each() -> None:
    tables = coins(8)
    given = {**tables, "early": coins(9, 500)["orders"]}
    query = f"{QUERY} UNION ALL {QUERY.replace('orders o', 'early o')}"
    with tp.Federation(given) as shop:
        model = shop.train(query, label="y").model
        sides = split(shop, model)
        assert shop.evaluate(model).rows.joined == (sides == "test").sum()
        assert shop.evaluate(model, QUERY).rows.joined == (sides[:ROWS] == "test").sum()


def test_verbs_that_need_no_label_read_none(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = coins(10)
    query = QUERY.replace(", o.y", "")
    with tp.Federation(tables) as shop:
        model = shop.train(QUERY, label="y").model
        with_labels = shop.partial_dependence(model, None, "x", points=3)
    unlabelled = {**tables, "orders": tables["orders"].drop(columns="y")}
    asked: list[type] = []
    answer = Client.answer

    def listen(client: Client, message: Any) -> Message:
        asked.append(type(message))
        return answer(client, message)

    monkeypatch.setattr(Client, "answer", listen)
    with tp.Federation(unlabelled) as shop:
        assert shop.drift(model, query).found() == []
        assert shop.predict(model, query).num_rows == ROWS
        assert "orders" in str(shop.profile(query))
        curve = shop.partial_dependence(model, query, "x", points=3)
    assert SendKeys in asked
    assert not {SendLabels, DescribeLabels} & set(asked)
    pd.testing.assert_frame_equal(curve, with_labels)
    assert curve.attrs["which_rows"] == "test"


def test_an_owner_that_asks_for_rounding_gets_it_on_unseen_rows() -> None:
    policies = {"orders": Policy(minimum_rows=20)}
    with tp.Federation(coins(11), policies=policies) as shop:
        first, second = (shop.train(QUERY, label="y", l2=l2) for l2 in (1e-4, 1.0))
        found = shop.evaluate(first)
        assert found["accuracy"] == pytest.approx(first.metrics["test"]["accuracy"], abs=0.05)
        assert shop.compare(first, second).rows.joined == found.rows.joined
        few = shop.train(QUERY, label="y", test_where="day = 3", seed=1).model
        assert shop.evaluate(few).rows.joined == 40


def test_scores_of_estimators_are_of_unseen_rows(shop: tp.Federation) -> None:
    model = tp.RelationalClassifier(test_fraction=0.3).fit(shop, QUERY, label="y")
    assert model.score(shop) == model.result_.metrics["test"]["accuracy"]
    assert model.score(shop, rows="train") == model.result_.metrics["train"]["accuracy"]
    with pytest.raises(tp.TablePuppetError, match='rows="all"'):
        tp.RelationalClassifier().fit(shop, QUERY, label="y").score(shop)
