"""parse: SQL text → Ucq, or a QueryError that points at the text and says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import TokenType, exp

from tablepuppet.errors import QueryError
from tablepuppet.query.clauses import check_clauses
from tablepuppet.query.derived import read_with
from tablepuppet.query.grammar import TOO_DEEP
from tablepuppet.query.position import refusal, word_before
from tablepuppet.query.select import read_select
from tablepuppet.query.syntax import syntax_tree
from tablepuppet.query.ucq import Ucq

_UNION = frozenset({"this", "expression", "distinct", "with_"})


def parse(text: str) -> Ucq:
    """The union of conjunctive queries that a text describes.

    >>> query = parse("SELECT o.quantity, o.returned FROM orders AS o")
    >>> query.branches[0].sources[0].alias.name
    'o'
    """
    try:
        tree = syntax_tree(text)
        ctes = read_with(text, tree)
        return Ucq(text, tuple(read_select(text, select, ctes) for select in _selects(text, tree)))
    except RecursionError:
        raise QueryError(TOO_DEEP) from None


def _selects(text: str, tree: exp.Expr) -> Iterator[exp.Select]:
    """The branches of a UNION ALL from left to right, out of their parentheses."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, exp.Select):
            yield node
        elif isinstance(node, exp.Subquery):
            check_clauses(text, node, frozenset({"this"}))
            waiting.append(node.this)
        elif isinstance(node, exp.SetOperation):
            _check_union(text, node)
            waiting += [node.expression, node.this]
        else:
            raise refusal(text, "a query is a SELECT, or several with UNION ALL between them", node)


def _check_union(text: str, node: exp.SetOperation) -> None:
    """Only UNION ALL, which keeps every row."""
    at = word_before(text, node.expression, TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT)
    if not isinstance(node, exp.Union):
        word = node.key.upper()
        raise refusal(text, f"{word} is not supported; write conditions in WHERE, and UNION ALL to add rows", at)
    if node.args.get("distinct"):
        raise refusal(text, "UNION drops rows that occur twice; write UNION ALL, which keeps every row", at)
    if node.args.get("by_name"):
        raise refusal(text, "UNION ALL BY NAME is not supported; list the columns in the same order instead", at)
    check_clauses(text, node, _UNION)
