"""check_nodes: may this expression be pushed down to the owner of its columns?

An expression passes if every node of its tree is on the owners' own list (sources/guard.py). Anything else is refused
with a replacement. An owner's guard checks again; this check serves the person who writes the query, and points at the
place in the text.

VOLATILE functions depend on when or where they are called, so two reads of a table would disagree. An owner would
refuse these too, but their reason deserves a message of its own.
"""

from __future__ import annotations

from typing import Final

from sqlglot import TokenType, exp

from tablepuppet.errors import QueryError, nearest
from tablepuppet.sources.guard import FUNCTIONS, NODES, fault_of
from tablepuppet.sql.grammar import PARAMETER, At, refusal, word_before, words

VOLATILE: Final[frozenset[type[exp.Expr]]] = frozenset(
    {
        exp.Rand, exp.Randn, exp.Uuid, exp.NextValueFor, exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp,
        exp.CurrentDatetime, exp.Localtime, exp.Localtimestamp, exp.CurrentUser, exp.SessionUser, exp.CurrentSchema,
        exp.CurrentVersion,
    }
)  # fmt: skip
VOLATILE_BY_NAME: Final = frozenset(
    {
        "clock_timestamp", "current_localtime", "current_localtimestamp", "current_setting", "currval",
        "gen_random_uuid", "get_current_time", "get_current_timestamp", "lastval", "nextval", "now", "setseed",
        "statement_timestamp", "timeofday", "transaction_timestamp", "txid_current", "uuidv4", "uuidv7",
    }
)  # fmt: skip
# PostgreSQL reads these strings as a moment when they are cast to a date or a timestamp.
VOLATILE_STRINGS: Final = frozenset({"now", "today", "tomorrow", "yesterday"})


_INSTEAD: Final = {  # functions of other dialects
    "age": "date_diff('day', from, to)",
    "to_char": "strftime(moment, '%Y-%m')",
    "date_format": "strftime(moment, '%Y-%m')",
    "dateadd": "moment + INTERVAL 30 DAY",
    **dict.fromkeys(("to_days", "timestampdiff", "datetime_diff", "date_sub", "datesub"), "date_diff('day', from, to)"),
    "julianday": "date_diff('second', from, to) / 86400.0 for the days between two moments",
    "unix_timestamp": "epoch(moment)",
    "weekday": "dayofweek(moment), which is 0 on Sundays",
    "to_date": "CAST(x AS DATE), or strptime(text, '%d.%m.%Y')",
    "time_bucket": "date_trunc('week', moment)",
    "width_bucket": "floor(x / 10), or CASE WHEN x < 10 THEN 0 WHEN x < 50 THEN 1 ELSE 2 END",
    "regexp_replace": "regexp_extract(text, pattern)",
    "isnull": "coalesce(x, 0), or x IS NULL",
    "charindex": "strpos(text, part)",
    "convert": "CAST(x AS DOUBLE)",
}
_VIEW = "let the table's owner offer the result as a column of a view"
_STAR = "* stands for all columns and can only be an item of the SELECT list, as in alias.*"
_NAMES = sorted(FUNCTIONS | {n.lower() for node in NODES if issubclass(node, exp.Func) for n in node.sql_names()})


def check_nodes(text: str, expression: exp.Expr, allowed: frozenset[type[exp.Expr]] = NODES) -> None:
    """Raises QueryError, pointing into `text`, unless a tree is made of these nodes and of functions owners know.

    Those of an expression are scalar and deterministic.
    """
    # Depth first, so that sum(x) OVER () is called a window function and not an aggregate.
    for node in expression.walk(bfs=False):
        if isinstance(node, exp.Anonymous):
            if node.name.lower() not in FUNCTIONS:
                raise _refuse(text, node)
        elif type(node) not in allowed:
            if isinstance(node, exp.AggFunc) and exp.Select in allowed:
                raise refusal(
                    text,
                    "owners do not run this aggregate, whose value grows with the rows of a group; "
                    "use count, sum, avg, min, max, stddev, median or another that gives a number",
                    node,
                )
            raise _refuse(text, node)
        elif isinstance(node, exp.Column) and node.args.get("db"):
            raise refusal(
                text,
                "a column has at most one name before it, the alias of its table: write alias.column. "
                f"For a field inside a struct, {_VIEW}",
                node,
            )
        elif isinstance(node, exp.Column) and isinstance(node.this, exp.Star) and exp.Star not in allowed:
            raise refusal(text, _STAR, node)
        fault = fault_of(node.to if isinstance(node, exp.Cast) else node)
        if fault is not None:
            raise refusal(text, fault, node)
        operand = node.this if isinstance(node, exp.Cast) else None
        if isinstance(operand, exp.Literal) and operand.name.strip().lower() in VOLATILE_STRINGS:
            raise refusal(text, f"'{operand.name}' means another moment at every reading; write the date itself", node)


def _refuse(text: str, node: exp.Expr) -> QueryError:
    """Why a node is not on the list, and its replacement."""
    at: At = node
    match node:
        case exp.Query() | exp.Exists() | exp.Any() | exp.All() | exp.Table():
            message = (
                "a subquery is not supported here; write it in FROM, as in JOIN (SELECT …) t ON …, over tables of one "
                "owner"
            )
            at = word_before(text, node, TokenType.SELECT)
        case exp.Window():
            message = (
                "a window function over joined rows is not supported; if it needs one table only, write it in a "
                "subquery: JOIN (SELECT *, lag(x) OVER (…) AS before FROM t) t ON …"
            )
        case exp.AggFunc() | exp.Filter() | exp.WithinGroup() | exp.Distinct():
            message = (
                "an aggregate over joined rows is not supported: training needs the rows themselves. If it needs "
                "one table only, write a subquery: JOIN (SELECT key, avg(x) AS x FROM t GROUP BY key) t ON …"
            )
        case exp.Placeholder() | exp.Parameter() | exp.SessionParameter():
            message = PARAMETER
            at = _first_word(text, "?", "$", ":", "@")
        case exp.Star():
            message = _STAR
        case exp.Columns():
            message = "COLUMNS stands for whatever columns there are; list them by name"
        case _ if type(node) in VOLATILE or _name(text, node) in VOLATILE_BY_NAME:
            message = (
                f"{_name(text, node)} gives another value at every reading, so that a run could not be repeated; "
                "write a constant, or use a column that holds the value"
            )
            at = node.meta.get("start", _first_word(text, _name(text, node)))
        case exp.Func() if _name(text, node) in _INSTEAD:
            message = f"owners do not run the function {_name(text, node)}. Write {_INSTEAD[_name(text, node)]}"
        case exp.Bracket() | exp.Slice():
            message = f"a part of a string or a list is not taken with [ ]; write substring(x, 1, 3), or {_VIEW}"
        case exp.Func() if "start" in node.meta:
            near = nearest(_name(text, node), _NAMES, cutoff=0.75)
            hint = f"Did you mean {near}? Otherwise" if near else "Use another, or"
            message = f"owners do not run the function {_name(text, node)}. {hint} {_VIEW}"
        case _:
            message = f"this expression cannot be pushed down to the owner of its columns; {_VIEW}"
    return refusal(text, message, at)


def _name(text: str, node: exp.Expr) -> str:
    """A function's name as written."""
    if "start" in node.meta:
        return text[node.meta["start"] : node.meta["end"] + 1].lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def _first_word(text: str, *written: str) -> int | None:
    return next((w.start for w in words(text) if w.text.lower() in written), None)
