"""Random queries with joins of every kind and conditions of every kind: what is accepted means what the SQL says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.sql.owners import link_to
from tests.sql.rebuilt import rebuilt

from tablepuppet.errors import QueryError
from tablepuppet.sql import bind, parse
from tablepuppet.transport.link import Link

TABLES = ("r", "s", "t")
COLUMNS = ("a", "b", "c")
EMPTY = pa.schema([(c, pa.int64()) for c in COLUMNS]).empty_table()

COLUMN = st.sampled_from(COLUMNS)
KEY = st.sampled_from(["{}", "{}", "{}", "{} + 1", "coalesce({}, 1)", "nullif({}, 2)", "CASE WHEN {} > 1 THEN 1 END"])
PREDICATE = st.sampled_from(
    [
        "{x} > 0",
        "{x} IS NULL",
        "{x} IS NOT NULL",
        "NOT ({x} = 1)",
        "{x} IN (1, 2)",
        "{x} NOT IN (0, 1)",
        "{x} BETWEEN {y} AND 2",
        "{x} <> {y} OR {y} = 1",
        "{x} = 1 OR {y} IS NULL",
        "{x} > 0 AND {y} < 3",
        "({x} > 0 OR {y} > 0) AND {x} < 3",
        "coalesce({x}, {y}, 1) = 1",
        "coalesce({x} > 1, FALSE)",
        "({x} > 1) IS NOT TRUE",
        "({x} > 1) IS TRUE",
        "({x} IS NULL) = ({y} IS NULL)",
        "CASE WHEN {x} IS NULL THEN {y} > 1 ELSE TRUE END",
        "CASE {x} WHEN 1 THEN FALSE ELSE TRUE END",
        "nullif({x}, 1) < 3",
        "{x} IS DISTINCT FROM {y}",
        "{x} IS NOT DISTINCT FROM 1",
        "greatest({x}, 1) = 1",
        "CAST({x} AS VARCHAR) LIKE '1%'",
        "1 / {x} >= 1",
        "{x} = {y}",
    ]
)


@st.composite
def queries(draw: st.DrawFn) -> str:
    """SELECT over two to four tables; some of these must be refused."""
    size = draw(st.integers(2, 4))
    aliases = [f"q{k}" for k in range(size)]

    def predicate(of: list[str]) -> str:
        alias = draw(st.sampled_from(of))
        return "(" + draw(PREDICATE).format(x=f"{alias}.{draw(COLUMN)}", y=f"{alias}.{draw(COLUMN)}") + ")"

    def equality(left: str, right: str) -> str:
        sides = [draw(KEY).format(f"{left}.{draw(COLUMN)}"), draw(KEY).format(f"{right}.{draw(COLUMN)}")]
        return " = ".join(draw(st.permutations(sides)))

    text = f"FROM {draw(st.sampled_from(TABLES))} q0"
    for k in range(1, size):
        table = f"{draw(st.sampled_from(TABLES))} q{k}"
        kind = draw(st.sampled_from(["JOIN", "LEFT JOIN", "LEFT JOIN", "CROSS JOIN"]))
        if kind == "CROSS JOIN":
            text += f" CROSS JOIN {table}"
            continue
        on = [equality(draw(st.sampled_from(aliases[:k])), aliases[k])]
        on += [predicate(aliases[: k + 1]) for _ in range(draw(st.sampled_from([0, 0, 0, 1])))]
        text += f" {kind} {table} ON {' AND '.join(on)}"
    where = [predicate(aliases) for _ in range(draw(st.integers(0, 2)))]
    for _ in range(draw(st.integers(0, 2))):
        left, right = draw(st.permutations(aliases))[:2]
        where.append(equality(left, right))
    items = ", ".join(f"{alias}.{column} AS {alias}{column}" for alias in aliases for column in COLUMNS)
    return f"SELECT {items} {text}" + (f" WHERE {' AND '.join(where)}" if where else "")


ROWS = st.lists(st.tuples(*[st.sampled_from([None, 0, 1, 2])] * len(COLUMNS)), max_size=5)


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    opened = link_to({table: {table: EMPTY} for table in TABLES})
    yield opened
    opened.transport.close()


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as opened:
        yield opened


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(sql=queries(), rows=st.tuples(*[ROWS] * len(TABLES)))
def test_what_is_accepted_gives_the_rows_of_the_sql(
    link: Link,
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    rows: tuple[list[tuple[int | None, ...]], ...],
) -> None:
    try:
        query = bind(parse(sql), label="q0a", tables={t: (t,) for t in TABLES}, link=link, job="job")
    except QueryError as refused:
        event("refused: " + str(refused)[:60])
        return
    event("accepted")
    for table, data in zip(TABLES, rows, strict=True):
        columns = list(zip(*data, strict=True)) or [()] * len(COLUMNS)
        connection.register(
            table, pa.table({c: pa.array(v, pa.int64()) for c, v in zip(COLUMNS, columns, strict=True)})
        )
    truth = connection.execute(sql)
    names = [column[0] for column in truth.description or ()]
    expected = Counter(truth.fetchall())
    assert Counter(connection.execute(rebuilt(query, names)).fetchall()) == expected
