"""Source: one client's share of one table, wherever it lies.

In: what the user names as a source: a path, an Arrow table, a DataFrame, or
`tp.source(url, table=…)`. Out: a `Source`, which evaluates scalar SQL expressions over the
table's own columns and returns Arrow.

Expressions are in DuckDB's dialect and have passed guard.py; a source over another
database writes them in that database's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import pyarrow as pa

from tablepuppet.errors import SourceError
from tablepuppet.protocol import ColumnInfo


class Source(Protocol):
    """A table that can be described and read."""

    def describe(self) -> list[ColumnInfo]:
        """The table's own columns."""
        ...

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        """The type of each expression, under the names c0, c1, …; rows are not read."""
        ...

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        """One column per expression, c0, c1, …, for the rows that pass the filter.

        Two reads of an unchanged table give the rows in the same order: row numbers
        are positions in it.
        """
        ...

    def stamp(self) -> str | None:
        """A text that is another one whenever the table may have changed; None: there is no telling."""
        ...

    def close(self) -> None:
        """Gives back files and connections; closing twice does no harm."""
        ...


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Where a table lies: a path or a database URL, and the table's name there."""

    url: str
    table: str | None = None
    query: str | None = None  # in the database's own SQL

    def __str__(self) -> str:
        """The address without user and password."""
        what = f" (table {self.table})" if self.table else " (a query)" if self.query else ""
        return redacted(self.url) + what

    __repr__ = __str__


def source(url: str | Path, table: str | None = None, *, query: str | None = None) -> SourceSpec:
    """Names a source: a path, or a database URL with the table to read there, or a query in its own SQL.

    A query is run when the federation is opened, by its owner's own rights, and its rows are kept in memory.

    >>> source("postgresql://ann:secret@db.example.org/shop", table="items")
    postgresql://db.example.org/shop (table items)
    """
    if table is not None and query is not None:
        raise SourceError("tp.source takes a table or a query, not both")
    return SourceSpec(str(url), table, query)


def redacted(url: str) -> str:
    """A URL as messages may show it: no user, password, query or fragment."""
    parts = urlsplit(url)
    if "://" not in url:
        return url
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def open_source(value: object, name: str) -> Source:
    """Opens what the user gave as a source of table `name`."""
    # Here, because each family is built on the types above.
    from tablepuppet.tables import databases, memory

    if isinstance(value, SourceSpec):
        if databases.is_database_url(value.url):
            return databases.open_database(value, name)
        if value.table is not None or value.query is not None:
            given = f"table={value.table!r}" if value.table is not None else "a query"
            raise SourceError(
                f"table {name}: {given} was given for the file {redacted(value.url)}; "
                "a file is one table: leave the argument out"
            )
        return _open_file(value.url, name)
    if isinstance(value, str) and databases.is_database_url(value):
        return databases.open_database(SourceSpec(value), name)
    if isinstance(value, (str, Path)):
        return _open_file(str(value), name)
    return memory.open_memory(value, name)


def _open_file(path: str, name: str) -> Source:
    from tablepuppet.tables import databases, files

    if databases.is_remote_url(path):
        return databases.open_remote_url(path, name)
    return files.open_path(path, name)
