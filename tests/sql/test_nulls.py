"""The value of an expression in a row that a LEFT JOIN did not find: that of a row of NULLs."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from sqlglot import exp, parse_one
from tests.sql.expressions import LENIENT, STRICT, TABLE, lines

from tablepuppet.sql.joins import UNKNOWN, Filter, keeps_null, value_of_missing


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as opened:
        opened.execute(TABLE)
        yield opened


def tree(sql: str) -> exp.Expr:
    (item,) = parse_one(f"SELECT {sql}", dialect="duckdb").expressions
    assert isinstance(item, exp.Expr)
    return item


@pytest.mark.parametrize("sql", lines(STRICT) + lines(LENIENT))
def test_the_value_of_a_missing_row_is_that_of_a_row_of_nulls(sql: str, connection: duckdb.DuckDBPyConnection) -> None:
    row = connection.execute(f"SELECT {sql} FROM o WHERE i IS NULL AND j IS NULL AND u IS NULL").fetchone()
    assert row is not None
    assert value_of_missing(tree(sql)) == row[0]


@pytest.mark.parametrize("sql", lines(STRICT))
def test_a_strict_expression_is_known_to_keep_null(sql: str) -> None:
    assert keeps_null(tree(sql))


def test_columns_of_one_expression_may_have_different_types() -> None:
    assert value_of_missing(tree("date_trunc('month', o.d) = DATE '2024-02-01' OR upper(o.s) = 'A'")) is None
    assert value_of_missing(tree("coalesce(date_diff('day', o.d, o.e), 3) + length(coalesce(o.s, 'ab'))")) == 5


def test_what_duckdb_cannot_compute_is_neither_null_nor_false() -> None:
    strange = tree("no_such_function(o.i)")
    assert value_of_missing(strange) is UNKNOWN
    assert not keeps_null(strange)
    assert not Filter(0, strange).rejected


@pytest.mark.parametrize("grow", ["replace({}, 'a', repeat('a', 10))", "replace({}, 'a', 'aaaaaaaaaa')"])
def test_texts_that_grow_are_not_computed(grow: str) -> None:
    """Nine of them make a gigabyte of one letter."""
    text = "coalesce(o.s, 'a')"
    for _ in range(9):
        text = grow.format(text)
    assert value_of_missing(tree(f"length({text})")) is UNKNOWN


@pytest.mark.parametrize(
    "sql",
    [
        "o.i > 0",
        "o.i IS NOT NULL",
        "o.i IN (1, 2)",
        "o.i NOT IN (1, 2)",
        "o.i BETWEEN 1 AND o.j",
        "5 BETWEEN o.i AND 3",
        "o.s LIKE 'a%' OR o.i = 1",
        "o.i = 1 AND coalesce(o.j, 1) = 1",
        "NOT (o.i = 1)",
        "NOT (o.i IS NULL)",
        "coalesce(o.i > 0, FALSE)",
        "(o.i > 0) IS TRUE",
        "CASE WHEN o.i IS NULL THEN FALSE ELSE TRUE END",
        "FALSE",
        "isfinite(o.x)",
    ],
)
def test_a_missing_row_cannot_pass(sql: str) -> None:
    assert Filter(0, tree(sql)).rejected


@pytest.mark.parametrize(
    "sql",
    [
        "o.i IS NULL",
        "NOT (o.i IS NOT NULL)",
        "o.i > 0 OR o.i IS NULL",
        "coalesce(o.i, 1) > 0",
        "coalesce(o.i > 0, TRUE)",
        "(o.i > 0) IS NOT TRUE",
        "o.i IS DISTINCT FROM 1",
        "CASE WHEN o.i > 0 THEN FALSE ELSE TRUE END",
        "concat(o.s, 'x') = 'x'",
        "greatest(o.i, 1) = 1",
    ],
)
def test_a_missing_row_might_pass(sql: str) -> None:
    assert not Filter(0, tree(sql)).rejected
