"""MySQL and MariaDB, where the machine has one (tests/mysql.py)."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from tests.mysql import MySQLDatabase

from tablepuppet.errors import SourceError
from tablepuppet.sources.guard import check_expression
from tablepuppet.sources.mysql import MySQL
from tablepuppet.sources.pushdown import OwnerColumn, push_down
from tablepuppet.sources.source import Source, open_source, source

SECOND_HALF_PAST_TWO = datetime.datetime(2020, 10, 25, 1, 30, tzinfo=datetime.UTC)  # in Paris, where it came twice
# column, type, kind, values as written there, values as they are
KINDS: list[tuple[str, str, str, str, Any]] = [
    ("tiny", "TINYINT", "integer", "-128", -128),
    ("u8", "TINYINT UNSIGNED", "integer", "255", 255),
    ("u16", "SMALLINT UNSIGNED", "integer", "65535", 65535),
    ("u24", "MEDIUMINT UNSIGNED", "integer", "16777215", 16777215),
    ("u32", "INT UNSIGNED", "integer", "4294967295", 4294967295),
    ("u64", "BIGINT UNSIGNED", "integer", "18446744073709551615", 18446744073709551615),
    ("i64", "BIGINT", "integer", "-9223372036854775808", -(2**63)),
    ("f", "FLOAT", "float", "1.5", 1.5),
    ("x", "DOUBLE", "float", "0.1", 0.1),
    ("money", "DECIMAL(10, 2)", "decimal", "12345678.99", Decimal("12345678.99")),
    ("whole", "DECIMAL(20, 0)", "decimal", "12345678901234567890", Decimal("12345678901234567890")),
    ("long", "DECIMAL(50, 2)", "float", "1.25", 1.25),
    ("flag", "BOOLEAN", "boolean", "TRUE", True),
    ("bit1", "BIT(1)", "boolean", "b'1'", True),
    ("fixed", "CHAR(5)", "string", "'ab'", "ab"),
    ("text", "TEXT", "string", "'ß ÄÖ'", "ß ÄÖ"),
    ("word", "ENUM('a', 'ü')", "string", "'ü'", "ü"),
    ("words", "SET('a', 'b')", "string", "'a,b'", "a,b"),
    ("day", "DATE", "date", "'2020-02-29'", datetime.date(2020, 2, 29)),
    ("year", "YEAR", "integer", "2020", 2020),
    ("time", "DATETIME(6)", "timestamp", "'2020-02-29 01:02:03.000004'", datetime.datetime(2020, 2, 29, 1, 2, 3, 4)),
    ("moment", "TIMESTAMP(6)", "timestamp", "FROM_UNIXTIME(1603589400)", SECOND_HALF_PAST_TWO),
    ("id", "UUID", "uuid", "'123e4567-e89b-12d3-a456-426614174000'", "123e4567-e89b-12d3-a456-426614174000"),
    ("ba`ck\"s", "INT", "integer", "7", 7),
    ("select", "INT", "integer", "8", 8),
    ("bits", "BIT(8)", "other", "b'1'", None),
    ("blob", "BLOB", "other", "x'00ff'", None),
    ("clock", "TIME", "other", "'-12:00:00'", None),
]  # fmt: skip


def opened(database: MySQLDatabase, table: str) -> Source:
    return open_source(source(database.url, table=table), table)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def test_every_type_is_read_as_what_it_means(mysql: Callable[[], MySQLDatabase]) -> None:
    database = mysql()
    spelt = [f"`{name.replace('`', '``')}` {kind} NULL" for name, kind, *_ in KINDS]
    database.execute(
        f"CREATE TABLE kinds ({', '.join(spelt)}) DEFAULT CHARSET utf8mb4",
        "SET time_zone = '+05:00'",
        f"INSERT INTO kinds VALUES ({', '.join(written for *_, written, _ in KINDS)})",
        f"INSERT INTO kinds VALUES ({', '.join(['NULL'] * len(KINDS))})",
    )
    kinds = opened(database, "kinds")
    assert [(c.name, c.kind) for c in kinds.describe()] == [(name, kind) for name, _, kind, *_ in KINDS]
    for name, _, kind, _, value in KINDS:
        found = kinds.read([quoted(name)], None)["c0"].to_pylist()
        if kind != "other":
            shown = [str(v) if isinstance(v, UUID) else v for v in found]
            assert shown == [value, None], name
    kinds.close()


def test_a_number_that_is_no_boolean_does_not_pass_for_true(mysql: Callable[[], MySQLDatabase]) -> None:
    database = mysql()
    database.execute("CREATE TABLE t (flag BOOLEAN)", "INSERT INTO t VALUES (0), (1), (5)")
    flags = opened(database, "t")
    with pytest.raises(SourceError, match="table t: some row has a value that cannot be converted"):
        flags.read(['"flag"'], None)
    flags.close()


def test_a_day_that_never_was_is_an_error_that_quotes_nothing(mysql: Callable[[], MySQLDatabase]) -> None:
    database = mysql()
    database.execute("CREATE TABLE t (d DATE)", "SET sql_mode = ''", "INSERT INTO t VALUES ('0000-00-00')")
    days = opened(database, "t")
    with pytest.raises(SourceError, match="some row has a value that cannot be converted") as refused:
        days.read(['"d"'], None)
    days.close()
    assert "0000" not in str(refused.value)


def test_rows_come_in_the_order_of_the_primary_key_whatever_index_is_read(mysql: Callable[[], MySQLDatabase]) -> None:
    database = mysql()
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, x INT, pad VARCHAR(200), INDEX (x))")
    database.execute("INSERT INTO t VALUES (%s, %s, %s)", rows=[(k, -k, "p" * 200) for k in range(3000)])
    table = opened(database, "t")
    assert table.read(['"x"'], None)["c0"].to_pylist() == [-k for k in range(3000)]
    assert table.read(['"id"'], '"x" < -5')["c0"].to_pylist() == list(range(6, 3000))
    table.close()


def test_texts_differ_by_case_and_accent_whatever_the_collation_says(mysql: Callable[[], MySQLDatabase]) -> None:
    database = mysql()
    database.execute("CREATE TABLE t (s VARCHAR(9)) COLLATE utf8mb4_general_ci", "INSERT INTO t VALUES ('a'), ('A')")
    table = opened(database, "t")
    assert table.read(['"s"'], check_expression("s = 'A'", ["s"]))["c0"].to_pylist() == ["A"]
    table.close()


@pytest.mark.slow  # the driver tries for thirty seconds
def test_a_wrong_password_is_one_sentence_without_names(mysql: Callable[[], MySQLDatabase]) -> None:
    url = mysql().url
    user, _, rest = url.partition("://")[2].partition("@")
    with pytest.raises(SourceError, match="table t: the database refuses this user or password") as refused:
        open_source(source(f"mysql://{user.partition(':')[0]}:hush-4242@{rest}", table="t"), "t")
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_server_that_is_not_there_is_known_at_once() -> None:
    with pytest.raises(SourceError, match="table t: the database cannot be reached or did not answer"):
        open_source(source("mysql://ann:hush-4242@127.0.0.1:1/shop", table="t"), "t")


def test_texts_are_never_compared_in_the_database_and_numbers_and_dates_are() -> None:
    columns = [
        OwnerColumn("na`me", "VARCHAR"),
        OwnerColumn("a", "INTEGER", "number"),
        OwnerColumn("d", "DATE", "date"),
    ]
    filter = '"na`me" = \'x\' AND "a" > 2 AND "a" / 3 > 1 AND "d" >= CAST(\'2020-01-01\' AS DATE)'
    scan = push_down("`t`", ['"a" * 2'], filter, columns, MySQL.dialect)
    assert scan.select == (
        "SELECT `na``me` AS `tablepuppet:0`, `a` AS `tablepuppet:1` FROM `t` "
        "WHERE (`a` > 2) AND (`d` >= CAST('2020-01-01' AS DATE))"
    )
    assert scan.filter == '("na`me" = \'x\') AND ("a" / 3 > 1)'
