"""Source: one client's share of one table, wherever it lies.

In: a source as the user names it: a path, an Arrow table, a DataFrame, or `tp.source(url, table=…)`. Out: a `Source`,
which evaluates scalar SQL expressions over the table's own columns and returns Arrow.

Expressions are in DuckDB's dialect and have passed guard.py; a source over another
database writes them in that database's own.

The next job reads changed files anew: when a job begins, a source opens its files again if they changed. If they change
during a job, the source refuses to read and names them.
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from tablepuppet.errors import SourceError
from tablepuppet.protocol.columns import ColumnInfo


class Source(Protocol):
    """A table that can be described and read."""

    def describe(self) -> list[ColumnInfo]:
        """The table's own columns."""

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        """The type of each expression, under the names c0, c1, …; rows are not read."""

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        """One column per expression, c0, c1, …, for the rows that pass the filter.

        Two reads of an unchanged table give the rows in the same order: row numbers
        are positions in it.
        """

    def stamp(self) -> str | None:
        """A text that is another one whenever the table may have changed; None: there is no telling."""
        return None

    def close(self) -> None:
        """Gives back files and connections, if there are any; closing twice does no harm."""
        return


class SourceSpec(msgspec.Struct, frozen=True):
    """Where a table lies: a path or a database URL, and the table's name there."""

    url: str
    table: str | None = None
    query: str | None = None  # in the database's own SQL

    def __str__(self) -> str:
        """The address without user and password."""
        what = f" (table {self.table})" if self.table else " (a query)" if self.query else ""
        return redact(self.url) + what

    __repr__ = __str__


def source(url: str | Path, table: str | None = None, *, query: str | None = None) -> SourceSpec:
    """Names a source for `Federation`: a path, or a database (docs/sources.md).

    - `url`: a path or a database URL, which may hold placeholders such as `${PASSWORD}`.
    - `table`: the table to read there; or `query`: a query in the database's own SQL. It runs when the federation is
      opened, and its rows stay in memory.

    >>> source("postgresql://ann:secret@db.example.org/shop", table="items")
    postgresql://db.example.org/shop (table items)
    """
    if table is not None and query is not None:
        raise SourceError("tp.source takes a table or a query, not both")
    return SourceSpec(str(url), table, query)


def redact(url: str) -> str:
    """A URL as messages may show it: no user, password, query or fragment."""
    parts = urlsplit(url)
    if "://" not in url:
        return url
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def open_source(value: object, name: str) -> Source:
    # Here, because each family is built on the types above.
    from tablepuppet.sources import files, memory

    if isinstance(value, str | Path):
        value = SourceSpec(str(value))
    if not isinstance(value, SourceSpec):
        return memory.open_memory(value, name)
    if "://" in value.url:
        from tablepuppet.sources import databases  # with all its drivers

        if value.url.partition("://")[0].lower() not in (*files.WEB, *files.STORES):
            return databases.open_database(value, name)
    if value.table is not None or value.query is not None:
        given = f"table={value.table!r}" if value.table is not None else "a query"
        raise SourceError(
            f"table {name}: {given} was given for the file {redact(value.url)}; "
            "a file is one table: leave the argument out"
        )
    if "://" in value.url:
        return files.open_remote(databases.fill_placeholders(value.url, name), value.url, name)
    return files.open_path(value.url, name)


log = logging.getLogger(__name__)


class FileSource:
    def __init__(self, name: str, find: Callable[[], list[str]], open: Callable[[list[str]], Source]) -> None:
        self._name, self._find, self._open = name, find, open
        files = find()
        self._stamp = stamp_of(files)
        self._source = open(files)
        self._is_closed = False

    def describe(self) -> list[ColumnInfo]:
        """The current columns; a job begins with them."""
        if not self._is_closed and self.stamp() != self._stamp:
            self._open_again()
        return self._source.describe()

    def _open_again(self) -> None:
        try:
            files = self._find()
            stamp = stamp_of(files)
            fresh = self._open(files)
        except SourceError as error:
            log.warning("%s", error)  # where the owner keeps its files is for the owner's own log
            why = "the file is missing, changed or damaged; its log says more"
            raise SourceError(f"table {self._name}: {why}") from None
        self._source.close()
        self._stamp, self._source = stamp, fresh

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        return self._source.describe_scan(expressions, filter)

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        self._check_unchanged()
        found = self._source.read(expressions, filter)
        self._check_unchanged()  # it may have been written meanwhile
        return found

    def stamp(self) -> str | None:
        try:
            return stamp_of(self._find())
        except SourceError:
            return "gone"

    def close(self) -> None:
        self._is_closed = True
        self._source.close()

    def _check_unchanged(self) -> None:
        if not self._is_closed and self.stamp() != self._stamp:
            raise SourceError(
                f"table {self._name} has changed since the job began: its files were written, added or removed; "
                "run the job again"
            )


def stamp_of(files: Sequence[str]) -> str:
    """Which files there are, and when each was last written; a file that is gone counts too."""
    return ";".join(f"{file}:{_state(file)}" for file in files)


def _state(file: str) -> str:
    try:
        found = os.stat(file)
    except OSError:
        return "gone"
    return f"{found.st_ino}.{found.st_size}.{found.st_mtime_ns}"
