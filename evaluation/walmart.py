"""Walmart: weekly sales of a department ⋈ the store's week (composite key) ⋈ the store, as a number in thousands."""

from __future__ import annotations

from pathlib import Path

import duckdb

from evaluation.sources import scan, write
from evaluation.workload import Workload, paper_privacy

QUERY = """
    SELECT t.dept, t.is_holiday, w.temperature, w.fuel_price, w.markdown1, w.markdown2, w.markdown3, w.markdown4,
           w.markdown5, w.cpi, w.unemployment, s.kind, s.size, t.sales
    FROM sales t
    JOIN weeks w ON t.store = w.store AND t.week = w.week
    JOIN stores s ON t.store = s.store
"""

BOUNDS = {
    "is_holiday": (0.0, 1.0),
    "temperature": (-10.0, 110.0),
    "fuel_price": (2.0, 5.0),
    **{f"markdown{i}": (0.0, 20_000.0) for i in range(1, 6)},
    "cpi": (120.0, 240.0),
    "unemployment": (3.0, 15.0),
    "size": (0.0, 250_000.0),
}


def prepare(connection: duckdb.DuckDBPyConnection, data: Path, out: Path) -> dict[str, Path]:
    """One Parquet file per table; numbers that are written NA are missing."""
    numbers = [
        "Temperature",
        "Fuel_Price",
        "MarkDown1",
        "MarkDown2",
        "MarkDown3",
        "MarkDown4",
        "MarkDown5",
        "CPI",
        "Unemployment",
    ]
    weeks = ", ".join(f"TRY_CAST({name} AS DOUBLE) AS {name.lower()}" for name in numbers)
    tables = {
        "sales": f"""
            SELECT Store AS store, CAST(Date AS VARCHAR) AS week, CAST(Dept AS VARCHAR) AS dept,
                   IsHoliday AS is_holiday, Weekly_Sales / 1000 AS sales
            FROM {scan(data, "train")} ORDER BY ALL""",
        "weeks": f"""
            SELECT Store AS store, CAST(Date AS VARCHAR) AS week, {weeks}
            FROM {scan(data, "features")} ORDER BY ALL""",
        "stores": f"""
            SELECT Store AS store, "Type" AS kind, "Size" AS size FROM {scan(data, "stores")} ORDER BY ALL""",
    }
    return {name: write(connection, sql, out / f"{name}.parquet") for name, sql in tables.items()}


WALMART = Workload(
    name="walmart",
    title="Walmart, linear",
    folder="walmart",
    prepare=prepare,
    query=QUERY,
    label="sales",
    model="linear",
    metric="rmse",
    sgd={"momentum": 0.9},
    privacy=paper_privacy(
        {"mechanism": "bins", "bounds": (-5.0, 200.0), "bins": 41},
        BOUNDS,
        cap={"sales": 1, "weeks": 100, "stores": 12_000},
    ),
)
