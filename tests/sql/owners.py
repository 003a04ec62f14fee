"""Owners in miniature: clients that describe pyarrow tables through DuckDB, behind a real in-process transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa

from tablepuppet.exchanges.registry import REQUESTS
from tablepuppet.exchanges.schema import DescribeTable, OpenScan, ScanSchema, TableSchema
from tablepuppet.protocol.base import Failure, Message
from tablepuppet.protocol.codec import Frame, decode, encode
from tablepuppet.protocol.columns import ColumnInfo, Kind
from tablepuppet.sql import BoundQuery, bind, parse
from tablepuppet.transport.link import Handler, Link, LocalTransport

Tables = Mapping[str, Mapping[str, pa.Table]]  # table → client → that client's rows

_KINDS: dict[str, Kind] = {
    "BOOLEAN": "boolean",
    "DATE": "date",
    "VARCHAR": "string",
    "UUID": "uuid",
    "DOUBLE": "float",
    "FLOAT": "float",
}


def kind_of(type_name: str) -> tuple[Kind, int]:
    """Our kind of a DuckDB type, and the size of a vector."""
    if type_name.endswith("]"):
        return "vector", int(type_name[type_name.index("[") + 1 : -1] or 0)
    if type_name.endswith("INT") or type_name in ("INTEGER", "UINTEGER", "HUGEINT"):
        return "integer", 0
    if type_name.startswith("TIMESTAMP"):
        return "timestamp", 0
    return ("decimal", 0) if type_name.startswith("DECIMAL") else (_KINDS.get(type_name, "other"), 0)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _described(connection: duckdb.DuckDBPyConnection, sql: str) -> list[ColumnInfo]:
    rows = connection.execute(f"DESCRIBE {sql}").fetchall()
    return [ColumnInfo(name, kind_of(kind)[0], kind, kind_of(kind)[1]) for name, kind, *_ in rows]


def _handler(tables: Mapping[str, pa.Table]) -> Handler:
    connection = duckdb.connect(config={"threads": 1})
    for name, table in tables.items():
        connection.register(name, table)

    def answer(message: Any) -> Message:
        match message:
            case DescribeTable():
                return TableSchema(columns=_described(connection, f"SELECT * FROM {quoted(message.table)}"))
            case OpenScan():
                condition = f" WHERE {message.filter}" if message.filter else ""
                sql = f"SELECT {', '.join(message.columns)} FROM {quoted(message.table)}{condition}"
                return ScanSchema(columns=_described(connection, sql))
            case _:
                return Failure(error="TransportError", message="only schemas are answered here")

    def handle(frame: Frame) -> Frame:
        try:
            return encode(answer(decode(frame, REQUESTS)))
        except duckdb.Error as error:
            return encode(Failure(error="SourceError", message=str(error).splitlines()[0]))

    return handle


def link_to(tables: Tables) -> Link:
    """A link to one client for each name that occurs."""
    clients = {client for parts in tables.values() for client in parts}
    held = {c: {t: parts[c] for t, parts in tables.items() if c in parts} for c in sorted(clients)}
    return Link(LocalTransport({client: _handler(own) for client, own in held.items()}))


def bound(sql: str, tables: Tables, label: str = "y") -> BoundQuery:
    """The query, bound to these owners."""
    link = link_to(tables)
    try:
        names = {table: tuple(parts) for table, parts in tables.items()}
        return bind(parse(sql), label=label, tables=names, link=link, job="job")
    finally:
        link.transport.close()
