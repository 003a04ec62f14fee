"""Queries over a table whose rows lie with two clients mean what DuckDB makes of them, pooled; or they are refused."""

from __future__ import annotations

import duckdb
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

import tablepuppet as tp
from tablepuppet.owner.policy import Policy
from tablepuppet.sql.groups import group_columns
from tablepuppet.sql.parsing import syntax_tree

C = pd.DataFrame({"k": [1, 2, 3, 4], "x": [1.0, 2.0, 4.0, 3.0], "y": [1.0, 3.0, 2.0, 5.0]})
B = [  # group 2 lies with both clients
    pd.DataFrame({"k": [1, 1, 1, 2, 2], "z": [1.0, 2.0, 3.0, 4.0, 5.0]}),
    pd.DataFrame({"k": [2, 2, 3], "z": [6.0, 7.0, 8.0]}),
]
APART = [B[0], pd.DataFrame({"k": [3, 4, 4, 4], "z": [6.0, 7.0, 8.0, 9.0]})]  # no group does
COUNTS = "SELECT k, count(*) AS n FROM b GROUP BY k"
JOIN = "SELECT c.x, g.n, c.y FROM c JOIN ({}) g ON g.k = c.k"
MERGEABLE = {
    "having": JOIN.format(f"{COUNTS} HAVING count(*) > 2"),
    "where on the aggregate": f"{JOIN.format(COUNTS)} WHERE g.n > 2",
    "where around the groups": JOIN.format(f"SELECT * FROM ({COUNTS}) WHERE n > 2"),
    "names of with": f"""WITH g AS ({COUNTS}), h AS (SELECT * FROM g WHERE n > 2)
                         SELECT c.x, h.n, c.y FROM c JOIN h USING (k)""",
    "in": "SELECT c.x, c.y FROM c WHERE c.k IN (SELECT k FROM b GROUP BY k HAVING count(*) > 2)",
    "not in": "SELECT c.x, c.y FROM c WHERE c.k NOT IN (SELECT k FROM b GROUP BY k HAVING count(*) > 2)",
    "rows without a match": f"""SELECT c.x, c.y FROM c LEFT JOIN ({COUNTS} HAVING count(*) > 2) g ON g.k = c.k
                                WHERE g.k IS NULL""",
    "distinct": f"{JOIN.format('SELECT DISTINCT k, k AS n FROM b')} WHERE g.n > 1",
}
UNMERGEABLE = {
    "with inside": JOIN.format(f"SELECT * FROM (WITH u AS ({COUNTS} HAVING count(*) > 2) SELECT * FROM u) q"),
    "qualify": JOIN.format("SELECT k, z AS n FROM b QUALIFY count(*) OVER (PARTITION BY k) > 2"),
    "lag": f"{JOIN.format('SELECT k, lag(z) OVER (PARTITION BY k ORDER BY z) AS n FROM b')} WHERE g.n IS NOT NULL",
    "a window's frame": f"""{
        JOIN.format(
            "SELECT k, sum(z) OVER (PARTITION BY k ORDER BY z ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS n FROM b"
        )
    } WHERE g.n > 10""",
    "median": JOIN.format("SELECT k, median(z) AS n FROM b GROUP BY k HAVING median(z) > 5"),
    "groups of groups": JOIN.format(f"SELECT k, max(n) AS n FROM ({COUNTS} HAVING count(*) > 2) GROUP BY k"),
    "names of columns": JOIN.format(f"SELECT * FROM ({COUNTS} HAVING count(*) > 2) AS q(k, n)"),
}
OVER_ALL = {
    "a mean": "SELECT b.z - (SELECT avg(z) FROM b) AS d, c.y FROM b JOIN c ON c.k = b.k",
    "a count": "SELECT (SELECT count(*) FROM b o WHERE o.k = b.k) AS d, c.y FROM b JOIN c ON c.k = b.k",
    "exists": "SELECT EXISTS (SELECT 1 FROM b o WHERE o.k = b.k AND o.z > b.z) AS d, c.y FROM b JOIN c ON c.k = b.k",
    "in": "SELECT b.z IN (SELECT max(z) FROM b GROUP BY k) AS d, c.y FROM b JOIN c ON c.k = b.k",
    "a share, inside": "SELECT t.d, c.y FROM (SELECT k, z / (SELECT sum(z) FROM b) AS d FROM b) t JOIN c ON c.k = t.k",
    "a share of groups": """SELECT t.d, c.y FROM (SELECT k, sum(z) / (SELECT sum(z) FROM b) AS d FROM b GROUP BY k) t
                            JOIN c ON c.k = t.k""",
    "limit": JOIN.format("SELECT k, z AS n FROM b ORDER BY z LIMIT 3"),
    "having alone": JOIN.format("SELECT max(k) AS k, count(*) AS n FROM b HAVING count(*) > 2"),
    "exists with offset": "SELECT c.x, c.y FROM c WHERE EXISTS (SELECT 1 FROM b WHERE b.k = c.k OFFSET 1)",
}


def pooled(query: str, b: list[pd.DataFrame]) -> pd.DataFrame:
    with duckdb.connect() as connection:
        connection.register("c", C)
        connection.register("b", pd.concat(b))
        return connection.sql(query).df()


def assert_same(query: str, b: list[pd.DataFrame], expected: pd.DataFrame, **given: object) -> None:
    """A linear model of what DuckDB gives predicts the same."""
    with tp.Federation({"c": C, "b": b}, **given) as federation:  # type: ignore[arg-type]
        result = federation.train(query, label="y", model="linear", l2=1e-9, test_fraction=0.0)
        found = np.sort(federation.predict(result, query)["prediction"].to_numpy())
    features, label = expected.drop(columns="y").to_numpy(float), expected["y"].to_numpy(float)
    fitted = LinearRegression().fit(features, label).predict(features)
    np.testing.assert_allclose(found, np.sort(fitted), atol=1e-4)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", [*MERGEABLE, *UNMERGEABLE])
def test_a_filter_does_not_hide_that_groups_are_divided(name: str) -> None:
    query = (MERGEABLE | UNMERGEABLE)[name]
    with (
        tp.Federation({"c": C, "b": B}) as federation,
        pytest.raises(tp.TablePuppetError, match="have rows of b with several of its clients"),
    ):
        federation.explain(query, label="y")
    assert_same(query, APART, pooled(query, APART))


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", MERGEABLE)
def test_divided_groups_are_merged_before_any_filter(name: str) -> None:
    policies = {"b": Policy(merge_groups=True)}
    assert_same(MERGEABLE[name], B, pooled(MERGEABLE[name], B), policies=policies)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", OVER_ALL)
def test_what_needs_the_rows_of_all_clients_is_refused(name: str) -> None:
    policies = {"b": Policy(merge_groups="extremes")}
    with (
        tp.Federation({"c": C, "b": APART}, policies=policies) as federation,
        pytest.raises(tp.TablePuppetError, match=r"each would compute this over its own rows only|lies with another"),
    ):
        federation.explain(OVER_ALL[name], label="y")
    expected = pooled(OVER_ALL[name], B)
    if "OFFSET" not in OVER_ALL[name]:
        assert_same(OVER_ALL[name], [pd.concat(B)], expected)


def test_a_filter_on_the_groups_themselves_is_no_hindrance() -> None:
    query = f"{JOIN.format(COUNTS)} WHERE g.k <> 2"
    assert_same(query, B, pooled(query, B))


def test_a_group_without_a_key_counts_where_its_row_is_in_the_join() -> None:
    parts = [part.assign(k=part["k"].astype("Int64")) for part in APART]
    parts = [pd.concat([part, pd.DataFrame({"k": pd.array([None], "Int64"), "z": [1.0]})]) for part in parts]
    inner = JOIN.format(COUNTS)
    assert_same(inner, parts, pooled(inner, parts))
    kept = (
        "SELECT g.n, c.x, g.y FROM (SELECT k, count(*) AS n, sum(z) AS y FROM b GROUP BY k) g LEFT JOIN c ON c.k = g.k"
    )
    with (
        tp.Federation({"c": C, "b": parts}) as federation,
        pytest.raises(tp.TablePuppetError, match="some groups of k have rows of b with several"),
    ):
        federation.explain(kept, label="y")


def test_groups_that_are_joined_count_all_tables_keys() -> None:
    """Nobody says that b and d are partitioned: key 3 of b and key 3 of d lie with two clients, and never meet."""
    d = [pd.DataFrame({"k": [1, 3], "w": [1.0, 2.0]}), pd.DataFrame({"k": [4], "w": [3.0]})]
    query = """SELECT c.x, g.m, c.y FROM c JOIN (
        SELECT s.k, s.n / t.n AS m FROM (SELECT k, count(*) AS n FROM b GROUP BY k) s
        JOIN (SELECT k, sum(w) AS n FROM d GROUP BY k) t ON t.k = s.k) g ON g.k = c.k"""
    owners = {"north": ["b", "d"], "south": ["b", "d"]}
    with (
        tp.Federation({"c": C, "b": APART, "d": d}, owners=owners) as federation,
        pytest.raises(tp.TablePuppetError, match="have rows of b with several of its clients"),
    ):
        federation.explain(query, label="y")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("EXISTS (SELECT max(b.z) FROM b WHERE b.k = c.k)", "this EXISTS is always true"),
        ("NOT EXISTS (SELECT count(*) FROM b WHERE b.k = c.k)", "this EXISTS is always true"),
        ("EXISTS (SELECT 1 FROM b WHERE b.k = c.k LIMIT 0)", "this EXISTS is never true"),
        (
            "EXISTS (SELECT 1 FROM b WHERE b.k = c.k FETCH FIRST 0 ROWS ONLY)",
            "this EXISTS is never true|cannot be pushed down",
        ),
        ("EXISTS (SELECT 1 FROM b WHERE b.k = c.k LIMIT 1 - 1)", "no plain number of rows"),
        ("NOT EXISTS (SELECT 1 FROM b WHERE b.k = c.k LIMIT 50%)", "no plain number of rows|cannot be pushed down"),
    ],
)
@pytest.mark.parametrize("form", ["SELECT c.x, c.y FROM c WHERE {}", "SELECT c.x, {} AS found, c.y FROM c"])
def test_exists_that_looks_nothing_up_is_refused(query: str, reason: str, form: str) -> None:
    with tp.Federation({"c": C, "b": pd.concat(B)}) as federation, pytest.raises(tp.TablePuppetError, match=reason):
        federation.explain(form.format(query), label="y")


@pytest.mark.parametrize("test", ["EXISTS", "NOT EXISTS"])
def test_a_limit_of_one_changes_nothing_in_exists(test: str) -> None:
    query = f"SELECT c.x, c.y FROM c WHERE {test} (SELECT sum(z) OVER () FROM b WHERE b.k = c.k AND b.z > 2 LIMIT 1)"
    assert_same(query, [pd.concat(B)], pooled(query, B))


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT k, z FROM b WHERE z > 1", None),
        ("SELECT k, count(*) AS n FROM b GROUP BY ALL", ["k"]),
        ("SELECT k AS i, count(*) AS n FROM b GROUP BY 1", ["i"]),
        ("SELECT n AS k, k AS n FROM (SELECT k, count(*) AS n FROM b GROUP BY k)", ["n"]),
        ("WITH g(n, k) AS (SELECT k, count(*) FROM b GROUP BY k) SELECT * FROM g", ["n"]),
        ("SELECT z AS k, count(*) AS n FROM b GROUP BY k", []),
        ("SELECT * FROM (b JOIN d ON b.k = d.k)", []),
        ("SELECT * FROM b JOIN d ON coalesce(b.k = d.k, TRUE)", []),
        ("SELECT d.k, b.z FROM b LEFT JOIN d ON b.k = d.k", []),
        ("SELECT b.k, d.z FROM b LEFT JOIN d ON b.k = d.k", ["k"]),
        ("SELECT k, z FROM b WINDOW w AS (PARTITION BY k ORDER BY z) QUALIFY row_number() OVER w = 1", ["k"]),
        ("SELECT k, z FROM b GROUP BY ROLLUP (k, z)", []),
    ],
)
def test_the_columns_that_divide_a_query(query: str, columns: list[str] | None) -> None:
    found = group_columns(syntax_tree(query), {"b": ["k"], "d": ["k"]})  # type: ignore[arg-type]
    assert (None if found is None else [column.name for column in found]) == columns
