"""PostgreSQL through ADBC: binary COPY into Arrow, no row loops.

In: a URL as libpq takes it (also with PGUSER, PGPASSWORD, a password file or a service) and a table, `items` or
`schema.items`. Out: a Driver. The session is read-only, in UTC, and asks for plans that keep a table's own order.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace
from sqlglot import exp

from tablepuppet.errors import SourceError
from tablepuppet.sources.adbc import EXTRA, Session
from tablepuppet.sources.duckdb_source import MOST_HELD, quote_name
from tablepuppet.sources.pushdown import COMMON, Dialect, Family, OwnerColumn, PushDown

_SESSION: Final = (
    "SET default_transaction_read_only = on",
    "SET standard_conforming_strings = on",  # or a backslash in a literal could end it
    f"SET statement_timeout = '{MOST_HELD:.0f}s'",
    "SET lock_timeout = '10s'",  # neither wait for a change of the table, nor delay it
    "SET TIME ZONE 'UTC'",
    "SET synchronize_seqscans = off",  # or a scan may begin in the middle of a large table
    "SET max_parallel_workers_per_gather = 0",  # or workers' rows come as they are found
    "SET enable_indexscan = off",  # or rows come in the order of whichever index the planner likes today;
    "SET enable_indexonlyscan = off",  # a bitmap of an index is read in the table's own order
    "SET extra_float_digits = 3",
)
_COLUMNS: Final = """
    SELECT a.attname::text, format_type(coalesce(nullif(t.typbasetype, 0), a.atttypid),
           CASE WHEN t.typbasetype <> 0 THEN t.typtypmod ELSE a.atttypmod END), t.typtype::text,
           coalesce(c.collisdeterministic, true), NOT a.attnotnull
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
    WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_TYPES: Final[dict[str, tuple[str, Family | None]]] = {
    "smallint": ("SMALLINT", "number"),
    "integer": ("INTEGER", "number"),
    "bigint": ("BIGINT", "number"),
    "real": ("FLOAT", None),  # 0.1 is equal to itself as a float here, and not there
    "double precision": ("DOUBLE", "number"),
    "boolean": ("BOOLEAN", "boolean"),
    "text": ("VARCHAR", "text"),
    "character varying": ("VARCHAR", "text"),
    "date": ("DATE", "date"),
    "timestamp without time zone": ("TIMESTAMP", "timestamp"),
    "timestamp with time zone": ("TIMESTAMPTZ", None),
    "time without time zone": ("TIME", None),
    "bytea": ("BLOB", None),
    "double precision[]": ("DOUBLE[]", None),
    "real[]": ("FLOAT[]", None),
}
# What PostgreSQL's error codes mean to the owner; the messages behind them may quote a row.
_REASONS: Final = {
    "28": "the database refuses this user or password; check the credentials",
    "3D": "there is no such database on this server; check the URL",
    "42P01": "there is no such table in the database (any more); check its name and schema",
    "42703": "a column is gone from the table; open the federation again",
    "42501": "this user may not read the table; ask for SELECT on it",
    "57014": "the database cancelled the query, which took too long (statement_timeout); filter more rows out",
    "55P03": "the table is locked by somebody who changes it; try again later",
    "57": "the database is shutting down or ended the session; try again",
    "53": "the database is out of memory, disk space or connections; try again later",
    "22003": "an expression overflows the type of its columns in some row; widen them first, as in CAST(x AS DOUBLE)",
    "22": "some row has a value that cannot be converted or is out of range; filter such rows out",
    "08": "the connection to the database was lost; try again",
}


class PostgreSQL(Session):
    dialect = Dialect(
        name="postgres",
        families=frozenset({"number", "text", "boolean", "date", "timestamp"}),
        nodes=COMMON | {exp.Like, exp.Extract, exp.Floor, exp.Ceil},
    )

    def __init__(self, url: str, table: str, name: str) -> None:
        self._url = url
        self.relation = ".".join(quote_name(part) for part in table.split("."))
        super().__init__("adbc_driver_postgresql", name, EXTRA.format("PostgreSQL"))

    def _connect(self) -> Any:
        connection = self._dbapi.connect(self._url, autocommit=True)
        try:
            for statement in _SESSION:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
        except self._errors:
            connection.close()
            raise
        return connection

    def columns(self) -> list[OwnerColumn]:
        try:
            found = self._rows(_COLUMNS, (self.relation,))
        except SourceError:  # every job begins here: a session that was lost since the last one is opened anew
            self.reconnect()
            found = self._rows(_COLUMNS, (self.relation,))
        if not found:
            raise SourceError(f"table {self._name}: {_REASONS['42P01']}")
        return [replace(self._column(*row), nullable=nullable) for *row, nullable in found]

    def stream(self, scan: PushDown) -> Iterator[pa.RecordBatch]:
        for batch in super().stream(scan):
            plain = _without_extensions(pa.Table.from_batches([batch]))
            yield from plain.to_batches() or [pa.RecordBatch.from_pylist([], plain.schema)]

    def run(self, query: str) -> pa.Table:
        return _without_extensions(super().run(query))

    def stamp(self) -> str | None:
        """Which transactions are visible: the same text, the same rows."""
        [(snapshot,)] = self._rows("SELECT pg_current_snapshot()::text")
        return str(snapshot)

    def _column(self, name: str, kind: str, typtype: str, is_deterministic: bool) -> OwnerColumn:
        decimal = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", kind)
        if decimal and int(decimal[1]) <= 38 and 0 <= int(decimal[2]) <= int(decimal[1]):
            return OwnerColumn(name, f"DECIMAL({decimal[1]},{decimal[2]})", "number", "CAST({} AS text)")
        if kind.startswith("numeric") and not kind.endswith("[]"):
            return OwnerColumn(name, "DOUBLE", None, "CAST({} AS double precision)")
        if kind == "uuid":
            return OwnerColumn(name, "UUID", None, "CAST({} AS text)")
        if typtype == "e" or kind.startswith("character("):  # a padded text loses its padding when cast
            return OwnerColumn(name, "VARCHAR", None, "CAST({} AS text)")
        plain = re.sub(r"\(\d+\)", "", kind)
        known, family = _TYPES.get(plain, ("BLOB", None))
        if plain not in _TYPES:  # described, and refused as a feature or key
            return OwnerColumn(name, known, None, "CAST(CAST({} AS text) AS bytea)")
        if plain.endswith("[]"):  # with its length, where all rows have the same
            size = f"cardinality({quote_name(name)})"
            [(least, most)] = self._rows(f"SELECT min({size}), max({size}) FROM {self.relation}")
            return OwnerColumn(name, known.replace("[]", f"[{least}]") if least and least == most else known)
        return OwnerColumn(name, known, family if is_deterministic else None)

    def _error(self, error: Any) -> SourceError:
        """An error without PostgreSQL's own words, which may quote a row or show the user's name."""
        code = getattr(error, "sqlstate", None) or ""
        text = str(error)
        if not code.strip("\x00"):
            code = "28" if "authentication failed" in text or "no password supplied" in text else ""
            code = "3D" if re.search(r'database ".*" does not exist', text) else code
            code = "28" if re.search(r'role ".*" does not exist', text) else code
        reason = _REASONS.get(code) or _REASONS.get(code[:2])
        if reason is None and not code:
            reason = "the database cannot be reached; check host, port and that it is running"
        return SourceError(f"table {self._name}: {reason or f'PostgreSQL reports SQLSTATE {code}'}")


def _without_extensions(table: pa.Table) -> pa.Table:
    """The table with Arrow's storage types in the place of types that PostgreSQL alone knows."""
    for i, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            chunks = [chunk.storage for chunk in table.column(i).chunks]
            table = table.set_column(i, field.name, pa.chunked_array(chunks, field.type.storage_type))
    return table
