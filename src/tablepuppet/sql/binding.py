"""Ucq → BoundQuery: the owners of all tables, resolved names, and checked types.

`bind`: a query to train on. The first round asks the owners for the columns of their tables. The second opens the scans
and learns the type of every expression. Nothing is read from a table.

Features that come from the same alias in every branch are one block (docs/notation.md, T_i). With one SELECT, each
alias that has features is a block. With UNION ALL, the blocks are the common refinement of the branches' aliases, so
every combination of branches is accepted.

`bind_features`: a query to predict on, whose blocks are those of a trained model. It is the model's own query or
another with the same features by name (alias.column), under any WHERE. Its label is not read, even if it selects one:
rows to predict on may lack it. The relation that held the label is the *base*. The answer is ordered by the base's rows
and carries its key.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlglot import exp

from tablepuppet.errors import CatalogError, QueryError, TablePuppetError, did_you_mean
from tablepuppet.sources.syntax import unused_name
from tablepuppet.sql import checks
from tablepuppet.sql.across_owners import at_one_owner, join_owners
from tablepuppet.sql.bound import Block, BoundQuery, Branch, LabelPlace, Scan, format_expression, key_type
from tablepuppet.sql.checks import NOTHING, LabelColumns, place_beside, union_of, weight_position
from tablepuppet.sql.grammar import TOO_DEEP
from tablepuppet.sql.names import ResolvedBranch, resolve
from tablepuppet.sql.scans import PlacedBranch, Scans, place
from tablepuppet.sql.schemas import TableShape, describe
from tablepuppet.sql.ucq import Conjunctive, Item, Star, Tables, Ucq, matches
from tablepuppet.transport.link import Link


def group_features(relations: Sequence[Sequence[int]]) -> list[tuple[tuple[int, ...], list[int]]]:
    """Groups positions that share their relation in every branch, in the order of the first FROM clause.

    `relations[b][p]` is the relation of feature position p in branch b; a group has the relation of each branch first.

    >>> group_features([[0, 0, 1, 1], [0, 1, 1, 1]])
    [((0, 0), [0]), ((0, 1), [1]), ((1, 1), [2, 3])]
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, signature in enumerate(zip(*relations, strict=True)):
        groups.setdefault(signature, []).append(position)
    return sorted(groups.items(), key=lambda group: (group[0][0], group[1][0]))


def bind(
    ucq: Ucq, *, label: str | None, tables: Tables, link: Link, job: str, beside: LabelColumns = NOTHING
) -> BoundQuery:
    """Binds the query to a federation, whose `tables` map a name to the clients that hold its rows.

    Without a label, every item is a feature, and the rows are those of the first table of FROM.
    """
    try:
        ucq, resolved = _resolve_names(ucq, tables, link)
        checks.check_arity(ucq, resolved)
        label_position = None if label is None else checks.find_label(ucq, resolved, label)
        weight = None if label_position is None else weight_position(resolved[0], label_position, beside.weight)
        features = [p for p in range(len(resolved[0].outputs)) if p not in (label_position, weight)]
        checks.check_features(ucq, resolved[0], features)
        scans = Scans()
        placed = [place(branch, scans) for branch in resolved]
        outputs = [branch.outputs[label_position or 0] for branch in resolved]
        relations = [0 if label_position is None else output.relation for output in outputs]
        read = place_beside(zip(placed, relations, strict=True), beside, scans, outputs[0].at, weight)
        opened = _Opened(ucq, placed, scans.open(ucq, link, job))
    except RecursionError:
        raise QueryError(TOO_DEEP) from None
    if label_position is not None:
        checks.check_label(ucq, placed, opened.scans, label_position)
    branches = opened.branches(relations, read, label_position)
    label_name = "" if label_position is None else outputs[0].name
    return BoundQuery(ucq.text, label_name, opened.scans, branches, opened.group_blocks(features))


def _resolve_names(ucq: Ucq, tables: Tables, link: Link) -> tuple[Ucq, list[ResolvedBranch]]:
    """The query with its names resolved; where its tables cannot be joined so, its rows at the owner of them all."""
    joined = join_owners(ucq, tables)
    shapes = describe(joined, tables, link)
    try:
        return joined, [resolve(joined, branch, shapes) for branch in joined.branches]
    except QueryError as refused:
        whole = None if isinstance(refused, CatalogError) else at_one_owner(ucq.text, tables)
        if whole is None:
            raise
        try:
            shapes = describe(whole, tables, link)
            return whole, [resolve(whole, branch, shapes) for branch in whole.branches]
        except TablePuppetError:
            raise refused from None


class _Opened(msgspec.Struct, frozen=True):
    """A query's branches and the scans that their clients have opened, whose keys fit."""

    ucq: Ucq
    placed: list[PlacedBranch]
    scans: tuple[Scan, ...]

    def __post_init__(self) -> None:
        checks.check_keys(self.ucq, self.placed, self.scans)

    def branches(self, bases: Sequence[int], places: Sequence[LabelPlace], label: int | None) -> tuple[Branch, ...]:
        """The bound branches, whose joined rows are ordered by `bases`; `label`: the output that is predicted."""
        found = tuple(
            branch.bind_branch(base, place if label is None else replace(place, label=branch.output_columns[label]))
            for branch, base, place in zip(self.placed, bases, places, strict=True)
        )
        checks.check_beside(found, self.scans)
        return found

    def group_blocks(self, features: Sequence[int]) -> tuple[Block, ...]:
        """The blocks of the query, named after the first branch."""
        blocks: list[Block] = []
        for relations, own in group_features([[b.resolved.outputs[p].relation for p in features] for b in self.placed]):
            name = unused_name(self.placed[0].resolved.aliases[relations[0]], [block.name for block in blocks])
            blocks.append(self.block(name, relations, [features[k] for k in own]))
        return tuple(blocks)

    def block(self, name: str, relations: Sequence[int], positions: Sequence[int]) -> Block:
        columns = tuple(union_of(self.ucq, self.placed, self.scans, p) for p in positions)
        members = tuple(b.member(r, positions) for b, r in zip(self.placed, relations, strict=True))
        table = self.placed[0].resolved.shapes[relations[0]].name
        return Block(name, table, tuple(c.name for c in columns), columns, members)


Key = Sequence[Any]  # one value for each key column


class Wanted(msgspec.Struct, frozen=True):
    """The parts of a query that a prediction needs."""

    blocks: tuple[tuple[str, tuple[str, ...]], ...]  # name and features of each block
    label: str
    bases: tuple[str, ...]  # the alias that held the label, in each branch of the model's query
    key: tuple[str, ...] | None = None  # columns of the base that name a row; None: those that it is joined on
    only: tuple[Key, ...] | None = None  # just the rows with these keys
    beside: LabelColumns = NOTHING  # predicates of the split that the model was trained with


class Servable(msgspec.Struct, frozen=True):
    """A bound query without a label, and the base's key: its names, and its columns in each branch's base scan."""

    bound: BoundQuery
    key: tuple[str, ...]
    key_columns: tuple[tuple[int, ...], ...]


def bind_features(ucq: Ucq, wanted: Wanted, *, tables: Tables, link: Link, job: str) -> Servable:
    ucq, resolved = _resolve_names(_without_label(ucq, wanted.label), tables, link)
    checks.check_arity(ucq, resolved)
    bases = [_base(branch, wanted.bases, number) for number, branch in enumerate(resolved)]
    positions = _positions(ucq, resolved[0], [f for _, features in wanted.blocks for f in features])
    resolved = [replace(branch, outputs=tuple(branch.outputs[p] for p in positions)) for branch in resolved]
    named = [_key(ucq, branch, base, wanted.key) for branch, base in zip(resolved, bases, strict=True)]
    keys = [_in_order(key, named[0]) for key in named]
    shapes = [branch.shapes[base] for branch, base in zip(resolved, bases, strict=True)]
    kinds = list(map(_key_kinds, shapes, keys))
    names = {(shape.name, *(column.name for column in key)) for shape, key in zip(shapes, keys, strict=True)}
    is_mixed = len(names) > len({table for table, *_ in names})  # one table, by other columns in another branch
    if is_mixed or any(kind != kinds[0] for kind in kinds):  # a branch without a join has no key
        if wanted.key is not None:
            raise QueryError(
                f"the key ({', '.join(wanted.key)}) has another type in another branch of UNION ALL; predict each "
                "branch by a query of its own, or leave key out"
            )
        keys = [[] for _ in keys]
    if wanted.only is not None:
        resolved = [_restrict_rows(b, base, k, wanted.only) for b, base, k in zip(resolved, bases, keys, strict=True)]
    scans = Scans()
    placed = [place(branch, scans) for branch in resolved]
    key_columns = [
        tuple(scans.column(branch.scans[base], column, column) for column in key)
        for branch, base, key in zip(placed, bases, keys, strict=True)
    ]
    read = place_beside(zip(placed, bases, strict=True), wanted.beside, scans, exp.to_identifier(wanted.label))
    opened = _Opened(ucq, placed, scans.open(ucq, link, job))
    blocks, start = [], 0
    for name, features in wanted.blocks:
        own = range(start, start + len(features))
        start = own.stop
        relations = [_one_relation(ucq, branch.resolved, own, name) for branch in placed]
        blocks.append(replace(opened.block(name, relations, own), features=features))
    bound = BoundQuery(ucq.text, wanted.label, opened.scans, opened.branches(bases, read, None), tuple(blocks))
    return Servable(bound, tuple(format_expression(column) for column in keys[0]), tuple(key_columns))


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
            raise ucq.refuse(
                f"the model needs the feature {feature}, which the SELECT list does not have. {known}", None
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
            raise ucq.refuse(f"the key {name} is not a column of {alias} (table {shape.name}). {hint}", None)
        columns.append(exp.column(shape.columns[found[0]], table=alias, quoted=True))
    return columns


def _in_order(key: list[exp.Column], first: Sequence[exp.Column]) -> list[exp.Column]:
    """The key of a branch, whose columns are those of the first branch in another order, in that order."""
    names = [column.name for column in first]
    is_same = {column.name for column in key} == set(names)
    return sorted(key, key=lambda column: names.index(column.name)) if is_same else key


def _key_kinds(shape: TableShape, key: Sequence[exp.Column]) -> list[str]:
    """The type of each column of a key, all numbers being one."""
    infos = [next(own[column.name] for own in shape.infos.values() if column.name in own) for column in key]
    return ["number" if info.kind in ("integer", "float", "decimal") else key_type(info) or info.kind for info in infos]


def _restrict_rows(branch: ResolvedBranch, base: int, key: Sequence[exp.Column], only: Sequence[Key]) -> ResolvedBranch:
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
