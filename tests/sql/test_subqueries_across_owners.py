"""Queries of WITH, EXISTS, SEMI and ANTI JOIN over another owner's table have the rows that DuckDB gives, pooled."""

from __future__ import annotations

import uuid

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tablepuppet as tp

C = pd.DataFrame({"k": [1, 2, 3, 4], "x": [1.0, 2.0, 4.0, 3.0], "y": [1.0, 3.0, 2.0, 5.0]})
B = pd.DataFrame({"k": [1, 1, 1, 2, 2, 2, 2, 3], "z": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]})
SOME = "WITH w AS (SELECT k FROM b WHERE z > 4) SELECT c.x, c.y FROM c"
QUERIES = {
    "with in not in": f"{SOME} WHERE c.k NOT IN (SELECT k FROM w)",
    "with in not exists": f"{SOME} WHERE NOT EXISTS (SELECT 1 FROM w WHERE w.k = c.k)",
    "a name of with that hides its table": """WITH b AS (SELECT k, 2 * z AS z FROM b WHERE z > 2)
        SELECT b.z, c.x, c.y FROM c JOIN b ON b.k = c.k""",
    "a hidden table, used again": """WITH b AS (SELECT k, z FROM b WHERE z > 2),
        d AS (SELECT k, count(*) AS n FROM b GROUP BY k) SELECT d.n, c.x, c.y FROM c JOIN d ON d.k = c.k""",
    "a hidden table of in": """WITH b AS (SELECT k FROM b WHERE z > 4) SELECT c.x, c.y FROM c
        WHERE c.k IN (SELECT k FROM b)""",
    "a hidden table of the label": """WITH c AS (SELECT * FROM c WHERE x > 1)
        SELECT c.x, b.z, c.y FROM c JOIN b ON b.k = c.k""",
    "two names of with that are the same": """SELECT c.x, s.z, c.y FROM c
        JOIN (WITH w AS (SELECT * FROM b WHERE z > 2) SELECT * FROM w) s ON s.k = c.k
        JOIN (WITH w AS (SELECT * FROM b WHERE z < 2) SELECT * FROM w) t ON t.k = c.k""",
    "semi join": "SELECT c.x, c.y FROM c SEMI JOIN (SELECT k FROM b WHERE z > 4) t ON t.k = c.k",
    "anti join": "SELECT c.x, c.y FROM c ANTI JOIN (SELECT k FROM b WHERE z > 4) t USING (k)",
    "anti join of groups": """SELECT c.x, c.y FROM c
        ANTI JOIN (SELECT k FROM b GROUP BY k HAVING count(*) > 2) g ON g.k = c.k""",
    "in that is ordered by its own name": """SELECT c.x, c.y FROM c
        WHERE c.k IN (SELECT 4 - k AS z FROM b ORDER BY z LIMIT 1)""",
    "in that is filtered by its own name": """SELECT c.x, c.y FROM c
        WHERE c.k NOT IN (SELECT max(k) AS z FROM b GROUP BY b.z > 4 HAVING z < 3)""",
    "in that groups by its own name": "SELECT c.x, c.y FROM c WHERE c.k IN (SELECT k + 1 AS n FROM b GROUP BY n)",
    "in of a subquery without a name": """SELECT c.x, c.y FROM c
        WHERE c.k IN (SELECT k FROM (SELECT k, count(*) AS n FROM b GROUP BY k) WHERE n > 2)""",
    "exists of a subquery without a name": """SELECT c.x, c.y FROM c
        WHERE EXISTS (SELECT 1 FROM (SELECT k FROM b WHERE z > 4) WHERE k = c.k)""",
    "in of a union": """SELECT c.x, c.y FROM c
        WHERE c.k IN (SELECT k FROM b WHERE z > 4 UNION SELECT k + 1 FROM b ORDER BY k)""",
    "a branch without rows": """SELECT c.x, c.y FROM c JOIN b ON b.k = c.k WHERE b.z > 100
        UNION ALL SELECT c.x, c.y FROM c JOIN b ON b.k = c.k""",
    "a last branch without rows": """SELECT c.x, c.y FROM c JOIN b ON b.k = c.k
        UNION ALL SELECT c.x, c.y FROM c JOIN b ON b.k + 100 = c.k""",
}


def pooled(query: str) -> pd.DataFrame:
    with duckdb.connect() as connection:
        connection.register("c", C)
        connection.register("b", B)
        return connection.sql(query).df()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", QUERIES)
def test_rows_are_those_of_the_pooled_tables(name: str) -> None:
    expected = pooled(QUERIES[name])
    with tp.Federation({"c": C, "b": B}) as federation:
        result = federation.train(QUERIES[name], label="y", model="linear", test_fraction=0.0)
        found = federation.predict(result, QUERIES[name], key=["y"] if "UNION" not in QUERIES[name] else None)
    assert len(found) == len(expected)
    if "y" in found.column_names:
        np.testing.assert_array_equal(np.sort(found["y"].to_numpy()), np.sort(expected["y"].to_numpy()))


SHARED = {
    "exists": "SELECT c.x, c.y FROM c WHERE EXISTS (SELECT 1 FROM b WHERE b.k = c.k AND b.z > 2)",
    "exists with a limit": "SELECT c.x, c.y FROM c WHERE EXISTS (SELECT 1 FROM b WHERE b.k = c.k LIMIT 1)",
    "in": "SELECT c.x, c.y FROM c WHERE c.k IN (SELECT k FROM b WHERE z > 4)",
    "semi join": "SELECT c.x, c.y FROM c SEMI JOIN (SELECT k FROM b WHERE z > 4) t ON t.k = c.k",
    "in beside a join": "SELECT c.x, d.z, c.y FROM c JOIN b d ON d.k = c.k WHERE c.k IN (SELECT k FROM b WHERE z > 4)",
    "of a joined table": """SELECT c.x, d.z, c.y FROM c JOIN b d ON d.k = c.k
        WHERE EXISTS (SELECT 1 FROM c e WHERE e.k = CAST(d.z AS BIGINT))""",
    "in and not in": """SELECT c.x, c.y FROM c WHERE c.k IN (SELECT k FROM b)
        AND c.k NOT IN (SELECT k FROM b WHERE z > 7)""",
    "in a join that is no tree": """SELECT c.x, d.z, c.y FROM c JOIN b d ON d.k = c.k
        JOIN c e ON e.k = c.k AND e.k = CAST(d.z AS BIGINT) WHERE c.k IN (SELECT k FROM b)""",
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", SHARED)
def test_a_key_that_several_clients_have_keeps_a_row_once(name: str) -> None:
    expected = pooled(SHARED[name])
    shared = [B.iloc[::2], B.iloc[1::2]]
    with tp.Federation({"c": [C.iloc[:2], C.iloc[2:]], "b": shared}) as federation:
        result = federation.train(SHARED[name], label="y", model="linear", test_fraction=0.0)
        found = federation.predict(result, SHARED[name], key=["y"])
    np.testing.assert_array_equal(np.sort(found["y"].to_numpy()), np.sort(expected["y"].to_numpy()))


def test_a_union_of_branches_without_rows_is_refused() -> None:
    empty = "SELECT c.x, c.y FROM c JOIN b ON b.k = c.k WHERE b.z > 100"
    with tp.Federation({"c": C, "b": B}) as federation, pytest.raises(tp.TablePuppetError, match="the join is empty"):
        federation.train(f"{empty} UNION ALL {empty}", label="y")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT c.x, g.n, c.y FROM c JOIN (SELECT k, count(*) AS n FROM b GROUP BY k) g ON g.k = c.k",
        "SELECT c.x, c.y FROM c WHERE c.k IN (SELECT k FROM b)",
        "SELECT g.x, g.y FROM (SELECT * FROM c WHERE x > 1) g JOIN b ON b.k = g.k",
    ],
)
def test_a_uuid_stays_one_in_a_subquery(query: str) -> None:
    def keys(numbers: pd.Series) -> pa.Array:
        return pa.array([uuid.UUID(int=number).bytes for number in numbers], pa.uuid())

    c = pa.table({"k": keys(C["k"]), "x": C["x"], "y": C["y"]})
    b = pa.table({"k": keys(B["k"]), "z": B["z"]})
    with tp.Federation({"c": c, "b": b}) as federation:
        assert federation.explain(query, label="y").mapping.joined_rows == len(pooled(query))


def test_labels_that_are_boolean_in_one_branch_and_numbers_in_another_are_refused() -> None:
    d = pd.DataFrame({"x": [1.0, 2.0], "y": [True, False]})
    with tp.Federation({"c": C, "d": d}) as federation:
        query = "SELECT d.x, d.y FROM d UNION ALL SELECT c.x, c.y FROM c"
        with pytest.raises(tp.TablePuppetError, match=r"Write CAST\(d.y AS DOUBLE\)"):
            federation.explain(query, label="y")
        cast = query.replace("d.y FROM", "CAST(d.y AS DOUBLE) AS y FROM")
        assert federation.explain(cast, label="y").mapping.joined_rows == 6


def test_the_cast_that_an_error_advises_keeps_the_keys_values() -> None:
    cents = C.assign(k=pa.array([1.1, 1.4, 2.0, 3.0], pa.float64()).cast(pa.decimal128(9, 2)).to_pandas())
    floats = pd.DataFrame({"k": [1.1, 1.4, 2.0, 2.0], "z": [1.0, 2.0, 3.0, 4.0]})
    query = "SELECT c.x, b.z, c.y FROM c JOIN b ON {}"
    with tp.Federation({"c": pa.Table.from_pandas(cents), "b": floats}) as federation:
        with pytest.raises(tp.TablePuppetError) as raised:
            federation.explain(query.format("c.k = b.k"), label="y")
        advised = str(raised.value).split("Write ")[1].splitlines()[0]
        assert federation.explain(query.format(advised), label="y").mapping.joined_rows == 4


def test_a_label_that_is_nan_is_left_out_as_the_error_says() -> None:
    c = pa.table({"k": C["k"], "x": C["x"], "y": pa.array([1.0, np.nan, 2.0, 3.0], from_pandas=False)})
    query = "SELECT c.x, c.y FROM c JOIN b ON b.k = c.k"
    with tp.Federation({"c": c, "b": B}) as federation:
        with pytest.raises(tp.TablePuppetError, match=r"add WHERE y IS NOT NULL, and of floats AND NOT isnan\(y\)"):
            federation.explain(query, label="y")
        left = f"{query} WHERE c.y IS NOT NULL AND NOT isnan(c.y)"
        assert federation.explain(left, label="y").mapping.joined_rows == 4


def test_a_table_with_a_reserved_name_is_quoted() -> None:
    with tp.Federation({"order": C, "b": B}) as federation:
        for query in ("SELECT o.x, o.y FROM order o", "SELECT order.x FROM b"):
            with pytest.raises(tp.TablePuppetError, match='a table or column called order is written "order"'):
                federation.explain(query, label="y")
        query = 'SELECT "order".x, b.z, "order".y FROM "order" JOIN b ON b.k = "order".k'
        assert federation.explain(query, label="y").mapping.joined_rows == 8
