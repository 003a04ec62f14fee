"""check_clauses: refuses the clauses of SELECT and UNION that cannot be federated, each with what to write instead."""

from __future__ import annotations

from typing import Final

from sqlglot import TokenType, exp

from tablepuppet.query.position import refusal, start_of, word_before

_ALL_ROWS = "because training uses every joined row, in any order"
SAMPLE = "a sample is not supported, because two readings would not agree; write a condition on a column in WHERE"

# Argument of sqlglot's node → the keyword that the caret is put under, and the message.
_REFUSED: Final[dict[str, tuple[TokenType, str]]] = {
    "distinct": (
        TokenType.DISTINCT,
        "DISTINCT is not supported, because the model is trained on every row of the join, copies included. Remove it",
    ),
    "group": (
        TokenType.GROUP_BY,
        "GROUP BY is not supported, because the model is trained on the joined rows themselves. Select the columns as "
        "they are; if one table has to be summed up first, join a subquery: "
        "JOIN (SELECT key, avg(x) AS x FROM t GROUP BY key) t ON …",
    ),
    "having": (TokenType.HAVING, "HAVING is not supported, because there are no groups; write the condition in WHERE"),
    "qualify": (
        TokenType.QUALIFY,
        "QUALIFY is not supported over joined rows; write it in a subquery over one table",
    ),
    "windows": (TokenType.WINDOW, "WINDOW is not supported over joined rows; write it in a subquery over one table"),
    "order": (TokenType.ORDER_BY, f"ORDER BY is not supported, {_ALL_ROWS}. Remove it"),
    "limit": (
        TokenType.LIMIT,
        f"LIMIT is not supported, {_ALL_ROWS}. Remove it; to train on fewer rows, write a condition in WHERE",
    ),
    "offset": (
        TokenType.OFFSET,
        f"OFFSET is not supported, {_ALL_ROWS}. Remove it; to train on fewer rows, write a condition in WHERE",
    ),
    "sample": (TokenType.TABLE_SAMPLE, SAMPLE),
}


def check_clauses(text: str, query: exp.Expr, read: frozenset[str]) -> None:
    """Raises QueryError for the first clause of a query node that is not among those `read`."""
    for key, value in query.args.items():
        if key in read or not value:
            continue
        if key not in _REFUSED:
            name = key.rstrip("_").replace("_", " ").upper()
            raise refusal(text, f"{name} is not supported in a query; remove it", query)
        keyword, message = _REFUSED[key]
        at = start_of(value) if isinstance(value, exp.Expr) else None
        raise refusal(text, message, word_before(text, at, keyword))
