"""The demo at its real size: airlines in PostgreSQL, weather in SQLite, planes in DuckDB, airports in CSV."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from tests.postgres import Database

import tablepuppet as tp
from tablepuppet import demo as demo
from tablepuppet.sources.source import SourceSpec

UNUSED = ("day", "flight", "dewp", "wind_gust", "model")


def _in_microseconds(table: pa.Table) -> pa.Table:
    """What PostgreSQL can hold."""
    for i, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(pa.timestamp("us", field.type.tz)))
    return table


def _in_sqlite(folder: Path, weather: pa.Table) -> SourceSpec:
    connection = sqlite3.connect(folder / "weather.sqlite")
    kinds = {"timestamp": "TIMESTAMPTZ", "int": "INTEGER", "double": "REAL", "string": "TEXT"}
    declared = [next(k for start, k in kinds.items() if str(f.type).startswith(start)) for f in weather.schema]
    listed = ", ".join(f'"{name}" {kind}' for name, kind in zip(weather.column_names, declared, strict=True))
    connection.execute(f"CREATE TABLE weather ({listed})")
    columns = [column.to_pylist() for column in weather.columns]
    at = declared.index("TIMESTAMPTZ")
    columns[at] = [None if moment is None else moment.isoformat() for moment in columns[at]]
    places = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT INTO weather VALUES ({places})", zip(*columns, strict=True))
    connection.commit()
    connection.close()
    return tp.source(f"sqlite:///{folder / 'weather.sqlite'}", table="weather")


def _in_duckdb(folder: Path, planes: pa.Table) -> SourceSpec:
    with duckdb.connect(str(folder / "planes.duckdb")) as connection:
        connection.register("given", planes)
        connection.execute("CREATE TABLE planes AS SELECT * FROM given")
    return tp.source(f"duckdb:///{folder / 'planes.duckdb'}", table="planes")


@pytest.mark.slow
def test_the_same_coefficients_and_only_what_is_needed_is_read(
    postgres: Callable[[], Database], tmp_path: Path
) -> None:
    flights, others = demo.read_flights()
    airlines = demo.by_airline(flights)
    database = postgres()
    for number, airline in enumerate(airlines):
        database.execute(f"CREATE SCHEMA airline_{number}")
        database.ingest("flights", _in_microseconds(airline), schema=f"airline_{number}")
    pyarrow.csv.write_csv(others["airports"], tmp_path / "airports.csv")
    owners = {
        "flights": [tp.source(database.url, table=f"airline_{k}.flights") for k in range(len(airlines))],
        "weather": _in_sqlite(tmp_path, others["weather"]),
        "planes": _in_duckdb(tmp_path, others["planes"]),
        "airports": tmp_path / "airports.csv",
    }
    with tp.Federation({"flights": airlines, **others}) as federation:
        expected = federation.train(demo.QUERY, label=demo.LABEL)
    found: list[tp.Result] = []

    def work() -> None:
        with tp.Federation(owners) as federation:
            found.append(federation.train(demo.QUERY, label=demo.LABEL))

    asked = [statement for statement in database.statements(work) if "tablepuppet" in statement]
    weights = [result.coefficients()["weight"].to_numpy() for result in (found[0], expected)]
    np.testing.assert_allclose(weights[0], weights[1], rtol=0, atol=1e-9)
    assert len(asked) == 16  # each airline is asked once
    for statement in asked:
        assert '(NOT "arr_delay" IS NULL)' in statement
        assert not any(f'"{name}"' in statement for name in UNUSED)
