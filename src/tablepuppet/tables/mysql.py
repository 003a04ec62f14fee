"""MySQL and MariaDB through connectorx.

In: a URL, mysql://user:password@host:3306/shop, and a table. Out: a Driver. The default collations of MySQL take "a"
for "A", so texts are never compared in the database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from tablepuppet.errors import SourceError
from tablepuppet.tables.pushdown import COMMON, Dialect, Family, OwnerColumn, PushDown

_DIALECT: Final = Dialect(
    name="mysql", families=frozenset({"number", "date", "timestamp"}), nodes=COMMON | {exp.Extract}, computes=False
)
_BATCH = 65_536  # rows
_TYPES: Final[dict[str, tuple[str, Family | None, str | None]]] = {
    "tinyint": ("TINYINT", "number", None),
    "smallint": ("SMALLINT", "number", None),
    "mediumint": ("INTEGER", "number", None),
    "int": ("INTEGER", "number", None),
    "bigint": ("BIGINT", "number", None),
    "float": ("FLOAT", "number", None),
    "double": ("DOUBLE", "number", None),
    "char": ("VARCHAR", None, None),
    "varchar": ("VARCHAR", None, None),
    "tinytext": ("VARCHAR", None, None),
    "text": ("VARCHAR", None, None),
    "mediumtext": ("VARCHAR", None, None),
    "longtext": ("VARCHAR", None, None),
    "enum": ("VARCHAR", None, "CAST({} AS CHAR)"),
    "uuid": ("UUID", None, "CAST({} AS CHAR)"),
    "date": ("DATE", "date", None),
    "datetime": ("TIMESTAMP", "timestamp", "CAST({} AS CHAR)"),
    # Moments are shown in the session's time zone, and fetched in UTC.
    "timestamp": ("TIMESTAMPTZ", None, "CAST(CONVERT_TZ({}, @@session.time_zone, '+00:00') AS CHAR)"),
}


class MySQL:
    """A table of a MySQL or MariaDB database."""

    dialect = _DIALECT

    def __init__(self, url: str, table: str, name: str) -> None:
        try:
            import connectorx
        except ImportError:
            raise SourceError(f"table {name}: MySQL needs pip install 'tablepuppet[databases]'") from None
        self._connectorx: Any = connectorx
        self._name = name
        self._url = url.replace("mariadb://", "mysql://", 1)
        self._table = table
        self.relation = ".".join("`" + part.replace("`", "``") + "`" for part in table.split("."))

    def columns(self) -> list[OwnerColumn]:
        schema, _, table = self._table.rpartition(".")
        where = f"table_schema = {_literal(schema) if schema else 'DATABASE()'} AND table_name = {_literal(table)}"
        select = (
            "SELECT column_name AS name, data_type AS kind, column_type AS whole, numeric_precision AS p, "
            f"numeric_scale AS s FROM information_schema.columns WHERE {where} ORDER BY ordinal_position"
        )
        found = pa.Table.from_batches(self._read(select)).to_pylist()
        if not found:
            raise SourceError(f"table {self._name}: there is no such table in the database; check its name")
        return [_column(_text(r["name"]), _text(r["kind"]), _text(r["whole"]), r["p"], r["s"]) for r in found]

    def stream(self, scan: PushDown) -> Iterator[pa.RecordBatch]:
        yield from self._read(scan.select)

    def close(self) -> None:
        """A connection lasts for one query."""

    def _read(self, select: str) -> Iterator[pa.RecordBatch]:
        try:
            reader = self._connectorx.read_sql(self._url, select, return_type="arrow_stream", batch_size=_BATCH)
            yield from reader
        except RuntimeError as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> SourceError:
        """What is wrong, without MySQL's own words, which may quote a row or show the user's name."""
        codes = {
            "1045": "the database refuses this user or password; check the credentials",
            "1044": "this user may not use the database; ask for rights",
            "1049": "there is no such database on this server; check the URL",
            "1146": "there is no such table in the database (any more); check its name",
            "1054": "a column is gone from the table; open the federation again",
            "1142": "this user may not read the table; ask for SELECT on it",
        }
        found = next((reason for code, reason in codes.items() if re.search(rf"\b{code}\b", str(error))), None)
        reason = found or "the database cannot be reached or did not answer; check the URL and that it is running"
        return SourceError(f"table {self._name}: {reason}")


def _column(name: str, kind: str, whole: str, precision: Any, scale: Any) -> OwnerColumn:
    if kind == "decimal" and precision is not None and int(precision) <= 38:
        return OwnerColumn(name, f"DECIMAL({int(precision)},{int(scale)})", "number", "CAST({} AS CHAR)")
    if whole == "tinyint(1)":
        return OwnerColumn(name, "BOOLEAN", None)
    type_name, family, fetch = _TYPES.get(kind, ("BLOB", None, None))
    if whole.endswith("unsigned") and family == "number" and type_name in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT"):
        type_name = f"U{type_name}"
    return OwnerColumn(name, type_name, family, fetch)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
