"""Requests by key are looked up while no table changes, and give what the tables give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.postgres import Database
from tests.prediction.shop import NEW, QUERY, federation, tables

import tablepuppet as tp

TEXT = QUERY.format(label="spent")


def same(found: pa.Table, expected: pa.Table) -> None:
    assert found.drop_columns(["prediction"]).equals(expected.drop_columns(["prediction"]))
    np.testing.assert_allclose(found["prediction"].to_numpy(), expected["prediction"].to_numpy(), rtol=0, atol=1e-9)


def looked_up(federation: tp.Federation) -> bool:
    return any(kind.predictor is not None for kind in federation._prediction_cache._kinds.values())


def test_the_same_rows_in_the_same_order_from_memory_as_from_the_tables() -> None:
    with federation(tables()) as shop:
        result = shop.train(TEXT, label="spent", model="linear")
        for keys in ([17], [400, 3, 3, 99_999], [], [5, 360]):
            shop._prediction_cache.clear()
            first = shop.predict(result, NEW, key="order_id", keys=keys)
            assert not looked_up(shop)
            same(shop.predict(result, NEW, key="order_id", keys=keys), first)
            same(shop.predict(result, NEW, key="order_id", keys=keys), first)
            assert looked_up(shop)


def test_keys_of_several_columns_and_keys_of_other_types() -> None:
    with federation(tables()) as shop:
        result = shop.train(TEXT, label="spent", model="linear")
        orders = tables()["orders"]
        pairs = [(k, orders["channel"][k].as_py()) for k in (4, 500)] + [(5, "no such channel")]
        answers = [shop.predict(result, NEW, key=("order_id", "channel"), keys=pairs) for _ in range(3)]
        assert answers[0].num_rows == 2
        for answer in answers[1:]:
            same(answer, answers[0])
        by_number = [shop.predict(result, NEW, key="order_id", keys=[7]) for _ in range(2)][1]
        same(shop.predict(result, NEW, key="order_id", keys=["7"]), by_number)  # SQL takes '7' for 7
        same(shop.predict(result, NEW, key="order_id", keys=[np.int64(7)]), by_number)


def test_a_table_of_which_nobody_can_tell_whether_it_changed_is_read_at_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with federation(tables()) as shop:
        result = shop.train(TEXT, label="spent", model="linear")
        for client, is_kept in (("items[0]", False), ("", True)):
            owner = shop._clients.get(client)
            if owner is not None:
                monkeypatch.setattr(owner.tables._sources["items"], "stamp", lambda: None)
            for _ in range(3):
                shop.predict(result, NEW, key="order_id", keys=[17])
            assert looked_up(shop) == is_kept
            monkeypatch.undo()


def test_another_model_another_query_and_another_federation_are_not_mixed_up() -> None:
    with federation(tables()) as shop:
        one = shop.train(TEXT, label="spent", model="linear")
        two = shop.train(TEXT, label="spent", model="linear", l2=10.0)
        for _ in range(3):
            a, b = (shop.predict(r, NEW, key="order_id", keys=[7])["prediction"].to_pylist() for r in (one, two))
            assert a != b
        few, many = (shop.train(TEXT, label="spent", algorithm=tp.Boosting(trees=n)) for n in (2, 30))
        for _ in range(3):
            a, b = (shop.predict(r, NEW, key="order_id", keys=[7])["prediction"].to_pylist() for r in (few, many))
            assert a != b
        cheap = f"{NEW} WHERE o.quantity > 100"
        for _ in range(3):
            assert shop.predict(one, cheap, key="order_id", keys=[7]).num_rows == 0
            assert shop.predict(one, NEW, key="order_id", keys=[7]).num_rows == 1


def test_more_rows_than_are_kept_are_read_at_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tablepuppet.prediction.cache._MAX_ROWS", 100)
    with federation(tables()) as shop:
        result = shop.train(TEXT, label="spent", model="linear")
        answers = [shop.predict(result, NEW, key="order_id", keys=[7]) for _ in range(4)]
        assert not looked_up(shop)
    assert all(answer.equals(answers[0]) for answer in answers)


def in_parquet(folder: Path, table: pa.Table) -> Path:
    pq.write_table(table, folder / "cards.parquet")
    return folder / "cards.parquet"


def in_csv(folder: Path, table: pa.Table) -> Path:
    pyarrow.csv.write_csv(table, folder / "cards.csv")
    return folder / "cards.csv"


def doubled(cards: pa.Table) -> pa.Table:
    return cards.set_column(1, "credit", pa.array(cards["credit"].to_numpy() * 2 + 1))


@pytest.mark.parametrize("write", [in_parquet, in_csv])
def test_a_file_that_changed_is_read_anew(write: Callable[[Path, pa.Table], Path], tmp_path: Path) -> None:
    given = tables()
    file = write(tmp_path, given["cards"])
    with tp.Federation({**given, "cards": file}) as shop:
        result = shop.train(TEXT, label="spent", model="linear")
        before = [shop.predict(result, NEW, key="order_id", keys=[0, 1, 2, 3]) for _ in range(3)][2]
        assert looked_up(shop)
        write(tmp_path, doubled(given["cards"]))
        after = [shop.predict(result, NEW, key="order_id", keys=[0, 1, 2, 3]) for _ in range(3)]
    with tp.Federation({**given, "cards": doubled(given["cards"])}) as other:
        expected = other.predict(result, NEW, key="order_id", keys=[0, 1, 2, 3])
    assert before["prediction"].to_pylist() != expected["prediction"].to_pylist()
    for answer in after:
        same(answer, expected)


def test_a_database_that_changed_is_read_anew(postgres: Callable[[], Database]) -> None:
    database, given = postgres(), tables()
    database.ingest("cards", given["cards"])
    with tp.Federation({**given, "cards": tp.source(database.url, table="cards")}) as shop:
        result = shop.train(TEXT, label="spent", model="linear")
        before = [shop.predict(result, NEW, key="order_id", keys=[0, 1, 2, 3]) for _ in range(3)][2]
        database.execute("UPDATE cards SET credit = credit * 2 + 1")
        after = shop.predict(result, NEW, key="order_id", keys=[0, 1, 2, 3])
    assert before["prediction"].to_pylist() != after["prediction"].to_pylist()
