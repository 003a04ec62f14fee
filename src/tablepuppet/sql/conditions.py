"""A conjunct of WHERE or ON → a filter on one table, a key equality between two, or a refusal.

In a row that a LEFT JOIN did not find, all columns of a table are NULL. The outcomes of a condition there are computed
as a set of `NULL`, `TRUE` and `FALSE`; a value that is no truth value counts as both TRUE and FALSE. The set may be too
large and is never too small. So "it cannot be TRUE" and "it must be NULL" are safe conclusions. See Galindo-Legaria and
Rosenthal, "Outerjoin simplification and reordering for query optimization" (TODS 22, 1997).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from sqlglot import exp

from tablepuppet.errors import QueryError
from tablepuppet.sql.grammar import refusal
from tablepuppet.sql.scalar import STRICT
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
    return refusal(scope.text, message, node)


class Outcome(Enum):
    """A possible outcome of an expression."""

    NULL = auto()
    TRUE = auto()
    FALSE = auto()


Outcomes = frozenset[Outcome]
NULL, TRUE, FALSE = (frozenset({o}) for o in Outcome)
VALUE = TRUE | FALSE
ANY = NULL | VALUE


def rejects_null(predicate: exp.Expr) -> bool:
    """A row whose columns are all NULL never passes this predicate."""
    return Outcome.TRUE not in outcomes(predicate)


def keeps_null(expression: exp.Expr) -> bool:
    """The expression is NULL when all its columns are."""
    return outcomes(expression) == NULL


def outcomes(node: exp.Expr) -> Outcomes:
    """All that an expression may give when its columns are NULL."""
    match node:
        case exp.Column() | exp.Null():
            return NULL
        case exp.Boolean():
            return TRUE if node.this else FALSE
        case exp.Literal() | exp.DataType() | exp.Var():
            return VALUE
        case exp.Paren():
            return outcomes(node.this)
        case exp.Not():
            return _each(_NOT, outcomes(node.this))
        case exp.And():
            return _and(outcomes(node.left), outcomes(node.right))
        case exp.Or():
            return _each(_NOT, _and(_each(_NOT, outcomes(node.left)), _each(_NOT, outcomes(node.right))))
        case exp.Is():
            return _is(outcomes(node.this), node.expression)
        case exp.In() if node.expressions:
            return NULL if outcomes(node.this) == NULL else ANY
        case exp.Between() if not node.args.get("symmetric"):
            low = _strict([node.this, node.args["low"]])
            return _and(low, _strict([node.this, node.args["high"]]))
        case exp.Coalesce():
            return _first_value([node.this, *node.expressions])
        case exp.Nullif():
            return NULL if outcomes(node.this) == NULL else ANY
        case exp.Case():
            ifs = node.args["ifs"]
            return _case(((_condition(node.this, i.this), i.args["true"]) for i in ifs), node.args.get("default"))
        case exp.If():
            return _case([(node.this, node.args["true"])], node.args.get("false"))
        case exp.Interval():
            return _strict([node.this]) if node.this else ANY
        case _ if type(node) in STRICT:
            return _strict(node.iter_expressions())
        case _:
            return ANY


_NOT = {Outcome.NULL: Outcome.NULL, Outcome.TRUE: Outcome.FALSE, Outcome.FALSE: Outcome.TRUE}


def _each(table: dict[Outcome, Outcome], over: Outcomes) -> Outcomes:
    return frozenset(table[o] for o in over)


def _and(left: Outcomes, right: Outcomes) -> Outcomes:
    """Three-valued AND of every pair."""
    return frozenset(
        Outcome.FALSE if Outcome.FALSE in (a, b) else Outcome.NULL if Outcome.NULL in (a, b) else Outcome.TRUE
        for a in left
        for b in right
    )


def _strict(arguments: Iterable[exp.Expr]) -> Outcomes:
    """NULL if one argument must be NULL; otherwise anything, since 1 / 0 or a failed TRY_CAST is NULL too."""
    return NULL if any(outcomes(a) == NULL for a in arguments) else ANY


def _is(operand: Outcomes, test: exp.Expr) -> Outcomes:
    """IS NULL, IS TRUE, IS FALSE: never NULL themselves."""
    if isinstance(test, exp.Null):
        wanted = NULL
    elif isinstance(test, exp.Boolean):
        wanted = TRUE if test.this else FALSE
    else:
        return ANY
    held = TRUE if operand & wanted else frozenset()
    return held | (FALSE if operand - wanted else frozenset())


def _first_value(arguments: list[exp.Expr]) -> Outcomes:
    """COALESCE: the first argument that is not NULL."""
    found: Outcomes = frozenset()
    for argument in arguments:
        possible = outcomes(argument)
        found |= possible - NULL
        if Outcome.NULL not in possible:
            return found
    return found | NULL


def _case(cases: Iterable[tuple[exp.Expr, exp.Expr]], default: exp.Expr | None) -> Outcomes:
    """CASE: every (condition, value) that may be taken, up to the first that must be."""
    found: Outcomes = frozenset()
    for condition, value in cases:
        taken = outcomes(condition)
        if Outcome.TRUE in taken:
            found |= outcomes(value)
        if taken == TRUE:
            return found
    return found | (outcomes(default) if default is not None else NULL)


def _condition(operand: exp.Expr | None, when: exp.Expr) -> exp.Expr:
    """CASE WHEN c, or CASE x WHEN c, which means x = c."""
    return when if operand is None else exp.EQ(this=operand.copy(), expression=when.copy())
