"""What a scan means does not depend on where its table lies: every database agrees with DuckDB, value by value."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.mysql import MySQLDatabase
from tests.postgres import Database
from tests.sources.expressions import RUNNABLE

from tablepuppet.sources.guard import check_expression
from tablepuppet.sources.postgresql import PostgreSQL
from tablepuppet.sources.pushdown import OwnerColumn, push_down
from tablepuppet.sources.source import Source, open_source, source

_DAYS = [
    datetime.date(2020, 2, 29),
    datetime.date(1969, 12, 31),
    None,
    datetime.date(2013, 6, 1),
    datetime.date(1, 1, 1),
]
_TIMES = [datetime.datetime.combine(day, datetime.time(23, 59, 58, 5)) if day else None for day in _DAYS]
TABLE = pa.table(
    {
        "a": pa.array([1, -7, None, 2, 0], pa.int32()),
        "b": pa.array([3, 2, 5, None, -3], pa.int64()),
        "x": pa.array([0.5, float("inf"), None, -2.5, 1e-300]),
        "flag": pa.array([True, False, None, True, False]),
        "name": pa.array(["x", "It's", None, "ÄÖ%_\\", "b "]),
        "t": pa.array(_TIMES, pa.timestamp("us")),
        "d": pa.array(_DAYS),
        "We ird": pa.array([1.5, 2.5, 3.5, 4.5, None]),
        "order": pa.array([5, 4, 3, 2, 1], pa.int16()),
        "real": pa.array([0.1, 0.2, None, 1.5, -0.1], pa.float32()),
    }
)
EXPRESSIONS = [
    *("a + 1", "-a * b - 2", "a / 2", "a / b", "b // 2", "a % 2", "abs(a)", "x * 2", "x + a", '"We ird" * "order"'),
    *("a > 1", "a >= b", "a <> 2 AND b > 0", "NOT flag", "flag IS TRUE", "flag = TRUE", "flag AND a > 0", "a IS NULL"),
    *("name = 'x'", "name <> 'It''s'", "name > 'b'", "name IN ('x', 'b ')", "name LIKE '%s'", "name LIKE 'ÄÖ\\%'"),
    *("name ILIKE 'X%'", "name || 'é'", "lower(name)", "length(name)", "name = 'b'", "name LIKE 'X'"),
    *("d > DATE '2013-01-01'", "d >= '2013-06-01'", "t < TIMESTAMP '2020-01-01 00:00:00'", "t >= '2013-06-01'"),
    *("extract(year FROM d)", "extract(hour FROM t)", "extract(minute FROM t)", "year(d)", "hour(t)", "dayofweek(d)"),
    *("CASE WHEN a > 1 THEN 1 ELSE 0 END", "CASE WHEN flag THEN x ELSE 0 END", "CASE WHEN a > 0 THEN 'p' END"),
    *("coalesce(a, 0)", "coalesce(name, 'none')", "coalesce(a, b, 7)", "nullif(a, 2)", "greatest(a, b)"),
    *("a BETWEEN 0 AND 2", "d BETWEEN '2000-01-01' AND '2014-01-01'"),
    *("CAST(a AS DOUBLE)", "CAST(x AS DOUBLE) > 0", "x > 1e300", "x = 0.5", "sqrt(abs(a))", "ln(b + 4)", "round(x)"),
    *("floor(x)", "ceil(x)", "a IN (1, 2, NULL)", "a NOT IN (1, 2)", "d IN (DATE '2020-02-29')"),
    *('"real" = 0.1', '"real" > 0.1', '"real" * 3', "d > '2013-6-1'", "d < '2013-06-01 12:00:00'"),
    *("t >= '2020-02-29T23:59:58'", "a > 1.5", "a = 2.0", "x < 1e-299", "b > 2.99999999999"),
    *('"order" = 3', "TRUE", "a = a", "1 = 1", "'x'", "(a > 0) = flag", "a IS NOT NULL OR b IS NULL", "NULL IS NULL"),
]  # fmt: skip


def sqlite_table(folder: Path) -> Source:
    connection = sqlite3.connect(folder / "t.sqlite")
    types = ("INTEGER", "BIGINT", "REAL", "BOOLEAN", "TEXT", "TIMESTAMP", "DATE", "DOUBLE", "SMALLINT", "REAL")
    listed = ", ".join(f'"{name}" {kind}' for name, kind in zip(TABLE.column_names, types, strict=True))
    connection.execute(f"CREATE TABLE things ({listed})")
    text = [[str(v) if isinstance(v, datetime.date) else v for v in column.to_pylist()] for column in TABLE.columns]
    connection.executemany(f"INSERT INTO things VALUES ({', '.join('?' * len(types))})", zip(*text, strict=True))
    connection.commit()
    connection.close()
    return open_source(source(f"sqlite:///{folder / 't.sqlite'}", table="things"), "things")


def put_in(database: str) -> pa.Table:
    """The table, without what a database does not have."""
    if database != "mysql":
        return TABLE
    finite = pa.array([1e308 if x == float("inf") else x for x in TABLE["x"].to_pylist()])
    return TABLE.set_column(TABLE.column_names.index("x"), "x", finite)


@pytest.fixture(params=["postgresql", "sqlite", "mysql"], scope="module")
def things(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    if request.param == "sqlite":
        opened = sqlite_table(tmp_path_factory.mktemp("things"))
    elif request.param == "mysql":
        owner: MySQLDatabase = request.getfixturevalue("mysql")()
        owner.ingest("things", put_in("mysql"))
        opened = open_source(source(owner.url, table="things"), "things")
    else:
        database: Database = request.getfixturevalue("postgres")()
        database.ingest("things", TABLE)
        opened = open_source(source(database.url, table="things"), "things")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def oracle(things: Source) -> Iterator[Source]:
    """The same rows in DuckDB, in the types that the database gives them."""
    columns = things.read([f'"{name}"' for name in TABLE.column_names], None).rename_columns(TABLE.column_names)
    opened = open_source(columns, "things")
    yield opened
    opened.close()


def test_the_table_itself_is_what_was_put_in(things: Source, request: pytest.FixtureRequest) -> None:
    expected = put_in(request.node.callspec.params["things"])
    found = things.read([f'"{name}"' for name in TABLE.column_names], None).rename_columns(TABLE.column_names)
    assert found.to_pydict() == expected.to_pydict()


@pytest.mark.one_in(7)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_gives_what_duckdb_gives(things: Source, oracle: Source, expression: str) -> None:
    guarded = check_expression(expression, TABLE.column_names)
    expected = oracle.read([guarded], None)
    found = things.read([guarded], None)
    assert str(found.to_pydict()) == str(expected.to_pydict())  # NaN is not equal to itself, and shown alike
    assert found.schema == expected.schema
    assert things.describe_scan([guarded], None) == oracle.describe_scan([guarded], None)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("expression", [e for e in EXPRESSIONS if e != "'x'"])
def test_a_filter_keeps_what_duckdb_keeps(things: Source, oracle: Source, expression: str) -> None:
    predicate = check_expression(f"({expression}) IS NOT NULL AND b < 4", TABLE.column_names)
    assert things.read(['"order"', "b"], predicate).to_pydict() == oracle.read(['"order"', "b"], predicate).to_pydict()
    [info] = oracle.describe_scan([check_expression(expression, TABLE.column_names)], None)
    if info.kind == "boolean":
        predicate = check_expression(f"{expression} AND NOT (b > 100)", TABLE.column_names)
        assert things.read(['"order"'], predicate).to_pydict() == oracle.read(['"order"'], predicate).to_pydict()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("expression", [e for e in RUNNABLE if "v" not in e.replace("div", "").replace("even", "")])
def test_whatever_the_guard_lets_through_is_computed(things: Source, oracle: Source, expression: str) -> None:
    names = ["a", "b", "name", "t", "d"]
    guarded = check_expression(expression, names)
    predicate = check_expression("a > 0 AND b > 0", names)
    assert str(things.read([guarded], predicate).to_pydict()) == str(oracle.read([guarded], predicate).to_pydict())


COLUMNS = [
    OwnerColumn("a", "INTEGER", "number"),
    OwnerColumn("b", "BIGINT", "number"),
    OwnerColumn("name", "VARCHAR", "text"),
    OwnerColumn('od"d', "DATE", "date"),
    OwnerColumn("secret", "DOUBLE", "number"),
]


def pushed(expressions: list[str], filter: str | None) -> str:
    return push_down('"t"', expressions, filter, COLUMNS, PostgreSQL.dialect).select


def test_only_the_columns_rows_and_expressions_that_are_needed_are_asked_for() -> None:
    asked = pushed(['"a"', '"a" * "b"', 'LN("b")'], '"name" = \'x\' AND UPPER("name") = \'X\' AND "a" > 2')
    assert asked == (
        'SELECT "a" * "b" AS "tablepuppet:0", "name" AS "tablepuppet:1", "a" AS "tablepuppet:2", '
        '"b" AS "tablepuppet:3" FROM "t" WHERE ("name" = \'x\') AND ("a" > 2)'
    )


def test_no_column_at_all_still_counts_the_rows() -> None:
    assert pushed([], '"a" > 1') == 'SELECT 1 AS "tablepuppet:0" FROM "t" WHERE ("a" > 1)'


def test_quotes_in_names_stay_inside_them() -> None:
    assert pushed(['"od""d"'], None) == 'SELECT "od""d" AS "tablepuppet:0" FROM "t"'


@pytest.mark.parametrize(
    "predicate",
    [
        "LN(a) > 0",
        "name < 'b'",
        "a / b > 1",
        "a // b > 1",
        "name LIKE 'a\\%'",
        "CAST(name AS INT) = 1",
        "LOWER(name) = 'a'",
    ],
)
def test_what_databases_disagree_about_is_left_to_the_client(predicate: str) -> None:
    guarded = check_expression(predicate, [column.name for column in COLUMNS])
    scan = push_down('"t"', [], guarded, COLUMNS, PostgreSQL.dialect)
    assert "WHERE" not in scan.select
    assert scan.filter == f"({guarded})"
