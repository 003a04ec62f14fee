"""What an expression gives when its columns are NULL: our conclusions are never wrong, says DuckDB."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from sqlglot import exp, parse_one
from tests.sql.expressions import LENIENT, STRICT, TABLE, lines

from tablepuppet.sources.guard import NODES
from tablepuppet.sql.conditions import Outcome, keeps_null, outcomes, rejects_null
from tablepuppet.sql.scalar import STRICT as STRICT_NODES


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
def test_the_true_outcome_is_among_those_foreseen(sql: str, connection: duckdb.DuckDBPyConnection) -> None:
    row = connection.execute(f"SELECT {sql} FROM o WHERE i IS NULL AND j IS NULL AND u IS NULL").fetchone()
    assert row is not None
    value = row[0]
    truth = {Outcome.NULL} if value is None else {Outcome.TRUE, Outcome.FALSE}
    if isinstance(value, bool):
        truth = {Outcome.TRUE if value else Outcome.FALSE}
    assert truth <= outcomes(tree(sql))


@pytest.mark.parametrize("sql", lines(STRICT))
def test_a_strict_expression_is_known_to_keep_null(sql: str) -> None:
    assert keeps_null(tree(sql))


def test_every_strict_node_is_tried_above_and_allowed_by_owners() -> None:
    tried = {type(node) for sql in lines(STRICT) for node in tree(sql).walk()}
    spelt_otherwise = {exp.Date, exp.DateAdd, exp.DateSub, exp.DateTrunc, exp.DayOfMonth, exp.WeekOfYear}
    assert STRICT_NODES - tried - spelt_otherwise == {exp.RegexpFullMatch}
    assert STRICT_NODES <= NODES


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
    ],
)
def test_a_missing_row_cannot_pass(sql: str) -> None:
    assert rejects_null(tree(sql))


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
        "isfinite(o.x)",  # unknown to us: the safe answer
    ],
)
def test_a_missing_row_might_pass(sql: str) -> None:
    assert not rejects_null(tree(sql))
