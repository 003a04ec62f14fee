"""PostgreSQL: its types, its errors as clear sentences, and what it is asked for, by its own log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from tests.postgres import Database

from tablepuppet.errors import SourceError
from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.owner.tables import ClientTables
from tablepuppet.sources.source import Source, open_source, source

TYPES = """
    CREATE TABLE everything (
        a smallint, b integer, c bigint, d real, e double precision, f numeric(10, 2), g numeric(12), h numeric,
        i text, j varchar(10), k char(5), l boolean, m date, n timestamp, o timestamptz, p uuid, q double precision[],
        r jsonb, s bytea, t time, mood mood, positive positive, "sel""ect" integer, "naïve" integer
    )
"""
ROW = """
    INSERT INTO everything VALUES (
        1, 2, 3, 4.5, 5.5, 6.25, 7, 8.125, 'x', 'y', 'z', true, '2020-01-02', '2020-01-02 03:04:05',
        '2020-01-02 03:04:05+02', '12345678-1234-1234-1234-123456789ABC', '{1, 2}', '{}', '\\x00', '10:00', 'fine', 9,
        10, 11
    )
"""


@pytest.fixture(scope="module")
def database(postgres: Callable[[], Database]) -> Database:
    made = postgres()
    made.execute("CREATE TYPE mood AS ENUM ('bad', 'fine')", "CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
    made.execute(TYPES, ROW)
    return made


@pytest.fixture(scope="module")
def everything(database: Database) -> Iterator[Source]:
    opened = open_source(source(database.url, table="everything"), "everything")
    yield opened
    opened.close()


def test_every_type_has_its_kind(everything: Source) -> None:
    kinds = {column.name: column.kind for column in everything.describe()}
    assert kinds == {
        **dict.fromkeys(["a", "b", "c", "positive", 'sel"ect', "naïve"], "integer"),
        **dict.fromkeys(["d", "e", "h"], "float"),
        **dict.fromkeys(["f", "g"], "decimal"),
        **dict.fromkeys(["i", "j", "k", "mood"], "string"),
        **{"l": "boolean", "m": "date", "n": "timestamp", "o": "timestamp", "p": "uuid", "q": "vector"},
        **dict.fromkeys(["r", "s", "t"], "other"),
    }


def test_every_value_arrives(everything: Source) -> None:
    names = [c.name for c in everything.describe() if c.kind != "other"]
    read = everything.read(['"' + name.replace('"', '""') + '"' for name in names], None).rename_columns(names)
    [row] = read.to_pylist()
    shown = {name: str(value) for name, value in row.items()}
    assert shown["f"] == "6.25"
    assert shown["g"] == "7"
    assert shown["k"] == "z"
    assert shown["o"] == "2020-01-02 01:04:05+00:00"
    assert shown["p"] == "12345678-1234-1234-1234-123456789abc"
    assert row["q"] == [1.0, 2.0]
    assert row["mood"] == "fine"
    assert (row["h"], row['sel"ect'], row["naïve"], row["positive"]) == (8.125, 10, 11, 9)


def test_it_is_asked_for_the_columns_and_rows_that_are_needed_and_once_a_job(database: Database) -> None:
    def work() -> None:
        tables = ClientTables({"everything": open_source(source(database.url, table="everything"), "everything")})
        tables.open_scan(OpenScan(job="j", scan=0, table="everything", columns=["b", "a * 2"], filter="l AND c > 2"))
        assert tables.scan("j", 0).rows().num_rows == tables.scan("j", 0).rows().num_rows == 1
        tables.shutdown()

    asked = [statement for statement in database.statements(work) if "tablepuppet" in statement]
    assert asked == [
        'COPY (SELECT "a" * 2 AS "tablepuppet:0", "b" AS "tablepuppet:1" FROM "everything" '
        'WHERE ("l") AND ("c" > 2)) TO STDOUT (FORMAT binary)'
    ]


def test_the_session_cannot_write(database: Database) -> None:
    opened = open_source(source(database.url, table="everything"), "everything")
    driver = opened._driver  # type: ignore[attr-defined]
    with pytest.raises(driver._errors, match="read-only"), driver._connection.cursor() as cursor:
        cursor.execute("DELETE FROM everything")
    opened.close()


def test_a_wrong_password_is_refused_without_showing_it(database: Database) -> None:
    rules = database.folder / "pg_hba.conf"
    before = rules.read_text()
    database.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
    rules.write_text(f"local all guest scram-sha-256\n{before}")
    database.execute("SELECT pg_reload_conf()")
    url = database.url.replace("postgres:@", "guest:${GUEST_PASSWORD}@")
    try:
        for password in ("wrong!@/", ""):
            os.environ["GUEST_PASSWORD"] = password
            with pytest.raises(SourceError, match="refuses this user or password") as refused:
                open_source(source(url, table="everything"), "items")
            assert not {"wrong", "guest"} & set(str(refused.value).split())
        os.environ["GUEST_PASSWORD"] = "right"
        with pytest.raises(SourceError, match="may not read the table"):
            open_source(source(url, table="everything"), "items")
    finally:
        del os.environ["GUEST_PASSWORD"]
        rules.write_text(before)
        database.execute("SELECT pg_reload_conf()")
    with pytest.raises(SourceError, match="environment variable GUEST_PASSWORD, which is not set"):
        open_source(source(url, table="everything"), "items")


def test_what_is_not_there_is_said(database: Database) -> None:
    with pytest.raises(SourceError, match="table items: there is no such table"):
        open_source(source(database.url, table="nothing"), "items")
    elsewhere = database.url.replace(f"/{database.name}?", "/no_such_database?")
    with pytest.raises(SourceError, match="no such database"):
        open_source(source(elsewhere, table="everything"), "items")
    with pytest.raises(SourceError, match="cannot be reached") as refused:
        open_source(source("postgresql://ann:secret@127.0.0.1:1/shop", table="items"), "items")
    assert "secret" not in str(refused.value)


def test_a_table_that_changes_while_it_is_open_is_named(database: Database) -> None:
    database.ingest("moving", pa.table({"id": [1, 2], "price": [0.5, 1.5]}))
    opened = open_source(source(database.url, table="moving"), "moving")
    assert opened.read(["price"], None).num_rows == 2
    database.execute("ALTER TABLE moving ALTER price TYPE text")
    with pytest.raises(
        SourceError, match=r"table moving has changed .*: price was DOUBLE and is VARCHAR; run the job again"
    ):
        opened.read(["price"], None)
    assert opened.read(["id"], None).num_rows == 2
    database.execute("ALTER TABLE moving DROP price")
    with pytest.raises(SourceError, match="price is gone"):
        opened.read(["id"], "price > '1'")
    database.execute("DROP TABLE moving")
    with pytest.raises(SourceError, match=r"no such table in the database \(any more\)"):
        opened.read(["id"], None)
    opened.close()


def test_a_bad_row_is_not_quoted(database: Database) -> None:
    database.ingest("texts", pa.table({"code": ["12", "hush"]}))
    opened = open_source(source(database.url, table="texts"), "texts")
    with pytest.raises(SourceError, match="cannot be converted") as refused:
        opened.read(["CAST(code AS INTEGER)"], None)
    assert "hush" not in str(refused.value)
    opened.close()


def test_a_session_that_was_lost_is_opened_anew_for_the_next_job(database: Database) -> None:
    opened = open_source(source(database.url, table="everything"), "everything")
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
    database.rows(f"{others} pg_backend_pid()")
    assert len(opened.describe()) == 24
    assert opened.read(["b"], None).num_rows == 1
    opened.close()


def test_rows_keep_the_tables_order_whatever_index_there_is(postgres: Callable[[], Database]) -> None:
    database = postgres()
    database.execute(
        "CREATE TABLE t AS SELECT k AS a, -k AS b, repeat('p', 200) AS pad FROM generate_series(0, 4999) k",
        "CREATE INDEX ON t (b)",
        "VACUUM ANALYZE t",
    )
    table = open_source(source(database.url, table="t"), "t")
    assert table.read(['"b"'], None)["c0"].to_pylist() == [-k for k in range(5000)]
    assert table.read(['"a"'], '"b" < -4900')["c0"].to_pylist() == list(range(4901, 5000))
    assert table.read(['"b"'], '"b" IN (-7, -3000, -2)')["c0"].to_pylist() == [-2, -7, -3000]
    table.close()
