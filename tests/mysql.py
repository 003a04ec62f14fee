"""A real MySQL or MariaDB for tests, where there is one: a database for each test that asks.

TABLEPUPPET_TEST_MYSQL=mysql://owner:password@127.0.0.1:3306/   # a user who may create databases
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pymysql
import pytest

URL = os.environ.get("TABLEPUPPET_TEST_MYSQL")
_NUMBERS = itertools.count()
_TYPES: dict[Callable[[pa.DataType], bool], str] = {
    pa.types.is_boolean: "BOOLEAN",
    pa.types.is_int16: "SMALLINT",
    pa.types.is_int32: "INT",
    pa.types.is_integer: "BIGINT",
    pa.types.is_float32: "FLOAT",
    pa.types.is_floating: "DOUBLE",
    pa.types.is_date: "DATE",
    pa.types.is_timestamp: "DATETIME(6)",
    pa.types.is_string: "VARCHAR(200)",
}


class MySQLDatabase:
    """A database that its tests own."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.url = f"{url.rstrip('/')}/{name}"
        self._base = url

    def execute(self, *statements: str, rows: list[tuple[Any, ...]] | None = None) -> list[Any]:
        parts = urlsplit(self._base)
        given = {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
        connection = pymysql.connect(host=parts.hostname, port=parts.port or 3306, autocommit=True, **given)
        try:
            with connection.cursor() as cursor:
                if self.name:
                    cursor.execute(f"USE `{self.name}`")
                for statement in statements:
                    cursor.executemany(statement, rows) if rows is not None else cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def ingest(self, table: str, data: pa.Table, key: str | None = None) -> None:
        """Writes an Arrow table as a new table."""
        kinds = [next(name for is_kind, name in _TYPES.items() if is_kind(field.type)) for field in data.schema]
        listed = ", ".join(f"`{name}` {kind}" for name, kind in zip(data.column_names, kinds, strict=True))
        own = f", PRIMARY KEY (`{key}`)" if key else ""
        self.execute(f"CREATE TABLE `{table}` ({listed}{own}) DEFAULT CHARSET utf8mb4")
        places = ", ".join(["%s"] * data.num_columns)
        rows = list(zip(*(column.to_pylist() for column in data.columns), strict=True))
        self.execute(f"INSERT INTO `{table}` VALUES ({places})", rows=rows)


@pytest.fixture(scope="session")
def mysql() -> Iterator[Callable[[], MySQLDatabase]]:
    """Makes a new, empty database at every call."""
    if URL is None:
        pytest.skip("no MySQL or MariaDB here: set TABLEPUPPET_TEST_MYSQL to the URL of one")
    made = []

    def make() -> MySQLDatabase:
        database = MySQLDatabase(URL, f"tablepuppet_{secrets.token_hex(4)}_{next(_NUMBERS)}")
        MySQLDatabase(URL, "").execute(f"CREATE DATABASE {database.name}")
        made.append(database)
        return database

    yield make
    for database in made:
        database.execute(f"DROP DATABASE {database.name}")
