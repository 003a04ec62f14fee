"""A table that changes: a job keeps what it has read, a change under its feet is named, the next job sees it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from tests.mysql import MySQLDatabase
from tests.postgres import Database

from tablepuppet.errors import SourceError
from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.owner.tables import ClientTables
from tablepuppet.sources.source import open_source, source

FIRST = pa.table({"k": [1, 2, 3], "x": [0.5, 1.5, 2.5]})
SECOND = pa.table({"k": [3, 1], "x": [9.5, 8.5]})
THIRD = pa.table({"k": [3, 1], "z": [9.5, 8.5]})  # a column is gone

Write = Callable[[Path, pa.Table], object]


def parquet(folder: Path, table: pa.Table) -> object:
    pq.write_table(table, folder / "t.parquet")
    return folder / "t.parquet"


def renamed(folder: Path, table: pa.Table) -> object:
    """Replaced as careful writers do it."""
    pq.write_table(table, folder / ".new")
    os.replace(folder / ".new", folder / "t.parquet")
    return folder / "t.parquet"


def parts(folder: Path, table: pa.Table) -> object:
    """A folder whose files are others each time."""
    number = len(list(folder.glob("t/*")))
    (folder / "t").mkdir(exist_ok=True)
    pq.write_table(table, folder / "t" / f"new-{number}.parquet")
    for file in (folder / "t").glob("*.parquet"):
        if file.name != f"new-{number}.parquet":
            file.unlink()
    return folder / "t"


def csv(folder: Path, table: pa.Table) -> object:
    pyarrow.csv.write_csv(table, folder / "t.csv")
    return folder / "t.csv"


def feather(folder: Path, table: pa.Table) -> object:
    pyarrow.feather.write_feather(table, folder / "t.new")
    os.replace(folder / "t.new", folder / "t.feather")
    return folder / "t.feather"


def duckdb_file(folder: Path, table: pa.Table) -> object:
    with duckdb.connect(str(folder / "new.duckdb")) as connection:
        connection.register("given", table)
        connection.execute("CREATE TABLE t AS SELECT * FROM given")
    os.replace(folder / "new.duckdb", folder / "t.duckdb")
    return source(f"duckdb:///{folder / 't.duckdb'}", table="t")


def sqlite_file(folder: Path, table: pa.Table) -> object:
    connection = sqlite3.connect(folder / "t.sqlite")
    a, b = table.column_names
    connection.execute("DROP TABLE IF EXISTS t")
    connection.execute(f"CREATE TABLE t ({a} INTEGER, {b} REAL)")
    connection.executemany("INSERT INTO t VALUES (?, ?)", zip(*(c.to_pylist() for c in table.columns), strict=True))
    connection.commit()
    connection.close()
    return source(f"sqlite:///{folder / 't.sqlite'}", table="t")


def sqlite_replaced(folder: Path, table: pa.Table) -> object:
    (folder / "new").mkdir(exist_ok=True)
    sqlite_file(folder / "new", table)
    os.replace(folder / "new" / "t.sqlite", folder / "t.sqlite")
    return source(f"sqlite:///{folder / 't.sqlite'}", table="t")


FILES: dict[str, Write] = {
    "parquet": parquet,
    "renamed": renamed,
    "folder": parts,
    "csv": csv,
    "feather": feather,
    "duckdb": duckdb_file,
}
DATABASES = ("sqlite", "sqlite replaced", "postgresql", "mysql")


@pytest.fixture(params=[*FILES, *DATABASES])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[pa.Table], object]:
    """Writes a table where it lies, and says where."""
    if request.param == "postgresql":
        database: Database = request.getfixturevalue("postgres")()

        def in_postgres(table: pa.Table) -> object:
            database.execute("DROP TABLE IF EXISTS t")
            database.ingest("t", table)
            return source(database.url, table="t")

        return in_postgres
    if request.param == "mysql":
        owner: MySQLDatabase = request.getfixturevalue("mysql")()

        def in_mysql(table: pa.Table) -> object:
            owner.execute("DROP TABLE IF EXISTS t")
            owner.ingest("t", table)
            return source(owner.url, table="t")

        return in_mysql
    own = {"sqlite": sqlite_file, "sqlite replaced": sqlite_replaced, **FILES}[request.param]
    return lambda table: own(tmp_path, table)


def client(given: object) -> ClientTables:
    return ClientTables({"t": open_source(given, "t")})


def begin(tables: ClientTables, job: str) -> None:
    tables.describe("t")
    tables.open_scan(OpenScan(job=job, scan=0, table="t", columns=["k", "x"]))


def test_what_a_job_has_read_stays_and_the_next_job_sees_the_change(write: Callable[[pa.Table], object]) -> None:
    tables = client(write(FIRST))
    begin(tables, "a")
    assert tables.scan("a", 0).rows().to_pydict() == {"c0": [1, 2, 3], "c1": [0.5, 1.5, 2.5]}
    write(SECOND)
    assert tables.scan("a", 0).rows().to_pydict() == {"c0": [1, 2, 3], "c1": [0.5, 1.5, 2.5]}
    begin(tables, "b")
    assert sorted(tables.scan("b", 0).rows()["c1"].to_pylist()) == [8.5, 9.5]
    assert tables.fingerprints("a") != tables.fingerprints("b")
    tables.shutdown()


def test_a_change_between_the_beginning_of_a_job_and_its_reading_is_named(write: Callable[[pa.Table], object]) -> None:
    tables = client(write(FIRST))
    begin(tables, "a")
    write(THIRD)
    with pytest.raises(SourceError, match=r"table t has changed since the job began: (its files|x is gone)"):
        tables.scan("a", 0).rows()
    tables.shutdown()


def test_a_table_says_whether_it_is_what_it_was(write: Callable[[pa.Table], object]) -> None:
    tables = client(write(FIRST))
    first, again = tables.describe("t")[1], tables.describe("t")[1]
    write(SECOND)
    after = tables.describe("t")[1]
    tables.shutdown()
    assert first == again
    assert first != after or first == b""  # no telling: read it at every request


def test_a_table_in_memory_never_changes_and_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    tables = client(FIRST)
    assert tables.describe("t")[1] == tables.describe("t")[1] != b""
    tables.shutdown()
    tables = client(parquet(tmp_path, FIRST))
    (tmp_path / "t.parquet").unlink()
    with pytest.raises(SourceError, match="table t: the file is missing, changed or damaged; its log says more"):
        tables.describe("t")
    tables.shutdown()


def test_the_stamp_shows_nothing_of_the_owners_disk(tmp_path: Path) -> None:
    tables = client(parquet(tmp_path, FIRST))
    assert len(tables.describe("t")[1]) == 16
    other = client(tmp_path / "t.parquet")
    assert tables.describe("t")[1] != other.describe("t")[1]  # keyed by a secret of the client's
    for opened in (tables, other):
        opened.shutdown()
