"""DuckFile: a table of an owner's DuckDB file, which is open only while it is read.

In: the file and the table's name there. Out: a Source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import duckdb
import pyarrow as pa

from tablepuppet.errors import SourceError
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.tables.duckdb_source import MOST_HELD, RELATION, DuckSource, created, literal, quoted, reason

log = logging.getLogger(__name__)


class DuckFile:
    """A table of an owner's DuckDB file. Whoever has it open keeps writers out: it is open while it is read."""

    def __init__(self, name: str, open_file: Callable[[], DuckSource]) -> None:
        self._name, self._open_file = name, open_file
        with closing(open_file()) as opened:
            self._columns = opened.describe()

    def describe(self) -> list[ColumnInfo]:
        return list(self._columns)

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        with self._opened() as opened:
            return opened.describe_scan(expressions, filter)

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        with self._opened() as opened:
            return opened.read(expressions, filter, MOST_HELD)

    def stamp(self) -> str | None:
        return None

    def close(self) -> None:
        """It is open while it is read, and then only."""

    @contextmanager
    def _opened(self) -> Iterator[DuckSource]:
        try:
            opened = self._open_file()
        except SourceError as error:
            log.warning("%s", error)  # where the owner keeps its files is for the owner's own log
            why = "its file cannot be opened: another process writes to it, or it is gone or damaged; try again later"
            raise SourceError(f"table {self._name}: {why}") from None
        with closing(opened):
            yield opened


def from_database(name: str, file: str, table: str) -> DuckFile:
    """A source over a table (`table` or `schema.table`) of a DuckDB file, which is opened for reading only."""
    qualified = ".".join(quoted(part) for part in table.split("."))
    create = f"ATTACH {literal(file)} AS owner (READ_ONLY); CREATE VIEW {RELATION} AS SELECT * FROM owner.{qualified}"
    return DuckFile(name, lambda: created(name, create, [file], [file]))


def run_in_database(name: str, file: str, query: str) -> pa.Table:
    """The answer of a DuckDB file, opened for reading only, to its owner's own query."""
    try:
        with duckdb.connect(file, read_only=True) as connection:
            return connection.sql(query).to_arrow_table()
    except duckdb.Error as error:
        raise SourceError(f"table {name}: {reason(error)}") from None
