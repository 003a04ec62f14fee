"""An owner runs queries over its own tables only, made of what is on the list and of nothing else."""

from __future__ import annotations

import pytest

from tablepuppet.errors import PolicyError
from tablepuppet.owner.query_guard import check_query

TABLES = {"t": ["k", "x", "secret"], "u": ["k", "z"]}

REFUSED = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    'SELECT * FROM "/etc/passwd"',
    "SELECT * FROM other",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM duckdb_settings()",
    "SELECT getenv('HOME') AS x FROM t",
    "SELECT current_setting('home_directory') AS x FROM t",
    "SELECT random() AS x FROM t",
    "SELECT now() AS x FROM t",
    "SELECT string_agg(secret, ',') AS x FROM t",
    "SELECT list(secret) AS x FROM t",
    "SELECT array_agg(x) AS x FROM t",
    "SELECT repeat(secret, 1000000) AS x FROM t",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT n FROM r, t",
    "SELECT * FROM t; DROP TABLE t",
    "DROP TABLE t",
    "COPY t TO '/tmp/x'",
    "ATTACH '/tmp/x'",
    "PRAGMA database_list",
    "INSERT INTO t SELECT * FROM t",
    "SELECT * FROM t TABLESAMPLE 10%",
    "SELECT * FROM range(1000000000), t",
    "SELECT unnest([1, 2, 3]) AS x FROM t",
    "SELECT x || x AS x FROM (SELECT x || x AS x FROM (SELECT secret || secret AS x FROM t) a) b",
    "WITH a AS (SELECT [k, k] AS x FROM t), b AS (SELECT [x, x] AS x FROM a) SELECT * FROM b",
    "SELECT x || x AS y FROM (SELECT k AS x FROM t UNION ALL SELECT k || k FROM t) a",
    f"SELECT levenshtein(secret, '{'x' * 1_900}') AS x FROM t",
    f"SELECT concat({', '.join(['k'] * 65)}) AS x FROM t",
    "VALUES (1)",
    "x + 1",
    "",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_not_on_the_list_is_refused(sql: str) -> None:
    with pytest.raises(PolicyError):
        check_query(sql, TABLES)


def test_a_misspelt_column_is_named_with_what_it_may_mean() -> None:
    with pytest.raises(PolicyError, match=r"none of its tables has a column secrt\. Did you mean secret"):
        check_query("SELECT k, max(secrt) AS m FROM t GROUP BY k", TABLES)


def test_only_named_columns_are_read_and_a_star_reads_all() -> None:
    assert check_query("SELECT k, avg(x) AS m FROM t GROUP BY k", TABLES).reads == {"t": ("k", "x")}
    assert check_query("SELECT count(*) AS n, k FROM t GROUP BY k", TABLES).reads == {"t": ("k",)}
    assert check_query("SELECT * FROM t", TABLES).reads == {"t": ("k", "x", "secret")}
    assert check_query("SELECT t.x, u.z FROM t JOIN u USING (k)", TABLES).reads == {"t": ("k", "x"), "u": ("k", "z")}


def test_the_columns_behind_an_output_are_found_through_subqueries() -> None:
    nested = "WITH s AS (SELECT k, max(secret) AS m, sum(x) AS n FROM t GROUP BY k)"
    query = check_query(f"{nested} SELECT s.m + u.z AS v, s.n FROM s JOIN u USING (k)", TABLES)
    assert query.lineage.behind("v") == {("t", "secret"), ("u", "z")}
    assert query.lineage.behind("n") == {("t", "x")}


def test_a_checked_query_is_written_the_same_when_it_is_checked_again() -> None:
    once = check_query("SELECT k, avg(x) FILTER (WHERE x > 0) AS m FROM t GROUP BY ALL ORDER BY m LIMIT 3", TABLES)
    assert check_query(once.text, TABLES) == once
