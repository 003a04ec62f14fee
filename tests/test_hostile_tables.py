"""Tables as organisations have them: each case is one clear sentence without a value in it, or it simply works."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.postgres import Database

import tablepuppet as tp
from tablepuppet.owner.policy import LabelRules, Policy

SECRET = "hush-4242"  # stands in rows and passwords, and in no message
QUERY = "SELECT o.x, i.price, o.y FROM orders o JOIN items i ON o.item = i.item"
_RANDOM = np.random.default_rng(0)
ROWS = 60
ORDERS = pa.table({"item": np.arange(ROWS) % 7, "x": _RANDOM.normal(size=ROWS), "y": _RANDOM.normal(size=ROWS)})
ITEMS = pa.table({"item": np.arange(8), "price": _RANDOM.normal(size=8), "note": [SECRET] * 8})


def column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with one column replaced."""
    return table.set_column(table.column_names.index(name), name, values if isinstance(values, pa.Array) else [values])


def as_text(table: pa.Table, name: str = "item") -> pa.Table:
    return table.set_column(table.column_names.index(name), name, table[name].cast(pa.string()))


def with_value(name: str, value: float | None) -> pa.Table:
    values = ORDERS[name].to_pylist()
    return column(ORDERS, name, pa.array([value, *values[1:]], pa.float64()))


def moments(zone: str | None) -> pa.Array:
    return pa.array([datetime.datetime(2020, 1, 1 + k % 7) for k in range(ROWS)], pa.timestamp("us", zone))


def floats(table: pa.Table) -> pa.Table:
    return table.set_column(0, "item", table["item"].cast(pa.float64()))


def wide(categories: int) -> dict[str, pa.Table]:
    """As many items as orders, each of a category of its own."""
    numbers = {name: _RANDOM.normal(size=categories) for name in ("x", "y")}
    items = pa.table({"item": np.arange(categories), "price": [f"category {k}" for k in range(categories)]})
    return {"orders": pa.table({"item": np.arange(categories), **numbers}), "items": items}


Tables = dict[str, Any]
WRONG: dict[str, tuple[Tables, dict[str, Any], str]] = {
    "keys of two types": (
        {"items": as_text(ITEMS)},
        {},
        r"not of the same type: o\.item is BIGINT and i\.item is VARCHAR",
    ),
    "keys that are floats": ({"items": floats(ITEMS), "orders": floats(ORDERS)}, {}, "cannot be a key"),
    "keys of two types in one table": (
        {"orders": [ORDERS[:30], as_text(ORDERS[30:])]},
        {},
        "give item different types",
    ),
    "times with and without a zone": (
        {
            "orders": column(ORDERS, "item", moments(None)),
            "items": column(ORDERS, "item", moments("UTC")).rename_columns(["item", "price", "z"]),
        },
        {},
        "not of the same type",
    ),
    "owners with different columns": (
        {"orders": [ORDERS[:30], ORDERS[30:].drop_columns(["x"])]},
        {},
        r"not all clients of table orders have the column x \(with it: orders\[0\]; without: orders\[1\]\)",
    ),
    "owners with different types": (
        {"orders": [ORDERS[:30], as_text(ORDERS[30:], "x")]},
        {},
        r"give x different types \(orders\[0\]: DOUBLE; orders\[1\]: VARCHAR\)",
    ),
    "infinity in a feature": ({"orders": with_value("x", float("inf"))}, {}, "column .*x.* contains infinity"),
    "infinity in the label": ({"orders": with_value("y", float("-inf"))}, {}, "label .*y.* contains infinity"),
    "a label that is missing": ({"orders": with_value("y", None)}, {}, "label y is NULL or NaN in 1 of 60 joined rows"),
    "a label that is NaN": (
        {"orders": with_value("y", float("nan"))},
        {},
        "label y is NULL or NaN in 1 of 60 joined rows",
    ),
    "a feature too large to square": ({"orders": with_value("x", 1e308)}, {}, "too large to square"),
    "partitions that are all empty": ({"orders": [ORDERS[:0], ORDERS[:0]]}, {}, "table orders .* has no rows"),
    "tables that are all empty, and plain keys": (
        {"orders": ORDERS[:0], "items": ITEMS[:0]},
        {"privacy": {"keys": "plain"}},
        "table orders .* has no rows",
    ),
    "no key in common": ({"items": column(ITEMS, "item", pa.array(range(100, 108)))}, {}, "have no value in common"),
    "a join too large": ({}, {"max_joined_rows": 10}, "joins to 60 rows, more than the limit of 10"),
    "a text that is not a number": (
        {},
        {"query": QUERY.replace("i.price", "CAST(i.note AS DOUBLE) AS n")},
        "cannot be converted",
    ),
    "an unknown column": ({}, {"query": QUERY.replace("o.x", "o.xx")}, r"has no column xx\. Did you mean x\?"),
    "an unknown table": ({}, {"query": QUERY.replace("items i", "itms i")}, "no table itms. Did you mean items"),
    "a policy that forbids": (
        {},
        {"policies": {"items": Policy(release_parameters=False)}, "algorithm": "centralized"},
        r"client items: its policy refuses .*\(rule release_parameters\)",
    ),
    "a policy on labels": (
        {},
        {"policies": {"orders": Policy(labels=LabelRules(leave=False))}},
        r"\(rule labels\.leave\)",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=list(WRONG))
def test_it_is_one_clear_sentence_and_shows_no_value(
    case: tuple[Tables, dict[str, Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, options, sentence = case
    given = dict(options)
    query, policies = given.pop("query", QUERY), given.pop("policies", None)
    monkeypatch.chdir(tmp_path)
    federation = tp.Federation({"orders": ORDERS, "items": ITEMS, **tables}, policies=policies)
    with federation, pytest.raises(tp.TablePuppetError, match=sentence) as refused:
        federation.train(query, label="y", model="linear", **given)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert list(tmp_path.iterdir()) == []


def trained(tables: Tables, query: str = QUERY, **options: Any) -> Any:
    with tp.Federation(tables) as federation:
        return federation.train(query, label="y", model="linear", **options).coefficients()["weight"].to_numpy()


@cache
def expected() -> Any:
    return trained({"orders": ORDERS, "items": ITEMS})


UUIDS = pa.array([str(UUID(int=k)) for k in range(8)])


def uuid_file(folder: Path, table: pa.Table, name: str) -> Path:
    """A Parquet file whose key is a UUID."""
    texts = UUIDS.take(table["item"].combine_chunks())
    with duckdb.connect() as connection:
        connection.register("given", table.set_column(0, "item", texts))
        file = folder / f"{name}.parquet"
        connection.execute(f"COPY (SELECT * REPLACE (item::UUID AS item) FROM given) TO '{file}'")
    return file


WORKS: dict[str, Callable[[Path], tuple[Tables, str]]] = {
    "an empty partition": lambda _: (
        {"orders": [ORDERS[:30], ORDERS[:0], ORDERS[30:]], "items": [ITEMS[:0], ITEMS]},
        QUERY,
    ),
    "keys of several integer types": lambda _: (
        {
            "orders": column(ORDERS, "item", ORDERS["item"].combine_chunks().cast(pa.int16())),
            "items": column(ITEMS, "item", ITEMS["item"].combine_chunks().cast(pa.decimal128(20, 0))),
        },
        QUERY,
    ),
    "keys that are strings": lambda _: ({"orders": as_text(ORDERS), "items": as_text(ITEMS)}, QUERY),
    "keys that are UUIDs": lambda folder: (
        {"orders": uuid_file(folder, ORDERS, "o"), "items": uuid_file(folder, ITEMS, "i")},
        QUERY,
    ),
    "a UUID cast to text": lambda folder: (
        {"orders": uuid_file(folder, ORDERS, "o"), "items": column(ITEMS, "item", UUIDS)},
        QUERY.replace("o.item = i.item", "CAST(o.item AS VARCHAR) = i.item"),
    ),
    "keys that are NULL": lambda _: (
        {
            "orders": pa.concat_tables(
                [ORDERS, pa.table({"item": pa.array([None], pa.int64()), "x": [1e6], "y": [1e6]})]
            ),
            "items": pa.concat_tables(
                [ITEMS, pa.table({"item": pa.array([None], pa.int64()), "price": [1e6], "note": ["n"]})]
            ),
        },
        QUERY,
    ),
    "quotes, spaces and unicode in names": lambda _: (
        {
            'or"ders é': ORDERS.rename_columns(["it em", "x\"'", "y"]),
            "items": ITEMS.rename_columns(["ключ", "цена;--", "note"]),
        },
        'SELECT o."x""\'", i."цена;--", o.y FROM "or""ders é" o JOIN items i ON o."it em" = i."ключ"',
    ),
    "reserved words as names": lambda _: (
        {
            "select": ORDERS.rename_columns(["from", "where", "y"]),
            "order": ITEMS.rename_columns(["group", "join", "note"]),
        },
        'SELECT o."where", i."join", o.y FROM "select" o JOIN "order" i ON o."from" = i."group"',
    ),
    "a filter that leaves a client nothing": lambda _: (
        {"orders": [ORDERS, column(ORDERS, "x", pa.array(np.full(ROWS, 1e9)))], "items": ITEMS},
        f"{QUERY} WHERE o.x < 1e6",
    ),
}


@pytest.mark.parametrize("case", WORKS.values(), ids=list(WORKS))
def test_it_works_as_if_nothing_were_the_matter(case: Callable[[Path], tuple[Tables, str]], tmp_path: Path) -> None:
    np.testing.assert_allclose(trained(*case(tmp_path)), expected(), rtol=0, atol=1e-9)


def test_duplicate_rows_are_kept() -> None:
    twice = pa.concat_tables([ORDERS, ORDERS])
    with tp.Federation({"orders": twice, "items": ITEMS}) as federation:
        result = federation.train(QUERY, label="y", model="linear")
    assert result.plan.mapping.joined_rows == 2 * ROWS


@pytest.mark.parametrize("categories", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_as_many_categories_as_rows_are_learnt_by_sgd_or_kept_to_the_heaviest(categories: int) -> None:
    with tp.Federation(wide(categories)) as federation:
        every = federation.train(QUERY, label="y", model="linear", algorithm="sgd", epochs=1)
        heaviest = federation.train(QUERY, label="y", model="linear", max_categories=5)
    assert len(every.coefficients()) > 0.8 * categories
    assert len(heaviest.coefficients()) == 1 + 5 + 1


def test_a_feature_that_is_nan_everywhere_adds_nothing() -> None:
    nothing = column(ORDERS, "x", pa.array(np.full(ROWS, np.nan)))
    assert np.isfinite(trained({"orders": nothing, "items": ITEMS})).all()


def test_a_file_that_is_gone_or_cut_short_is_named(tmp_path: Path) -> None:
    file = tmp_path / "orders.parquet"
    pq.write_table(ORDERS, file)
    with tp.Federation({"orders": file, "items": ITEMS}) as federation:
        file.unlink()
        with pytest.raises(tp.TablePuppetError, match="client orders: table orders: the file is missing"):
            federation.train(QUERY, label="y", model="linear")
    pq.write_table(ORDERS, file)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(tp.TablePuppetError, match="not a readable Parquet file"):
        tp.Federation({"orders": file, "items": ITEMS})


def test_a_database_table_that_is_dropped_or_changed_is_named(postgres: Callable[[], Database]) -> None:
    database = postgres()
    database.ingest("orders", ORDERS)
    spec = tp.source(database.url, table="orders")
    with tp.Federation({"orders": spec, "items": ITEMS}) as federation:
        federation.train(QUERY, label="y", model="linear")
        database.execute("ALTER TABLE orders ALTER item TYPE text")
        with pytest.raises(tp.TablePuppetError, match=r"not of the same type: o\.item is VARCHAR"):
            federation.train(QUERY, label="y", model="linear")
        database.execute("ALTER TABLE orders RENAME x TO z")
        with pytest.raises(tp.TablePuppetError, match="has no column x"):
            federation.train(QUERY, label="y", model="linear")
        database.execute("DROP TABLE orders")
        with pytest.raises(tp.TablePuppetError, match="client orders: table orders: there is no such table"):
            federation.train(QUERY, label="y", model="linear")


def test_a_source_that_cannot_be_opened_leaves_no_other_open(tmp_path: Path) -> None:
    """An open connection would be a ResourceWarning, which is an error here."""
    connection = sqlite3.connect(tmp_path / "items.sqlite")
    connection.execute("CREATE TABLE items (item INTEGER, price REAL)")
    connection.close()
    items = tp.source(f"sqlite:///{tmp_path}/items.sqlite", table="items")
    with pytest.raises(tp.TablePuppetError, match="there is no file"):
        tp.Federation({"items": items, "orders": tmp_path / "none.parquet"})


def test_an_answer_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with tp.Federation({"orders": ORDERS, "items": ITEMS}) as federation:
        result = federation.train(QUERY, label="y", model="linear")
        with pytest.raises(tp.TablePuppetError, match=r"cannot write predictions to .*: there is no folder"):
            federation.predict(result, to=tmp_path / "none" / "answer.csv")
    (tmp_path / "file").write_text("taken")
    with pytest.raises(tp.TablePuppetError, match="cannot be saved"):
        result.save(tmp_path / "file" / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
