"""One key has one token wherever it lies: rows of any two kinds of source meet in a join."""

from __future__ import annotations

import datetime
import sqlite3
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.feather
import pytest
from tests.mysql import MySQLDatabase
from tests.postgres import Database

from tablepuppet.owner.tokens import tokens
from tablepuppet.sources.source import open_source, source
from tablepuppet.sql.bound import key_type

# kind → values as SQL literals, and the type of a column that holds them in each database
VALUES = {
    "integer": ["7", "-3", "NULL", "123456789012"],
    "decimal": ["7", "-3", "NULL", "12345678901234567890"],
    "string": ["'7'", "'é ß'", "NULL", "'it''s '"],
    "uuid": ["'00000000-0000-0000-0000-000000000007'", "'ABCDEF00-1234-1234-1234-1234567890ab'", "NULL", "NULL"],
    "date": ["'2020-02-29'", "'1969-12-31'", "NULL", "'2000-01-01'"],
    "timestamp": ["'2020-02-29 12:00:00'", "'1969-12-31 23:59:59.25'", "NULL", "'2000-01-01 00:00:00'"],
    "moment": ["'2020-02-29 12:00:00+00:00'", "'2020-06-01 14:00:00+02:00'", "NULL", "'2000-01-01 00:00:00+00:00'"],
}
TYPES: dict[str, dict[str, str]] = {
    "integer": {"duckdb": "BIGINT", "postgresql": "bigint", "sqlite": "INTEGER", "mysql": "BIGINT"},
    "decimal": {"duckdb": "DECIMAL(20, 0)", "postgresql": "numeric(20, 0)", "mysql": "DECIMAL(20, 0)"},
    "string": {"duckdb": "VARCHAR", "postgresql": "text", "sqlite": "TEXT", "mysql": "VARCHAR(40)"},
    "uuid": {"duckdb": "UUID", "postgresql": "uuid", "mysql": "UUID"},
    "date": {"duckdb": "DATE", "postgresql": "date", "sqlite": "DATE", "mysql": "DATE"},
    "timestamp": {"duckdb": "TIMESTAMP", "postgresql": "timestamp", "sqlite": "TIMESTAMP", "mysql": "DATETIME(6)"},
    "moment": {"duckdb": "TIMESTAMPTZ", "postgresql": "timestamptz", "sqlite": "TIMESTAMPTZ", "mysql": "TIMESTAMP(6)"},
}
SOURCES = ("arrow", "parquet", "feather", "csv", "duckdb", "sqlite", "postgresql", "mysql")


def statements(kind: str, database: str) -> list[str]:
    values = VALUES[kind]
    if kind == "moment" and database == "mysql":  # its literals have no zone
        moments = [v if v == "NULL" else datetime.datetime.fromisoformat(v.strip("'")) for v in values]
        values = [v if isinstance(v, str) else f"FROM_UNIXTIME({v.timestamp()})" for v in moments]
    rows = ", ".join(f"({number}, {value})" for number, value in enumerate(values))
    return [f"CREATE TABLE t (n INT, k {TYPES[kind][database]})", f"INSERT INTO t VALUES {rows}"]


def place(kind: str, where: str, folder: Path, request: pytest.FixtureRequest) -> Any:
    """A table with the values of a kind, in a source of a kind."""
    if where == "postgresql":
        database: Database = request.getfixturevalue("postgres")()
        database.execute(*statements(kind, where))
        return source(database.url, table="t")
    if where == "mysql":
        owner: MySQLDatabase = request.getfixturevalue("mysql")()
        owner.execute(*statements(kind, where))
        return source(owner.url, table="t")
    if where == "sqlite":
        connection = sqlite3.connect(folder / "t.sqlite")
        for statement in statements(kind, where):
            connection.execute(statement)
        connection.commit()
        connection.close()
        return source(f"sqlite:///{folder / 't.sqlite'}", table="t")
    file = folder / f"t.{where}"
    with duckdb.connect(str(folder / "t.duckdb")) as made:
        made.execute("SET TimeZone = 'Asia/Tokyo'")  # where a client lives must not matter
        for statement in statements(kind, "duckdb"):
            made.execute(statement)
        if where in ("parquet", "csv"):
            made.execute(f"COPY t TO '{file}'")
        table = made.sql("SELECT * FROM t").to_arrow_table()
    if kind == "uuid":  # which DuckDB gives as text
        values = [None if v is None else UUID(v).bytes for v in table["k"].to_pylist()]
        own = pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))
        table = table.set_column(1, "k", own)
    if where == "feather":
        pyarrow.feather.write_feather(table, file)
    return {"duckdb": source(f"duckdb:///{folder / 't.duckdb'}", table="t"), "arrow": table}.get(where, file)


def read(given: Any) -> tuple[str | None, list[bytes | None]]:
    """What the key is compared as, and its tokens in the order of n."""
    opened = open_source(given, "t")
    [info, _] = opened.describe_scan(['"k"', '"n"'], None)
    rows = opened.read(['"k"', '"n"'], None)
    opened.close()
    made = tokens(rows["c0"], info, "hmac", b"k" * 32, "0")
    ordered = made.take(pa.array(rows["c1"].to_numpy().argsort()))
    return key_type(info), ordered.dictionary_decode().to_pylist()


CASES = [
    (kind, where)
    for kind in VALUES
    for where in SOURCES
    if TYPES[kind].get(where) or (where in ("arrow", "parquet", "feather") or (where == "csv" and kind != "uuid"))
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("kind", "where"), CASES, ids=[" in ".join(case) for case in CASES])
def test_the_same_values_have_the_same_tokens(
    kind: str, where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "reference").mkdir()
    expected = read(place(kind, "parquet", tmp_path / "reference", request))
    found = read(place(kind, where, tmp_path, request))
    assert found == expected
    assert [token is None for token in found[1]] == [value == "NULL" for value in VALUES[kind]]
    assert len(set(found[1])) == len(set(VALUES[kind]))
