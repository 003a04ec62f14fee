"""One federation over PostgreSQL, SQLite, DuckDB and CSV gives the model that Arrow tables give."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.postgres import Database
from tests.sql.test_history import make_tables

import tablepuppet as tp
from tablepuppet.sources.source import SourceSpec

QUERY = """
    SELECT f.dep_hour, f.distance / 100 AS hundreds, w.wind, w.is_wet, p.seats, p.maker, a.altitude, f.late
    FROM flights f
    JOIN weather w ON f.origin = w.origin AND f.day = w.day
    LEFT JOIN planes p ON f.tail = p.tail
    JOIN airports a ON f.dest = a.code
    WHERE f.distance > 200 AND f.late IS NOT NULL AND w.wind < 40
"""


def tables() -> dict[str, pa.Table]:
    random = np.random.default_rng(0)
    days = np.array([datetime.date(2013, 1, 1) + datetime.timedelta(days=d) for d in range(30)])
    places, codes, tails = np.array(["JFK", "LGA", "EWR"]), np.array([f"A{k}" for k in range(12)]), 40
    rows = 900
    flights = pa.table(
        {
            "carrier": random.choice(np.array(["UA", "AA", "B6"]), rows),
            "origin": random.choice(places, rows),
            "day": pa.array(random.choice(days, rows)),
            "tail": pa.array([f"N{k}" for k in random.integers(0, tails + 9, rows)]),
            "dest": random.choice(codes, rows),
            "dep_hour": random.integers(5, 24, rows),
            "distance": random.integers(100, 3000, rows),
            "late": pa.array(random.random(rows) < 0.4, mask=random.random(rows) < 0.03),
            "unused": ["x" * 50] * rows,
        }
    )
    weather = pa.table(
        {
            "origin": np.repeat(places, len(days)),
            "day": pa.array(np.tile(days, len(places))),
            "wind": pa.array(random.gamma(4, 4, 90), mask=random.random(90) < 0.05),
            "is_wet": random.random(90) < 0.3,
        }
    )
    planes = pa.table(
        {
            "tail": [f"N{k}" for k in range(tails)],
            "seats": random.integers(20, 300, tails),
            "maker": pa.array(random.choice(np.array(["BOEING", "AIRBUS", None]), tails)),
        }
    )
    airports = pa.table({"code": codes, "altitude": random.integers(0, 5000, 12)})
    return {"flights": flights, "weather": weather, "planes": planes, "airports": airports}


def in_sqlite(folder: Path, weather: pa.Table) -> SourceSpec:
    connection = sqlite3.connect(folder / "weather.sqlite")
    connection.execute("CREATE TABLE weather (origin TEXT, day DATE, wind REAL, is_wet BOOLEAN)")
    columns = [weather[name].to_pylist() for name in weather.column_names]
    columns[1] = [day.isoformat() for day in columns[1]]
    connection.executemany("INSERT INTO weather VALUES (?, ?, ?, ?)", zip(*columns, strict=True))
    connection.commit()
    connection.close()
    return tp.source(f"sqlite:///{folder / 'weather.sqlite'}", table="weather")


def in_duckdb(folder: Path, planes: pa.Table) -> SourceSpec:
    with duckdb.connect(str(folder / "planes.duckdb")) as connection:
        connection.register("given", planes)
        connection.execute("CREATE TABLE planes AS SELECT * FROM given")
    return tp.source(f"duckdb:///{folder / 'planes.duckdb'}", table="planes")


@pytest.mark.parametrize("algorithm", ["newton", "admm"])
def test_the_same_coefficients_wherever_the_tables_lie(
    postgres: Callable[[], Database], tmp_path: Path, algorithm: str
) -> None:
    given = tables()
    flights = given["flights"]
    airlines = [flights.filter(pa.compute.equal(flights["carrier"], c)) for c in ("UA", "AA", "B6")]
    database = postgres()
    for number, airline in enumerate(airlines):
        database.execute(f"CREATE SCHEMA airline_{number}")
        database.ingest("flights", airline, schema=f"airline_{number}")
    pyarrow.csv.write_csv(given["airports"], tmp_path / "airports.csv")
    owners = {
        "flights": [tp.source(database.url, table=f"airline_{k}.flights") for k in range(3)],
        "weather": in_sqlite(tmp_path, given["weather"]),
        "planes": in_duckdb(tmp_path, given["planes"]),
        "airports": tmp_path / "airports.csv",
    }
    with tp.Federation({**given, "flights": airlines}) as pooled:
        expected = pooled.train(QUERY, label="late", algorithm=algorithm)
    found: list[tp.Result] = []

    def work() -> None:
        with tp.Federation(owners) as federation:
            found.append(federation.train(QUERY, label="late", algorithm=algorithm))

    asked = [statement for statement in database.statements(work) if "tablepuppet" in statement]
    weights = [result.coefficients()["weight"].to_numpy() for result in (found[0], expected)]
    np.testing.assert_allclose(weights[0], weights[1], rtol=0, atol=1e-9)
    assert found[0].metrics["test"] == pytest.approx(expected.metrics["test"])
    assert len(asked) == 3  # each airline is asked once
    assert all("unused" not in a and '("distance" > 200) AND (NOT "late" IS NULL)' in a for a in asked)


FILES_LIKE_CSV = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("duckdb", "parquet")]
HISTORY = """
    SELECT t.x, h.n, h.mean, h.since, s.points AS last, t.y FROM task t
    LEFT JOIN LATERAL (
        SELECT count(*) AS n, avg(r.points) AS mean, date_diff('day', max(r.day), t.ts) AS since FROM results r
        WHERE r.k = t.k AND r.day < t.ts AND r.place <> 'c') h ON true
    ASOF LEFT JOIN (SELECT k, day, max(points) AS points FROM results GROUP BY k, day) s ON s.k = t.k AND s.day <= t.ts
"""


@pytest.mark.parametrize("kind", ["sqlite", *FILES_LIKE_CSV, "csv", "postgresql", "mysql"])
@pytest.mark.parametrize("time", ["date", pytest.param("timestamp", marks=pytest.mark.slow)])
def test_a_history_is_the_same_wherever_it_lies(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, time: str
) -> None:
    given = make_tables(kind=time)
    results = place_results(request, tmp_path, kind, given["results"])
    options: dict[str, Any] = {"label": "y", "model": "linear", "algorithm": "newton"}
    with tp.Federation(given) as federation:
        expected = federation.train(HISTORY, **options)
    with tp.Federation({**given, "results": results}) as federation:
        found = federation.train(HISTORY, **options)
    assert found.objective == pytest.approx(expected.objective, rel=1e-12)


def place_results(request: pytest.FixtureRequest, folder: Path, kind: str, results: pa.Table) -> Any:
    """The table of results as a source of a kind."""
    path = folder / f"results.{kind}"
    if kind == "parquet":
        pq.write_table(results, path)
    elif kind == "csv":
        pyarrow.csv.write_csv(results, path)
    elif kind == "duckdb":
        with duckdb.connect(str(path)) as connection:
            connection.register("given", results)
            connection.execute("CREATE TABLE results AS SELECT * FROM given")
    elif kind == "sqlite":
        type_of_time = "DATE" if pa.types.is_date(results["day"].type) else "TIMESTAMP"
        columns = [results[name].to_pylist() for name in results.column_names]
        columns[1] = [None if day is None else str(day) for day in columns[1]]
        with closing(sqlite3.connect(path)) as file, file:
            file.execute(f"CREATE TABLE results (k INTEGER, day {type_of_time}, points REAL, place TEXT)")
            file.executemany("INSERT INTO results VALUES (?, ?, ?, ?)", zip(*columns, strict=True))
    else:
        database = request.getfixturevalue("postgres" if kind == "postgresql" else "mysql")()
        database.ingest("results", results)
        return tp.source(database.url, table="results")
    return tp.source(f"{kind}:///{path}", table="results") if kind in ("duckdb", "sqlite") else path
