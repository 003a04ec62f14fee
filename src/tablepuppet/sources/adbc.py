"""Any database with an ADBC driver: Snowflake, BigQuery, Flight SQL.

In: a URL, a table. Out: a Driver. The database is asked for the columns that a query uses and for nothing else; filters
and expressions are the client's own, so that they mean the same as everywhere. A further database is one line of
DRIVERS: the package of its driver, and how its options follow from the URL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import duckdb
import pyarrow as pa

from tablepuppet.errors import SourceError
from tablepuppet.sources.pushdown import Dialect, OwnerColumn, PushDown


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of database is reached."""

    package: str
    connect: Callable[[str], tuple[tuple[Any, ...], dict[str, Any]]]  # the arguments of dbapi.connect, from the URL
    dialect: str  # sqlglot's name


def _by_uri(url: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (url.partition("://")[2],), {}


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
    "snowflake": _Kind("adbc_driver_snowflake", _by_uri, "snowflake"),
    "bigquery": _Kind("adbc_driver_bigquery", _bigquery, "bigquery"),
    "flightsql": _Kind("adbc_driver_flightsql", _flight, "duckdb"),
    "flightsql+tcp": _Kind("adbc_driver_flightsql", _flight, "duckdb"),
}


class Adbc:
    """A table behind an ADBC driver."""

    def __init__(self, url: str, table: str, name: str) -> None:
        kind = DRIVERS[url.partition("://")[0].lower()]
        try:
            module: Any = import_module(f"{kind.package}.dbapi")
        except ImportError:
            package = kind.package.replace("_", "-")
            raise SourceError(f"table {name}: this database needs its driver: pip install {package}") from None
        arguments, options = kind.connect(url)
        self._start(module, arguments, options, kind.dialect, table, name)

    def _start(
        self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any], dialect: str, table: str, name: str
    ) -> None:
        self._name = name
        self._errors: Any = module.Error
        self.dialect = Dialect(name=dialect, families=frozenset(), nodes=frozenset(), computes=False)
        mark = "`" if dialect == "bigquery" else '"'
        self.relation = ".".join(f"{mark}{part.replace(mark, mark * 2)}{mark}" for part in table.split("."))
        try:
            self._connection: Any = module.connect(*arguments, **options)
        except self._errors as error:
            raise self._error(error) from None

    def columns(self) -> list[OwnerColumn]:
        schema = self.run(f"SELECT * FROM {self.relation} WHERE 1 = 0", is_last=False).schema
        with duckdb.connect() as connection:
            types = connection.from_arrow(schema.empty_table()).types if len(schema) else []
        return [OwnerColumn(field.name, str(kind)) for field, kind in zip(schema, types, strict=True)]

    def stream(self, scan: PushDown) -> Iterator[pa.RecordBatch]:
        names = [f"tablepuppet:{k}" for k in range(len(scan.fetched))]
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(scan.select)
                reader = cursor.fetch_record_batch()
                yield pa.RecordBatch.from_pylist([], schema=reader.schema).rename_columns(names)
                yield from (batch.rename_columns(names) for batch in reader)
        except self._errors as error:
            raise self._error(error) from None

    def run(self, query: str, *, is_last: bool = True) -> pa.Table:
        """The answer to a query; the session ends with the owner's own."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(query)
                return cursor.fetch_arrow_table()
        except self._errors as error:
            raise self._error(error) from None
        finally:
            if is_last:
                self.close()

    def stamp(self) -> str | None:
        return None

    def close(self) -> None:
        self._connection.close()

    def _error(self, error: Any) -> SourceError:
        """What is wrong, without the database's own words, which may quote a row or a credential."""
        return SourceError(
            f"table {self._name}: the database reports {type(error).__name__}; check address, rights and table name"
        )
