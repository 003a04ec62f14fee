"""Clients of one table with different schemas: one error that lists all differences."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.postgres import Database

import tablepuppet as tp
from tablepuppet.errors import CatalogError

QUERY = "SELECT o.x, o.z, i.price, o.y FROM orders o JOIN items i ON o.item = i.item"
ROWS = 20
ORDERS = pa.table({"item": np.arange(ROWS) % 4, "x": np.ones(ROWS), "z": ["a"] * ROWS, "y": np.arange(ROWS) * 1.0})
ITEMS = pa.table({"item": np.arange(4), "price": np.arange(4.0)})


def cast(name: str, kind: str) -> pa.Table:
    return ORDERS.set_column(ORDERS.column_names.index(name), name, ORDERS[name].cast(kind))


def refusal(*orders: object) -> str:
    with (
        tp.Federation({"orders": list(orders), "items": ITEMS}) as owners,
        pytest.raises(CatalogError) as refused,
    ):
        owners.train(QUERY, label="y")
    return str(refused.value).splitlines()[0]


def test_all_of_them_are_listed_for_any_number_of_clients() -> None:
    message = refusal(ORDERS, ORDERS.drop_columns(["x"]), cast("item", "string"), cast("y", "string"), ORDERS)
    assert message == (
        "not all clients of table orders have the column x (with it: orders[0], orders[2], orders[3], orders[4]; "
        "without: orders[1]). Choose a column that all of them have. All differences between the clients of orders: "
        "item is BIGINT at orders[0], orders[1], orders[3], orders[4] and VARCHAR at orders[2]; x is missing at "
        "orders[1]; y is DOUBLE at orders[0], orders[1], orders[2], orders[4] and VARCHAR at orders[3]"
    )


def test_one_difference_is_said_once() -> None:
    message = refusal(ORDERS, cast("x", "string"))
    assert message.endswith("for example CAST(x AS VARCHAR)")
    assert "All differences" not in message


def test_columns_that_the_query_does_not_use_may_differ() -> None:
    more = ORDERS.append_column("more", pa.array(["m"] * ROWS))
    with tp.Federation({"orders": [ORDERS, more], "items": ITEMS}) as owners:
        assert owners.train(QUERY, label="y").metrics["train"]


def test_many_differences_and_many_clients_stay_readable() -> None:
    wide = pa.table(
        {**{name: ORDERS[name] for name in ORDERS.column_names}, **{f"c{k}": [1] * ROWS for k in range(30)}}
    )
    message = refusal(wide, *[ORDERS.drop_columns(["x"])] * 6)
    assert "x is missing at orders[1], orders[2], orders[3] and 3 others" in message
    assert message.endswith("; and 19 more")


def test_whether_a_column_may_be_null_is_listed_too(postgres: Callable[[], Database], tmp_path: Path) -> None:
    database = postgres()
    database.execute("CREATE TABLE orders (item bigint NOT NULL, x float8, z text, y float8)")
    with sqlite3.connect(tmp_path / "o.sqlite") as connection:
        connection.execute("CREATE TABLE orders (item INTEGER, z TEXT, y REAL NOT NULL)")
    connection.close()
    message = refusal(
        tp.source(database.url, table="orders"), tp.source(f"sqlite:///{tmp_path}/o.sqlite", table="orders")
    )
    assert "item is NOT NULL at orders[0] and nullable at orders[1]" in message
    assert "x is missing at orders[1]" in message
    assert "y is nullable at orders[0] and NOT NULL at orders[1]" in message
