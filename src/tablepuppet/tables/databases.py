"""Tables in databases: a URL's scheme says who opens it.

In: a SourceSpec whose URL names a database. Out: a Source. A database is one entry of
OPENERS; an opener imports its driver only when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from tablepuppet.errors import SourceError
from tablepuppet.tables import duck
from tablepuppet.tables.changes import FileSource
from tablepuppet.tables.credentials import expanded
from tablepuppet.tables.database import DatabaseSource
from tablepuppet.tables.memory import open_memory
from tablepuppet.tables.mysql import MySQL
from tablepuppet.tables.postgresql import PostgreSQL
from tablepuppet.tables.source import Source, SourceSpec, redacted
from tablepuppet.tables.sqlite import SQLite

Opener = Callable[[SourceSpec, str, str], Source]  # where, its table, the name that the federation gives it


def is_database_url(url: str) -> bool:
    """Whether this is scheme://…; a path is not."""
    return "://" in url


def open_database(spec: SourceSpec, name: str) -> Source:
    """Opens a table of a database."""
    scheme = spec.url.partition("://")[0].lower()
    if scheme not in OPENERS:
        raise SourceError(
            f"table {name}: {redacted(spec.url)} cannot be read; known are {', '.join(sorted(OPENERS))}:// URLs, "
            "paths of Parquet, CSV and Arrow files, and DataFrames"
        )
    if spec.query is not None:
        return open_memory(_RUNNERS[scheme](spec, spec.query, name), name)
    if spec.table is None:
        raise SourceError(f"table {name}: say which table of {redacted(spec.url)}: tp.source(url, table=…)")
    return OPENERS[scheme](spec, spec.table, name)


def _open_postgresql(spec: SourceSpec, table: str, name: str) -> Source:
    return DatabaseSource(name, PostgreSQL(expanded(spec.url, name), table, name))


def _open_sqlite(spec: SourceSpec, table: str, name: str) -> Source:
    return DatabaseSource(name, SQLite(_file(spec, name, "SQLite"), table, name))


def _open_mysql(spec: SourceSpec, table: str, name: str) -> Source:
    return DatabaseSource(name, MySQL(expanded(spec.url, name), table, name))


def _run_postgresql(spec: SourceSpec, query: str, name: str) -> pa.Table:
    return PostgreSQL(expanded(spec.url, name), "pg_catalog.pg_class", name).run(query)


def _run_sqlite(spec: SourceSpec, query: str, name: str) -> pa.Table:
    return SQLite(_file(spec, name, "SQLite"), "sqlite_master", name).run(query)


def _run_mysql(spec: SourceSpec, query: str, name: str) -> pa.Table:
    return MySQL(expanded(spec.url, name), "information_schema.tables", name).run(query)


def _run_duckdb(spec: SourceSpec, query: str, name: str) -> pa.Table:
    return duck.run_in_database(name, str(_file(spec, name, "DuckDB")), query)


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


def _open_duckdb(spec: SourceSpec, table: str, name: str) -> Source:
    file = _file(spec, name, "DuckDB")

    def find() -> list[str]:
        if not file.is_file():
            raise SourceError(f"table {name}: its DuckDB file is gone; put it back")
        return [str(file)]

    return FileSource(name, find, lambda files: duck.from_database(name, files[0], table))


OPENERS: Final[Mapping[str, Opener]] = {
    "duckdb": _open_duckdb,
    "mariadb": _open_mysql,
    "mysql": _open_mysql,
    "postgres": _open_postgresql,
    "postgresql": _open_postgresql,
    "sqlite": _open_sqlite,
}
_RUNNERS: Final[Mapping[str, Callable[[SourceSpec, str, str], pa.Table]]] = {
    "duckdb": _run_duckdb,
    "mariadb": _run_mysql,
    "mysql": _run_mysql,
    "postgres": _run_postgresql,
    "postgresql": _run_postgresql,
    "sqlite": _run_sqlite,
}
