"""A conjunct of WHERE or ON → a filter on one table, a key equality between two, or a refusal.

In a row that a LEFT JOIN did not find, all columns of a table are NULL. So a condition on that table has one value
there, which DuckDB computes. See Galindo-Legaria and Rosenthal, "Outerjoin simplification and reordering for query
optimization" (TODS 22, 1997).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import duckdb
from sqlglot import exp

from tablepuppet.errors import PolicyError, QueryError
from tablepuppet.sources.guard import check_expression
from tablepuppet.sql.grammar import evaluate
from tablepuppet.sql.ucq import Scope


@dataclass(frozen=True, slots=True)
class Filter:
    """A predicate over one table."""

    relation: int
    predicate: exp.Expr

    @property
    def relations(self) -> tuple[int, ...]:
        return (self.relation,)

    @property
    def rejected(self) -> tuple[int, ...]:
        """The tables whose missing rows (all NULL) never pass."""
        return (self.relation,) if rejects_null(self.predicate) else ()


@dataclass(frozen=True, slots=True)
class KeyEquality:
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


def rejects_null(predicate: exp.Expr) -> bool:
    """A row whose columns are all NULL never passes this predicate."""
    value = value_of_missing(predicate)
    return value is None or value is False


def keeps_null(expression: exp.Expr) -> bool:
    """The expression is NULL when all its columns are."""
    return value_of_missing(expression) is None
