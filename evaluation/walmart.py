"""Walmart: weekly sales of a department ⋈ the store's week (composite key) ⋈ the store, as a number in thousands."""

from __future__ import annotations

from pathlib import Path

import duckdb

from evaluation.sources import scan, write
from evaluation.workload import Workload

QUERY = """
    SELECT t.dept, t.is_holiday, w.temperature, w.fuel_price, w.markdown1, w.markdown2, w.markdown3, w.markdown4,
           w.markdown5, w.cpi, w.unemployment, s.kind, s.size, t.sales
    FROM sales t
    JOIN weeks w ON t.store = w.store AND t.week = w.week
    JOIN stores s ON t.store = s.store
"""


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
)
