"""Scans: every table under every filter, with all expressions that the query needs of it; opened at its clients.

In: resolved branches ask for expressions. Out: one `Scan` for each table and filter, typed by its clients. One round.

place: a resolved branch → where each of its expressions lies among the scans, and the bound branch. A resolved branch
numbers its relations in the order of the FROM clause. A bound branch numbers them in the order of joining, so that
every join meets a relation that is already there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from sqlglot import exp

from tablepuppet.exchanges.schema import OpenScan, ScanSchema
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.history_queries import FOUND
from tablepuppet.sql import bound
from tablepuppet.sql.bound import Branch, LabelPlace, Scan, common_cast, render
from tablepuppet.sql.groups import WITNESS, GroupColumn
from tablepuppet.sql.names import ResolvedBranch
from tablepuppet.sql.schemas import TableShape
from tablepuppet.sql.ucq import Ucq
from tablepuppet.transport.link import Link


class _Draft(msgspec.Struct):
    shape: TableShape
    filters: tuple[exp.Expr, ...]
    expressions: dict[str, exp.Expr] = {}  # by text, as the first client spells it
    places: list[exp.Expr] = []  # where the query uses each for the first time
    witness_of: dict[tuple[int, int], None] = {}
    is_outer: bool = False  # whether some use of it is by LEFT JOIN

    def texts(self, client: str) -> list[str]:
        own = self.shape.spelling[client]
        if own == self.shape.spelling[self.shape.clients[0]]:
            return list(self.expressions)
        return [render(e, own) for e in self.expressions.values()]

    def predicate(self, client: str) -> str | None:
        texts = [render(f, self.shape.spelling[client]) for f in self.filters]
        if len(texts) <= 1:
            return texts[0] if texts else None
        return " AND ".join(f"({t})" for t in texts)


class Scans:
    """Collects the expressions that the branches of a query read."""

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []
        self._numbers: dict[tuple[str, str | None, frozenset[str]], int] = {}

    def scan(self, shape: TableShape, filters: Sequence[exp.Expr], *, is_outer: bool) -> int:
        """The number of the scan of a table under a filter; uses with the same filter share it."""
        own = shape.spelling[shape.clients[0]]
        by_text = {render(f, own): f for f in filters}
        key = (shape.name, shape.query, frozenset(by_text))
        if key not in self._numbers:
            self._numbers[key] = len(self._drafts)
            self._drafts.append(_Draft(shape, tuple(by_text.values())))
        number = self._numbers[key]
        self._drafts[number].is_outer |= is_outer
        return number

    def column(self, scan: int, expression: exp.Expr, at: exp.Expr) -> int:
        draft = self._drafts[scan]
        text = render(expression, draft.shape.spelling[draft.shape.clients[0]])
        if text not in draft.expressions:
            draft.expressions[text] = expression
            draft.places.append(at)
        return list(draft.expressions).index(text)

    def witness(self, scan: int, group: GroupColumn, column: int, *, null_matters: bool) -> None:
        """Asks for the values of a group column of a scan, before groups are dropped.

        Filters on this column alone are kept: they drop groups at all clients alike. So are NULLs left out where no
        row with such a key can be in the join.
        """
        draft = self._drafts[scan]
        named = {client: {WITNESS: ColumnInfo(WITNESS, "other")} for client in draft.shape.clients}
        shape = replace(draft.shape, infos=named, query=group.witness, groups=None, cutoffs="")
        key = exp.column(WITNESS, quoted=True)
        filters = [
            condition.transform(lambda node: key.copy() if isinstance(node, exp.Column) else node)
            for condition in draft.filters
            if {c.name.lower() for c in condition.find_all(exp.Column)} == {group.name}
        ]
        if not null_matters:
            filters.append(exp.Not(this=exp.Is(this=key.copy(), expression=exp.Null())))
        number = self.scan(shape, filters, is_outer=False)
        self.column(number, key, draft.places[column])
        self._drafts[number].witness_of[scan, column] = None

    def open(self, ucq: Ucq, link: Link, job: str) -> tuple[Scan, ...]:
        """Opens every scan at its clients, in one round: the scans with the types that they answered."""
        requests = [
            {
                client: OpenScan(
                    job=job,
                    scan=number,
                    table=draft.shape.name,
                    columns=draft.texts(client),
                    filter=draft.predicate(client),
                    query=draft.shape.query,
                    is_outer=draft.is_outer,
                    cutoffs=draft.shape.cutoffs,
                    missing_is_null=FOUND in draft.shape.columns,
                )
                for client in draft.shape.clients
            }
            for number, draft in enumerate(self._drafts)
        ]
        pairs = zip(self._drafts, link.ask_groups(requests), strict=True)
        return tuple(_add_types(ucq, draft, answers) for draft, answers in pairs)


def _add_types(ucq: Ucq, draft: _Draft, schemas: Mapping[str, ScanSchema]) -> Scan:
    """The scan with the types that all its clients agree on."""
    shape = draft.shape
    stability: dict[str, int | None] = {}
    for schema in schemas.values():
        for table, rows in schema.stability.items():  # of all clients, the one whose rows reach farthest
            before = stability.get(table, 0)
            stability[table] = None if rows is None or before is None else max(rows, before)
    subject = next((schema.subject for schema in schemas.values() if schema.subject), "")
    if subject:  # each client may hold as many rows of one
        stability = {table: len(shape.clients) * (rows or 1) for table, rows in stability.items()}
    columns = []
    for number, text in enumerate(draft.expressions):
        by_client = {client: schema.columns[number] for client, schema in schemas.items()}
        column = bound.merged_column(text, by_client)
        if column is None:
            given = "; ".join(f"{client}: {bound.type_name(info)}" for client, info in by_client.items())
            readable = bound.format_expression(draft.expressions[text])
            raise ucq.refuse(
                f"the clients of table {shape.name} give {readable} different types ({given}). "
                f"Write a cast that brings them together, for example CAST({readable} AS {common_cast(by_client)})."
                f"{shape.differences()}".rstrip("."),
                draft.places[number],
            )
        columns.append(column)
    return Scan(
        table=shape.name,
        clients=shape.clients,
        filter=draft.predicate(shape.clients[0]),
        expressions=tuple(draft.expressions),
        columns=tuple(columns),
        withholding=shape.withholding,
        query=shape.query,
        groups=None if shape.groups is None else tuple(group.name for group in shape.groups),
        merges=shape.merges,
        unmerged=shape.unmerged,
        spelled=tuple(bound.ScanTexts(tuple(draft.texts(c)), draft.predicate(c)) for c in shape.clients),
        witness_of=tuple(draft.witness_of),
        cutoffs=shape.cutoffs,
        times=tuple(sorted(shape.times)),
        stability=stability,
        subject=subject,
        pairs=tuple(sorted(set.intersection(*(set(schema.pairs) for schema in schemas.values())))),
        budgeted=tuple(dict.fromkeys(table for schema in schemas.values() for table in schema.budgeted)),
    )


class PlacedBranch(msgspec.Struct, frozen=True):
    """A branch and the places of its expressions. Relations and outputs are numbered as in the text."""

    resolved: ResolvedBranch
    scans: tuple[int, ...]  # of each relation
    output_columns: tuple[int, ...]  # of each output, in its relation's scan
    key_columns: tuple[tuple[tuple[int, int], ...], ...]  # left and right, of each equality of each join

    def output(self, position: int, scans: Sequence[Scan]) -> ColumnInfo:
        relation = self.resolved.outputs[position].relation
        return scans[self.scans[relation]].columns[self.output_columns[position]]

    def output_name(self, position: int) -> str:
        """alias.column, or alias.name for AS."""
        output = self.resolved.outputs[position]
        return f"{self.resolved.aliases[output.relation]}.{output.name}"

    def bind_branch(self, base: int, label: LabelPlace) -> Branch:
        """The bound branch whose joined rows are ordered by relation `base`, which holds the label."""
        number = self._numbers()
        joins = []
        for join, columns in zip(self.resolved.tree.joins, self.key_columns, strict=True):
            pairs = (
                bound.KeyPair(number[key.left], left, number[key.right], right)
                for key, (left, right) in zip(join.on, columns, strict=True)
            )
            joins.append(bound.Join(join.kind, number[join.relation], tuple(dict.fromkeys(pairs))))
        relations = tuple(bound.Relation(self.resolved.aliases[r], self.scans[r]) for r in number)
        return Branch(relations, tuple(joins), number[base], label)

    def member(self, relation: int, positions: Sequence[int]) -> bound.Member:
        return bound.Member(self._numbers()[relation], tuple(self.output_columns[p] for p in positions))

    def _numbers(self) -> dict[int, int]:
        """The relations in the order of joining, each with its number there."""
        order = (0, *(join.relation for join in self.resolved.tree.joins))
        return {relation: number for number, relation in enumerate(order)}


def place(resolved: ResolvedBranch, scans: Scans) -> PlacedBranch:
    """Asks the scans for every expression that a branch needs."""
    tables = enumerate(zip(resolved.shapes, resolved.tree.filters, strict=True))
    outer = resolved.tree.nullable
    own = tuple(scans.scan(*table, is_outer=relation in outer) for relation, table in tables)
    keys = tuple(
        tuple(
            (scans.column(own[key.left], key.left_key, key.node), scans.column(own[key.right], key.right_key, key.node))
            for key in join.on
        )
        for join in resolved.tree.joins
    )
    outputs = tuple(scans.column(own[o.relation], o.expression, o.at) for o in resolved.outputs)
    _place_witnesses(resolved, own, keys, scans)
    return PlacedBranch(resolved, own, outputs, keys)


def _place_witnesses(
    resolved: ResolvedBranch, own: Sequence[int], keys: Sequence[Sequence[tuple[int, int]]], scans: Scans
) -> None:
    """Asks for all groups of every key that divides a subquery of several clients."""
    for join, columns in zip(resolved.tree.joins, keys, strict=True):
        for key, (left, right) in zip(join.on, columns, strict=True):
            sides = ((key.left, key.left_key, left), (key.right, key.right_key, right))
            for relation, expression, column in sides:
                shape = resolved.shapes[relation]
                groups = () if shape.merges or not isinstance(expression, exp.Column) else shape.groups or ()
                is_dropped = join.kind in ("inner", "semi") or (join.kind != "not in" and relation == join.relation)
                for group in (group for group in groups if group.name == expression.name.lower()):
                    scans.witness(own[relation], group, column, null_matters=not is_dropped)
