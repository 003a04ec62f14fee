"""Columns that a subquery names for outputs which nobody asks for: they need no grant, and are not read."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.errors import PolicyError
from tablepuppet.owner.policy import Policy

GRANTED = {"features": ["v"], "keys": ["k"], "filters": ["day"]}
TASK = {"features": ["x"], "labels": ["y"], "keys": ["k"], "cutoffs": ["ts"]}
BEFORE = "FROM r WHERE r.k = t.k AND r.day < t.ts"
IDLE = {
    "the table itself, in ASOF": "ASOF LEFT JOIN r h ON h.k = t.k AND h.day <= t.ts",
    "rows of the table": "JOIN r h ON h.k = t.k AND h.day <= t.ts",
    "the latest of all columns": f"LEFT JOIN LATERAL (SELECT * {BEFORE} ORDER BY r.day DESC LIMIT 1) h ON true",
    "an aggregate": f"LEFT JOIN LATERAL (SELECT avg(r.v) AS v, max(r.secret) AS s {BEFORE}) h ON true",
    "a group's aggregate": "JOIN (SELECT k, avg(v) AS v, sum(secret) AS s FROM r GROUP BY k) h ON h.k = t.k",
    "an item that fails": "JOIN (SELECT k, v, lag(CAST(name AS INTEGER)) OVER (ORDER BY v) AS n FROM r) h ON h.k = t.k",
    "a subquery's item": "JOIN (SELECT k, v FROM (SELECT *, secret + 1 AS s FROM r) q) h ON h.k = t.k",
}
DECIDING = {
    "WHERE": "SELECT k, v FROM r WHERE secret > 0",
    "an order": "SELECT k, v FROM r ORDER BY secret",
    "an order by name": "SELECT k, v, -secret AS s FROM r ORDER BY s",
    "an order of a union": "SELECT k, v, secret FROM r UNION ALL SELECT k, v, secret FROM r ORDER BY secret",
    "the first rows": "SELECT k, v FROM r ORDER BY secret LIMIT 5",
    "how many rows": "SELECT k, v FROM r LIMIT (SELECT sum(secret) FROM r)",
    "QUALIFY": "SELECT k, v FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY secret) = 1",
    "parts of a window": "SELECT k, v FROM r QUALIFY row_number() OVER (PARTITION BY secret ORDER BY v) = 1",
    "groups": "SELECT k, avg(v) AS v FROM r GROUP BY k, secret",
    "all groups": "SELECT k, secret, avg(v) AS v FROM r GROUP BY ALL",
    "HAVING": "SELECT k, avg(v) AS v FROM r GROUP BY k HAVING sum(secret) > 0",
    "DISTINCT": "SELECT DISTINCT k, v, secret FROM r",
    "a join": "SELECT a.k, a.v FROM r a JOIN r b ON a.secret = b.secret",
    "a join by name": "SELECT a.k, a.v FROM r a JOIN r b USING (secret)",
    "EXISTS": "SELECT k, v FROM r WHERE EXISTS (SELECT 1 FROM r b WHERE b.secret > 0)",
}


def federate(granted: dict[str, list[str]] | None = None, **rules: Any) -> tp.Federation:
    rng = np.random.default_rng(0)
    days = np.datetime64("2024-01-01") + rng.integers(0, 60, (2, 200))
    own = {"k": rng.integers(0, 5, 200), "day": days[0], "v": rng.normal(size=200)}
    names = [f"n{number}" for number in range(200)]
    tables = {
        "t": pa.table({"k": own["k"][:60], "ts": days[1][:60], "x": rng.normal(size=60), "y": rng.normal(size=60)}),
        "r": pa.table({**own, "secret": rng.normal(size=200), "name": names}),
    }
    given = {"t": {"tables": {"t": TASK}}, "r": {"tables": {"r": granted}} | rules} if granted else {}
    policies: Any = {table: msgspec.convert(policy, Policy) for table, policy in given.items()}
    return tp.Federation(tables, policies=policies)


def train(join: str, granted: dict[str, list[str]] | None = None, **rules: Any) -> tp.Result:
    with federate(granted, **rules) as federation:
        query = f"SELECT t.x, h.v, t.y FROM t {join}"
        return federation.train(query, label="y", model="linear", test_fraction=0.0)


@pytest.mark.parametrize("way", IDLE)
def test_what_no_output_in_use_is_made_of_needs_no_grant(way: str) -> None:
    found = train(IDLE[way], GRANTED)
    if way != "an item that fails":
        assert found.objective == train(IDLE[way]).objective


@pytest.mark.parametrize("way", DECIDING)
def test_what_decides_which_rows_there_are_needs_a_grant(way: str) -> None:
    with pytest.raises(PolicyError, match="column secret may not be filtered by"):
        train(f"JOIN ({DECIDING[way]}) h ON h.k = t.k", GRANTED)


@pytest.mark.parametrize("chosen", ["max(day)", "sum(1)", "count(*)"])
def test_groups_whose_values_choose_rows_are_a_filter_even_if_they_are_asked_for(chosen: str) -> None:
    """With a row of known values, exactly the rows that share its v would be left."""
    rows = f"SELECT k, v FROM r QUALIFY {chosen} OVER (PARTITION BY v) IS NOT NULL"
    with pytest.raises(PolicyError, match="column v may not be filtered by"):
        train(f"JOIN ({rows}) h ON h.k = t.k", GRANTED)


def test_a_protected_table_looks_into_expressions_and_so_they_need_a_grant() -> None:
    train("JOIN (SELECT * FROM r) h ON h.k = t.k", GRANTED, minimum_rows=3)
    with pytest.raises(PolicyError, match="column secret may not be filtered by"):
        train("JOIN (SELECT k, v, CASE WHEN secret > 2 THEN 1 END AS s FROM r) h ON h.k = t.k", GRANTED, minimum_rows=3)


def test_groups_choose_no_rows_that_a_model_is_applied_to_unless_they_are_a_filter() -> None:
    """Scores belong to keys: which of them are left would tell whose v is another's, too."""
    rows = "SELECT k, v, day FROM r QUALIFY row_number() OVER (PARTITION BY v ORDER BY day) = 1"
    for also in ([], ["v"]):
        granted = {**GRANTED, "filters": ["day", *also]}
        with federate(granted, labels={"epsilon": 1.0}) as federation:
            query = f"SELECT t.x, h.v, t.y FROM t JOIN ({rows}) h ON h.k = t.k"
            result = federation.train(query, label="y", model="linear", test_fraction=0.0)
            if also:
                assert federation.predict(result, key=[]).num_rows
                continue
            with pytest.raises(PolicyError, match="not on column v"):
                federation.predict(result, key=[])
