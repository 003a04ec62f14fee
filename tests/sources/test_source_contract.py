"""What every source promises, wherever its table lies."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as pads
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from tests.mysql import MySQLDatabase
from tests.object_store import s3_address, web_address
from tests.postgres import Database

from tablepuppet.errors import SourceError
from tablepuppet.sources import adbc
from tablepuppet.sources.source import Source, open_source, source

ROWS = 50_000
_RANDOM = np.random.default_rng(0)
TABLE = pa.table(
    {
        "id": pa.array(np.arange(ROWS)),
        "price": pa.array(_RANDOM.normal(size=ROWS), mask=_RANDOM.random(ROWS) < 0.1),
        "category": pa.array(_RANDOM.choice(np.array(["toys", "books", None]), ROWS)),
        "sold": pa.array([datetime.date(2024, 1, 1) + datetime.timedelta(days=i % 366) for i in range(ROWS)]),
        "Is New": pa.array(_RANDOM.random(ROWS) < 0.5),
    }
)


def parquet_file(folder: Path) -> object:
    pq.write_table(TABLE, folder / "items.parquet", row_group_size=7000)
    return str(folder / "items.parquet")


def parquet_folder(folder: Path) -> object:
    (folder / "_temporary").mkdir()
    pq.write_table(TABLE, folder / "_temporary" / "0.parquet")
    (folder / "notes.txt").write_text("not data")
    for i in range(5):  # written in another order than their names'
        part = TABLE.slice((4 - i) * ROWS // 5, ROWS // 5)
        pq.write_table(part, folder / f"part-{4 - i}.parquet")
    return folder


def parquet_glob(folder: Path) -> object:
    parquet_folder(folder)
    return source(folder / "part-*.parquet")


def csv_file(folder: Path) -> object:
    pyarrow.csv.write_csv(TABLE, folder / "items.csv")
    return folder / "items.csv"


def feather_file(folder: Path) -> object:
    pyarrow.feather.write_feather(TABLE, folder / "items.feather")
    return folder / "items.feather"


def arrow_stream(folder: Path) -> object:
    with pa.ipc.new_stream(str(folder / "items.arrow"), TABLE.schema) as writer:
        writer.write_table(TABLE)
    return folder / "items.arrow"


def arrow_dataset(folder: Path) -> object:
    parquet_folder(folder)
    return pads.dataset(sorted(str(file) for file in folder.glob("part-*.parquet")))


def duckdb_file(folder: Path) -> object:
    with duckdb.connect(str(folder / "shop.duckdb")) as connection:
        connection.register("given", TABLE)
        connection.execute("CREATE SCHEMA sales; CREATE TABLE sales.items AS SELECT * FROM given")
    return source(f"duckdb:///{folder / 'shop.duckdb'}", table="sales.items")


def sqlite_file(folder: Path) -> object:
    with sqlite3.connect(folder / "shop.sqlite") as connection:
        connection.execute('CREATE TABLE items (id INTEGER, price REAL, category TEXT, sold DATE, "Is New" BOOLEAN)')
        dates = [day.isoformat() for day in TABLE["sold"].to_pylist()]
        columns = [TABLE[name].to_pylist() for name in TABLE.column_names]
        connection.executemany(
            "INSERT INTO items VALUES (?, ?, ?, ?, ?)", zip(*columns[:3], dates, columns[4], strict=True)
        )
    connection.close()
    return source(f"sqlite:///{folder / 'shop.sqlite'}", table="items")


def postgres_table(database: Database) -> object:
    database.execute("CREATE SCHEMA sales")
    database.ingest("items", TABLE, schema="sales")
    return source(database.url, table="sales.items")


def pandas_frame(_: Path) -> object:
    frame: pd.DataFrame = TABLE.to_pandas()
    return frame.set_index(frame["id"][::-1].rename(None))  # an index without a name is no column and no order


def json_lines(folder: Path) -> object:
    with duckdb.connect() as connection:
        connection.register("given", TABLE)
        connection.execute(f"COPY (SELECT * FROM given) TO '{folder / 'items.jsonl'}' (FORMAT json)")
    return folder / "items.jsonl"


def web_file(folder: Path) -> object:
    parquet_file(folder)
    return f"{web_address(folder)}/items.parquet"


def s3_folder(folder: Path) -> object:
    (folder / "bucket" / "items").mkdir(parents=True)
    parquet_folder(folder / "bucket" / "items")
    return source(s3_address(folder).format("bucket/items"))


def adbc_table(database: Database, monkeypatch: pytest.MonkeyPatch) -> object:
    """PostgreSQL through what Snowflake, BigQuery and Flight SQL go through."""
    database.ingest("items", TABLE)
    kind = adbc._Kind("adbc_driver_postgresql", lambda url: ((url.replace("flightsql", "postgresql"),), {}), "postgres")
    monkeypatch.setitem(adbc.DRIVERS, "flightsql", kind)
    return source(database.url.replace("postgresql", "flightsql", 1), table="items")


MAKERS: dict[str, Callable[[Path], object]] = {
    "arrow": lambda _: TABLE,
    "batch": lambda _: TABLE.combine_chunks().to_batches()[0],
    "dataset": arrow_dataset,
    "pandas": pandas_frame,
    "pandas of arrow": lambda _: TABLE.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda _: pl.DataFrame(TABLE),
    "parquet": parquet_file,
    "folder": parquet_folder,
    "glob": parquet_glob,
    "csv": csv_file,
    "json": json_lines,
    "web": web_file,
    "s3": s3_folder,
    "feather": feather_file,
    "stream": arrow_stream,
    "duckdb": duckdb_file,
    "sqlite": sqlite_file,
}


@pytest.fixture(params=[*MAKERS, "postgresql", "adbc", "mysql"], scope="module")
def items(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    if request.param == "postgresql":
        given = postgres_table(request.getfixturevalue("postgres")())
    elif request.param == "adbc":
        with pytest.MonkeyPatch.context() as patch:
            opened = open_source(adbc_table(request.getfixturevalue("postgres")(), patch), "items")
            yield opened
            opened.close()
        return
    elif request.param == "mysql":
        owner: MySQLDatabase = request.getfixturevalue("mysql")()
        owner.ingest("items", TABLE, key="id")
        given = source(owner.url, table="items")
    else:
        given = MAKERS[request.param](tmp_path_factory.mktemp("items"))
    opened = open_source(given, "items")
    yield opened
    opened.close()


def test_it_describes_its_own_columns(items: Source) -> None:
    described = [(column.name, column.kind) for column in items.describe()]
    assert described == [
        ("id", "integer"),
        ("price", "float"),
        ("category", "string"),
        ("sold", "date"),
        ("Is New", "boolean"),
    ]
    assert all(column.detail for column in items.describe())


def test_it_describes_expressions_under_the_names_c0_c1(items: Source) -> None:
    described = items.describe_scan(['"id" + 1', "upper(category)", "CAST(price AS DECIMAL(10, 2))"], "price > 0")
    assert [(column.name, column.kind) for column in described] == [
        ("c0", "integer"),
        ("c1", "string"),
        ("c2", "decimal"),
    ]
    assert described[2].detail == "DECIMAL(10,2)"


def test_it_reads_expressions_of_the_rows_that_pass_the_filter_in_their_order(items: Source) -> None:
    read = items.read(['"id"', "category", 'CASE WHEN "Is New" THEN 1 ELSE 0 END'], "price > 0")
    assert read.column_names == ["c0", "c1", "c2"]
    price = TABLE["price"].to_numpy()
    expected = TABLE.filter(pa.array(price > 0))
    assert read["c0"].to_numpy().tolist() == expected["id"].to_numpy().tolist()
    assert read["c1"].to_pylist() == expected["category"].to_pylist()
    assert read["c2"].to_pylist() == [int(new) for new in expected["Is New"].to_pylist()]


def test_two_reads_give_the_same_rows_in_the_same_order(items: Source) -> None:
    assert items.read(['"id"'], None) == items.read(['"id"'], None)
    assert items.read(['"id"', "price"], None)["c0"].to_numpy().tolist() == list(range(ROWS))


def test_a_filter_that_no_row_passes_gives_an_empty_table_of_the_same_types(items: Source) -> None:
    empty = items.read(['"id"', "category"], "price > 1e9")
    assert empty.num_rows == 0
    assert empty.schema == items.read(['"id"', "category"], None).schema


def test_no_expressions_still_count_the_rows(items: Source) -> None:
    assert items.describe_scan([], "price > 0") == []
    assert items.read([], None).num_rows == ROWS


def test_its_errors_are_ours_and_name_the_table_but_no_value(items: Source) -> None:
    with pytest.raises(SourceError, match=r"^table items: .*nothere"):
        items.describe_scan(["nothere"], None)
    with pytest.raises(SourceError, match=r"^table items: some row has a value that cannot be converted") as refused:
        items.read(["CAST(category AS INTEGER)"], None)
    assert "toys" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_it_can_reach_nothing_but_its_own_table(items: Source, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    for expression in (
        f"(SELECT a FROM read_csv('{tmp_path}/secret.csv'))",
        f"(SELECT content FROM read_text('{tmp_path}/secret.csv'))",
        f"(SELECT a FROM '{tmp_path}/secret.csv')",
        "(SELECT count(*) FROM read_parquet('https://example.org/x.parquet'))",
        "(SELECT count(*) FROM TABLE_OF_THIS_FILE)",
    ):
        with pytest.raises(SourceError):
            items.read([expression], None)


def test_its_configuration_is_locked(items: Source) -> None:
    for statement in (
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "INSTALL httpfs",
        "LOAD httpfs",
    ):
        with pytest.raises(SourceError):
            items.read([f"1); {statement}; SELECT (1"], None)


def test_closing_twice_does_no_harm_and_a_closed_source_says_so() -> None:
    opened = open_source(TABLE, "items")
    opened.close()
    opened.close()
    with pytest.raises(SourceError, match="table items: it is closed"):
        opened.read(['"id"'], None)


TABLE_OF_THIS_FILE = TABLE
