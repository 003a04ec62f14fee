"""Tables behind ADBC drivers: SQLite, and any other database that has one (Snowflake, BigQuery, Flight SQL).

In: a URL or a file, a table. Out: a Driver. A database other than SQLite is asked only for the columns that a query
uses. The client itself computes filters and expressions, so that they mean the same as everywhere. A further database
is one line of DRIVERS: the package of its driver, and how its options follow from the URL.

A column of SQLite may hold values of any type. Its declared type says which are meant; a row that holds another is an
error, never a silent zero. The file is opened for reading only.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

import duckdb
import msgspec
import pyarrow as pa
from msgspec.structs import replace

from tablepuppet.errors import SourceError
from tablepuppet.sources.duckdb_source import literal, quote_name
from tablepuppet.sources.pushdown import COMMON, FETCHED, Dialect, Family, OwnerColumn, PushDown
from tablepuppet.sources.source import stamp_of

EXTRA: Final = "{} needs pip install 'tablepuppet[databases]'"


class _Kind(msgspec.Struct, frozen=True):
    """How one kind of database is reached."""

    package: str
    connect: Callable[[str], tuple[tuple[Any, ...], dict[str, Any]]]  # the arguments of dbapi.connect, from the URL
    dialect: str  # sqlglot's name


def _flight(url: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    parts = urlsplit(url)
    scheme = "grpc+tls" if parts.scheme == "flightsql" else "grpc"
    options = {"username": parts.username, "password": parts.password}
    address = f"{scheme}://{parts.hostname}:{parts.port or 443}"
    return (address,), {"db_kwargs": {name: value for name, value in options.items() if value}}


def _bigquery(url: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    parts = urlsplit(url)
    options = {"adbc.bigquery.sql.project_id": parts.hostname or "", **dict(parse_qsl(parts.query))}
    if parts.path.strip("/"):
        options["adbc.bigquery.sql.dataset_id"] = parts.path.strip("/")
    return (), {"db_kwargs": options}


DRIVERS: Final = {
    "snowflake": _Kind("adbc_driver_snowflake", lambda url: ((url.partition("://")[2],), {}), "snowflake"),
    "bigquery": _Kind("adbc_driver_bigquery", _bigquery, "bigquery"),
    "flightsql": _Kind("adbc_driver_flightsql", _flight, "duckdb"),
    "flightsql+tcp": _Kind("adbc_driver_flightsql", _flight, "duckdb"),
}


class Session:
    """A table behind a session of an ADBC driver; each database opens it, and explains its errors, in its own way.

    Errors of a driver are SourceErrors without a secret or a row's value in them.
    """

    relation: str  # the table's name, quoted
    title = "the database"
    reasons: Mapping[str, str] = {}  # what words in its errors mean

    def __init__(self, package: str, name: str, install: str) -> None:
        try:
            self._dbapi: Any = import_module(f"{package}.dbapi")
        except ImportError:
            raise SourceError(f"table {name}: {install}") from None
        self._name = name
        self._errors: Any = self._dbapi.Error
        self._connection = self._open()

    def _open(self) -> Any:
        try:
            return self._connect()
        except self._errors as error:
            raise self._error(error) from None

    def reconnect(self) -> None:
        self.close()
        self._connection = self._open()

    def _connect(self) -> Any:
        raise NotImplementedError

    def _error(self, error: Any) -> SourceError:
        """An error without the database's own words, which may quote a row or a credential."""
        known = (why for words, why in self.reasons.items() if re.search(words, str(error)))
        default = f"{self.title} reports {type(error).__name__}; check address, rights and table name"
        return SourceError(f"table {self._name}: {next(known, default)}")

    @contextmanager
    def _execute(self, select: str, given: tuple[str, ...] | None = None) -> Iterator[Any]:
        """A cursor with the answer to a query."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(select, given)
                yield cursor
        except self._errors as error:
            raise self._error(error) from None

    def _rows(self, select: str, given: tuple[str, ...] | None = None) -> list[tuple[Any, ...]]:
        with self._execute(select, given) as cursor:
            return list(cursor.fetchall())

    def stream(self, scan: PushDown) -> Iterator[pa.RecordBatch]:
        """The answer to a scan's SELECT: at least one batch, even if it has no rows."""
        names = [f"{FETCHED}{k}" for k in range(len(scan.fetched))]
        with self._execute(scan.select) as cursor:
            reader = cursor.fetch_record_batch()
            yield pa.RecordBatch.from_pylist([], schema=reader.schema).rename_columns(names)
            yield from (batch.rename_columns(names) for batch in reader)

    def run(self, query: str) -> pa.Table:
        """The answer to the owner's own query; the session ends with it."""
        try:
            with self._execute(query) as cursor:
                return cursor.fetch_arrow_table()
        finally:
            self.close()

    def stamp(self) -> str | None:
        """A text that is another one whenever the table may have changed; None: there is no telling."""
        return None

    def close(self) -> None:
        self._connection.close()


class Adbc(Session):
    """A table of any database that has a driver."""

    def __init__(self, url: str, table: str, name: str) -> None:
        kind = DRIVERS[url.partition("://")[0].lower()]
        self._arguments, self._options = kind.connect(url)
        self.dialect = Dialect(name=kind.dialect, families=frozenset(), nodes=frozenset(), computes=False)
        mark = "`" if kind.dialect == "bigquery" else '"'
        self.relation = ".".join(f"{mark}{part.replace(mark, mark * 2)}{mark}" for part in table.split("."))
        super().__init__(
            kind.package, name, f"this database needs its driver: pip install {kind.package.replace('_', '-')}"
        )

    def _connect(self) -> Any:
        return self._dbapi.connect(*self._arguments, **self._options)

    def columns(self) -> list[OwnerColumn]:
        with self._execute(f"SELECT * FROM {self.relation} WHERE 1 = 0") as cursor:
            schema = cursor.fetch_arrow_table().schema
        with duckdb.connect() as connection:
            types = connection.from_arrow(schema.empty_table()).types if len(schema) else []
        return [OwnerColumn(field.name, str(kind)) for field, kind in zip(schema, types, strict=True)]


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
# How a column of each type may be stored, and a sample value. ADBC learns the types of the answer from the first row.
_STORED: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    **dict.fromkeys(("BIGINT", "BOOLEAN"), (("integer",), "0")),
    "DOUBLE": (("integer", "real"), "0.5"),
    **dict.fromkeys(("VARCHAR", "DATE", "TIMESTAMP", "TIMESTAMPTZ"), (("text",), "''")),
    "BLOB": (("blob",), "x''"),
}


class SQLite(Session):
    # Texts are compared by their column's own collation and dates are texts: the client compares both itself.
    # Expressions too are its own business: SQLite would compute them in this very process, and in other types.
    dialect = Dialect(name="sqlite", families=frozenset({"number", "boolean"}), nodes=COMMON, computes=False)
    title = "SQLite"
    reasons: Mapping[str, str] = {
        "not a database": "the file is not a SQLite database; check the path",
        "no such table": "there is no such table in the SQLite file (any more); check its name",
        "no such column": "a column is gone from the table; open the federation again",
        "locked|busy": "the SQLite file is locked by a writer; try again",
        "malformed": "the SQLite file is damaged; restore it",
    }

    def __init__(self, file: Path, table: str, name: str) -> None:
        self._table = table
        self._file = file
        self.relation = f"{quote_name(table)} NOT INDEXED"  # or rows come in the order of any index that covers them
        super().__init__("adbc_driver_sqlite", name, EXTRA.format("SQLite"))

    def _connect(self) -> Any:
        self._inode = self._file.stat().st_ino
        return self._dbapi.connect(f"file:{quote(str(self._file))}?mode=ro", autocommit=True)

    def columns(self) -> list[OwnerColumn]:
        if not self._file.is_file():
            raise SourceError(f"table {self._name}: its SQLite file is gone; put it back")
        if self._file.stat().st_ino != self._inode:  # another file has taken its place
            self.reconnect()
        found = self._rows(f'SELECT name, type, "notnull" FROM pragma_table_info({literal(self._table)})')
        if not found:
            raise SourceError(f"table {self._name}: there is no such table in the SQLite file; check its name")
        return [replace(self._column(name, declared), nullable=not required) for name, declared, required in found]

    def stream(self, scan: PushDown) -> Iterator[pa.RecordBatch]:
        """The answer behind a row of each column's type: from the first row ADBC learns the types."""
        self._check_storage(scan.used)
        first = ", ".join("0" if column is None else _STORED[column.type][1] for column in scan.fetched)
        batches = super().stream(replace(scan, select=f"SELECT {first} UNION ALL {scan.select}"))
        yield next(batches)
        yield next(batches).slice(1)
        yield from batches

    def stamp(self) -> str | None:
        return stamp_of([str(self._file), f"{self._file}-wal"])

    def _column(self, name: str, declared: str) -> OwnerColumn:
        kind = next(kind for word, kind in _DECLARED if re.search(word, declared.upper()))
        if not declared:  # an expression of a view: the narrowest type that holds all that is there
            stored = {own for (own,) in self._rows(f"SELECT DISTINCT typeof({quote_name(name)}) FROM {self.relation}")}
            order = ("BIGINT", "DOUBLE", "VARCHAR")
            kind = next((own for own in order if stored - {"null"} <= set(_STORED[own][0])), "BLOB")
        fetch = "CAST({} AS REAL)" if kind == "DOUBLE" else None
        return OwnerColumn(name, kind, _FAMILIES.get(kind), fetch)

    def _check_storage(self, used: Sequence[OwnerColumn]) -> None:
        """No row of these columns holds a value of another kind than its column's type."""
        for column in used:
            if column.type != "BLOB":
                allowed = ", ".join(f"'{kind}'" for kind in (*_STORED[column.type][0], "null"))
                own = quote_name(column.name)
                if self._rows(f"SELECT 1 FROM {self.relation} WHERE typeof({own}) NOT IN ({allowed}) LIMIT 1"):
                    raise SourceError(
                        f"table {self._name}: column {column.name} is meant to be {column.type}, and some row holds a "
                        "value of another type, which SQLite allows; mend such rows, or make a view with a CAST"
                    )
