"""An owner is away: an error by default; otherwise its table's mean contribution, and the answer says where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.prediction.shop import NEW, QUERY, federation, tables

import tablepuppet as tp
from tablepuppet.errors import CatalogError, JobError, ModelError
from tablepuppet.owner.policy import Policy
from tablepuppet.prediction.model import BlockModel


@pytest.fixture(scope="module")
def result() -> tp.Result:
    with federation(tables()) as shop:
        return shop.train(QUERY.format(label="spent"), label="spent", model="linear")


def without(*names: str) -> tp.Federation:
    return tp.Federation({name: table for name, table in tables(1).items() if name not in names})


def contributions(result: tp.Result, name: str) -> float:
    [block] = [block for block in result.blocks if block.name == name]
    return float(block.mean[0])


def test_the_mean_contribution_is_that_of_the_joined_training_rows(result: tp.Result) -> None:
    """Σ of all means and the intercept: the mean prediction over the training rows."""
    with federation(tables()) as shop:
        everything = shop.train(QUERY.format(label="spent"), label="spent", model="linear", test_fraction=0)
        predicted = shop.predict(everything)["prediction"].to_numpy()
    total = sum(float(b.mean[0]) for b in everything.blocks) + float(everything.encoded_intercept[0])
    assert total == pytest.approx(predicted.mean(), abs=1e-9)


def test_by_default_it_is_an_error(result: tp.Result) -> None:
    with without("cards") as shop, pytest.raises(CatalogError, match="no table cards"):
        shop.predict(result, NEW)


@pytest.mark.parametrize("away", ["cards", "items"])
def test_a_table_that_nobody_holds_adds_its_mean_to_every_row(result: tp.Result, away: str) -> None:
    with federation(tables(1)) as shop:
        whole = shop.predict(result, NEW, key="order_id", missing="zero")
    with without(away) as shop:
        partial = shop.predict(result, NEW, key="order_id", missing="zero")
    assert set(whole["assumed"].to_pylist()) == {""}
    assert set(partial["assumed"].to_pylist()) == {away}
    assert partial.schema.metadata == {b"tablepuppet.missing": away.encode()}
    assert partial["order_id"].to_pylist() == list(range(1000, 1600))
    theta = {"cards": 2, "items": 1}[away]
    with federation(tables(1)) as shop:
        silenced = tuple(_silent(block, k == theta) for k, block in enumerate(result.blocks))
        rest = replace(result.model, blocks=silenced)
        expected = shop.predict(rest, NEW, key="order_id")["prediction"].to_numpy()
    mean = contributions(result, {"cards": "c", "items": "i"}[away])
    np.testing.assert_allclose(partial["prediction"].to_numpy(), expected + mean, rtol=0, atol=1e-9)


def _silent(block: BlockModel, is_silent: bool) -> BlockModel:
    return replace(block, theta=np.zeros_like(block.theta)) if is_silent else block


def test_one_of_several_owners_leaves_the_others_rows_as_they_are(result: tp.Result) -> None:
    given = tables(1)
    items = given["items"]
    with tp.Federation({**given, "items": [items[:15], items[15:]]}) as shop:
        whole = shop.predict(result, NEW, key="order_id")
        shop._clients["items[1]"].tables.shutdown()  # its source is closed: it answers nothing any more
        with pytest.raises(tp.TablePuppetError, match=r"client items\[1\]"):
            shop.predict(result, NEW)
        partial = shop.predict(result, NEW, key="order_id", missing="zero")
    assert partial.schema.metadata == {b"tablepuppet.missing": b"items[1]"}
    is_assumed = np.array(partial["assumed"].to_pylist()) == "items"
    is_away = given["orders"]["item_id"].to_numpy() >= 15
    assert is_assumed.tolist() == is_away.tolist()
    kept = [w for w, a in zip(whole["prediction"].to_pylist(), is_away, strict=True) if not a]
    assert [p for p, a in zip(partial["prediction"].to_pylist(), is_away, strict=True) if not a] == kept


def test_the_rows_to_predict_must_be_there(result: tp.Result) -> None:
    with without("orders") as shop, pytest.raises(ModelError, match="no owner of table orders can be reached"):
        shop.predict(result, NEW, missing="zero")
    with without() as shop, pytest.raises(JobError, match='missing must be "error" or "zero"'):
        shop.predict(result, NEW, missing="none")  # type: ignore[arg-type]


def test_a_loaded_model_knows_a_missing_table_too(result: tp.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "model")
    with without("cards") as shop:
        assert shop.predict(tp.load(tmp_path / "model"), NEW, missing="zero").equals(
            shop.predict(result, NEW, missing="zero")
        )


def test_assumed_tables_are_listed_together(result: tp.Result) -> None:
    with without("cards", "items") as shop:
        answer: pa.Table = shop.predict(result, NEW, missing="zero")
    assert set(answer["assumed"].to_pylist()) == {"items, cards"}


def test_groups_that_were_merged_are_missing_without_all_their_owners() -> None:
    """Figures of the owners that are there would be taken for those of all."""
    random = np.random.default_rng(6)
    people = pa.table({"id": np.arange(40), "age": random.normal(size=40), "y": random.normal(size=40)})
    paid = [pa.table({"id": np.repeat(np.arange(40), 3), "x": random.normal(size=120)}) for _ in range(2)]
    query = """SELECT p.age, t.total, p.y FROM people p
        JOIN (SELECT id, sum(x) AS total FROM paid GROUP BY id) t ON t.id = p.id"""
    merging = {"paid": Policy(merge_groups=True)}
    with tp.Federation({"people": people, "paid": paid}, policies=merging) as federation:
        result = federation.train(query, label="y", model="linear")
        federation._clients["paid[1]"].tables.shutdown()
        found = federation.predict(result, query, key="id", missing="zero")
        silenced = replace(result.model, blocks=tuple(_silent(block, block.name == "t") for block in result.blocks))
        federation._clients["paid[0]"].tables.shutdown()
        nobody = federation.predict(silenced, query, key="id", missing="zero")["prediction"].to_numpy()
    assert set(found["assumed"].to_pylist()) == {"paid"}
    np.testing.assert_allclose(found["prediction"].to_numpy(), nobody, rtol=0, atol=1e-9)
