"""Predictions equal those of the centralised model on the materialised join, saved and loaded or not."""

from __future__ import annotations

import functools
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.prediction.oracle import joined, scores
from tests.prediction.shop import NEW, QUERY, federation, tables

import tablepuppet as tp
from tablepuppet.errors import CatalogError, ModelError
from tablepuppet.models.losses.classes import sigmoid, softmax
from tablepuppet.prediction.predict import _stack

ORACLE = NEW.replace("SELECT ", "SELECT o.order_id, c.card_id IS NOT NULL AS found, ") + " ORDER BY o.order_id"
MODELS = {"spent": "linear", "returned": "logistic", "mood": "softmax"}


@functools.cache
def train(label: str, algorithm: str = "newton") -> tp.Result:
    with federation(tables()) as shop:
        return shop.train(QUERY.format(label=label), label=label, model=MODELS[label], algorithm=algorithm)


def fills(result: tp.Result) -> dict[str, float]:
    return {
        f: float(e.fill[0])
        for b in result.blocks
        for f, e in zip(b.features, b.encoders, strict=True)
        if hasattr(e, "fill")
    }


@pytest.mark.parametrize("label", MODELS)
def test_predictions_on_new_rows_equal_the_materialised_join(label: str) -> None:
    result = train(label)
    new = tables(seed=1)
    with federation({**new, "orders": new["orders"].drop_columns(["spent", "returned", "mood"])}) as shop:
        answer = shop.predict(result.model, QUERY.format(label=label), key="order_id")
    rows = joined(ORACLE, new)
    expected = scores(result, rows, fills(result), "c")
    assert answer["order_id"].to_pylist() == rows["order_id"].tolist()
    assert set(answer["client"].to_pylist()) == {"orders[0]", "orders[1]"}
    if label == "spent":
        np.testing.assert_allclose(answer["prediction"].to_numpy(), expected[:, 0], rtol=0, atol=1e-9)
    elif label == "returned":
        np.testing.assert_allclose(answer["probability"].to_numpy(), sigmoid(expected[:, 0]), rtol=0, atol=1e-9)
        assert answer["prediction"].to_pylist() == (expected[:, 0] > 0).tolist()
    else:
        found = np.stack([answer[f"probability_{c}"].to_numpy() for c in result.classes], axis=1)
        np.testing.assert_allclose(found, softmax(expected), rtol=0, atol=1e-9)
        assert answer["prediction"].to_pylist() == [result.classes[k] for k in expected.argmax(axis=1)]


def test_the_key_of_the_label_table_is_by_default_what_it_is_joined_on() -> None:
    with federation(tables()) as shop:
        answer = shop.predict(train("returned"))
    assert answer.column_names == ["client", "item_id", "card_id", "prediction", "probability"]


def test_a_query_may_have_a_filter_of_its_own_and_select_more_and_in_another_order() -> None:
    result = train("returned")
    query = """
        SELECT c.credit, i.category, o.order_id, i.price, o.channel, o.quantity
        FROM orders o JOIN items i ON o.item_id = i.item_id LEFT JOIN cards c ON o.card_id = c.card_id
        WHERE o.quantity > 5 AND i.price < 60
    """
    with federation(tables(1)) as shop:
        some, every = shop.predict(result, query, key="order_id"), shop.predict(result, NEW, key="order_id")
    kept = joined(ORACLE.replace(" ORDER", " WHERE o.quantity > 5 AND i.price < 60 ORDER"), tables(1))["order_id"]
    assert some["order_id"].to_pylist() == kept.tolist()
    by_order = dict(zip(every["order_id"].to_pylist(), every["probability"].to_pylist(), strict=True))
    assert [by_order[k] for k in kept] == some["probability"].to_pylist()


def test_some_keys_give_just_their_rows() -> None:
    result = train("returned")
    with federation(tables(1)) as shop:
        every = shop.predict(result, NEW, key="order_id")
        some = shop.predict(result, NEW, key="o.order_id", keys=[np.int64(1003), 1400, 99])
        pairs = shop.predict(result, NEW, key=("order_id", "channel"), keys=[(1003, "no such channel")])
    assert some["order_id"].to_pylist() == [1003, 1400]
    assert some["probability"].to_pylist() == every.take([3, 400])["probability"].to_pylist()
    assert pairs.num_rows == 0
    assert pairs.schema.field("prediction").type == pa.bool_()


def test_the_answer_is_written_to_parquet_or_csv(tmp_path: Path) -> None:
    result = train("returned")
    with federation(tables()) as shop:
        answer = shop.predict(result, to=tmp_path / "answer.parquet")
        shop.predict(result, to=tmp_path / "answer.csv")
        with pytest.raises(ModelError, match=r"\.parquet or \.csv"):
            shop.predict(result, to=tmp_path / "answer.xml")
    assert pq.read_table(tmp_path / "answer.parquet").equals(answer)
    assert pyarrow.csv.read_csv(tmp_path / "answer.csv")["probability"].to_pylist() == answer["probability"].to_pylist()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["answer.csv", "answer.parquet"]


def test_a_feature_that_the_query_lacks_is_named() -> None:
    with federation(tables()) as shop, pytest.raises(CatalogError, match=r"needs the feature o\.channel"):
        shop.predict(train("returned"), NEW.replace("o.channel, ", ""))


def test_a_feature_whose_type_changed_is_named() -> None:
    given = tables()
    credit = given["cards"]["credit"].cast(pa.string())
    changed = {**given, "cards": given["cards"].set_column(1, "credit", credit)}
    with federation(changed) as shop, pytest.raises(ModelError, match=r"c\.credit was a number .* is VARCHAR now"):
        shop.predict(train("returned"), NEW)


def test_a_wrong_key_is_answered_with_a_suggestion() -> None:
    with federation(tables()) as shop, pytest.raises(CatalogError, match=r"key order_idd .*Did you mean order_id\?"):
        shop.predict(train("returned"), NEW, key="order_idd")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("algorithm", ["admm", "sgd", "vfl-admm", "centralized"])
def test_every_algorithm_gives_a_model_that_predicts(algorithm: str) -> None:
    result = train("returned", algorithm=algorithm)
    with federation(tables()) as shop:
        answer = shop.predict(result, key="order_id")
    rows = joined(ORACLE, tables())
    expected = sigmoid(scores(result, rows, fills(result), "c")[:, 0])
    np.testing.assert_allclose(answer["probability"].to_numpy(), expected, rtol=0, atol=1e-9)
    means = [block.mean for block in result.blocks]
    assert all(mean.shape == (1,) for mean in means)


def test_union_all_predicts_the_branches_one_after_the_other() -> None:
    query = "SELECT o.quantity, i.price, o.returned FROM orders o JOIN items i ON o.item_id = i.item_id WHERE {}"
    union = " UNION ALL ".join(query.format(w) for w in ("o.quantity < 4", "o.quantity > 5"))
    with federation(tables()) as shop:
        result = shop.train(union, label="returned")
        answer = shop.predict(result, union, key="order_id")
        single = shop.predict(result, query.format("o.quantity <> 4 AND o.quantity <> 5"), key="order_id")
    key = [("order_id", "ascending")]
    columns = ["order_id", "prediction", "probability"]
    assert answer.select(columns).sort_by(key).equals(single.select(columns).sort_by(key))


@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize("items", [["s.g", "coalesce(s.g, 'none')"], ["coalesce(s.z, 5)", "s.z"]])
def test_trees_predict_rows_without_a_partner_as_they_were_trained(items: list[str], release: bool) -> None:
    """One branch has a value where a LEFT JOIN finds no row, and the other has none."""
    many = np.arange(60)
    t = pa.table({"id": many, "k": many % 5, "c": many % 7 % 3, "y": many % 5 + np.sin(many)})
    s = pa.table({"k": [0, 7, 8], "g": ["u", "v", "w"], "z": [1.0, 1.0, 2.0]})
    query = " UNION ALL ".join(
        f"SELECT {item} AS a, t.c, t.y FROM t LEFT JOIN s ON s.k = t.k AND s.k {keys}"
        for item, keys in zip(items, ("< 50", "> 50"), strict=True)
    )
    given: dict[str, Any] = {"label": "y", "model": "boosted", "trees": 2, "min_leaf_rows": 1, "test_fraction": 0.0}
    given["release"] = release
    with tp.Federation({"t": t, "s": s}) as shop:
        first = shop.train(query, **given)
        for result in (first, shop.train(query, **given, warm_start=first)):
            answer = shop.predict(result, key="id")
            errors = answer["prediction"].to_numpy() - t["y"].to_numpy()[answer["id"].to_numpy()]
            assert np.mean(errors**2) / 2 == pytest.approx(result.objective, rel=1e-9)


def test_branches_that_join_one_table_in_another_order_are_predicted_with_one_key() -> None:
    a, b = [1, 2, 1, 2], [3, 4, 4, 3]
    rows = pa.table({"a": a, "b": b, "x": [1.0, 2.0, 4.0, 3.0], "y": [1.0, 3.0, 2.0, 5.0]})
    tables = {"t": rows, "u": pa.table({"a": [1, 2]}), "v": pa.table({"b": [3, 4]})}
    first, second = "JOIN u ON t.a = u.a", "JOIN v ON t.b = v.b"
    joins = [f"{first} {second}", f"{second} {first}"]
    query = " UNION ALL ".join(f"SELECT t.x, t.y FROM t {join}" for join in joins)
    with tp.Federation(tables) as shop:
        answer = shop.predict(shop.train(query, label="y", model="linear", test_fraction=0.0))
    assert (answer["a"].to_pylist(), answer["b"].to_pylist()) == (2 * a, 2 * b)


def test_branches_that_join_one_table_by_other_columns_are_predicted_without_keys() -> None:
    """The name of the first branch's column would stand over the values of another."""
    tables = {"t": pa.table({"a": [1, 2], "b": [2, 1], "x": [1.0, 2.0], "y": [1.0, 3.0]}), "u": pa.table({"k": [1, 2]})}
    query = " UNION ALL ".join(f"SELECT t.x, t.y FROM t JOIN u ON t.{key} = u.k" for key in "ab")
    with tp.Federation(tables) as shop:
        result = shop.train(query, label="y", model="linear", test_fraction=0.0)
        assert shop.predict(result).column_names == ["prediction"]
        assert shop.predict(result, key="a")["a"].to_pylist() == [1, 2, 1, 2]


@pytest.mark.parametrize(("kind", "read"), [((9, 0), pa.decimal128(38, 0)), ((38, 30), pa.float64())])
def test_keys_may_be_integers_in_one_branch_and_decimals_in_another(kind: tuple[int, int], read: pa.DataType) -> None:
    rows = {"x": [1.0, 2.0], "y": [1.0, 3.0]}
    keys = {"a": pa.array([1, 2]), "b": pa.array([Decimal(3), Decimal(4)], pa.decimal128(*kind))}
    query = " UNION ALL ".join(f"SELECT {t}.x, {t}.y FROM {t}" for t in keys)
    with tp.Federation({name: pa.table({"k": own, **rows}) for name, own in keys.items()}) as shop:
        found = shop.predict(shop.train(query, label="y", model="linear", test_fraction=0.0), key="k")["k"]
    assert found.type == read
    assert found.to_pylist() == [1, 2, 3, 4]


def test_branches_with_keys_of_different_types_are_predicted_without_keys() -> None:
    rows = {"x": [1.0, 2.0, 4.0], "y": [1.0, 3.0, 2.0]}
    numbers, texts = pa.table({"k": [1, 2, 3], **rows}), pa.table({"k": ["a", "b", "c"], **rows})
    query = "SELECT a.x, a.y FROM a JOIN a c USING (k) UNION ALL SELECT b.x, b.y FROM b JOIN b c USING (k)"
    with tp.Federation({"a": numbers, "b": texts}) as shop:
        result = shop.train(query, label="y", model="linear", test_fraction=0.0)
        assert shop.predict(result).column_names == ["prediction"]
        assert shop.predict(result, key="x").num_rows == 6
        with pytest.raises(tp.TablePuppetError, match=r"the key \(k\) has another type in another branch"):
            shop.predict(result, key="k", keys=[1])


def test_keys_of_doubles_and_decimals_are_stacked_as_doubles() -> None:
    exact = pa.table({"k": pa.array([Decimal("1.50")], pa.decimal128(9, 2))})
    near = pa.table({"k": pa.array([1.005, float("nan")])})
    stacked = _stack([exact, near])["k"].to_numpy()
    np.testing.assert_array_equal(stacked, [1.5, 1.005, np.nan])
