"""Small federations with every kind of join, and the same data pooled: the oracle of exactness tests.

A scenario names tables, a query for the federation, and SQL that materialises the join in DuckDB.
The oracle encodes that join with code of its own, as docs/algorithms.md fixes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

Array = NDArray[np.float64]
Kind = Literal["number", "text"]


@dataclass(frozen=True)
class Scenario:
    """A query over tables, and the pooled join it stands for."""

    name: str
    tables: dict[str, pa.Table]
    query: str
    pooled: str  # SQL with one column per feature f0, f1, …, the label y, and found_<i> for outer blocks
    kinds: tuple[Kind, ...]
    found: tuple[str | None, ...] = ()  # per feature: the column that says whether its block was found

    def join(self) -> pd.DataFrame:
        """The materialised join."""
        with duckdb.connect() as connection:
            for name, table in self.tables.items():
                connection.register(name, table)
            return connection.sql(self.pooled).df()

    def encoded(self) -> tuple[Array, Array]:
        """The encoded features of the pooled join, and the label."""
        frame = self.join()
        columns: list[Array] = []
        for i, kind in enumerate(self.kinds):
            mask_name = self.found[i] if self.found else None
            there = np.ones(len(frame), bool) if mask_name is None else frame[mask_name].to_numpy(bool)
            columns += _number(frame[f"f{i}"], there) if kind == "number" else _text(frame[f"f{i}"], there)
        return np.column_stack(columns), frame["y"].to_numpy(np.float64)


def _number(column: pd.Series[Any], there: NDArray[np.bool_]) -> list[Array]:
    values = column.astype("float64").to_numpy().copy()
    present = there & ~np.isnan(values)
    mean = values[present].mean()
    filled = np.where(present, values, mean)
    spread = np.sqrt(((filled[there] - mean) ** 2).mean())
    scaled = np.where(there, (filled - mean) / spread, 0.0) if spread > 0 else np.zeros(len(values))
    missing = there & ~present
    return [scaled, missing.astype(np.float64)] if missing.any() else [scaled]


def _text(column: pd.Series[Any], there: NDArray[np.bool_]) -> list[Array]:
    values = column.to_numpy(object)
    is_missing = there & pd.isna(column).to_numpy(bool)
    names = sorted({str(v) for v, t, m in zip(values, there, is_missing, strict=True) if t and not m})
    columns = [np.array([float(t and v == name) for v, t in zip(values, there, strict=True)]) for name in names]
    return [*columns, is_missing.astype(np.float64)] if is_missing.any() else columns


def slices(table: pa.Table, parts: int) -> list[pa.Table]:
    """A table in consecutive slices, as several owners would hold it."""
    borders = np.linspace(0, table.num_rows, parts + 1).astype(int)
    return [table.slice(a, b - a) for a, b in pairwise(borders)]


def scenarios() -> list[Scenario]:
    """One scenario for every kind of join that the product promises."""
    rng = np.random.default_rng(7)
    n, items, cards = 400, 40, 30
    orders = pa.table(
        {
            "id": np.arange(n),
            "item": rng.integers(0, items, n),
            "card": rng.integers(0, cards + 5, n),
            "quantity": rng.normal(size=n),
            "hour": pa.array([None if i % 17 == 0 else float(i % 24) for i in range(n)]),
            "y": rng.normal(size=n),
        }
    )
    details = pa.table({"id": rng.permutation(n), "weight": rng.normal(3, 2, n)})
    catalogue = pa.table(
        {
            "item": np.arange(items),
            "price": rng.lognormal(size=items),
            "category": pa.array([["a", "b", "c", None][i % 4] for i in range(items)]),
            "parent": (np.arange(items) * 7 + 3) % items,
        }
    )
    parts = pa.table({"item": rng.integers(0, items, 3 * items), "size": rng.normal(size=3 * items)})
    bank = pa.table(
        {"card": np.arange(cards), "credit": rng.normal(10, 3, cards), "is_gold": np.arange(cards) % 3 == 0}
    )
    weather = pa.table(
        {
            "place": pa.array([p for p in ("north", "south") for _ in range(10)]),
            "day": list(range(10)) * 2,
            "temperature": rng.normal(size=20),
        }
    )
    trips = pa.table(
        {
            "place": pa.array(rng.choice(["north", "south"], 200)),
            "day": rng.integers(0, 10, 200),
            "length": rng.normal(size=200),
            "y": rng.normal(size=200),
        }
    )
    tables = {
        "orders": orders,
        "details": details,
        "items": catalogue,
        "parts": parts,
        "cards": bank,
        "weather": weather,
        "trips": trips,
    }

    def make(name: str, query: str, pooled: str, kinds: str, found: tuple[str | None, ...] = ()) -> Scenario:
        used = {t: tables[t] for t in tables if t in query}
        named: dict[str, Kind] = {"n": "number", "t": "text"}
        return Scenario(name, used, query, pooled, tuple(named[k] for k in kinds), found)

    star = "FROM orders o JOIN items i ON o.item = i.item JOIN cards c ON c.card = o.card"
    left = "FROM orders o LEFT JOIN cards c ON o.card = c.card"
    union = [
        f"SELECT o.quantity, i.price, o.y FROM orders o JOIN items i ON o.item = i.item WHERE {where}"
        for where in ("o.hour < 8", "o.hour >= 8 AND i.price > 0.5", "o.id % 5 = 0")
    ]
    return [
        make(
            "one-to-one",
            "SELECT o.quantity, d.weight, o.y FROM orders o JOIN details d ON o.id = d.id",
            "SELECT o.quantity AS f0, d.weight AS f1, o.y AS y FROM orders o JOIN details d USING (id)",
            "nn",
        ),
        make(
            "one-to-many star with missing values",
            f"SELECT o.quantity, o.hour, i.price, i.category, c.credit, c.is_gold, o.y {star}",
            "SELECT o.quantity AS f0, o.hour AS f1, i.price AS f2, i.category AS f3, c.credit AS f4, "
            f"c.is_gold::DOUBLE AS f5, o.y AS y {star}",
            "nnntnn",
        ),
        make(
            "many-to-many",
            "SELECT o.quantity, p.size, i.category, o.y FROM orders o, parts p, items i "
            "WHERE o.item = p.item AND i.item = p.item AND o.quantity > -1",
            "SELECT o.quantity AS f0, p.size AS f1, i.category AS f2, o.y AS y FROM orders o "
            "JOIN parts p USING (item) JOIN items i USING (item) WHERE o.quantity > -1",
            "nnt",
        ),
        make(
            "left join",
            f"SELECT o.quantity, c.credit, c.is_gold, o.y {left}",
            "SELECT o.quantity AS f0, c.credit AS f1, c.is_gold::DOUBLE AS f2, c.card IS NOT NULL AS found_c, "
            f"o.y AS y {left}",
            "nnn",
            (None, "found_c", "found_c"),
        ),
        make(
            "self-join",
            "SELECT o.quantity, i.price, p.price, p.category, o.y FROM orders o JOIN items i ON o.item = i.item "
            "JOIN items p ON i.parent = p.item",
            "SELECT o.quantity AS f0, i.price AS f1, p.price AS f2, p.category AS f3, o.y AS y FROM orders o "
            "JOIN items i ON o.item = i.item JOIN items p ON i.parent = p.item",
            "nnnt",
        ),
        make(
            "composite key",
            "SELECT t.length, t.place, w.temperature, t.y FROM trips t JOIN weather w USING (place, day)",
            "SELECT t.length AS f0, t.place AS f1, w.temperature AS f2, t.y AS y "
            "FROM trips t JOIN weather w USING (place, day)",
            "ntn",
        ),
        make(
            "three-branch union all",
            " UNION ALL ".join(union),
            " UNION ALL ".join(
                q.replace("o.quantity,", "o.quantity AS f0,").replace("i.price,", "i.price AS f1,") for q in union
            ),
            "nn",
        ),
    ]
