"""Owners' tables, keys, labels and requests that cannot work: one clear sentence each, no value in it, no file left."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from tests.postgres import Database
from tests.test_hostile_tables import ITEMS, ORDERS, QUERY, ROWS, SECRET, column

import tablepuppet as tp
from tablepuppet.owner.policy import Policy, TableRules

URL = f"postgresql://ann:{SECRET}@127.0.0.1:1/shop"


def run(query: str = QUERY, policies: Any = None, /, label: str = "y", **given: Any) -> Any:
    """Trains on the two tables, some of them replaced."""
    options = {k: given.pop(k) for k in ("model", "algorithm", "max_joined_rows") if k in given}
    with tp.Federation({"orders": ORDERS, "items": ITEMS, **given}, policies=policies) as federation:
        return federation.train(query, label=label, **options)


def file(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def sqlite_file(folder: Path, *statements: str) -> str:
    connection = sqlite3.connect(folder / "t.sqlite")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return f"sqlite:///{folder / 't.sqlite'}"


def two_schemas(folder: Path) -> Path:
    (folder / "items").mkdir()
    pq.write_table(ITEMS, folder / "items" / "a.parquet")
    pq.write_table(ITEMS.rename_columns(["item", "cost", "note"]), folder / "items" / "b.parquet")
    return folder / "items"


def as_uuid(folder: Path) -> Path:
    with duckdb.connect() as connection:
        connection.register("given", ITEMS)
        made = "SELECT * REPLACE (lpad(item::VARCHAR, 32, '0')::UUID AS item) FROM given"
        connection.execute(f"COPY ({made}) TO '{folder}/uuid.parquet'")
    return folder / "uuid.parquet"


def key(kind: Any, table: pa.Table = ITEMS) -> pa.Table:
    return column(table, "item", table["item"].combine_chunks().cast(kind))


def days(zone: bool) -> pa.Array:
    moments = [datetime.datetime(2020, 1, 1 + k) for k in range(8)]
    return pa.array(moments, pa.timestamp("us")) if zone else pa.array([m.date() for m in moments])


def label(values: Any) -> pa.Table:
    return column(ORDERS, "y", pa.array(values))


Case = tuple[Callable[[Path], Any], str]
CASES: dict[str, Case] = {
    # where the table lies
    "a server that is not there": (lambda _: run(items=tp.source(URL, table="items")), "cannot be reached; check host"),
    "a URL of an unknown kind": (lambda _: run(items=tp.source("oracle://h/d", table="t")), "known are abfs"),
    "a URL without a table": (lambda _: run(items=tp.source(URL)), "say which table of postgresql://127.0.0.1:1/shop"),
    "a table of a file": (lambda f: run(items=tp.source(f / "i.csv", table="t")), "a file is one table"),
    "a credential that is not set": (
        lambda _: run(items=tp.source("postgresql://${NO_SUCH_VARIABLE}@h/d", table="t")),
        "needs the environment variable NO_SUCH_VARIABLE, which is not set",
    ),
    "a credential file that is missing": (
        lambda f: run(items=tp.source(f"postgresql://${{file:{f}/none}}@h/d", table="t")),
        "with a credential cannot be read",
    ),
    "a text that is no SQLite file": (
        lambda f: run(items=tp.source(f"sqlite:///{file(f, 'i.sqlite', SECRET * 99)}", table="items")),
        "the file is not a SQLite database",
    ),
    "a SQLite file that is not there": (
        lambda f: run(items=tp.source(f"sqlite:///{f}/none.sqlite", table="items")),
        "there is no SQLite file",
    ),
    "a SQLite table that is not there": (
        lambda f: run(items=tp.source(sqlite_file(f, "CREATE TABLE t (a INT)"), table="items")),
        "there is no such table in the SQLite file",
    ),
    "a text in a column of numbers": (
        lambda f: run(
            items=tp.source(
                sqlite_file(f, "CREATE TABLE t (item INT, price REAL)", f"INSERT INTO t VALUES (1, '{SECRET}')"), "t"
            )
        ),
        "column price is meant to be DOUBLE, and some row holds a value of another type",
    ),
    "a DuckDB file that is not there": (
        lambda f: run(items=tp.source(f"duckdb:///{f}/none.duckdb", table="items")),
        "there is no DuckDB file",
    ),
    "a text that is no DuckDB file": (
        lambda f: run(items=tp.source(f"duckdb:///{file(f, 'i.duckdb', SECRET * 999)}", table="items")),
        "cannot be read",
    ),
    "a text that is no Parquet file": (lambda f: run(items=file(f, "i.parquet", SECRET * 9)), "not a readable Parquet"),
    "files of two schemas in one folder": (lambda f: run(items=two_schemas(f)), "columns|schema"),
    "an empty CSV file": (lambda f: run(items=file(f, "i.csv", "")), "is empty; a CSV file needs a line"),
    "lines of different lengths": (
        lambda f: run(items=file(f, "i.csv", f"item,price\n1,2\n3,{SECRET},5,6\n")),
        "do not all have as many fields as the first|not in order",
    ),
    "one name for two columns": (lambda f: run(items=file(f, "i.csv", "item,Item\n1,2\n")), "SQL does not tell apart"),
    "a column without a name": (lambda f: run(items=file(f, "i.csv", "item,,price\n1,2,3\n")), "without a name"),
    "a file that is not UTF-8": (
        lambda f: run(items=file(f, "i.csv", b"item,price,note\n1,2,\xff\xfe\xe9\n" * 3)),
        "UTF-8|not in order",
    ),
    "a text that is no Arrow file": (lambda f: run(items=file(f, "i.arrow", SECRET * 9)), "Arrow"),
    "a folder without Parquet": (lambda f: run(items=f), "holds no Parquet file"),
    "a pattern that nothing matches": (lambda f: run(items=f"{f}/*.parquet"), "no file matches"),
    "a file of an unknown kind": (lambda f: run(items=file(f, "i.xlsx", "x")), "is not of a known kind"),
    "a list of rows": (lambda _: run(items=[{"item": 1}]), "is not a source"),
    "a lazy frame": (lambda _: run(items=pl.DataFrame(ITEMS).lazy()), r"call \.collect\(\) on it first"),
    "a frame that mixes types": (
        lambda _: run(items=pd.DataFrame({"item": [1, 2], "price": [SECRET, object()]})),
        "column 'price' of the DataFrame \\(object\\) mixes types",
    ),
    "a table without columns": (lambda _: run(items=pa.table({})), "has no columns"),
    "a table without a name": (lambda _: tp.Federation({"": ITEMS}), "a table's name must be text"),
    "a table without owners": (lambda _: run(items=[]), "has no source; give at least one"),
    # keys
    "a binary key": (lambda _: run(items=ITEMS.set_column(0, "item", pa.array([b"x"] * 8))), "cannot be a key"),
    "a list as a key": (lambda _: run(items=ITEMS.set_column(0, "item", pa.array([[1]] * 8))), "cannot be a key"),
    "a boolean and a number": (lambda _: run(items=column(ITEMS, "item", pa.array([True] * 8))), "same type"),
    "money and a number": (lambda _: run(items=key(pa.decimal128(22, 2))), r"i\.item is DECIMAL\(22,2\)"),
    "a UUID and a text": (
        lambda f: run(items=as_uuid(f), orders=key(pa.string(), ORDERS)),
        r"o\.item is VARCHAR and i\.item is UUID\. Write o",
    ),
    "a day and a moment": (
        lambda _: run(
            items=ITEMS.set_column(0, "item", days(False)),
            orders=ORDERS.set_column(0, "item", days(True).take(pa.array(np.arange(ROWS) % 8))),
        ),
        r"o\.item is TIMESTAMP and i\.item is DATE",
    ),
    "no key at all": (
        lambda _: run(items=ITEMS.set_column(0, "item", pa.nulls(8, pa.int64()))),
        "have no value in common",
    ),
    # features and labels
    "a structure as a feature": (
        lambda _: run(items=ITEMS.set_column(1, "price", pa.array([{"a": 1}] * 8))),
        "which cannot be a feature",
    ),
    "vectors of two lengths": (
        lambda _: run(items=ITEMS.set_column(1, "price", pa.array([[1.0], [1.0, 2.0]] * 4))),
        "cannot be a feature",
    ),
    "a label with one class": (lambda _: run(orders=label(["a"] * ROWS), model="logistic"), "one class|two classes"),
    "three classes for two": (lambda _: run(orders=label(["a", "b", "c"] * 20), model="logistic"), "and y has 3"),
    "classes for a line": (lambda _: run(orders=label(["a", "b"] * 30), model="linear"), "text|string|classes"),
    "a label that is everywhere NULL": (
        lambda _: run(orders=label(pa.nulls(ROWS, pa.float64()))),
        "NULL or NaN in 60 of 60",
    ),
    "a label that is a list": (lambda _: run(orders=label([[1.0]] * ROWS)), "cannot be predicted"),
    "the label alone": (lambda _: run("SELECT o.y FROM orders o"), "holds the label only"),
    "a filter that fails at its owner": (
        lambda _: run(f"{QUERY} WHERE CAST(i.note AS INTEGER) > 1"),
        "client items: table items: some row has a value that cannot be converted",
    ),
    "a filter that calls the system": (lambda _: run(f"{QUERY} WHERE i.note = getenv('HOME')"), "getenv"),
    "a column that the owner keeps": (
        lambda _: run(QUERY, {"items": Policy(tables={"items": TableRules(keys=("item",))})}),
        r"column price may not be read \(rule tables\.items\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_it_is_one_clear_sentence_shows_no_value_and_leaves_no_file(case: Case, tmp_path: Path) -> None:
    work, sentence = case
    with pytest.raises(tp.TablePuppetError, match=sentence) as refused:
        work(tmp_path)
    message = str(refused.value)
    assert SECRET not in message
    assert "Traceback" not in message
    assert len(message.split("\n  line ")[0].splitlines()) == 1  # the text of a query may follow, with a caret
    assert refused.value.__cause__ is None
    assert not [p for p in tmp_path.rglob("*") if p.name.startswith(".") or p.suffix in (".tmp", ".wal")]


def trained(folder: Path) -> tuple[tp.Federation, tp.Result]:
    federation = tp.Federation({"orders": ORDERS, "items": ITEMS})
    return federation, federation.train(QUERY, label="y", model="linear")


REQUESTS: dict[str, tuple[Callable[[tp.Federation, tp.Result, Path], Any], str]] = {
    "no model at all": (lambda f, r, p: f.predict(QUERY), "needs a Result or a loaded model"),  # type: ignore[arg-type]
    "a feature that the query lacks": (
        lambda f, r, p: f.predict(r, "SELECT o.x FROM orders o"),
        r"the model needs the feature i\.price",
    ),
    "a key that is no column": (lambda f, r, p: f.predict(r, key="nr"), "the key nr is not a column of o"),
    "a key that is one text": (lambda f, r, p: f.predict(r, key="item", keys="17"), "keys must be a list"),
    "a key with too many values": (
        lambda f, r, p: f.predict(r, key="item", keys=[(1, 2)]),
        "another number of values",
    ),
    "a file of an unknown kind": (lambda f, r, p: f.predict(r, to=p / "x.xml"), "written to .parquet or .csv"),
    "a folder that is not there": (lambda f, r, p: f.predict(r, to=p / "n" / "x.csv"), "there is no folder"),
    "a model that is none": (lambda f, r, p: tp.load(p), r"there is no model\.json"),
    "a model that is a pickle": (
        lambda f, r, p: tp.load(file(p, "model.json", b"\x80\x04\x95").parent),
        "is not a saved model or is damaged",
    ),
    "a model saved onto a file": (lambda f, r, p: r.save(file(p, "taken", "")), "exists and is not a saved model"),
    "an answer for missing owners": (lambda f, r, p: f.predict(r, missing="none"), 'missing must be "error" or "zero"'),  # type: ignore[arg-type]
    "a type that changed": (
        lambda f, r, p: tp.Federation(
            {"orders": ORDERS, "items": column(ITEMS, "price", pa.array([SECRET] * 8))}
        ).predict(r),
        r"i\.price was a number in training and is VARCHAR now",
    ),
}


@pytest.mark.parametrize("case", REQUESTS.values(), ids=list(REQUESTS))
def test_a_request_that_cannot_be_met_is_one_clear_sentence(
    case: tuple[Callable[[tp.Federation, tp.Result, Path], Any], str], tmp_path: Path
) -> None:
    work, sentence = case
    federation, result = trained(tmp_path)
    with federation, pytest.raises(tp.TablePuppetError, match=sentence) as refused:
        work(federation, result, tmp_path)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert not list(tmp_path.rglob(".*"))


def test_what_postgresql_refuses_is_said_without_its_own_words(postgres: Callable[[], Database]) -> None:
    database = postgres()
    database.execute(
        "CREATE TABLE items (item bigint, price float8, note text)",
        f"INSERT INTO items SELECT k, k, '{SECRET}' FROM generate_series(0, 7) k",
        "CREATE TABLE secret (item bigint, price float8)",
        f"CREATE ROLE reader_{database.name} LOGIN PASSWORD '{SECRET}'",
    )
    reader = database.url.replace("postgres:", f"reader_{database.name}:", 1)
    for url, table, why in (
        (database.url, "none", "there is no such table in the database"),
        (database.url.replace(f"/{database.name}?", "/none?"), "items", "there is no such database on this server"),
        (reader, "secret", "this user may not read the table; ask for SELECT on it"),
    ):
        with pytest.raises(tp.TablePuppetError, match=why) as refused:
            run(items=tp.source(url, table=table))
        assert SECRET not in str(refused.value)
        assert refused.value.__cause__ is None
