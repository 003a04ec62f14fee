"""The law of the front end: scans and joins rebuilt from a BoundQuery give the rows that DuckDB gives for the SQL.

Where an item is over the nullable side of a LEFT JOIN, it is NULL when its columns are: a row that was not found has
no value at all to us, whatever COALESCE would make of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sql.owners import bound
from tests.sql.rebuilt import rebuilt

from tablepuppet.sql import BoundQuery

SCHEMAS = {
    "orders": {"id": pa.int64(), "item_id": pa.int32(), "card_id": pa.int64(), "qty": pa.int64(), "y": pa.int64()},
    "items": {"item_id": pa.int64(), "maker_id": pa.int64(), "price": pa.float64(), "category": pa.string()},
    "cards": {"card_id": pa.int64(), "maker_id": pa.int64(), "credit": pa.int64()},
    "makers": {"maker_id": pa.int64(), "country": pa.string(), "code": pa.string()},
}
QUERIES = [
    # one table
    "SELECT qty, y FROM orders",
    "SELECT o.qty + 1 AS q1, (o.qty) AS q2, o.y FROM orders AS o WHERE o.qty > 0 OR o.qty IS NULL",
    "SELECT * FROM orders WHERE NOT (qty = 1) AND 1 = 1;",
    # inner joins in every spelling
    "SELECT o.qty, i.price, o.y FROM orders o JOIN items i ON o.item_id = i.item_id",
    "SELECT o.qty, i.price, o.y FROM orders o INNER JOIN items i ON i.item_id = o.item_id AND i.price > 1",
    "SELECT qty, price, y FROM orders, items WHERE orders.item_id = items.item_id AND price BETWEEN 0 AND 2",
    "SELECT qty, price, y FROM orders CROSS JOIN items WHERE items.item_id = orders.item_id",
    "SELECT qty, price, y FROM orders JOIN items USING (item_id) WHERE item_id > 0",
    "SELECT * FROM orders JOIN items USING (item_id)",
    "SELECT i.*, o.y FROM items i JOIN orders o USING (item_id)",
    "SELECT o.*, i.price FROM orders o JOIN items i ON (((o.item_id = i.item_id) AND (o.qty > 1)))",
    'SELECT "o"."qty" AS "a ""b"" c", I.PRICE, O.Y FROM Orders "o" JOIN "items" I ON "o".item_id = i."item_id"',
    # key expressions and composite keys
    "SELECT o.qty, m.country, o.y FROM orders o JOIN makers m ON CAST(o.card_id AS VARCHAR) = m.code",
    "SELECT o.qty, m.country, o.y FROM orders o JOIN makers m ON m.code::bigint = o.card_id + 1 WHERE m.code <> ''",
    "SELECT o.qty, c.credit, o.y FROM orders o JOIN cards c ON o.card_id = c.card_id AND c.maker_id = o.item_id",
    "SELECT o.qty, c.credit, o.y FROM orders o JOIN cards c ON coalesce(o.card_id, 1) = coalesce(c.card_id, 1)",
    "SELECT qty, price, credit, y FROM orders JOIN items USING (item_id) JOIN cards USING (card_id, maker_id)",
    # chains, stars, snowflakes; tables in any order
    "SELECT o.qty, i.price, m.country, o.y FROM orders o JOIN items i ON o.item_id = i.item_id "
    "JOIN makers m ON i.maker_id = m.maker_id",
    "SELECT qty, price, credit, y FROM orders o, items i, cards c "
    "WHERE o.item_id = i.item_id AND c.card_id = o.card_id",
    "SELECT qty, price, country, y FROM orders o, makers m, items i WHERE o.item_id = i.item_id "
    "AND m.maker_id = i.maker_id",
    "SELECT i.price, c.credit, m.country, o.y FROM makers m JOIN items i USING (maker_id), cards c, orders o "
    "WHERE c.maker_id = m.maker_id AND o.item_id = i.item_id AND o.card_id = c.card_id",
    "SELECT o.qty, o.y FROM orders o JOIN items i ON o.item_id = i.item_id WHERE i.category IN ('1', '2')",
    # self-joins
    "SELECT a.qty AS q1, b.qty AS q2, a.y FROM orders a JOIN orders b ON a.card_id = b.card_id AND a.qty = b.qty",
    "SELECT a.qty AS q1, b.qty AS q2, b.y FROM orders a JOIN orders b ON a.id = b.card_id WHERE a.qty > 0",
    "SELECT o.qty, a.price AS p1, b.price AS p2, o.y FROM orders o LEFT JOIN items a ON a.item_id = o.item_id "
    "LEFT JOIN items b ON b.item_id = o.card_id AND b.price > 1",
    # left joins
    "SELECT o.qty, i.price, o.y FROM orders o LEFT JOIN items i ON o.item_id = i.item_id",
    "SELECT o.qty, i.price, o.y FROM orders o LEFT OUTER JOIN items i ON o.item_id = i.item_id AND i.price > 1",
    "SELECT o.qty, i.price, o.y FROM orders o LEFT JOIN items i ON o.item_id = i.item_id AND coalesce(i.price, 9) > 1",
    "SELECT o.qty, i.price, o.y FROM orders o LEFT JOIN items i USING (item_id) WHERE item_id >= 0 OR qty = 1",
    "SELECT qty, price, country, y FROM orders LEFT JOIN items USING (item_id) LEFT JOIN makers USING (maker_id)",
    "SELECT o.qty, i.price + 1 AS p, c.credit, o.y FROM orders o LEFT JOIN items i ON i.item_id = o.item_id "
    "LEFT JOIN cards c ON c.card_id = o.card_id AND c.maker_id = i.maker_id",
    "SELECT o.qty, i.price, c.credit, o.y FROM orders o LEFT JOIN items i ON i.item_id = o.item_id "
    "JOIN cards c ON c.card_id = o.card_id",
    "SELECT * FROM orders o LEFT JOIN items i USING (item_id)",
    "SELECT qty, price, credit, o.y FROM orders o LEFT JOIN items i ON i.item_id = o.item_id, cards c "
    "WHERE c.card_id = o.card_id AND o.qty > 0",
    # conditions on the nullable side that make the join inner
    "SELECT o.qty, i.price, o.y FROM orders o LEFT JOIN items i ON o.item_id = i.item_id WHERE i.price > 0",
    "SELECT o.qty, i.price, o.y FROM orders o LEFT JOIN items i USING (item_id) WHERE i.price IS NOT NULL",
    "SELECT qty, price, y FROM orders LEFT JOIN items USING (item_id) WHERE category LIKE '1%' OR price IN (1, 2)",
    "SELECT qty, price, y FROM orders LEFT JOIN items USING (item_id) WHERE NOT (category NOT LIKE '1%')",
    "SELECT qty, price, y FROM orders LEFT JOIN items USING (item_id) WHERE coalesce(price, 0) > 0 AND price < 9",
    "SELECT qty, price, y FROM orders o LEFT JOIN items i ON o.item_id = i.item_id AND qty > 0 WHERE price = 1",
    "SELECT qty, price, country, y FROM orders LEFT JOIN items USING (item_id) LEFT JOIN makers USING (maker_id) "
    "WHERE country = '1'",
    "SELECT qty, price, country, y FROM orders LEFT JOIN items USING (item_id) LEFT JOIN makers USING (maker_id) "
    "WHERE price > 0",
    "SELECT o.qty, i.price, m.country, o.y FROM orders o LEFT JOIN items i ON i.item_id = o.item_id "
    "JOIN makers m ON m.maker_id = i.maker_id",
    "SELECT qty, price, credit, y FROM orders LEFT JOIN items i USING (item_id) LEFT JOIN cards c USING (card_id) "
    "WHERE c.maker_id = i.maker_id",
    "SELECT o.qty, i.price, o.y FROM orders o LEFT JOIN items i USING (item_id) "
    "WHERE CASE WHEN i.price > 1 THEN TRUE WHEN i.price IS NULL THEN FALSE ELSE i.category = '1' END",
    "SELECT o.qty, i.price, o.y FROM orders o LEFT JOIN items i USING (item_id) WHERE coalesce(i.price > 1, FALSE)",
    # unions
    "SELECT o.qty, i.price, o.y FROM orders o JOIN items i USING (item_id) UNION ALL "
    "SELECT c.credit, m.maker_id, c.card_id FROM cards c JOIN makers m USING (maker_id)",
    "(SELECT qty, y FROM orders WHERE qty > 1) UNION ALL "
    "((SELECT qty, y FROM orders) UNION ALL SELECT credit, card_id FROM cards);",
    "SELECT o.qty AS a, i.price AS b, i.maker_id AS c, o.y FROM orders o LEFT JOIN items i USING (item_id) UNION ALL "
    "SELECT o.qty, o.id, i.price, o.y FROM orders o JOIN items i USING (item_id) -- other grouping",
]  # fmt: skip


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_string(kind):
        return st.sampled_from([None, "1", "2", "3"])
    return st.sampled_from([None, 0, 1, 2, 3])


@st.composite
def tables(draw: st.DrawFn) -> dict[str, pa.Table]:
    """A few rows for every table, many of them with equal or missing keys."""
    made = {}
    for name, schema in SCHEMAS.items():
        rows = draw(st.lists(st.tuples(*map(_values, schema.values())), max_size=6))
        columns = list(zip(*rows, strict=True)) or [() for _ in schema]
        made[name] = pa.table({c: pa.array(v, t) for (c, t), v in zip(schema.items(), columns, strict=True)})
    return made


EMPTY = {name: {f"owner of {name}": pa.schema(schema).empty_table()} for name, schema in SCHEMAS.items()}


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as opened:
        yield opened


@pytest.fixture(scope="module")
def query(request: pytest.FixtureRequest) -> tuple[str, BoundQuery]:
    return request.param, bound(request.param, EMPTY)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("query", QUERIES, indirect=True)
@settings(max_examples=12)
@given(data=tables())
def test_a_bound_query_gives_the_rows_of_its_sql(
    query: tuple[str, BoundQuery], connection: duckdb.DuckDBPyConnection, data: dict[str, pa.Table]
) -> None:
    sql, meaning = query
    for name, table in data.items():
        connection.register(name, table)
    truth = connection.execute(sql)
    names = [column[0] for column in truth.description or ()]
    expected = Counter(truth.fetchall())
    assert Counter(connection.execute(rebuilt(meaning, names)).fetchall()) == expected
