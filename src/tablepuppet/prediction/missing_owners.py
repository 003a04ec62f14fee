"""Predicting while an owner is away: who is there, and the stand-ins for those who are not.

In: a model, the federation's tables and a link. Out: the tables as far as their owners answer. If no owner of a table
answers, a *stand-in* holds it. The stand-in knows the table from the model: which expressions its query reads, and
their types. It has no rows, so that every joined row gets the table's mean contribution over training.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from sqlglot import exp

from tablepuppet.errors import ModelError, TransportError
from tablepuppet.exchanges import proposal, schema
from tablepuppet.exchanges.keys import Keys, SendKeys
from tablepuppet.owner.tokens import tokens
from tablepuppet.prediction.model import Model, TableUse
from tablepuppet.protocol.base import Failure, Message
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.protocol.contract import Contract
from tablepuppet.sql.parsing import syntax_tree
from tablepuppet.sql.ucq import Tables
from tablepuppet.transport.link import Link
from tablepuppet.transport.meter import Phase

_AWAY = ("SourceError", "TransportError")  # other refusals are answers


class Reachable(msgspec.Struct, frozen=True):
    """A federation as far as its owners answer."""

    tables: dict[str, tuple[str, ...]]
    link: Link
    missing: tuple[str, ...]  # clients that do not answer, and tables that the federation does not have
    incomplete: frozenset[str]  # the tables that they hold rows of
    absent: frozenset[str]  # those that nobody holds rows of


def reachable(model: Model, tables: Tables, link: Link) -> Reachable:
    """Asks every owner of the model's tables for a sign of life: one round."""
    used = {use.table: use for use in model.tables}
    asked: dict[str, list[Message]] = {}
    for table in used:
        for client in tables.get(table, ()):
            asked.setdefault(client, []).append(schema.DescribeTable(table=table))
    answers = link.poll(asked)
    away = {
        client
        for client in asked
        if not answers.get(client) or any(isinstance(a, Failure) and a.error in _AWAY for a in answers[client])
    }
    present: dict[str, tuple[str, ...]] = {t: tuple(c for c in cs if c not in away) for t, cs in tables.items()}
    for table in _grouped_tables(model, tables):  # its groups are unknown without all of its owners
        present[table] = () if away & {*tables[table]} and _may_merge(asked, answers, table) else present[table]
    absent = frozenset(table for table in used if not present.get(table))
    stand_ins = {f"{table} (missing)": _StandIn([u for u in model.tables if u.table == table]) for table in absent}
    present |= {table: (f"{table} (missing)",) for table in absent}
    incomplete = absent | {t for t in used if any(client in away for client in tables.get(t, ()))}
    missing = (*sorted(away), *sorted(table for table in absent if table not in tables))
    return Reachable(present, _StandInLink(link, stand_ins), missing, incomplete, absent)


def _grouped_tables(model: Model, tables: Tables) -> list[str]:
    """The tables that the model's query reads in groups."""
    selects = [s for s in syntax_tree(model.query).find_all(exp.Select) if s.args.get("group") is not None]
    names = {table.name.lower() for select in selects for table in select.find_all(exp.Table)}
    return [table for table in tables if table.lower() in names]


def _may_merge(asked: Mapping[str, Sequence[Message]], answers: Mapping[str, Sequence[Message]], table: str) -> bool:
    """Whether some owner of a table that answers would merge its groups with others'."""
    pairs = ((q, a) for client in answers for q, a in zip(asked[client], answers[client], strict=False))
    schemas = [a for q, a in pairs if isinstance(q, schema.DescribeTable) and q.table == table]
    return any(isinstance(a, schema.TableSchema) and a.merges != "" for a in schemas)


class _StandIn:
    """Answers for a table without rows, of which only the model's use is known."""

    def __init__(self, uses: Sequence[TableUse]) -> None:
        self._names = list(dict.fromkeys(name for use in uses for name in use.names))
        self._types = {e: c for use in uses for e, c in zip(use.expressions, use.columns, strict=True)}
        self._contract: Contract | None = None

    def answer(self, request: Any) -> Message:
        match request:
            case schema.DescribeTable():
                return schema.TableSchema(columns=[ColumnInfo(name, "other") for name in self._names])
            case schema.OpenScan():
                return schema.ScanSchema(columns=[self._type(text, request.table) for text in request.columns])
            case proposal.ProposeContract():
                self._contract = request.contract
                return proposal.Agreement(contract="", is_agreed=True)
            case schema.CountRows():
                return schema.RowCount(rows=0)
            case SendKeys() if self._contract is not None:
                columns = self._contract.scan(request.scan).numbers("key")
                nothing = tokens(pa.chunked_array([], pa.string()), ColumnInfo("", "string"), "hmac", bytes(32), "")
                return Keys(rows=0, columns=pa.table({f"c{c}": nothing for c in columns}))
        raise TransportError(f"a missing owner cannot answer {type(request).__name__}")

    def _type(self, text: str, table: str) -> ColumnInfo:
        if text not in self._types:
            raise ModelError(
                f"the owners of table {table} are missing, and the model does not know {text}; "
                "use the expressions of its own query, or wait for the owners"
            )
        return self._types[text]


class _StandInLink(Link):
    def __init__(self, link: Link, stand_ins: Mapping[str, _StandIn]) -> None:
        super().__init__(link.transport, link.wire, link.checks, link.asker)
        self.meter, self.sign = link.meter, link.sign
        self._stand_ins = stand_ins

    def ask(self, requests: Mapping[str, Sequence[Message]], phase: Phase = "setup") -> dict[str, list[Message]]:
        real = {client: given for client, given in requests.items() if client not in self._stand_ins}
        answers = super().ask(real, phase) if real else {}
        own = {c: [self._stand_ins[c].answer(g) for g in given] for c, given in requests.items() if c not in real}
        return {client: (answers | own)[client] for client in requests if client in answers or client in own}

    def tell(self, requests: Mapping[str, Sequence[Message]]) -> None:
        super().tell({client: given for client, given in requests.items() if client not in self._stand_ins})
