"""join_tree: the conditions of a conjunctive query → filters for each table and one join for each further table.

Joins are read from left to right, so that the condition of an INNER JOIN means the same as in WHERE. A WHERE condition
that a missing row cannot pass makes its LEFT JOIN an INNER JOIN. The ON conditions of that join then move to the WHERE
clause, where they may convert the next. The remaining LEFT JOINs keep their own conditions. A filter never moves below
a LEFT JOIN that could bring its rows back as NULLs. A key is never computed from a missing row. SELECT items are free:
for a row that was not found, SQL computes them from NULLs.

LEFT JOIN b ON b.key = … WHERE b.key IS NULL keeps the rows that have no match: an anti-join, which yields no row of b.

In a row that a LEFT JOIN did not find, all columns of a table are NULL. So a condition on that table has one value
there, which DuckDB computes. See Galindo-Legaria and Rosenthal, "Outerjoin simplification and reordering for query
optimization" (TODS 22, 1997).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import msgspec
from sqlglot import exp

from tablepuppet.errors import PolicyError, QueryError
from tablepuppet.sources.guard import check_expression
from tablepuppet.sql.grammar import evaluate
from tablepuppet.sql.ucq import JoinKind, Scope, Source, matches


@dataclass(frozen=True, slots=True)
class Filter:
    relation: int
    predicate: exp.Expr

    @property
    def relations(self) -> tuple[int, ...]:
        return (self.relation,)

    @property
    def rejected(self) -> tuple[int, ...]:
        """The tables whose missing rows (all NULL) never pass."""
        value = value_of_missing(self.predicate)
        return (self.relation,) if value is None or value is False else ()


class KeyEquality(msgspec.Struct, frozen=True):
    """left_key = right_key, each an expression over one table; the left table comes first in the FROM clause."""

    left: int
    left_key: exp.Expr
    right: int
    right_key: exp.Expr
    node: exp.Expr

    @property
    def relations(self) -> tuple[int, ...]:
        return (self.left, self.right)

    @property
    def rejected(self) -> tuple[int, ...]:
        """The tables whose missing rows (all NULL) never pass."""
        sides = ((self.left, self.left_key), (self.right, self.right_key))
        return tuple(relation for relation, key in sides if keeps_null(key))


Condition = Filter | KeyEquality


def read_condition(scope: Scope, node: exp.Expr) -> Condition | None:
    """The meaning of a conjunct; None if it always holds."""
    relations = scope.relations(node)
    if not relations:
        is_equal = isinstance(node, exp.EQ) and isinstance(node.left, exp.Literal) and node.left == node.right
        if is_equal or (isinstance(node, exp.Boolean) and node.this):  # the 1 = 1 of generated SQL
            return None
        raise scope.refuse("this condition names no column; remove it, or compare a column", node)
    if len(relations) == 1:
        return Filter(relations[0], node)
    if isinstance(node, exp.EQ) and not isinstance(node.left.unnest(), exp.Tuple):
        sides = [(scope.relations(side), side) for side in (node.left, node.right)]
        if all(len(touched) == 1 for touched, _ in sides):
            (left, left_key), (right, right_key) = sorted(
                ((touched[0], side) for touched, side in sides), key=lambda pair: pair[0]
            )
            return KeyEquality(left, left_key.unnest(), right, right_key.unnest(), node)
    raise _cross_table(scope, node, relations)


def _cross_table(scope: Scope, node: exp.Expr, relations: list[int]) -> QueryError:
    """Why a condition over several tables cannot be used."""
    tables = scope.names(relations)
    if isinstance(node, exp.EQ) and isinstance(node.left.unnest(), exp.Tuple):
        message = "rows are compared column by column here: write a.x = b.x AND a.y = b.y"
    elif isinstance(node, exp.EQ):
        message = (
            f"one side of this equality mixes columns of {tables}; "
            "each side of a key equality must be over one table only, as in a.x = b.y + 1"
        )
    elif isinstance(node, exp.NullSafeEQ):
        message = "IS NOT DISTINCT FROM would join NULL keys, which never match here; write ="
    elif isinstance(node, exp.Or):
        message = (
            f"this OR mixes columns of {tables}; only AND may combine conditions on different tables. "
            "Write a SELECT for each case, so that no row falls into two, and put UNION ALL between them"
        )
    elif isinstance(node, (exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NEQ, exp.Between, exp.Like, exp.ILike)):
        message = (
            f"{tables} are compared without =, and tables can only be joined on equal keys. "
            "Join them with =, and keep other comparisons inside one table. What is compared may be selected as "
            "features; an owner that has both tables compares in a subquery: JOIN (SELECT … FROM a JOIN b ON a.key = "
            "b.key AND a.x < b.y) t ON …"
        )
    else:
        message = (
            f"this condition mixes columns of {tables}, which lie with different owners; "
            "write a condition for each table, joined by AND, or a key equality a.x = b.y"
        )
    return scope.refuse(message, node)


UNKNOWN: Final = object()
_TYPES: Final = (None, "DATE", "TIMESTAMP", "VARCHAR", "DOUBLE", "BOOLEAN", "DOUBLE[]")  # that a column may have
_MAX_TRIES = 500


def value_of_missing(expression: exp.Expr) -> Any:
    """The value of an expression in a row that a LEFT JOIN did not find; UNKNOWN where DuckDB cannot compute it, or no
    owner would: a text that `replace` makes longer would fill this process's memory.

    Types are not known yet. Few functions depend on them, and the first that fit will do: NULL has no value in any.
    """
    names = list(dict.fromkeys(column.sql() for column in expression.find_all(exp.Column)))
    try:
        check_expression(_with_nulls(expression, dict.fromkeys(names, exp.Null())), ())
    except PolicyError:
        return UNKNOWN
    for types in itertools.islice(itertools.product(_TYPES, repeat=len(names)), _MAX_TRIES):
        nulls = {n: exp.Null() if t is None else exp.cast(exp.Null(), t) for n, t in zip(names, types, strict=True)}
        try:
            return evaluate(_with_nulls(expression, nulls))
        except duckdb.Error:
            continue
    return UNKNOWN


def _with_nulls(expression: exp.Expr, nulls: Mapping[str, exp.Expr]) -> str:
    bare = expression.transform(lambda node: nulls.get(node.sql(), node) if type(node) is exp.Column else node)
    return str(bare.sql("duckdb", comments=False))


def keeps_null(expression: exp.Expr) -> bool:
    """The expression is NULL when all its columns are."""
    return value_of_missing(expression) is None


class TreeJoin(msgspec.Struct, frozen=True):
    """How one table of the FROM clause is joined to tables placed before it."""

    kind: JoinKind
    relation: int
    on: tuple[KeyEquality, ...]


class JoinTree(msgspec.Struct, frozen=True):
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
    checked = 0  # every left join whose missing rows fail a condition becomes inner
    while outer and checked < len(conditions):
        for relation in conditions[checked].rejected:
            conditions += outer.pop(relation, [])
        checked += 1
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
    for relation, own in outer.items():
        for condition in own:
            _check_outer(scope, condition, relation, kinds)
    for condition in itertools.chain(conditions, *outer.values()):
        if isinstance(condition, Filter):
            filters[condition.relation].append(condition.predicate)
        else:
            keys[condition.right].append(condition)
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
