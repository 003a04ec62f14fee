"""join_tree: the conditions of a conjunctive query → filters for each table and one join for each further table.

Joins are read from left to right, so that the condition of an INNER JOIN means the same as in WHERE. A WHERE condition
that a missing row cannot pass makes its LEFT JOIN an INNER JOIN. The ON conditions of that join then move to the WHERE
clause, where they may convert the next. The remaining LEFT JOINs keep their own conditions. A filter never moves below
a LEFT JOIN that could bring its rows back as NULLs. A key is never computed from a missing row. SELECT items are free:
for a row that was not found, SQL computes them from NULLs.

LEFT JOIN b ON b.key = … WHERE b.key IS NULL keeps the rows that have no match: an anti-join, which yields no row of b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tablepuppet.errors import QueryError
from tablepuppet.sql.conditions import Condition, Filter, KeyEquality, keeps_null, read_condition, value_of_missing
from tablepuppet.sql.ucq import JoinKind, Scope, Source, matches


@dataclass(frozen=True, slots=True)
class TreeJoin:
    """How one table of the FROM clause is joined to tables placed before it."""

    kind: JoinKind
    relation: int
    on: tuple[KeyEquality, ...]


@dataclass(frozen=True, slots=True)
class JoinTree:
    """The first table of the FROM clause, then one join for each other, each connected to those before it."""

    joins: tuple[TreeJoin, ...]
    filters: tuple[tuple[exp.Expr, ...], ...]  # conjuncts for each table of the FROM clause

    @property
    def nullable(self) -> frozenset[int]:
        """The tables that may lack a row in a joined row."""
        return frozenset(j.relation for j in self.joins if j.kind != "inner")

    @property
    def absent(self) -> frozenset[int]:
        """The tables without a row in any joined row."""
        return frozenset(j.relation for j in self.joins if j.kind in ("semi", "anti", "not in"))


def join_tree(scope: Scope, sources: Sequence[Source], where: Sequence[exp.Expr]) -> JoinTree:
    """The join of one conjunctive query, whose columns must all name their table."""
    conditions: list[Condition] = []
    outer: dict[int, list[Condition]] = {}
    for position, source in enumerate(sources):
        own = _read(scope, source.on, visible=position)
        if source.join != "inner":
            outer[position] = own
        else:
            conditions += own
    conditions += _read(scope, where, visible=len(sources))
    _simplify(conditions, outer)
    kinds: dict[int, JoinKind] = {relation: sources[relation].join for relation in outer}
    for condition in conditions:
        if isinstance(condition, Filter) and _says_no_match(condition, outer.get(condition.relation, ())):
            kinds[condition.relation] = "anti"
    # That an anti-joined table has no row holds anyway.
    conditions = [
        c
        for c in conditions
        if not (isinstance(c, Filter) and kinds.get(c.relation) == "anti" and value_of_missing(c.predicate) is True)
    ]
    filters: list[list[exp.Expr]] = [[] for _ in sources]
    keys: dict[int, list[KeyEquality]] = {position: [] for position in range(len(sources))}
    for condition in conditions:
        _check_inner(scope, condition, outer)
        if isinstance(condition, Filter):
            filters[condition.relation].append(condition.predicate)
        else:
            keys[condition.right].append(condition)
    for relation, own in outer.items():
        for condition in own:
            _check_outer(scope, condition, relation, kinds)
            if isinstance(condition, Filter):
                filters[relation].append(condition.predicate)
            else:
                keys[relation].append(condition)
    return JoinTree(_place(scope, sources, keys, kinds), tuple(tuple(f) for f in filters))


def _read(scope: Scope, conjuncts: Sequence[exp.Expr], visible: int) -> list[Condition]:
    """The conditions, none of which may name a table that comes only later."""
    found = []
    for conjunct in conjuncts:
        condition = read_condition(scope, conjunct)
        if condition is None:
            continue
        if max(condition.relations) > visible:
            later = scope.aliases[max(condition.relations)]
            raise scope.refuse(
                f"this ON names {later}, which is joined only later; move the condition to the ON of {later}", conjunct
            )
        found.append(condition)
    return found


def _simplify(conditions: list[Condition], outer: dict[int, list[Condition]]) -> None:
    """Makes inner, in place, every left join whose missing rows fail a condition."""
    checked = 0
    while outer and checked < len(conditions):
        for relation in conditions[checked].rejected:
            conditions += outer.pop(relation, [])
        checked += 1


def _says_no_match(condition: Filter, on: Sequence[Condition]) -> bool:
    """key IS NULL, of a table that is joined on that key: no row that has a match passes."""
    tested = condition.predicate.unnest()
    if not isinstance(tested, exp.Is) or not isinstance(tested.expression, exp.Null):
        return False
    column, keys = tested.this.unnest(), [key.right_key for key in on if isinstance(key, KeyEquality)]
    return isinstance(column, exp.Column) and any(
        bool(matches(column.this, [key.name]) or matches(key.this, [column.name]))
        for key in keys
        if isinstance(key, exp.Column)
    )


def _check_inner(scope: Scope, condition: Condition, outer: dict[int, list[Condition]]) -> None:
    """A condition on the whole join must not touch a table whose rows may be missing."""
    for relation in condition.relations:
        if relation in outer:
            alias = scope.aliases[relation]
            node = condition.predicate if isinstance(condition, Filter) else condition.node
            own = [c.right_key for c in outer[relation] if isinstance(c, KeyEquality)]
            key = next((key.name for key in own if isinstance(key, exp.Column)), "key")
            raise scope.refuse(
                f"{alias} is joined by LEFT JOIN, and this condition can hold for a row that has no match in {alias}, "
                f"which no owner can tell. To keep only rows with a match, write JOIN {alias}; to choose which rows of "
                f"{alias} can match, move the condition to the ON of {alias}; to keep only rows without a match, ask "
                f"for the key that {alias} is joined on: WHERE {alias}.{key} IS NULL",
                node,
            )


def _check_outer(scope: Scope, condition: Condition, relation: int, outer: Mapping[int, JoinKind]) -> None:
    """A condition of a LEFT JOIN must be about the table that it joins."""
    alias = scope.aliases[relation]
    if isinstance(condition, KeyEquality) and outer.get(condition.left, "inner") not in ("inner", "left"):
        gone = scope.aliases[condition.left]
        raise scope.refuse(
            f"rows with a match in {gone} are left out, so that {gone} has no row that {alias} could be joined to; "
            f"leave {alias} out, or join it to another table",
            condition.node,
        )
    if isinstance(condition, Filter):
        if condition.relation != relation:
            other = scope.aliases[condition.relation]
            raise scope.refuse(
                f"the ON of LEFT JOIN {alias} has a condition on {other} alone, which would keep rows of {other} and "
                f"only hide their match. To drop those rows, move it to WHERE; otherwise select a CASE over {other}",
                condition.predicate,
            )
        return
    if relation not in condition.relations:
        raise scope.refuse(
            f"the ON of LEFT JOIN {alias} compares {scope.names(condition.relations)}, and not {alias}; "
            "move this equality to WHERE or to the join of those tables",
            condition.node,
        )
    if condition.left in outer and not keeps_null(condition.left_key):
        other = scope.aliases[condition.left]
        raise scope.refuse(
            f"this key may have a value although {other}, joined by LEFT JOIN, has no matching row; "
            f"join on a plain column of {other}, or write JOIN {other}",
            condition.left_key,
        )


def _place(
    scope: Scope, sources: Sequence[Source], keys: Mapping[int, Sequence[KeyEquality]], outer: Mapping[int, JoinKind]
) -> tuple[TreeJoin, ...]:
    """One join after the other, in the order of the FROM clause as far as keys allow."""
    equalities = [key for relation, own in keys.items() if relation not in outer for key in own]
    placed = [0]
    joins: list[TreeJoin] = []

    def join(relation: int) -> TreeJoin | None:
        """The join of a table, if the tables that its keys need are there already."""
        if relation in outer:
            own = keys[relation]
            is_ready = bool(own) and all(key.left in placed for key in own)
            return TreeJoin(outer[relation], relation, tuple(own)) if is_ready else None
        ready = [k for k in equalities if relation in k.relations and (k.left in placed or k.right in placed)]
        on = [
            k if k.right == relation else KeyEquality(k.right, k.right_key, k.left, k.left_key, k.node) for k in ready
        ]
        return TreeJoin("inner", relation, tuple(on)) if on else None

    waiting = list(range(1, len(sources)))
    while waiting:
        found = next(filter(None, map(join, waiting)), None)
        if found is None:
            raise _not_connected(scope, sources, placed, waiting[0])
        joins.append(found)
        placed.append(found.relation)
        waiting.remove(found.relation)
    return tuple(joins)


def _not_connected(scope: Scope, sources: Sequence[Source], placed: list[int], relation: int) -> QueryError:
    source, alias = sources[relation], scope.aliases[relation]
    derived = source.derived
    if isinstance(derived, exp.Select) and derived.find(exp.AggFunc) and not derived.find(exp.Group):
        return scope.refuse(
            f"{alias} is one row for all, which adds the same to every joined row and teaches a model nothing; leave "
            "it out, or group it by a key of the join",
            source.alias,
        )
    named = alias if source.table is source.alias else f"{source.table.name} {alias}"
    return scope.refuse(
        f"no key joins {alias} to {scope.names(sorted(placed))}, so that every row would meet every row. "
        f"Add an equality, for example JOIN {named} ON {scope.aliases[0]}.id = {alias}.id",
        source.table,
    )
