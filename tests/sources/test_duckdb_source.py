"""What an expression or query takes of an owner's machine is bounded: memory, time, and words about rows."""

from __future__ import annotations

import datetime
import gc
import resource
import weakref
from contextlib import closing
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from tablepuppet.errors import SourceError
from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.owner.tables import ClientTables
from tablepuppet.sources import duckdb_source
from tablepuppet.sources.source import open_source

ROWS = 30_000


def tables(last: str = "1") -> ClientTables:
    held = pa.table({"k": np.arange(ROWS), "x": np.ones(ROWS), "text": ["1"] * (ROWS - 1) + [last]})
    return ClientTables({"t": open_source(held, "t")})


def read(opened: ClientTables, column: str, query: str | None = None) -> pa.Table:
    opened.open_scan(OpenScan(job="j", scan=0, table="t", columns=[column], query=query))
    return opened.scan("j", 0).rows()


def test_a_query_that_gives_more_rows_than_memory_holds_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.7 · 10¹³ rows: what DuckDB has handed out is outside its own limit."""
    monkeypatch.setattr(duckdb_source, "memory_limit", lambda: 1 << 28)
    opened = tables()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SourceError, match="not enough memory"):
        read(opened, "x", "SELECT a.x FROM t a, t b, t c")
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 1 << 30
    assert read(opened, "x").num_rows == ROWS  # and goes on
    opened.shutdown()


def test_a_query_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_source, "MOST_SECONDS", 0.3)
    opened = tables()
    with pytest.raises(SourceError, match="took longer than"):
        read(opened, "n", "SELECT count(*) AS n FROM t a, t b, t c WHERE a.x + b.x > c.k")
    opened.shutdown()


def test_an_error_in_the_last_row_does_not_tell_its_value() -> None:
    opened = tables(last="a secret")
    with pytest.raises(SourceError, match="cannot be converted") as refused:
        read(opened, "CAST(text AS INTEGER)")
    assert "secret" not in str(refused.value)
    opened.shutdown()


def test_a_database_that_is_used_again_has_nothing_of_the_last_table_and_stays_locked(tmp_path: Path) -> None:
    file = tmp_path / "other.csv"
    file.write_text("secret\n1\n")
    table = pa.table({"x": [1.5]})
    gone = weakref.ref(table)
    with closing(duckdb_source.from_arrow("t", table)) as source:
        assert source.read(["x"], None).num_rows == 1
    del table
    gc.collect()
    assert gone() is None
    with closing(duckdb_source.Loan()) as first, closing(duckdb_source.Loan()) as second:
        for lent in (first, second):
            assert lent.connection.execute("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchall() == [
                (0,)
            ]
            with pytest.raises(duckdb.CatalogException):
                lent.connection.execute(f"SELECT * FROM {duckdb_source.RELATION}")
            with pytest.raises(duckdb.CatalogException):
                lent.connection.execute("SELECT * FROM tmp_path")  # a variable of Python
            with pytest.raises(duckdb.PermissionException):
                lent.connection.execute(f"SELECT * FROM read_csv('{file}')")
            with pytest.raises(duckdb.InvalidInputException, match="locked"):
                lent.connection.execute("SET enable_external_access = true")
            assert lent.connection.execute("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]
        first.connection.execute("CREATE TABLE of_the_first AS SELECT 1 AS x")
        with pytest.raises(duckdb.CatalogException):  # nobody else uses it meanwhile
            second.connection.execute("SELECT * FROM of_the_first")
        second.close()
        first.close()
        with closing(duckdb_source.Loan()) as again:
            again.connection.execute("DROP TABLE of_the_first")  # which stood in the database itself


def test_a_database_is_lent_to_one_at_a_time_however_often_it_is_given_back() -> None:
    lent = duckdb_source.Loan()
    lent.close()
    lent.close()
    with closing(duckdb_source.Loan()) as first, closing(duckdb_source.Loan()) as second:
        first.connection.execute("CREATE TABLE of_the_first AS SELECT 1 AS x")
        with pytest.raises(duckdb.CatalogException):
            second.connection.execute("DROP TABLE of_the_first")
        first.connection.execute("DROP TABLE of_the_first")


def test_a_month_is_told_from_thirty_days() -> None:
    moments = pa.table({"t": pa.array([datetime.datetime(2020, 3, 31, 12)], pa.timestamp("us"))})
    with closing(open_source(moments, "moments")) as opened:
        read = opened.read(['"t" - INTERVAL 1 MONTH', '"t" - INTERVAL 30 DAY'], None)
    assert [column[0].as_py() for column in read.columns] == [
        datetime.datetime(2020, 2, 29, 12),
        datetime.datetime(2020, 3, 1, 12),
    ]
