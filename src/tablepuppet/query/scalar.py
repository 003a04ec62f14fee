"""check_scalar: may this expression be pushed down to the owner of its columns?

An expression passes if every node of its tree is on the list of functions.py; anything else is refused with what to
write instead. An owner's client has a guard of its own: this check is for the person who writes the query.
"""

from __future__ import annotations

from sqlglot import exp

from tablepuppet.errors import QueryError
from tablepuppet.query.functions import (
    ALLOWED,
    ALLOWED_BY_NAME,
    CAST_TARGETS,
    VOLATILE,
    VOLATILE_BY_NAME,
    VOLATILE_STRINGS,
)
from tablepuppet.query.position import refusal
from tablepuppet.query.suggest import did_you_mean

_VIEW = "let the table's owner offer it as a column of a view and select that column"
_KNOWN_NAMES = sorted(
    ALLOWED_BY_NAME | {name.lower() for kind in ALLOWED if issubclass(kind, exp.Func) for name in kind.sql_names()}
)


def check_scalar(text: str, expression: exp.Expr) -> None:
    """Raises QueryError, pointing into `text`, unless the expression is scalar, deterministic and known."""
    # Depth first, so that sum(x) OVER () is named a window function and not an aggregate.
    for node in expression.walk(bfs=False):
        if type(node) not in ALLOWED:
            raise _refuse(text, node)
        if isinstance(node, exp.Column):
            _check_column(text, node)
        elif isinstance(node, exp.Cast):
            _check_cast(text, node)


def _check_column(text: str, column: exp.Column) -> None:
    if column.args.get("db"):
        raise refusal(
            text,
            "a column has at most one qualifier, the alias of its table: write alias.column. "
            f"For a field inside a struct, {_VIEW}",
            column,
        )
    if isinstance(column.this, exp.Star):
        raise refusal(text, "* stands for all columns and can only be an item of the SELECT list", column)


def _check_cast(text: str, cast: exp.Cast) -> None:
    target = cast.to
    if target.this not in CAST_TARGETS or cast.args.get("format") or cast.args.get("default"):
        raise refusal(
            text,
            f"a cast to {target.sql('duckdb')} cannot be pushed down; cast to BOOLEAN, INTEGER, BIGINT, DOUBLE, "
            "DECIMAL(p, s), VARCHAR, DATE, TIMESTAMP or UUID",
            cast,
        )
    operand = cast.this
    if isinstance(operand, exp.Literal) and operand.is_string and operand.name.strip().lower() in VOLATILE_STRINGS:
        raise refusal(
            text,
            f"'{operand.name.strip().lower()}' is another moment at every reading; write the date or the time itself",
            cast,
        )


def _refuse(text: str, node: exp.Expr) -> QueryError:
    """Why a node is not on the list."""
    name = _function_name(node)
    if isinstance(node, (exp.Query, exp.Exists, exp.Any, exp.All, exp.Table)):
        message = (
            "a subquery cannot be pushed down; join the table in the FROM clause, "
            "or let its owner offer the result as a view"
        )
    elif isinstance(node, exp.Window):
        message = (
            "window functions are not supported, because a row's value would depend on other rows; "
            f"if one table holds all it needs, {_VIEW}"
        )
    elif isinstance(node, exp.AggFunc) or isinstance(node, (exp.Filter, exp.WithinGroup, exp.Distinct)):
        message = (
            f"{name}aggregates are not supported, because training needs the joined rows themselves; "
            f"if one table holds all it needs, {_VIEW}"
        )
    elif isinstance(node, (exp.Placeholder, exp.Parameter, exp.SessionParameter)):
        message = "the query has a parameter; write its value into the text"
    elif type(node) in VOLATILE or name[:-2].removesuffix("()") in VOLATILE_BY_NAME:
        message = f"{name}its value changes from one reading to the next; write a constant, or store the value in a column"
    elif isinstance(node, exp.Star):
        message = "* stands for all columns and can only be an item of the SELECT list"
    elif isinstance(node, exp.Func):
        message = (
            f"{name}this function is not on the list of those that every owner's database can run. "
            f"{did_you_mean(name[:-4], _KNOWN_NAMES)} Otherwise {_VIEW}"
        )
    else:
        message = f"{type(node).__name__} is not a scalar expression that can be pushed down; {_VIEW}"
    return refusal(text, message, node)


def _function_name(node: exp.Expr) -> str:
    """`name(): ` of a function, as written, to begin a message with."""
    if isinstance(node, exp.Anonymous):
        return f"{node.name.lower()}(): "
    return f"{node.sql_name().lower()}(): " if isinstance(node, exp.Func) else ""
