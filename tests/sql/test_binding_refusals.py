"""Every refusal of binding says what is wrong, where, and what to write instead: binding_refusals.txt has them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.goldens import check_refusals
from tests.sql.owners import Tables, link_to

from tablepuppet.sql import bind, parse
from tablepuppet.transport.link import Link


def _table(**columns: pa.DataType) -> pa.Table:
    return pa.schema(list(columns.items())).empty_table()


INT, FLOAT, TEXT, BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()
TABLES: Tables = {
    "orders": {
        "store_eu": _table(
            item_id=INT, card_id=INT, quantity=INT, note=pa.binary(), channel=INT, coupon=TEXT, returned=BOOL
        ),
        "store_us": _table(item_id=INT, card_id=INT, Quantity=INT, note=pa.binary(), channel=TEXT, returned=BOOL),
    },
    "items": {
        "supplier": _table(
            item_id=INT,
            price=FLOAT,
            category=TEXT,
            weight=pa.decimal128(10, 2),
            day=pa.date32(),
            embedding=pa.list_(pa.float32(), 4),
            bought=pa.time64("us"),
            sold=BOOL,
        )
    },
    "cards": {
        "bank": _table(
            card_id=pa.decimal128(18, 2),
            holder=TEXT,
            credit=INT,
            since=pa.timestamp("us"),
            face=pa.list_(pa.float32(), 8),
            active=BOOL,
        )
    },
}


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    opened = link_to(TABLES)
    yield opened
    opened.transport.close()


def test_refusals_read_as_in_the_golden_file(link: Link) -> None:
    names = {table: tuple(parts) for table, parts in TABLES.items()}

    def ask(query: str) -> object:
        first, _, rest = query.partition("\n")
        label, sql = (first.removeprefix("-- label: "), rest) if first.startswith("-- label") else ("returned", query)
        return bind(parse(sql), label=label, tables=names, link=link, job="job")

    check_refusals(Path(__file__).with_name("binding_refusals.txt"), ask)
