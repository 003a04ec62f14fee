"""SQLite: declared types, values of other types, views, files that are none."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tablepuppet.errors import SourceError
from tablepuppet.sources.source import Source, open_source, source


@contextlib.contextmanager
def opened(folder: Path, *statements: str, table: str = "t") -> Iterator[Source]:
    file = folder / "a b?.sqlite"
    connection = sqlite3.connect(file)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    with contextlib.closing(open_source(source(f"sqlite:///{file}", table=table), "things")) as things:
        yield things


def test_declared_types_say_what_is_meant(tmp_path: Path) -> None:
    with opened(
        tmp_path,
        'CREATE TABLE "t""s" (a INT, b VARCHAR(9), c REAL, d BOOLEAN, e DATE, f DATETIME, g NUMERIC(9, 2), '
        'h DECIMAL(9), i BLOB, "select" TEXT, "it\'s" INTEGER)',
        "INSERT INTO \"t\"\"s\" VALUES (1, 'x', 2, 1, '2020-01-02', '2020-01-02 03:04:05', 3, 4, x'00', 'y', 5)",
        table='t"s',
    ) as things:
        kinds = [column.kind for column in things.describe()]
        assert kinds == [
            *(
                "integer",
                "string",
                "float",
                "boolean",
                "date",
                "timestamp",
                "float",
                "integer",
                "other",
                "string",
                "integer",
            )
        ]
        [row] = things.read(["a", "c", "d", "e", "f", "g", "h", '"select"', '"it\'s"'], "d").to_pylist()
        assert [str(v) for v in row.values()] == [
            "1",
            "2.0",
            "True",
            "2020-01-02",
            "2020-01-02 03:04:05",
            "3.0",
            "4",
            "y",
            "5",
        ]


def test_a_column_that_begins_with_many_nulls_keeps_its_type(tmp_path: Path) -> None:
    with opened(
        tmp_path,
        "CREATE TABLE t (a TEXT, b REAL)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) "
        "INSERT INTO t SELECT NULL, NULL FROM n",
        "INSERT INTO t VALUES ('x', 2.5)",
    ) as things:
        assert things.read(["a", "b"], None).slice(5000).to_pylist() == [{"c0": "x", "c1": 2.5}]


def test_a_value_of_another_type_is_an_error_and_not_a_zero(tmp_path: Path) -> None:
    with opened(
        tmp_path, "CREATE TABLE t (a INTEGER, b TEXT)", "INSERT INTO t VALUES (1, 'x'), ('hush', 'y')"
    ) as things:
        with pytest.raises(SourceError, match="column a is meant to be BIGINT, and some row holds") as refused:
            things.read(["a"], None)
        with pytest.raises(SourceError, match="column a is meant to be BIGINT"):
            things.read(["b"], "a > 0")
        assert "hush" not in str(refused.value)
        assert things.read(["b"], None).num_rows == 2


def test_the_columns_of_a_view_are_typed_by_what_they_hold(tmp_path: Path) -> None:
    with opened(
        tmp_path,
        "CREATE TABLE t (a INTEGER)",
        "INSERT INTO t VALUES (1), (NULL)",
        "CREATE VIEW v AS SELECT a + 1 AS i, a / 2.0 AS f, 'x' || a AS s FROM t",
        table="v",
    ) as things:
        assert [column.kind for column in things.describe()] == ["integer", "float", "string"]
        assert things.read(["i", "f", "s"], None).to_pylist()[0] == {"c0": 2, "c1": 0.5, "c2": "x1"}


def test_what_is_not_there_or_not_sqlite_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such table in the SQLite file"):
        opened(tmp_path, "CREATE TABLE other (a)").__enter__()
    with pytest.raises(SourceError, match="there is no SQLite file"):
        open_source(source(f"sqlite:///{tmp_path}/none.sqlite", table="t"), "things")
    (tmp_path / "text.sqlite").write_text("not a database" * 100)
    with pytest.raises(SourceError, match="not a SQLite database"):
        open_source(source(f"sqlite:///{tmp_path}/text.sqlite", table="t"), "things")


def test_a_moment_is_one_in_whatever_zone_it_is_written(tmp_path: Path) -> None:
    with opened(
        tmp_path,
        "CREATE TABLE t (at TIMESTAMPTZ)",
        "INSERT INTO t VALUES ('2020-01-02T03:00:00Z'), ('2020-01-02 05:00:00+02:00')",
    ) as things:
        assert things.describe()[0].detail == "TIMESTAMP WITH TIME ZONE"
        first, second = things.read(['"at"'], None)["c0"].to_pylist()
    assert first == second


def test_rows_keep_the_tables_order_whatever_index_there_is(tmp_path: Path) -> None:
    rows = ", ".join(f"({k}, {-k})" for k in range(50))
    made = ("CREATE TABLE t (a INT, b INT)", "CREATE INDEX i ON t (b)", f"INSERT INTO t VALUES {rows}")
    with opened(tmp_path, *made) as t:
        assert t.read(["b"], None)["c0"].to_pylist() == [-k for k in range(50)]
        assert t.read(["a"], "b < -5")["c0"].to_pylist() == list(range(6, 50))
