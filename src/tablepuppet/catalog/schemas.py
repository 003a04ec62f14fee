"""describe: the tables that a query names → their columns, as every owner spells them. One round.

A table's clients must offer the same columns for whatever the query uses. Upper and lower case may differ from client
to client: the first client's spelling stands for the column everywhere, and `spelling` gives each client its own back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from tablepuppet.catalog.differences import all_differences
from tablepuppet.catalog.refusals import refuse
from tablepuppet.errors import TransportError
from tablepuppet.protocol import ColumnInfo, DescribeTable, Message, TableSchema
from tablepuppet.query.scope import matches
from tablepuppet.query.ucq import Ucq
from tablepuppet.suggest import did_you_mean
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

    def differences(self) -> str:
        """A sentence about everything in which the clients differ, where it is more than one thing."""
        return all_differences(self.name, self.columns, self.infos)

    def lacking(self, column: str) -> list[str]:
        """The clients that do not have a column that others have."""
        return [client for client in self.clients if column not in self.spelling[client]]


def describe(ucq: Ucq, tables: Mapping[str, tuple[str, ...]], link: Link) -> dict[exp.Identifier, TableShape]:
    """The shape of every table that the query names, by the name that the query gives it, quoted or not."""
    known = list(tables)
    named: dict[exp.Identifier, str] = {}
    for branch in ucq.branches:
        for source in branch.sources:
            found = matches(source.table, known)
            if len(found) != 1:
                many = f"{' and '.join(known[k] for k in found)} differ only in case; quote the one you mean"
                hint = many if found else did_you_mean(source.table.name, known)
                raise refuse(ucq, f"the federation has no table {source.table.name}. {hint}", source.table)
            table = known[found[0]]
            if not tables[table]:
                raise refuse(ucq, f"no client holds the table {table}; add one to the federation", source.table)
            named[source.table] = table
    used = list(dict.fromkeys(named.values()))
    asked: dict[str, list[str]] = {}
    for table in used:
        for client in tables[table]:
            asked.setdefault(client, []).append(table)
    requests: dict[str, list[Message]] = {c: [DescribeTable(table=t) for t in ts] for c, ts in asked.items()}
    answers = link.ask(requests)
    columns: dict[tuple[str, str], list[ColumnInfo]] = {}
    withholding: dict[str, list[str]] = {}
    for client, names in asked.items():
        for table, answer in zip(names, answers[client], strict=True):
            if not isinstance(answer, TableSchema):
                raise TransportError(
                    f"client {client} did not describe its table {table}; install the same version everywhere"
                )
            columns[table, client] = answer.columns
            if answer.withholds:
                withholding.setdefault(table, []).append(client)
    shapes = {
        t: replace(
            _shape(t, tables[t], {c: columns[t, c] for c in tables[t]}), withholding=tuple(withholding.get(t, ()))
        )
        for t in used
    }
    return {name: shapes[table] for name, table in named.items()}


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
