"""From Ucq to BoundQuery: names, blocks, scans and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pytest
from tests.sql.owners import Tables, bound, link_to

from tablepuppet.errors import CatalogError, QueryError, SourceError, TransportError
from tablepuppet.exchanges.registry import REQUESTS
from tablepuppet.exchanges.schema import DescribeTable, OpenScan, ScanSchema, TableSchema
from tablepuppet.protocol.base import Done
from tablepuppet.protocol.codec import Frame, decode, encode
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sql import BoundQuery, bind, parse
from tablepuppet.transport.link import Handler, Link, LocalTransport

ORDERS = pa.table({"item_id": [1], "card_id": [1], "quantity": [1], "hour": [1], "returned": [True]})
TABLES: Tables = {
    "orders": {"eu": ORDERS, "us": ORDERS},
    "items": {"supplier": pa.table({"item_id": [1], "price": [1.5], "category": ["a"], "sold": [True]})},
    "cards": {"bank": pa.table({"card_id": [1], "credit": [1.5], "active": [True]})},
}
JOINED = "orders o JOIN items i ON o.item_id = i.item_id JOIN cards c ON c.card_id = o.card_id"


def bind_to(sql: str, label: str = "returned") -> BoundQuery:
    return bound(sql, TABLES, label)


def test_each_alias_with_features_is_a_block_in_the_order_of_from() -> None:
    query = bind_to(f"SELECT c.credit, o.quantity, i.price, o.hour, o.returned FROM {JOINED}")
    assert [(b.name, b.table, b.features) for b in query.blocks] == [
        ("o", "orders", ("o.quantity", "o.hour")),
        ("i", "items", ("i.price",)),
        ("c", "cards", ("c.credit",)),
    ]
    assert query.label == "returned"


def test_a_relation_without_features_joins_but_is_no_block() -> None:
    query = bind_to(f"SELECT o.quantity, c.credit, o.returned FROM {JOINED}")
    assert [b.name for b in query.blocks] == ["o", "c"]
    assert [r.alias for r in query.branches[0].relations] == ["o", "i", "c"]


def test_blocks_keep_the_order_of_from_when_joins_cannot() -> None:
    query = bind_to(
        "SELECT c.credit, i.price, o.quantity, o.returned FROM cards c, items i, orders o "
        "WHERE c.card_id = o.card_id AND i.item_id = o.item_id"
    )
    branch = query.branches[0]
    assert [r.alias for r in branch.relations] == ["c", "o", "i"]
    assert [join.relation for join in branch.joins] == [1, 2]
    assert [(b.name, b.members[0].relation) for b in query.blocks] == [("c", 0), ("i", 2), ("o", 1)]
    assert branch.label_relation == 1


def test_expressions_are_named_after_as_or_after_their_text() -> None:
    query = bind_to('SELECT ln(i.price), i.price * 2 AS twice, upper(category) AS "A b", sold AS returned FROM items i')
    assert query.blocks[0].features == ("i.LN(price)", "i.twice", "i.A b")
    assert query.scans[0].expressions == ('LN("price")', '"price" * 2', 'UPPER("category")', '"sold"')
    assert [c.kind for c in query.blocks[0].columns] == ["float", "float", "string"]
    assert [c.name for c in query.blocks[0].columns] == list(query.blocks[0].features)


def test_stars_stand_for_all_columns_but_the_label() -> None:
    query = bind_to("SELECT o.*, i.price FROM orders o JOIN items i USING (item_id)")
    assert query.blocks[0].features == ("o.item_id", "o.card_id", "o.quantity", "o.hour")
    everything = bind_to("SELECT * FROM orders o JOIN items i USING (item_id)")
    assert everything.blocks[1].features == ("i.price", "i.category", "i.sold")


def test_uses_of_a_table_under_the_same_filter_share_a_scan() -> None:
    query = bind_to(
        "SELECT a.quantity, b.hour, a.returned FROM orders a JOIN orders b ON a.item_id = b.card_id "
        "WHERE a.hour > 1 AND a.quantity > 1 AND b.quantity > 1 AND b.hour > 1 UNION ALL "
        "SELECT c.quantity, d.hour, c.returned FROM orders c JOIN orders d ON c.hour = d.hour"
    )
    assert [(s.table, s.filter) for s in query.scans] == [
        ("orders", '("hour" > 1) AND ("quantity" > 1)'),
        ("orders", None),
    ]
    assert [[r.scan for r in b.relations] for b in query.branches] == [[0, 0], [1, 1]]
    assert query.scans[0].expressions == ('"item_id"', '"card_id"', '"quantity"', '"hour"', '"returned"')
    assert query.scans[0].clients == ("eu", "us")


def test_unions_refine_blocks_until_each_comes_from_one_alias_everywhere() -> None:
    query = bind_to(
        "SELECT o.quantity, o.hour, i.price, o.returned FROM orders o JOIN items i USING (item_id) UNION ALL "
        "SELECT o.quantity, c.credit, c.credit, o.returned FROM orders o JOIN cards c USING (card_id)"
    )
    assert [(b.name, b.features) for b in query.blocks] == [
        ("o", ("o.quantity",)),
        ("o_2", ("o.hour",)),
        ("i", ("i.price",)),
    ]
    assert [[m.relation for m in b.members] for b in query.blocks] == [[0, 0], [0, 1], [1, 1]]
    assert query.blocks[1].columns[0].kind == "float"  # an integer in one branch, a float in the other


@pytest.mark.parametrize("label", ["returned", "o.returned", "RETURNED", "O.Returned"])
def test_a_label_is_named_by_its_output_with_or_without_alias(label: str) -> None:
    query = bind_to(f"SELECT o.quantity, o.returned FROM {JOINED}", label)
    assert query.label == "returned"
    assert query.scans[0].expressions[query.branches[0].label_place.label] == '"returned"'


def test_a_label_may_be_an_expression() -> None:
    query = bind_to("SELECT o.hour, o.quantity > 3 AS many FROM orders o", "many")
    assert query.scans[0].columns[query.branches[0].label_place.label].kind == "boolean"


def test_names_match_in_any_case_unless_quoted() -> None:
    query = bind_to('SELECT O.QUANTITY, i."price", Returned FROM Orders o JOIN ITEMS I ON o.Item_Id = I.item_id')
    assert [b.features for b in query.blocks] == [("o.quantity",), ("I.price",)]
    with pytest.raises(CatalogError, match="Did you mean price"):
        bind_to('SELECT "Price", sold AS returned FROM items')


def test_each_client_is_asked_in_its_own_spelling() -> None:
    asked: dict[str, OpenScan] = {}
    spellings = {"eu": ["Id", "Quantity", "y"], "us": ["ID", "quantity", "Y"]}
    link = _static({c: [ColumnInfo(n, "integer") for n in names] for c, names in spellings.items()}, asked)
    query = bind(
        parse("SELECT o.id, o.quantity, o.y FROM orders o WHERE id > 1"),
        label="y",
        tables={"orders": ("eu", "us")},
        link=link,
        job="job",
    )
    assert query.scans[0].expressions == ('"Id"', '"Quantity"', '"y"')
    assert asked["eu"].columns == ['"Id"', '"Quantity"', '"y"']
    assert (asked["us"].columns, asked["us"].filter) == (['"ID"', '"quantity"', '"Y"'], '"ID" > 1')


def test_columns_that_differ_only_in_case_must_be_quoted() -> None:
    columns = {"owner": [ColumnInfo(name, "integer") for name in ("Id", "ID", "y")]}

    def ask(sql: str) -> BoundQuery:
        return bind(parse(sql), label="y", tables={"t": ("owner",)}, link=_static(columns), job="job")

    with pytest.raises(CatalogError, match=r'write t\."Id" or t\."ID"'):
        ask("SELECT t.id, t.y FROM t")
    query = ask('SELECT t.ID, t."Id", t.y FROM t')
    assert query.blocks[0].features == ("t.ID", "t.Id")


def test_binding_takes_two_rounds() -> None:
    link = link_to(TABLES)
    names = {table: tuple(parts) for table, parts in TABLES.items()}
    bind(parse(f"SELECT o.hour, i.price, o.returned FROM {JOINED}"), label="returned", tables=names, link=link, job="j")
    account = link.meter.account("setup")
    assert account.rounds == 2
    assert set(account.by_message) == {"DescribeTable", "TableSchema", "OpenScan", "ScanSchema"}
    link.transport.close()


def test_numbers_of_different_kinds_at_the_clients_make_a_float_feature_and_no_key() -> None:
    tables: Tables = {
        "orders": {"eu": pa.table({"k": [1], "x": [1], "y": [1]}), "us": pa.table({"k": [1], "x": [1.5], "y": [1]})},
        "items": {"supplier": pa.table({"k": [1], "x": [1]})},
    }
    query = bound("SELECT o.x, o.y FROM orders o JOIN items i ON o.k = i.k", tables)
    assert query.blocks[0].columns == (ColumnInfo("o.x", "float", "BIGINT or DOUBLE"),)
    with pytest.raises(CatalogError, match="cannot be a key"):
        bound("SELECT o.x, o.y FROM orders o JOIN items i ON o.x = i.k", tables)


def test_integers_and_decimals_without_fraction_are_one_key_type() -> None:
    decimal = pa.array([1], pa.decimal128(18, 0))
    tables: Tables = {
        "orders": {"eu": pa.table({"k": [1], "y": [1]}), "us": pa.table({"k": decimal, "y": [1]})},
        "items": {"supplier": pa.table({"k": pa.array([1], pa.int16()), "x": [1]})},
    }
    assert (
        bound("SELECT i.x, o.y FROM orders o JOIN items i ON o.k = i.k", tables).scans[0].columns[0].kind == "integer"
    )


def test_a_client_that_cannot_answer_is_named() -> None:
    with pytest.raises(SourceError, match="client supplier"):
        bind_to("SELECT upper(i.price), i.sold AS returned FROM items i WHERE i.category > 3.5 + i.sold")


def test_an_answer_out_of_protocol_is_an_error() -> None:
    link = Link(LocalTransport({"owner": lambda frame: encode(Done())}))
    with pytest.raises(TransportError, match="is no answer to DescribeTable"):
        bind(parse("SELECT t.x, t.y FROM t"), label="y", tables={"t": ("owner",)}, link=link, job="job")


def test_a_table_that_nobody_holds_is_refused() -> None:
    with pytest.raises(CatalogError, match="no client holds the table t"):
        bind(parse("SELECT t.x, t.y FROM t"), label="y", tables={"t": ()}, link=link_to(TABLES), job="job")


def test_a_query_that_is_deep_is_bound_or_refused() -> None:
    for depth in (5, 20, 90):
        sql = "SELECT " + "abs(" * depth + "i.price" + ")" * depth + " AS x, i.sold AS returned FROM items i"
        with suppress(QueryError):
            assert len(bind_to(sql).scans) == 1


def _static(columns: Mapping[str, Sequence[ColumnInfo]], asked: dict[str, OpenScan] | None = None) -> Link:
    """Clients that answer every question with integers, and remember which scans they opened."""

    def handler(client: str, own: Sequence[ColumnInfo]) -> Handler:
        def handle(frame: Frame) -> Frame:
            match decode(frame, REQUESTS):
                case DescribeTable():
                    return encode(TableSchema(columns=list(own)))
                case OpenScan() as scan:
                    if asked is not None:
                        asked[client] = scan
                    return encode(ScanSchema(columns=[ColumnInfo(c, "integer") for c in scan.columns]))
                case other:
                    raise AssertionError(other)

        return handle

    return Link(LocalTransport({client: handler(client, own) for client, own in columns.items()}))
