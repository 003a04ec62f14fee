"""DerivedSource: what a query over the owner's own tables gives, as if it were a table.

In: a checked query and the sources of its tables. Out: a Source. The columns that the query reads come from their
sources (databases are asked for those columns alone); the query itself runs in a private DuckDB of the client, so that
it means the same wherever the tables lie (docs/decisions). One thread: groups then come in the same order, and sums of
floating-point numbers to the same bits, every time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tablepuppet.protocol import ColumnInfo
from tablepuppet.tables import duck
from tablepuppet.tables.query_guard import CheckedQuery
from tablepuppet.tables.source import Source

_NO_ROW = "(1 = 0)"


class DerivedSource:
    """The rows of a query over sources that somebody else opened, and will close."""

    def __init__(self, name: str, query: CheckedQuery, sources: Mapping[str, Source]) -> None:
        self._name = name
        self.query = query
        self._sources = {table: sources[table] for table in query.reads}

    def describe(self) -> list[ColumnInfo]:
        twin = self._opened(_NO_ROW)
        try:
            return twin.describe()
        finally:
            twin.close()

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        twin = self._opened(_NO_ROW)
        try:
            return twin.describe_scan(expressions, filter)
        finally:
            twin.close()

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        whole = self._opened(None)
        try:
            return whole.read(expressions, filter)
        finally:
            whole.close()

    def stamp(self) -> str | None:
        stamps = [source.stamp() for source in self._sources.values()]
        return None if None in stamps else " ".join(map(str, stamps))

    def close(self) -> None:
        """Nothing is held between two readings."""

    def _opened(self, filter: str | None) -> duck.DuckSource:
        tables = {}
        for table, source in self._sources.items():
            columns = self.query.reads[table]
            read = source.read([duck.quoted(column) for column in columns], filter)
            tables[table] = read.rename_columns(list(columns))
        return duck.from_query(self._name, tables, self.query.text)
