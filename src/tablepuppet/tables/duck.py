"""DuckSource: a table in a private, locked, in-memory DuckDB.

In: an Arrow table or dataset, Parquet files, or CSV files. Out: a Source.

The connection belongs to this source alone. Once the table is in place, DuckDB may touch no
file but the table's own, may load no extension, and its configuration is locked: an
expression that the guard overlooked would still find nothing else to read.

Rows keep their order: DuckDB's `preserve_insertion_order` makes a scan with a filter and
a projection give rows in the order of the Arrow table or of the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import duckdb
import pyarrow as pa

from tablepuppet.errors import SourceError
from tablepuppet.tables.kinds import column_info, is_float_list
from tablepuppet.transport.messages import ColumnInfo

_T = TypeVar("_T")
_RELATION = "source"
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": min(2, os.cpu_count() or 1),  # several clients may share a machine
    "preserve_insertion_order": True,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "arrow_lossless_conversion": True,  # UUIDs stay UUIDs
}
# Errors about the query's own text and types; all others may quote a row's value.
_SAFE_ERRORS = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException)


class DuckSource:
    """A table behind a private DuckDB connection."""

    def __init__(self, name: str, connection: duckdb.DuckDBPyConnection) -> None:
        self._name = name
        self._connection = connection
        self._columns = self._describe(f"SELECT * FROM {_RELATION}")

    def describe(self) -> list[ColumnInfo]:
        return list(self._columns)

    def describe_scan(self, expressions: Sequence[str], filter: str | None) -> list[ColumnInfo]:
        return self._describe(_select(expressions, filter))

    def read(self, expressions: Sequence[str], filter: str | None) -> pa.Table:
        return self._guarded(lambda: self._connection.sql(_select(expressions, filter)).to_arrow_table())

    def close(self) -> None:
        self._connection.close()

    def _describe(self, query: str) -> list[ColumnInfo]:
        relation = self._guarded(lambda: self._connection.sql(query))
        schema = self._guarded(lambda: relation.limit(0).to_arrow_table().schema)
        details = [_detail(str(kind)) for kind in relation.types]
        sizes = self._list_sizes(query, [field.name for field in schema if is_float_list(field.type)])
        return [
            column_info(field.name, field.type, detail, sizes.get(field.name))
            for field, detail in zip(schema, details, strict=True)
        ]

    def _list_sizes(self, query: str, names: Sequence[str]) -> dict[str, int]:
        """The length of each list column whose rows all have one length (0: no rows at all)."""
        if not names:
            return {}
        bounds = ", ".join(f"min(len({_quoted(name)})), max(len({_quoted(name)}))" for name in names)
        [found] = self._guarded(lambda: self._connection.execute(f"SELECT {bounds} FROM ({query})").fetchall())
        pairs = zip(names, found[::2], found[1::2], strict=True)
        return {name: least or 0 for name, least, most in pairs if least == most}

    def _guarded(self, action: Callable[[], _T]) -> _T:
        """Runs an action on DuckDB; its errors become ours, without a row's value in them."""
        try:
            return action()
        except _SAFE_ERRORS as error:
            raise SourceError(f"table {self._name}: {str(error).splitlines()[0]}") from None
        except duckdb.Error as error:
            raise SourceError(f"table {self._name}: {_reason(error)}") from None


def from_arrow(name: str, table: object) -> DuckSource:
    """A source over an Arrow table or dataset, which is not copied."""
    connection = duckdb.connect(":memory:", config=_CONFIG)
    connection.register(_RELATION, table)
    return _locked(name, connection, ())


def from_files(name: str, reader: str, files: Sequence[str], keep: bool) -> DuckSource:
    """A source over files, by one of DuckDB's readers; `keep`: read now, and never again."""
    connection = duckdb.connect(":memory:", config=_CONFIG)
    literal = f"[{', '.join(_literal(file) for file in files)}]"
    kind = "TABLE" if keep else "VIEW"
    try:
        connection.execute(f"CREATE {kind} {_RELATION} AS SELECT * FROM {reader.format(literal)}")
    except duckdb.Error as error:
        connection.close()
        raise SourceError(f"table {name}: {files[0]} cannot be read ({_reason(error)})") from None
    return _locked(name, connection, () if keep else files)


def _locked(name: str, connection: duckdb.DuckDBPyConnection, files: Collection[str]) -> DuckSource:
    """Takes away everything that an expression does not need."""
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET python_enable_replacements = false")
    connection.execute(f"SET allowed_paths = [{', '.join(_literal(file) for file in files)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    try:
        return DuckSource(name, connection)
    except SourceError:
        connection.close()
        raise


def _select(expressions: Sequence[str], filter: str | None) -> str:
    columns = ", ".join(f"({expression}) AS c{i}" for i, expression in enumerate(expressions)) or "1 AS c0"
    return f"SELECT {columns} FROM {_RELATION}" + (f" WHERE ({filter})" if filter is not None else "")


def _detail(kind: str) -> str:
    return "ENUM" if kind.startswith("ENUM(") else kind  # its values are data


def _reason(error: duckdb.Error) -> str:
    """What kind of error it was; its text may quote a row's value."""
    if isinstance(error, duckdb.ConversionException):
        return "some row has a value that cannot be converted; use TRY_CAST, or filter such rows out"
    if isinstance(error, duckdb.OutOfRangeException):
        return "some row has a value out of range; filter such rows out"
    if isinstance(error, duckdb.OutOfMemoryException):
        return "there is not enough memory to read it"
    if isinstance(error, duckdb.IOException):
        return "the file is missing, changed or damaged"
    return f"the database reports {type(error).__name__}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
