"""describe: the tables that a query names → their columns, as every owner spells them. One round.

A table's clients must offer the same columns for whatever the query uses. Upper and lower case may differ from client
to client: the first client's spelling stands for the column everywhere, and `spelling` gives each client its own back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlglot import exp

from tablepuppet.catalog.derived import find_table, owned_query
from tablepuppet.catalog.differences import all_differences
from tablepuppet.errors import TransportError
from tablepuppet.protocol import ColumnInfo, DescribeTable, Message, TableSchema
from tablepuppet.query.scope import matches
from tablepuppet.query.ucq import Ucq
from tablepuppet.transport.link import Link


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table: its clients, its columns, and each client's spelling of them (column → spelling)."""

    name: str
    clients: tuple[str, ...]
    columns: tuple[str, ...]
    spelling: Mapping[str, Mapping[str, str]]
    infos: Mapping[str, Mapping[str, ColumnInfo]]  # what each client says of them
    withholding: tuple[str, ...] = ()  # clients that keep the parameters trained on their rows
    query: str | None = None  # over one owner's tables, `name` among them, whose rows are meant instead of a table's

    def differences(self) -> str:
        """A sentence about everything in which the clients differ, where it is more than one thing."""
        return all_differences(self.name, self.columns, self.infos)

    def lacking(self, column: str) -> list[str]:
        """The clients that do not have a column that others have."""
        return [client for client in self.clients if column not in self.spelling[client]]


Origin = tuple[exp.Identifier, exp.Query | None]  # what a source of FROM names


class _Read(NamedTuple):
    """What an origin is in the federation: a table, or a query over tables that the same clients hold."""

    table: str
    query: str | None


def describe(ucq: Ucq, tables: Mapping[str, tuple[str, ...]], link: Link) -> dict[Origin, TableShape]:
    """The shape of everything that the query's FROM clauses name."""
    named: dict[Origin, _Read] = {}
    for branch in ucq.branches:
        for source in branch.sources:
            if source.derived is None:
                named[source.origin] = _Read(find_table(ucq, source.table, tables), None)
            else:
                named[source.origin] = _Read(*owned_query(ucq, source.derived, tables))
    used = list(dict.fromkeys(named.values()))
    asked: dict[str, list[_Read]] = {}
    for read in used:
        for client in tables[read.table]:
            asked.setdefault(client, []).append(read)
    requests: dict[str, list[Message]] = {
        client: [DescribeTable(table=read.table, query=read.query) for read in reads] for client, reads in asked.items()
    }
    answers = link.ask(requests)
    columns: dict[tuple[_Read, str], list[ColumnInfo]] = {}
    withholding: dict[_Read, list[str]] = {}
    for client, reads in asked.items():
        for read, answer in zip(reads, answers[client], strict=True):
            if not isinstance(answer, TableSchema):
                raise TransportError(
                    f"client {client} did not describe its table {read.table}; install the same version everywhere"
                )
            columns[read, client] = answer.columns
            if answer.withholds:
                withholding.setdefault(read, []).append(client)
    shapes = {
        read: replace(
            _shape(read.table, tables[read.table], {c: columns[read, c] for c in tables[read.table]}),
            withholding=tuple(withholding.get(read, ())),
            query=read.query,
        )
        for read in used
    }
    return {origin: shapes[read] for origin, read in named.items()}


def _shape(table: str, clients: tuple[str, ...], columns: Mapping[str, list[ColumnInfo]]) -> TableShape:
    """Brings the clients' spellings of each column together."""
    common: list[str] = []
    spelling: dict[str, dict[str, str]] = {}
    for client in clients:
        spelling[client] = {}
        for name in (info.name for info in columns[client]):
            same = matches(exp.to_identifier(name, quoted=False), common)
            column = common[same[0]] if len(same) == 1 and common[same[0]] not in spelling[client] else name
            if column not in common:
                common.append(column)
            spelling[client][column] = name
    infos = {
        client: dict(zip(spelling[client], columns[client], strict=True)) for client in clients
    }  # in the order in which the client lists them
    return TableShape(table, clients, tuple(common), spelling, infos)
