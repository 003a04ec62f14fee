"""Lineage: one base row changes no more rows of a query than is stated, whatever the tables hold."""

from __future__ import annotations

from collections import Counter

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablepuppet.sources.lineage import trace

TABLES = {"t": ["k", "g", "x"], "u": ["k", "y"]}
PER_T = "(SELECT k, sum(x) AS x FROM t GROUP BY k)"
PER_U = "(SELECT k, max(y) AS y FROM u GROUP BY k)"
_NUMBER = st.one_of(st.none(), st.integers(0, 3))


def rows_of(*columns: str) -> st.SearchStrategy[list[tuple[int | None, ...]]]:
    return st.lists(st.tuples(*(_NUMBER for _ in columns)), max_size=7)


def sources() -> st.SearchStrategy[str]:
    """What a query over t may read, always with columns k, g and x."""
    plain = st.sampled_from(
        [
            "t",
            "(SELECT k, g, x FROM t WHERE x > 1)",
            "(SELECT k, g, x + g AS x FROM t UNION ALL SELECT g, k, x FROM t)",
            "(SELECT k, g, x FROM t UNION SELECT k, 1, y FROM u)",
            "(SELECT DISTINCT k, g, x FROM t)",
            "(SELECT k, count(*) AS g, sum(x) AS x FROM t GROUP BY k)",
            "(SELECT k, g, max(x) AS x FROM t GROUP BY ALL HAVING count(*) > 1)",
            "(SELECT min(k) AS k, 1 AS g, sum(x) AS x FROM t)",
            "(SELECT k, g, CASE WHEN x = 2 THEN NULL ELSE x END AS x FROM t EXCEPT SELECT k, y, y FROM u)",
            "(SELECT k, g, x FROM t WHERE k IN (SELECT k FROM u))",
            "(SELECT k, g, (SELECT max(y) FROM u WHERE u.k = t.k) AS x FROM t)",
            "(SELECT k, g, sum(x) OVER (PARTITION BY g) AS x FROM t)",
            "(SELECT k, g, x FROM t ORDER BY k, g, x LIMIT 2)",
        ]
    )
    return st.recursive(
        plain,
        lambda inner: st.builds(
            lambda source, outer: outer.replace("SOURCE", source),
            inner,
            st.sampled_from(
                [
                    "(SELECT k, g, x - 1 AS x FROM SOURCE s WHERE g IS NOT NULL)",
                    "(SELECT g AS k, count(*) AS g, sum(x) AS x FROM SOURCE s GROUP BY g)",
                    "(SELECT s.k, s.g, d.n AS x FROM SOURCE s "
                    "JOIN (SELECT k, count(*) AS n FROM u GROUP BY k) d ON s.k = d.k)",
                    "(SELECT s.k, s.g, d.n AS x FROM SOURCE s "
                    "JOIN (SELECT k, y, count(*) AS n FROM u GROUP BY k, y) d ON s.k = d.k)",
                    "(SELECT d.k, s.g, s.x FROM (SELECT k, max(y) AS y FROM u GROUP BY k) d "
                    "LEFT JOIN (SELECT k, max(g) AS g, sum(x) AS x FROM SOURCE r GROUP BY k) s ON s.k = d.k)",
                    "(SELECT a.k, b.g, a.x FROM SOURCE a JOIN SOURCE b ON a.k = b.k AND a.g = b.g)",
                    "(SELECT s.k, s.g, m.x FROM SOURCE s CROSS JOIN (SELECT sum(y) AS x FROM u) m)",
                ]
            ),
        ),
        max_leaves=3,
    )


def answer(query: str, tables: dict[str, list[tuple[int | None, ...]]]) -> Counter[object]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for name, rows in tables.items():
            columns = {c: pa.array([row[i] for row in rows], pa.int64()) for i, c in enumerate(TABLES[name])}
            connection.register(name, pa.table(columns))
        return Counter(connection.execute(query).fetchall())


def check_stability(source: str, t: list[tuple[int | None, ...]], u: list[tuple[int | None, ...]]) -> None:
    query = f"SELECT k, g, x FROM {source} q"
    tables = {"t": t, "u": u}
    stability = trace(query, TABLES).stability
    before = answer(query, tables)
    for name, rows in tables.items():
        most = stability[name]
        for place in range(len(rows)):
            if most is None:
                break
            after = answer(query, {**tables, name: rows[:place] + rows[place + 1 :]})
            changed = ((before - after) + (after - before)).total()
            assert changed <= most, (query, name)


@given(sources(), rows_of("k", "g", "x"), rows_of("k", "y"))
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_one_base_row_changes_no_more_rows_than_stated(source: str, t: list, u: list) -> None:  # type: ignore[type-arg]
    check_stability(source, t, u)


@pytest.mark.slow
@given(sources(), rows_of("k", "g", "x"), rows_of("k", "y"))
@settings(max_examples=1500, deadline=None)
def test_one_base_row_changes_no_more_rows_than_stated_in_many_queries(source: str, t: list, u: list) -> None:  # type: ignore[type-arg]
    check_stability(source, t, u)


@pytest.mark.parametrize(
    ("query", "t", "u"),
    [
        ("SELECT k, x + 1 AS z FROM t WHERE g > 0", 1, 0),
        ("SELECT * FROM t UNION ALL SELECT * FROM t", 2, 0),
        ("SELECT k, avg(x) AS m FROM t GROUP BY k", 2, 0),
        ("SELECT avg(x) AS m FROM t", 2, 0),
        ("SELECT t.k, u.y FROM t JOIN u ON t.k = u.k", None, None),
        ("SELECT k, sum(x) OVER (PARTITION BY g) AS s FROM t", None, 0),
        ("SELECT k FROM t ORDER BY x LIMIT 5", None, 0),
        ("SELECT k FROM t WHERE x > (SELECT avg(y) FROM u)", 1, None),
        ("WITH c AS (SELECT k, x FROM t) SELECT a.k FROM c a, c b WHERE a.k = b.k", None, 0),
        ("SELECT k FROM t ORDER BY x OFFSET 5", None, 0),
        ("SELECT DISTINCT ON (g) k FROM t", None, 0),
        # Groups that are joined by their keys, or by what only looks so: by themselves, and as text and number
        (f"SELECT d.k, s.x FROM {PER_U} d JOIN {PER_T} s ON d.k = s.k", None, None),
        (f"SELECT a.k, b.x FROM {PER_T} a JOIN {PER_T} b ON a.k = a.k AND b.k = b.k", None, 0),
        (f"SELECT d.k, s.x FROM {PER_U} d ASOF JOIN {PER_T} s ON d.k = s.k AND d.y >= s.x", None, None),
    ],
)
def test_the_bound_of_each_clause(query: str, t: int | None, u: int | None) -> None:
    assert trace(query, TABLES).stability == {"t": t, "u": u}


def test_what_is_not_understood_has_no_bound_and_is_made_of_everything() -> None:
    found = trace("SELECT nothing FROM t, u", TABLES)
    assert found.stability == {"t": None, "u": None}
    assert found.behind("nothing") == {(table, column) for table, columns in TABLES.items() for column in columns}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, CAST(t AS VARCHAR) AS f FROM t",
        "SELECT k, CAST(s AS VARCHAR) AS f FROM (SELECT k, x FROM t) s",
        "SELECT k, count(*) AS f FROM t WHERE CAST(t AS VARCHAR) LIKE '%3%' GROUP BY k",
        "SELECT k, (SELECT max(CAST(t AS VARCHAR)) FROM u) AS f FROM t",
        "SELECT k, rank() OVER w AS f FROM t WINDOW w AS (ORDER BY x)",
    ],
)
def test_a_row_by_the_name_of_its_table_and_a_window_by_its_own_are_made_of_everything(query: str) -> None:
    found = trace(query, TABLES)
    assert {("t", "k"), ("t", "g"), ("t", "x")} <= found.behind("f") & found.conditions
    assert found.stability["t"] is None


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k FROM t ORDER BY x LIMIT 1",
        "SELECT DISTINCT ON (x) k FROM t",
        "SELECT DISTINCT ON (k) k FROM t ORDER BY x",
        "SELECT s.k FROM (SELECT k FROM t ORDER BY x OFFSET 1) s",
        "SELECT y AS k FROM u WHERE k IN (SELECT k FROM t ORDER BY x LIMIT 1)",
    ],
)
def test_columns_that_decide_which_rows_are_left_are_found(query: str) -> None:
    found = trace(query, TABLES)
    assert ("t", "x") in found.grouping | found.conditions


def test_columns_of_conditions_are_found_at_any_depth() -> None:
    query = "SELECT k, n FROM (SELECT k, count(*) AS n FROM (SELECT * FROM t WHERE x > 3) s GROUP BY k) q WHERE n > 1"
    found = trace(query, TABLES)
    assert found.conditions == {("t", "x")}
    assert found.grouping == {("t", "k")}
    assert found.behind("n") == frozenset()


@pytest.mark.parametrize(("doublings", "rows"), [(16, 65_536), (17, None), (70, None)])
def test_a_query_in_which_a_row_counts_too_often_has_no_bound(doublings: int, rows: int | None) -> None:
    steps = [f"s{n} AS (SELECT k FROM s{n - 1} UNION ALL SELECT k FROM s{n - 1})" for n in range(1, doublings + 1)]
    query = f"WITH s0 AS (SELECT k FROM t), {', '.join(steps)} SELECT k FROM s{doublings}"
    assert trace(query, TABLES).stability["t"] == rows
