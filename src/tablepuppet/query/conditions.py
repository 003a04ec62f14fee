"""A conjunct of WHERE or ON → a filter on one table, a key equality between two, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from tablepuppet.errors import QueryError
from tablepuppet.query.nulls import keeps_null, rejects_null
from tablepuppet.query.position import refusal
from tablepuppet.query.ucq import Scope


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


def conjuncts_of(predicate: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions that AND joins, from left to right, without their outer parentheses."""
    waiting = [predicate]
    while waiting:
        node = waiting.pop().unnest()
        if isinstance(node, exp.And):
            waiting += [node.right, node.left]
        else:
            yield node


def read_condition(scope: Scope, node: exp.Expr) -> Condition | None:
    """What a conjunct means; None if it always holds."""
    relations = scope.relations(node)
    if not relations:
        if _always_true(node):
            return None
        raise refusal(scope.text, "this condition names no column; remove it, or compare a column", node)
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


def _always_true(node: exp.Expr) -> bool:
    """TRUE, and the 1 = 1 of generated SQL."""
    if isinstance(node, exp.EQ):
        return isinstance(node.left, exp.Literal) and node.left == node.right
    return isinstance(node, exp.Boolean) and bool(node.this)


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
            "Join them with =, and keep other comparisons inside one table"
        )
    else:
        message = (
            f"this condition mixes columns of {tables}, which lie with different owners; "
            "write a condition for each table, joined by AND, or a key equality a.x = b.y"
        )
    return refusal(scope.text, message, node)
