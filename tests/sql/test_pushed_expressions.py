"""What is sent to an owner means what was written, and the owner's guard lets it pass."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from tests.sql.expressions import LENIENT, STRICT, TABLE, lines
from tests.sql.owners import bound

from tablepuppet.sources.guard import check_expression


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as opened:
        opened.execute("SET timezone = 'UTC'")
        opened.execute(TABLE)
        yield opened


@pytest.fixture(scope="module")
def pushed(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Each expression as written → as the scan has it."""
    written = lines(STRICT) + lines(LENIENT)
    table = connection.sql("SELECT *, TRUE AS y FROM o").to_arrow_table()
    # Times of day and intervals are no features: only the text of the expressions matters here.
    items = ", ".join(f"coalesce(({sql})::varchar, '') AS f{k}" for k, sql in enumerate(written))
    query = bound(f"SELECT {items}, o.y FROM o", {"o": {"owner": table}})
    columns = query.blocks[0].members[0].columns
    return {sql: query.scans[0].expressions[column] for sql, column in zip(written, columns, strict=True)}


@pytest.mark.parametrize("sql", lines(STRICT) + lines(LENIENT))
def test_an_expression_keeps_its_meaning_on_the_way_to_its_owner(
    sql: str, pushed: dict[str, str], connection: duckdb.DuckDBPyConnection
) -> None:
    columns = [column[0] for column in connection.execute("SELECT * FROM o").description or ()]
    guarded = check_expression(pushed[sql], columns)
    expected = connection.execute(f"SELECT coalesce(({sql})::varchar, '') FROM o").fetchall()
    assert connection.execute(f"SELECT {pushed[sql]} FROM o").fetchall() == expected
    assert connection.execute(f"SELECT {guarded} FROM o").fetchall() == expected


@pytest.mark.parametrize("name", ["select", "a b", 'q"uote', "dot.ted", "größe", "UPPER", "ünï", "1st", "?", "x;--"])
def test_any_column_name_reaches_its_owner(name: str) -> None:
    table = pa.table({name: [1.0, 2.0], "y": [True, False]})
    quoted = '"' + name.replace('"', '""') + '"'
    query = bound(f"SELECT o.{quoted}, o.y FROM o WHERE {quoted} > 1", {"o": {"owner": table}})
    assert query.scans[0].expressions == (quoted, '"y"')
    assert query.scans[0].filter == f"{quoted} > 1"
    assert query.blocks[0].features == (f"o.{name}",)
