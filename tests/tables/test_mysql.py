"""MySQL and MariaDB, where the machine has one: TABLEPUPPET_TEST_MYSQL=mysql://user:password@host:3306/database."""

from __future__ import annotations

import os

import pytest

from tablepuppet.tables.mysql import MySQL
from tablepuppet.tables.pushdown import OwnerColumn, push_down
from tablepuppet.tables.source import open_source, source

URL = os.environ.get("TABLEPUPPET_TEST_MYSQL")


@pytest.mark.skipif(URL is None, reason="no MySQL or MariaDB here: set TABLEPUPPET_TEST_MYSQL to the URL of one")
def test_a_table_that_every_server_has_is_read() -> None:
    assert URL is not None
    opened = open_source(source(URL, table="information_schema.columns"), "columns")
    kinds = {column.name.lower(): column.kind for column in opened.describe()}
    assert kinds["table_name"] == "string"
    assert kinds["ordinal_position"] == "integer"
    spelt = {column.name.lower(): column.name for column in opened.describe()}
    table, position = f'"{spelt["table_name"]}"', f'"{spelt["ordinal_position"]}"'
    read = opened.read([position], f"lower({table}) = 'columns' AND {position} <= 3")
    opened.close()
    assert {1, 2, 3} <= set(read["c0"].to_pylist())


def test_texts_are_never_compared_in_the_database_and_numbers_and_dates_are() -> None:
    columns = [
        OwnerColumn("na`me", "VARCHAR"),
        OwnerColumn("a", "INTEGER", "number"),
        OwnerColumn("d", "DATE", "date"),
    ]
    filter = '"na`me" = \'x\' AND "a" > 2 AND "d" >= CAST(\'2020-01-01\' AS DATE)'
    scan = push_down("`t`", ['"a" * 2'], filter, columns, MySQL.dialect)
    assert scan.select == (
        "SELECT `na``me` AS `tablepuppet:0`, `a` AS `tablepuppet:1` FROM `t` "
        "WHERE (`a` > 2) AND (`d` >= CAST('2020-01-01' AS DATE))"
    )
    assert scan.filter == "(\"na`me\" = 'x')"
