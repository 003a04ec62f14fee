"""Scans: every table under every filter, with all expressions that the query needs of it; opened at its clients.

In: resolved branches ask for expressions. Out: one `Scan` for each table and filter, typed by its clients. One round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tablepuppet.catalog.bound import Scan, ScanTexts
from tablepuppet.catalog.kinds import common_cast, merged_column, type_name
from tablepuppet.catalog.refusals import refuse
from tablepuppet.catalog.schemas import TableShape
from tablepuppet.catalog.texts import render, shown
from tablepuppet.errors import TransportError
from tablepuppet.protocol import ColumnInfo, Message, OpenScan, ScanSchema
from tablepuppet.query.ucq import Ucq


@dataclass(slots=True)
class _Draft:
    """A scan while it is being put together."""

    shape: TableShape
    filters: tuple[exp.Expr, ...]
    expressions: dict[str, exp.Expr] = field(default_factory=dict)  # by text, as the first client spells it
    places: list[exp.Expr] = field(default_factory=list)  # where the query uses each for the first time

    def texts(self, client: str) -> list[str]:
        return [render(e, self.shape.spelling[client]) for e in self.expressions.values()]

    def predicate(self, client: str) -> str | None:
        texts = [render(f, self.shape.spelling[client]) for f in self.filters]
        if len(texts) <= 1:
            return texts[0] if texts else None
        return " AND ".join(f"({t})" for t in texts)


class Scans:
    """Collects what the branches of a query read."""

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []
        self._numbers: dict[tuple[str, str | None, frozenset[str]], int] = {}

    def scan(self, shape: TableShape, filters: Sequence[exp.Expr]) -> int:
        """The number of the scan of a table under a filter; uses with the same filter share it."""
        own = shape.spelling[shape.clients[0]]
        by_text = {render(f, own): f for f in filters}
        key = (shape.name, shape.query, frozenset(by_text))
        if key not in self._numbers:
            self._numbers[key] = len(self._drafts)
            self._drafts.append(_Draft(shape, tuple(by_text.values())))
        return self._numbers[key]

    def column(self, scan: int, expression: exp.Expr, at: exp.Expr) -> int:
        """The number of an expression in a scan."""
        draft = self._drafts[scan]
        text = render(expression, draft.shape.spelling[draft.shape.clients[0]])
        if text not in draft.expressions:
            draft.expressions[text] = expression
            draft.places.append(at)
        return list(draft.expressions).index(text)

    def requests(self, job: str) -> dict[str, list[Message]]:
        """What to ask each client: to open every scan of its tables."""
        requests: dict[str, list[Message]] = {}
        for number, draft in enumerate(self._drafts):
            for client in draft.shape.clients:
                columns = draft.texts(client)
                request = OpenScan(
                    job=job,
                    scan=number,
                    table=draft.shape.name,
                    columns=columns,
                    filter=draft.predicate(client),
                    query=draft.shape.query,
                )
                requests.setdefault(client, []).append(request)
        return requests

    def typed(self, ucq: Ucq, answers: Mapping[str, Sequence[Message]]) -> tuple[Scan, ...]:
        """The scans with the types that their clients answered."""
        remaining = {client: iter(given) for client, given in answers.items()}
        scans = []
        for draft in self._drafts:
            reported: dict[str, list[ColumnInfo]] = {}
            for client in draft.shape.clients:
                answer = next(remaining[client])
                if not isinstance(answer, ScanSchema) or len(answer.columns) != len(draft.expressions):
                    raise TransportError(
                        f"client {client} did not give a type for each expression of table {draft.shape.name}; "
                        "install the same version of tablepuppet everywhere"
                    )
                reported[client] = answer.columns
            scans.append(_typed(ucq, draft, reported))
        return tuple(scans)


def _typed(ucq: Ucq, draft: _Draft, reported: Mapping[str, list[ColumnInfo]]) -> Scan:
    """The scan with the types that all its clients agree on."""
    columns = []
    for number, text in enumerate(draft.expressions):
        by_client = {client: infos[number] for client, infos in reported.items()}
        column = merged_column(text, by_client)
        if column is None:
            given = "; ".join(f"{client}: {type_name(info)}" for client, info in by_client.items())
            readable = shown(draft.expressions[text])
            raise refuse(
                ucq,
                f"the clients of table {draft.shape.name} give {readable} different types ({given}). "
                f"Write a cast that brings them together, for example CAST({readable} AS {common_cast(by_client)})."
                f"{draft.shape.differences()}".rstrip("."),
                draft.places[number],
            )
        columns.append(column)
    shape = draft.shape
    predicate = draft.predicate(shape.clients[0])
    spelled = tuple(ScanTexts(tuple(draft.texts(client)), draft.predicate(client)) for client in shape.clients)
    return Scan(
        shape.name,
        shape.clients,
        predicate,
        tuple(draft.expressions),
        tuple(columns),
        shape.withholding,
        shape.query,
        spelled,
    )
