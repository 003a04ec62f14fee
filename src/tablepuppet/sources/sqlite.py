"""SQLite through ADBC.

In: a file and a table. Out: a Driver. A column of SQLite may hold values of any type; its declared type says which are
meant, and a row that holds another is an error, never a silent zero. The file is opened for reading only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from tablepuppet.errors import SourceError
from tablepuppet.sources.duckdb_source import quote_name
from tablepuppet.sources.pushdown import COMMON, Dialect, Family, OwnerColumn, PushDown
from tablepuppet.sources.source import stamp_of

# Texts are compared by their column's own collation and dates are texts: the client compares both itself. Expressions
# too are its own business: SQLite would compute them in this very process, and in other types.
_DIALECT: Final = Dialect(name="sqlite", families=frozenset({"number", "boolean"}), nodes=COMMON, computes=False)
# What words in a declared type mean, the first that fits (https://sqlite.org/datatype3.html, and custom).
_DECLARED: Final = (
    (r"BOOL", "BOOLEAN"),
    (r"TIMESTAMPTZ|WITH TIME ZONE", "TIMESTAMPTZ"),
    (r"DATETIME|TIMESTAMP", "TIMESTAMP"),
    (r"DATE", "DATE"),
    (r"INT|(DECIMAL|NUMERIC)\(\d+(,\s*0)?\)", "BIGINT"),
    (r"CHAR|CLOB|TEXT|STRING|UUID", "VARCHAR"),
    (r"BLOB|TIME", "BLOB"),
    (r"", "DOUBLE"),
)
_FAMILIES: Final[dict[str, Family]] = {"BIGINT": "number", "DOUBLE": "number", "BOOLEAN": "boolean"}
# How a column of each type may be stored, and a value of it: from the first row ADBC learns the types of the answer.
_STORED: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "BIGINT": (("integer",), "0"),
    "BOOLEAN": (("integer",), "0"),
    "DOUBLE": (("integer", "real"), "0.5"),
    "VARCHAR": (("text",), "''"),
    "DATE": (("text",), "''"),
    "TIMESTAMP": (("text",), "''"),
    "TIMESTAMPTZ": (("text",), "''"),
    "BLOB": (("blob",), "x''"),
}


class SQLite:
    """A table of a SQLite file."""

    dialect = _DIALECT

    def __init__(self, file: Path, table: str, name: str) -> None:
        try:
            from adbc_driver_sqlite import dbapi
        except ImportError:
            raise SourceError(f"table {name}: SQLite needs pip install 'tablepuppet[databases]'") from None
        self._name = name
        self._table = table
        self._file = file
        self._errors: Any = dbapi.Error
        self.relation = f"{quote_name(table)} NOT INDEXED"  # or rows come in the order of any index that covers them
        if not file.is_file():
            raise SourceError(f"table {name}: there is no SQLite file {file}; check the path")
        self._connection: Any = self._connect()

    def _connect(self) -> Any:
        from adbc_driver_sqlite import dbapi

        self._inode = self._file.stat().st_ino
        try:
            return dbapi.connect(f"file:{quote(str(self._file))}?mode=ro", autocommit=True)
        except self._errors as error:
            raise self._error(error) from None

    def columns(self) -> list[OwnerColumn]:
        if not self._file.is_file():
            raise SourceError(f"table {self._name}: its SQLite file is gone; put it back")
        if self._file.stat().st_ino != self._inode:  # another file has taken its place
            self.close()
            self._connection = self._connect()
        literal = "'" + self._table.replace("'", "''") + "'"
        found = self._rows(f'SELECT name, type, "notnull" FROM pragma_table_info({literal})')
        if not found:
            raise SourceError(f"table {self._name}: there is no such table in the SQLite file; check its name")
        return [replace(self._column(name, declared), nullable=not required) for name, declared, required in found]

    def stream(self, scan: PushDown) -> Iterator[pa.RecordBatch]:
        self._check_storage(scan.used)
        first = ", ".join("0" if column is None else _STORED[column.type][1] for column in scan.fetched)
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(f"SELECT {first} UNION ALL {scan.select}")
                reader = cursor.fetch_record_batch()
                names = [f"tablepuppet:{k}" for k in range(len(scan.fetched))]
                batch = next(reader)
                yield batch.slice(1).rename_columns(names)
                yield from (batch.rename_columns(names) for batch in reader)
        except self._errors as error:
            raise self._error(error) from None

    def run(self, query: str) -> pa.Table:
        """The answer to the owner's own query; the session ends with it."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(query)
                return cursor.fetch_arrow_table()
        except self._errors as error:
            raise self._error(error) from None
        finally:
            self.close()

    def stamp(self) -> str | None:
        return stamp_of([str(self._file), f"{self._file}-wal"])

    def close(self) -> None:
        self._connection.close()

    def _rows(self, select: str) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(select)
                return list(cursor.fetchall())
        except self._errors as error:
            raise self._error(error) from None

    def _column(self, name: str, declared: str) -> OwnerColumn:
        kind = next(kind for word, kind in _DECLARED if re.search(word, declared.upper()))
        if not declared:  # an expression of a view
            kind = self._found_type(name)
        fetch = "CAST({} AS REAL)" if kind == "DOUBLE" else None
        return OwnerColumn(name, kind, _FAMILIES.get(kind), fetch)

    def _found_type(self, name: str) -> str:
        """The type of a column without a declared one: the narrowest that holds all that is there."""
        stored = {kind for (kind,) in self._rows(f"SELECT DISTINCT typeof({quote_name(name)}) FROM {self.relation}")}
        order = ("BIGINT", "DOUBLE", "VARCHAR")
        return next((kind for kind in order if stored - {"null"} <= set(_STORED[kind][0])), "BLOB")

    def _check_storage(self, used: Sequence[OwnerColumn]) -> None:
        """No row of these columns holds a value of another kind than its column's type says."""
        for column in used:
            if column.type != "BLOB":
                allowed = ", ".join(f"'{kind}'" for kind in (*_STORED[column.type][0], "null"))
                own = quote_name(column.name)
                if self._rows(f"SELECT 1 FROM {self.relation} WHERE typeof({own}) NOT IN ({allowed}) LIMIT 1"):
                    raise SourceError(
                        f"table {self._name}: column {column.name} is meant to be {column.type}, and some row holds a "
                        "value of another type, which SQLite allows; mend such rows, or make a view with a CAST"
                    )

    def _error(self, error: Any) -> SourceError:
        """What is wrong, without SQLite's own words, which may quote a row."""
        text = str(error)
        if "not a database" in text:
            reason = "the file is not a SQLite database; check the path"
        elif "no such table" in text:
            reason = "there is no such table in the SQLite file (any more); check its name"
        elif "no such column" in text:
            reason = "a column is gone from the table; open the federation again"
        elif "locked" in text or "busy" in text:
            reason = "the SQLite file is locked by a writer; try again"
        elif "malformed" in text:
            reason = "the SQLite file is damaged; restore it"
        else:
            reason = f"SQLite reports {type(error).__name__}; check the file and its rights"
        return SourceError(f"table {self._name}: {reason}")
