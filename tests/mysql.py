"""A real MariaDB or MySQL for tests: one server a process, one database for each test that asks.

The server is `mariadbd` (Debian: mariadb-server-core), in a temporary folder, on a free port of this machine. To test
another one, name a user who may create databases:

TABLEPUPPET_TEST_MYSQL=mysql://owner:password@127.0.0.1:3306/
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pymysql
import pytest
from tests.ports import free_port

_PATIENCE = 180.0  # seconds until a server must answer
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


def find_server() -> str | None:
    """The path of MariaDB's server, which is no command that users run."""
    return shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def run_server(program: str) -> Iterator[str]:
    """A private server, gone at the end; the URL of its user."""
    with tempfile.TemporaryDirectory(prefix="tablepuppet-mariadb-") as name:
        folder, password, port = Path(name), secrets.token_hex(8), free_port()
        setup = folder / "setup.sql"
        setup.write_text(
            f"CREATE USER owner@'127.0.0.1' IDENTIFIED BY '{password}';\nGRANT ALL ON *.* TO owner@'127.0.0.1';\n",
            encoding="utf-8",
        )
        command = [program, "--no-defaults", f"--datadir={folder / 'data'}", "--innodb-flush-log-at-trx-commit=0"]
        command += [f"--tmpdir={folder}", *["--user=root"] * (os.geteuid() == 0)]  # root, which it otherwise refuses
        with (folder / "log").open("wb") as log:
            _make_system_tables(command, folder / "data", log)
            command += [f"--init-file={setup}", f"--port={port}", "--bind-address=127.0.0.1"]
            command += [f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}"]
            server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"mysql://owner:{password}@127.0.0.1:{port}"
            _wait_until_ready(url, server, folder / "log")
            yield url
        finally:
            server.terminate()
            server.wait(timeout=_PATIENCE)


def _make_system_tables(command: list[str], data: Path, log: IO[bytes]) -> None:
    """What mariadb-install-db does; that script needs a package more than the server."""
    share = Path(command[0]).resolve().parents[1] / "share"
    found = [folder for folder in (share / "mysql", share / "mariadb") if folder.is_dir()]
    parts = ["CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"]
    for part in ("system_tables.sql", "system_tables_data.sql"):
        parts += [next(file for folder in found for file in folder.glob(f"*_{part}")).read_text(encoding="utf-8")]
    (data / "mysql").mkdir(parents=True)
    done = subprocess.run([*command, "--bootstrap"], input="".join(parts).encode(), stdout=log, stderr=log, check=False)
    if done.returncode:
        raise RuntimeError(f"mariadbd made no system tables:\n{Path(log.name).read_text(errors='replace')[-2000:]}")


def _wait_until_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            MySQLDatabase(url, "").execute("SELECT 1")
            return
        except pymysql.err.OperationalError:
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"mariadbd does not answer:\n{log.read_text(errors='replace')[-2000:]}") from None
            time.sleep(0.1)


@pytest.fixture(scope="session")
def mysql() -> Iterator[Callable[[], MySQLDatabase]]:
    """Makes a new, empty database at every call."""
    given, program = os.environ.get("TABLEPUPPET_TEST_MYSQL"), find_server()
    if given is not None:
        yield from _make_databases(given)
    elif program is None:
        pytest.skip("no mariadbd here: install mariadb-server-core, or set TABLEPUPPET_TEST_MYSQL to a server's URL")
    else:
        with run_server(program) as url:
            yield from _make_databases(url)


def _make_databases(url: str) -> Iterator[Callable[[], MySQLDatabase]]:
    made = []

    def make() -> MySQLDatabase:
        database = MySQLDatabase(url, f"tablepuppet_{secrets.token_hex(4)}_{next(_NUMBERS)}")
        MySQLDatabase(url, "").execute(f"CREATE DATABASE {database.name}")
        made.append(database)
        return database

    yield make
    for database in made:
        database.execute(f"DROP DATABASE {database.name}")
