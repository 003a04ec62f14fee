"""The answer on pooled tables: DuckDB's rows, encoded as math says, and the ridge optimum over them."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from tests.fuzz.queries import Case

L2 = 1e-2


@dataclass(frozen=True)
class Expected:
    rows: int
    objective: float


def pooled_answer(case: Case) -> Expected | None:
    """How many rows the query has, and the least objective over them; None: it is not valid SQL."""
    with duckdb.connect(config={"threads": 1}) as connection:
        for name, parts in case.tables.items():
            connection.register(name, pa.concat_tables(parts))
        try:
            found = connection.sql(case.with_markers).to_arrow_table()
        except duckdb.Error:
            return None
    if not found.num_rows:
        return Expected(0, 0.0)
    items = [name for name in found.column_names if name.startswith("i")]
    columns = [encode(found[name], found["found" + name[1:]]) for name in items]
    return Expected(found.num_rows, ridge(np.hstack(columns), found["y"].to_numpy()))


def encode(values: pa.ChunkedArray, found: pa.ChunkedArray) -> NDArray[np.float64]:
    """One item's columns: a number with an indicator where one is missing, or a text one-hot.

    A row without a partner is all zeros, unless the item has a value there.
    """
    has_partner = found.to_numpy(zero_copy_only=False).astype(bool)
    is_null = values.is_null().to_numpy(zero_copy_only=False).astype(bool)
    is_missing = is_null & has_partner
    if pa.types.is_string(values.type):
        names = np.array(values.to_pylist(), dtype=object)
        one_hot = [(~is_null) & (names == name) for name in sorted(set(names[~is_null]))]
        return np.column_stack([*one_hot, is_missing]).astype(float)
    if pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    numbers = pd.to_numeric(pd.Series(values.to_pylist(), dtype=object), errors="raise").astype(float).to_numpy()
    present = numbers[~is_null]
    filled = np.where(is_null, np.where(is_missing, present.mean() if len(present) else 0.0, 0.0), numbers)
    return np.column_stack([filled, is_missing]).astype(float)


def ridge(features: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    """min over θ, b of ½ mean (Xθ + b − y)² + ½ L2 ‖θ‖²."""
    centred, target = features - features.mean(0), labels - labels.mean()
    rows = len(labels)
    theta = np.linalg.solve(centred.T @ centred / rows + L2 * np.eye(features.shape[1]), centred.T @ target / rows)
    return float(0.5 * np.mean((centred @ theta - target) ** 2) + 0.5 * L2 * theta @ theta)
