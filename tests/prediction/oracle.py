"""What a prediction must be: the model's coefficients on the original scale, applied to the materialised join."""

from __future__ import annotations

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

import tablepuppet as tp


def joined(query: str, tables: dict[str, pa.Table]) -> pd.DataFrame:
    """The query's result, in the order of the label table's rows."""
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(query).df()


def scores(result: tp.Result, rows: pd.DataFrame, fills: dict[str, float], outer: str) -> NDArray[np.float64]:
    """Intercept + Σ weight × feature for each output, feature by feature as SQL names them."""
    out = []
    frame = result.coefficients()
    intercept = np.atleast_1d(np.asarray(result.intercept, np.float64))
    for k, (_, weights) in enumerate(frame.groupby("class_", sort=False, dropna=False)):
        total = np.full(len(rows), intercept[k])
        for feature, weight in zip(weights["feature"], weights["weight"], strict=True):
            total += weight * column(rows, feature, fills, outer)
        out.append(total)
    return np.stack(out, axis=1)


def column(rows: pd.DataFrame, feature: str, fills: dict[str, float], outer: str) -> NDArray[np.float64]:
    """One encoded column on the original scale."""
    found = rows["found"].to_numpy(bool)
    if feature == f"{outer} IS NOT NULL":
        return np.asarray(found, np.float64)
    name = feature.split(".", 1)[1]
    if name.endswith(" IS NULL"):
        return np.asarray(rows[name.removesuffix(" IS NULL")].isna(), np.float64)
    if "=" in name:
        name, value = name.split("=", 1)
        return np.asarray(rows[name] == value, np.float64)
    values = np.asarray(rows[name].fillna(fills.get(feature, np.nan)), np.float64)
    return np.where(found, values, 0.0) if feature.startswith(f"{outer}.") else values
