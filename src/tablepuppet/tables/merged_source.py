"""MergedSource: a query over groups whose figures come from several clients.

In: a grouped query of one client (query_guard.py). Out: its partials, to be merged with those of others; then the rows
of the query over what was merged, under the names and types that it has by itself.
"""

from __future__ import annotations

import pyarrow as pa

from tablepuppet.errors import SourceError
from tablepuppet.tables import duckdb_source
from tablepuppet.tables.duckdb_source import quoted
from tablepuppet.tables.group_sums import Partials
from tablepuppet.tables.grouped_queries import GROUPS, UnmergeableError, source_of, split_groups
from tablepuppet.tables.query_guard import NO_ROW, DerivedSource

_MERGED = "tablepuppet merged"


def partials_of(source: DerivedSource, key: bytes) -> Partials:
    """What one client computes of its own rows; `key`: for the groups' tokens."""

    def columns() -> set[str]:
        below = source.opened(NO_ROW, source_of(source.query.text))
        try:
            return {info.name.lower() for info in below.describe()}
        finally:
            below.close()

    try:
        query = split_groups(source.query.text, columns)
    except UnmergeableError as error:
        raise SourceError(f"groups of this query cannot be merged over clients: it has {error}") from None
    rows = source.opened(None, query.partial)
    try:
        infos = rows.describe()
        names = [quoted(info.name) for info in infos]
        return Partials.of(rows.read(names, None), infos, rows.types(names, None), query, key)
    finally:
        rows.close()


class MergedSource(DerivedSource):
    """The rows of a grouped query over merged groups."""

    def __init__(self, source: DerivedSource, partials: Partials, groups: pa.Table) -> None:
        super().__init__(source.name, source.query, source.sources)
        empty = source.opened(NO_ROW, source.query.text)
        try:
            names = [info.name for info in empty.describe()]
            types = empty.types([quoted(name) for name in names], None)
        finally:
            empty.close()
        columns = zip(groups.column_names, partials.casts, strict=True)
        states = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in columns)
        shown = ", ".join(
            f"CAST(c{i} AS {t}) AS {quoted(n)}" for i, (n, t) in enumerate(zip(names, types, strict=True))
        )
        listed = ", ".join(f"c{i}" for i in range(len(names)))
        self._text = (
            f"WITH {quoted(GROUPS)} AS (SELECT {states} FROM {quoted(_MERGED)}), "
            f"rows_of({listed}) AS ({partials.query.final}) SELECT {shown} FROM rows_of"
        )
        self._groups = groups

    def opened(self, filter: str | None, text: str | None = None) -> duckdb_source.DuckSource:
        if filter is not None or text is not None:
            return super().opened(filter, text)
        return duckdb_source.from_query(self.name, {_MERGED: self._groups}, self._text)
