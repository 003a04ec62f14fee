"""bind_features: a query to predict on → BoundQuery, whose blocks are those of a trained model.

The query may be the model's own or another with the same features by name (alias.column), under any WHERE. Its label,
if it still selects one, is not read: rows to predict on need not have it. One relation is the *base*: the one that
held the label. The answer is ordered by its rows and carries its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from tablepuppet.catalog.across_owners import join_owners
from tablepuppet.catalog.bound import Block, BoundQuery
from tablepuppet.catalog.checks import check_arity, check_keys, union_of
from tablepuppet.catalog.names import ResolvedBranch, resolve
from tablepuppet.catalog.scans import Scans, place
from tablepuppet.catalog.schemas import describe
from tablepuppet.catalog.texts import refuse, shown
from tablepuppet.errors import QueryError
from tablepuppet.query.ucq import Conjunctive, Item, Star, Ucq, matches
from tablepuppet.suggest import did_you_mean
from tablepuppet.transport.link import Link

Key = Sequence[Any]  # one value for each key column


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a prediction needs of a query."""

    blocks: tuple[tuple[str, tuple[str, ...]], ...]  # name and features of each block
    label: str
    bases: tuple[str, ...]  # the alias that held the label, in each branch of the model's query
    key: tuple[str, ...] | None = None  # columns of the base that name a row; None: those that it is joined on
    only: tuple[Key, ...] | None = None  # just the rows with these keys


@dataclass(frozen=True, slots=True)
class Servable:
    """A bound query without a label, and the base's key: its names, and its columns in each branch's base scan."""

    bound: BoundQuery
    key: tuple[str, ...]
    key_columns: tuple[tuple[int, ...], ...]


def bind_features(ucq: Ucq, wanted: Wanted, *, tables: Mapping[str, tuple[str, ...]], link: Link, job: str) -> Servable:
    """What the query means for a federation and a model."""
    ucq = _without_label(ucq, wanted.label)
    ucq = join_owners(ucq, tables)
    shapes = describe(ucq, tables, link)
    resolved = [resolve(ucq, branch, shapes) for branch in ucq.branches]
    check_arity(ucq, resolved)
    bases = [_base(branch, wanted.bases, number) for number, branch in enumerate(resolved)]
    positions = _positions(ucq, resolved[0], [f for _, features in wanted.blocks for f in features])
    resolved = [replace(branch, outputs=tuple(branch.outputs[p] for p in positions)) for branch in resolved]
    keys = [_key(ucq, branch, base, wanted.key) for branch, base in zip(resolved, bases, strict=True)]
    if wanted.only is not None:
        resolved = [_restricted(b, base, k, wanted.only) for b, base, k in zip(resolved, bases, keys, strict=True)]
    scans = Scans()
    placed = [place(branch, scans) for branch in resolved]
    key_columns = [
        tuple(scans.column(branch.scans[base], column, column) for column in key)
        for branch, base, key in zip(placed, bases, keys, strict=True)
    ]
    opened = scans.typed(ucq, link.ask(scans.requests(job)))
    check_keys(ucq, placed, opened)
    blocks, start = [], 0
    for name, features in wanted.blocks:
        own = range(start, start + len(features))
        start = own.stop
        relations = [_one_relation(ucq, branch.resolved, own, name) for branch in placed]
        columns = tuple(union_of(ucq, placed, opened, p) for p in own)
        members = tuple(b.member(r, own) for b, r in zip(placed, relations, strict=True))
        blocks.append(Block(name, resolved[0].shapes[relations[0]].name, features, columns, members))
    branches = tuple(b.around(base) for b, base in zip(placed, bases, strict=True))
    bound = BoundQuery(ucq.text, wanted.label, opened, branches, tuple(blocks))
    return Servable(bound, tuple(shown(column) for column in keys[0]), tuple(key_columns))


def _without_label(ucq: Ucq, label: str) -> Ucq:
    """The query without the item that is the label, for new rows may lack that column altogether."""

    def name(item: Item | Star) -> str | None:
        if isinstance(item, Star):
            return None
        return (item.name.name if item.name is not None else item.expression.name).lower()

    first = [name(item) for item in ucq.branches[0].items]
    if label.lower() not in first:
        return ucq
    at = first.index(label.lower())
    if any(len(b.items) <= at or Star in map(type, b.items[: at + 1]) for b in ucq.branches):
        return ucq
    kept = [Conjunctive((*b.items[:at], *b.items[at + 1 :]), b.sources, b.where) for b in ucq.branches]
    return Ucq(ucq.text, tuple(kept))


def _base(branch: ResolvedBranch, aliases: Sequence[str], number: int) -> int:
    """The relation that held the label in training, or else the first of FROM."""
    alias = aliases[min(number, len(aliases) - 1)]
    found = matches(exp.to_identifier(alias, quoted=True), branch.aliases)
    return found[0] if found and found[0] not in branch.tree.nullable else 0


def _positions(ucq: Ucq, branch: ResolvedBranch, features: Sequence[str]) -> list[int]:
    """Where the SELECT list has each of the model's features."""
    names = [f"{branch.aliases[output.relation]}.{output.name}" for output in branch.outputs]
    lower = [name.lower() for name in names]
    for feature in features:
        if lower.count(feature.lower()) != 1:
            known = did_you_mean(feature, names)
            raise refuse(
                ucq, f"the model needs the feature {feature}, which the SELECT list does not have. {known}", None
            )
    return [lower.index(feature.lower()) for feature in features]


def _key(ucq: Ucq, branch: ResolvedBranch, base: int, key: Sequence[str] | None) -> list[exp.Column]:
    """The base's columns that name a row in the answer."""
    shape, alias = branch.shapes[base], branch.aliases[base]
    if key is None:
        sides = [s for j in branch.tree.joins for e in j.on for s in ((e.left, e.left_key), (e.right, e.right_key))]
        joined = [k for relation, k in sides if relation == base and isinstance(k, exp.Column)]
        return list({column.name: column for column in joined}.values())
    columns = []
    for name in key:
        short = name.removeprefix(f"{alias}.")
        found = matches(exp.to_identifier(short, quoted=False), shape.columns)
        if len(found) != 1:
            hint = did_you_mean(short, shape.columns)
            raise refuse(ucq, f"the key {name} is not a column of {alias} (table {shape.name}). {hint}", None)
        columns.append(exp.column(shape.columns[found[0]], table=alias, quoted=True))
    return columns


def _restricted(branch: ResolvedBranch, base: int, key: Sequence[exp.Column], only: Sequence[Key]) -> ResolvedBranch:
    """The branch with one more condition on its base: the key is one of these."""
    if any(len(row) != len(key) for row in only):
        names = ", ".join(column.name for column in key) or "of no column"
        raise QueryError(f"the key is ({names}), and keys has an entry of another number of values; give one each")
    if len(key) == 1:
        condition: exp.Expr = exp.In(this=key[0].copy(), expressions=[exp.convert(value) for (value,) in only])
    else:
        rows = [exp.and_(*(c.copy().eq(exp.convert(v)) for c, v in zip(key, row, strict=True))) for row in only]
        condition = exp.or_(*rows) if rows else exp.false()
    filters = list(branch.tree.filters)
    filters[base] = (*filters[base], condition)
    return replace(branch, tree=replace(branch.tree, filters=tuple(filters)))


def _one_relation(ucq: Ucq, branch: ResolvedBranch, positions: Sequence[int], block: str) -> int:
    relations = {branch.outputs[p].relation for p in positions}
    if len(relations) != 1:
        names = " and ".join(sorted(branch.aliases[r] for r in relations))
        raise QueryError(
            f"the model's block {block} needs all its features from one table, and the query takes them from {names}; "
            "select them as the model's own query does",
            text=ucq.text,
        )
    return relations.pop()
