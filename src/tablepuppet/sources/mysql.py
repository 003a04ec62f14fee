"""MySQL and MariaDB through connectorx.

In: a URL, mysql://user:password@host:3306/shop, and a table. Out: a Driver. MySQL's default collations equate "a" and
"A", so texts are never compared in the database. Its 7/3 is 2.3333 and its unsigned 1 − 2 is an error, so nothing is
computed there either. Rows come in the order of the primary key.
"""

import os
import re
import socket
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from msgspec.structs import replace
from sqlglot import exp

from tablepuppet.errors import SourceError
from tablepuppet.sources.pushdown import ARITHMETIC, COMMON, Dialect, Family, OwnerColumn, PushDown

_BATCH = 65_536  # rows
_REACH = 5.0  # seconds
_TEXT: Final = "CAST({} AS CHAR)"
_TYPES: Final[dict[str, tuple[str, Family | None, str | None]]] = {
    "tinyint": ("TINYINT", "number", None),
    "smallint": ("SMALLINT", "number", None),
    **dict.fromkeys(("mediumint", "int"), ("INTEGER", "number", None)),
    "bigint": ("BIGINT", "number", None),
    "float": ("FLOAT", None, None),  # 0.1 is equal to itself as a float here, and not there
    "double": ("DOUBLE", "number", None),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), ("VARCHAR", None, None)),
    **dict.fromkeys(("enum", "set"), ("VARCHAR", None, _TEXT)),
    "uuid": ("UUID", None, _TEXT),
    "year": ("SMALLINT", "number", "CAST({} AS SIGNED)"),
    "date": ("DATE", "date", _TEXT),  # as text, for 0000-00-00 is a date there
    "datetime": ("TIMESTAMP", "timestamp", _TEXT),
    # A moment is shown in the session's time zone, in which an hour of every autumn comes twice: count its seconds.
    "timestamp": ("TIMESTAMPTZ", None, "CAST(DATE_ADD('1970-01-01', INTERVAL UNIX_TIMESTAMP({}) SECOND) AS CHAR)"),
}
# true and false are 1 and 0 there, and any other number in such a column must not pass for true.
_BOOLEAN: Final = "IF({0} IS NULL OR {0} IN (0, 1), {0} + 0, 'no boolean')"
_OTHER: Final = "CAST({} AS BINARY)"  # listed, and refused where a query uses it
_PRIMARY: Final = " AND constraint_name = 'PRIMARY'"
_UNREACHABLE: Final = "the database cannot be reached or did not answer; check the URL and that it is running"


class MySQL:
    """A table of a MySQL or MariaDB database."""

    dialect = Dialect(
        name="mysql",
        families=frozenset({"number", "date", "timestamp"}),
        nodes=(COMMON - ARITHMETIC) | {exp.Extract},
        computes=False,
    )

    def __init__(self, url: str, table: str, name: str) -> None:
        try:
            self._connectorx = _quiet_connectorx()
        except ImportError:
            raise SourceError(f"table {name}: MySQL needs pip install 'tablepuppet[databases]'") from None
        self._name = name
        self._url = url.replace("mariadb://", "mysql://", 1)
        self._reach()
        self._table = table
        self.relation = ".".join(map(_quote_name, table.split(".")))

    def columns(self) -> list[OwnerColumn]:
        found = self._describe_columns(
            "column_name AS name, data_type AS kind, column_type AS whole, numeric_precision AS p, numeric_scale AS s, "
            "is_nullable AS n",
            "columns",
        )
        if not found:
            raise SourceError(f"table {self._name}: there is no such table in the database; check its name")
        return [
            replace(
                _column(_text(r["name"]), _text(r["kind"]), _text(r["whole"]), r["p"], r["s"]),
                nullable=_text(r["n"]) == "YES",
            )
            for r in found
        ]

    def stream(self, scan: PushDown) -> Iterator[pa.RecordBatch]:
        key = [_text(r["name"]) for r in self._describe_columns("column_name AS name", "key_column_usage", _PRIMARY)]
        order = f" ORDER BY {', '.join(map(_quote_name, key))}" if key else ""
        yield from self._read(scan.select + order)

    def run(self, query: str) -> pa.Table:
        return pa.Table.from_batches(self._read(query))

    def stamp(self) -> str | None:
        return None  # when a table of InnoDB was last written is not kept reliably

    def close(self) -> None:
        """A connection lasts for one query."""

    def _describe_columns(self, columns: str, of: str, where: str = "") -> list[dict[str, Any]]:
        """The rows of information_schema about the table."""
        schema, _, table = self._table.rpartition(".")
        select = (
            f"SELECT {columns} FROM information_schema.{of} WHERE table_name = {_literal(table)} AND table_schema = "
            f"{_literal(schema) if schema else 'DATABASE()'}{where} ORDER BY ordinal_position"
        )
        return list(pa.Table.from_batches(self._read(select)).to_pylist())

    def _reach(self) -> None:
        """Checks that a server listens; the driver alone would try for thirty seconds."""
        try:
            parts = urlsplit(self._url)
            socket.create_connection((parts.hostname or "localhost", parts.port or 3306), timeout=_REACH).close()
        except (OSError, ValueError):
            raise SourceError(f"table {self._name}: {_UNREACHABLE}") from None

    def _read(self, select: str) -> Iterator[pa.RecordBatch]:
        try:
            reader = self._connectorx.read_sql(self._url, select, return_type="arrow_stream", batch_size=_BATCH)
            yield from reader
        except RuntimeError as error:
            raise self._error(error) from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the driver's own, which is no Exception
                raise
            raise SourceError(
                f"table {self._name}: some row has a value that the driver cannot read; filter such rows out"
            ) from None

    def _error(self, error: Exception) -> SourceError:
        """An error without MySQL's own words, which may quote a row or show the user's name."""
        codes = {
            "1045": "the database refuses this user or password; check the credentials",
            "1044": "this user may not use the database; ask for rights",
            "1049": "there is no such database on this server; check the URL",
            "1146": "there is no such table in the database (any more); check its name",
            "1054": "a column is gone from the table; open the federation again",
            "1142": "this user may not read the table; ask for SELECT on it",
        }
        found = next((reason for code, reason in codes.items() if re.search(rf"\b{code}\b", str(error))), None)
        return SourceError(f"table {self._name}: {found or _UNREACHABLE}")


def _quiet_connectorx() -> Any:
    """connectorx, kept from writing the database's messages, with user names in them, to the terminal."""
    before = os.environ.get("RUST_LOG")
    os.environ["RUST_LOG"] = "off"
    try:
        import connectorx
    finally:
        if before is None:
            del os.environ["RUST_LOG"]
        else:
            os.environ["RUST_LOG"] = before
    return connectorx


def _column(name: str, kind: str, whole: str, precision: Any, scale: Any) -> OwnerColumn:
    if kind == "decimal":
        if int(precision) > 38:
            return OwnerColumn(name, "DOUBLE", None, "CAST({} AS DOUBLE)")
        return OwnerColumn(name, f"DECIMAL({int(precision)},{int(scale)})", "number", _TEXT)
    if whole in ("tinyint(1)", "bit(1)"):
        return OwnerColumn(name, "BOOLEAN", None, _BOOLEAN)
    type_name, family, fetch = _TYPES.get(kind, ("BLOB", None, _OTHER))
    if "unsigned" in whole and type_name in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT"):
        type_name = f"U{type_name}"
    return OwnerColumn(name, type_name, family, fetch)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
