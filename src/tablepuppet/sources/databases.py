"""Tables in databases: a URL's scheme says who opens it; read in the owner's dialect, as a stream of Arrow.

In: a SourceSpec whose URL names a database. Out: a Source. A database is one entry of _DRIVERS. Its package is imported
only when one of its tables is opened. A driver describes one table and streams the answer to a SELECT.

`${NAME}` in a URL stands for an environment variable, `${file:/run/secrets/shop}` for the content of a file. Their
values are percent-encoded, so that a password may contain any character. The URL to connect with is never printed.

Types come from an empty DuckDB table with the same columns, the *twin*. An expression thus has the same type wherever
its table lies, and nothing is read to learn it. pushdown.py divides a scan. The answer passes through a private DuckDB
batch by batch, so that only the result is ever held in full.

Row order: a scan is read once a job and kept (owner/scans.py), so row numbers cannot change during a job. Drivers ask
for plans that do not reorder, so that two reads of an unchanged table agree too.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import duckdb
import pyarrow as pa
from msgspec.structs import replace

from tablepuppet.errors import SourceError
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources import duckdb_source
from tablepuppet.sources.adbc import DRIVERS, Adbc, SQLite
from tablepuppet.sources.files import STORES, WEB
from tablepuppet.sources.memory import check_names, open_memory
from tablepuppet.sources.mysql import MySQL
from tablepuppet.sources.postgresql import PostgreSQL
from tablepuppet.sources.pushdown import OwnerColumn, push_down
from tablepuppet.sources.source import FileSource, Source, SourceSpec, redact

log = logging.getLogger(__name__)

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")


def fill_placeholders(url: str, table: str) -> str:
    """The URL with its placeholders filled in.

    >>> os.environ["SHOP_PASSWORD"] = "p@ss"
    >>> fill_placeholders("postgresql://ann:${SHOP_PASSWORD}@db.example.org/shop", "items")
    'postgresql://ann:p%40ss@db.example.org/shop'
    """
    return _PLACEHOLDER.sub(lambda found: quote(_value(found[1], table), safe=""), url)


def _value(name: str, table: str) -> str:
    if name.startswith("file:"):
        path = Path(name.removeprefix("file:")).expanduser()
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise SourceError(f"table {table}: the file {path} with a credential cannot be read") from None
    if name not in os.environ:
        raise SourceError(f"table {table}: its URL needs the environment variable {name}, which is not set")
    return os.environ[name]


Driver = Adbc | MySQL | PostgreSQL | SQLite


class DatabaseSource:
    """A table behind a driver."""

    def __init__(self, name: str, driver: Driver) -> None:
        self._name = name
        self._driver = driver
        self._columns: list[OwnerColumn] = []
        self._twin: duckdb_source.DuckSource | None = None
        try:
            self.describe()
        except SourceError:
            self.close()
            raise

    def describe(self) -> list[ColumnInfo]:
        """The current columns; a job begins with them."""
        now = self._driver.columns()
        if self._twin is None or now != self._columns:
            check_names([column.name for column in now], self._name)
            twin = duckdb_source.from_types(self._name, [(column.name, column.type) for column in now])
            if self._twin is not None:
                self._twin.close()
            self._twin, self._columns = twin, now
        described = zip(self._twin.describe(), now, strict=True)
        return [info if column.nullable else replace(info, nullable=False) for info, column in described]

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        assert self._twin is not None
        return self._twin.describe_scan(expressions, filter)

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        assert self._twin is not None
        types = self._twin.types(expressions, filter)  # a wrong name or type is found here, as in every source
        scan = push_down(self._driver.relation, expressions, filter, self._columns, self._driver.dialect)
        self._check_unchanged(scan.used)
        columns = [f"CAST({c} AS {t})" for c, t in zip(scan.columns, types, strict=True)]
        return duckdb_source.project(self._name, self._driver.stream(scan), scan.inner, columns, scan.filter)

    def stamp(self) -> str | None:
        return self._driver.stamp()

    def close(self) -> None:
        if self._twin is not None:
            self._twin.close()
        self._driver.close()

    def _check_unchanged(self, used: Sequence[OwnerColumn]) -> None:
        """Refuses a scan whose columns have changed since the job's query was checked."""
        now = {column.name: column.type for column in self._driver.columns()}
        changed = [
            f"{c.name} was {c.type} and is {now[c.name]}" if c.name in now else f"{c.name} is gone"
            for c in used
            if now.get(c.name) != c.type
        ]
        if changed:
            raise SourceError(
                f"table {self._name} has changed since the job began: {'; '.join(changed)}; run the job again"
            )


def open_database(spec: SourceSpec, name: str) -> Source:
    scheme = spec.url.partition("://")[0].lower()
    if scheme not in (*_DRIVERS, "duckdb"):
        known = ", ".join(sorted([*_DRIVERS, "duckdb", *WEB, *STORES]))
        raise SourceError(
            f"table {name}: {redact(spec.url)} cannot be read; known are {known}:// "
            "URLs, paths of Parquet, CSV, JSON lines and Arrow files, and DataFrames"
        )
    if spec.query is None and spec.table is None:
        raise SourceError(f"table {name}: say which table of {redact(spec.url)}: tp.source(url, table=…)")
    if scheme == "duckdb":
        return _open_duckdb(spec, name)
    driver = _DRIVERS[scheme](spec, spec.table or "", name)
    return DatabaseSource(name, driver) if spec.query is None else open_memory(driver.run(spec.query), name)


def _file(spec: SourceSpec, name: str, kind: str) -> Path:
    """The database's file, as SQLAlchemy has it: scheme:///relative/path, scheme:////absolute/path."""
    scheme, _, rest = spec.url.partition("://")
    if not rest.startswith("/"):
        raise SourceError(
            f"table {name}: {scheme}:// is followed by a third slash, then by the path: "
            f"{scheme}:///{rest} (relative) or {scheme}:////folder/file (absolute)"
        )
    file = Path(rest[1:]).expanduser().resolve()
    if not file.is_file():
        absolute = Path(rest)
        hint = f"; an absolute path has four slashes: {scheme}:///{absolute}" if absolute.is_file() else ""
        raise SourceError(f"table {name}: there is no {kind} file {file}{hint or '; check the path'}")
    return file


def _open_duckdb(spec: SourceSpec, name: str) -> Source:
    file = _file(spec, name, "DuckDB")
    if spec.query is not None:
        try:
            with duckdb.connect(str(file), read_only=True) as connection:
                return open_memory(connection.sql(spec.query).to_arrow_table(), name)
        except duckdb.Error as error:
            raise SourceError(f"table {name}: {duckdb_source.reason(error)}") from None
    qualified = ".".join(duckdb_source.quote_name(part) for part in (spec.table or "").split("."))
    view = f"CREATE VIEW {duckdb_source.RELATION} AS SELECT * FROM owner.{qualified}"
    create = f"ATTACH {duckdb_source.literal(str(file))} AS owner (READ_ONLY); {view}"

    def find() -> list[str]:
        if not file.is_file():
            raise SourceError(f"table {name}: its DuckDB file is gone; put it back")
        return [str(file)]

    def open_file() -> duckdb_source.DuckSource:
        return duckdb_source.create_source(name, create, files=[str(file)], allowed=[str(file)])

    return FileSource(name, find, lambda files: DuckFile(name, open_file))


def _by_url(driver: Callable[[str, str, str], Driver]) -> Callable[[SourceSpec, str, str], Driver]:
    return lambda spec, table, name: driver(fill_placeholders(spec.url, name), table, name)


_DRIVERS: Final[Mapping[str, Callable[[SourceSpec, str, str], Driver]]] = {
    **dict.fromkeys(("mariadb", "mysql"), _by_url(MySQL)),
    **dict.fromkeys(("postgres", "postgresql"), _by_url(PostgreSQL)),
    **dict.fromkeys(DRIVERS, _by_url(Adbc)),
    "sqlite": lambda spec, table, name: SQLite(_file(spec, name, "SQLite"), table, name),
}


class DuckFile(Source):
    """A table of an owner's DuckDB file. Whoever has it open keeps writers out: it is open while it is read."""

    def __init__(self, name: str, open_file: Callable[[], duckdb_source.DuckSource]) -> None:
        self._name, self._open_file = name, open_file
        with closing(open_file()) as opened:
            self._columns = opened.describe()

    def describe(self) -> list[ColumnInfo]:
        return list(self._columns)

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        with self._open_for_reading() as opened:
            return opened.describe_scan(expressions, filter)

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        with self._open_for_reading() as opened:
            return opened.read(expressions, filter, duckdb_source.MOST_HELD)

    @contextmanager
    def _open_for_reading(self) -> Iterator[duckdb_source.DuckSource]:
        try:
            opened = self._open_file()
        except SourceError as error:
            log.warning("%s", error)  # where the owner keeps its files is for the owner's own log
            why = "its file cannot be opened: another process writes to it, or it is gone or damaged; try again later"
            raise SourceError(f"table {self._name}: {why}") from None
        with closing(opened):
            yield opened
