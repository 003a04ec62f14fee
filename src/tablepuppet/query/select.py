"""read_select: one SELECT of the syntax tree → Conjunctive, or a refusal that says what to write instead."""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import Token, TokenType, exp

from tablepuppet.query.conjuncts import conjuncts_of
from tablepuppet.query.from_clause import read_from
from tablepuppet.query.joins import join_tree
from tablepuppet.query.position import refusal, start_of
from tablepuppet.query.scalar import check_scalar
from tablepuppet.query.scope import Scope, is_resolved
from tablepuppet.query.ucq import Conjunctive, Item, Star


class _Clause(NamedTuple):
    """A part of SELECT that is refused: where its keyword is found, and what to write instead."""

    keyword: TokenType
    message: str


_ROWS = "training uses every joined row, in any order"
_CLAUSES = {
    "with_": _Clause(TokenType.WITH, "WITH is not supported; name the tables in FROM, or let an owner offer a view"),
    "distinct": _Clause(TokenType.DISTINCT, "DISTINCT is not supported: the model is trained on the rows of the join, copies included. Remove it"),
    "group": _Clause(TokenType.GROUP_BY, "GROUP BY is not supported: the model is trained on the joined rows themselves. Select the columns; if one table must be summed up first, let its owner offer a view"),
    "having": _Clause(TokenType.HAVING, "HAVING is not supported, because there are no groups; write the condition in WHERE"),
    "qualify": _Clause(TokenType.QUALIFY, "QUALIFY is not supported, because there are no window functions; write a condition on one table in WHERE"),
    "windows": _Clause(TokenType.WINDOW, "WINDOW is not supported, because there are no window functions; remove it"),
    "order": _Clause(TokenType.ORDER_BY, f"ORDER BY is not supported, because {_ROWS}. Remove it"),
    "limit": _Clause(TokenType.LIMIT, f"LIMIT is not supported, because {_ROWS}. To train on fewer rows, write a condition in WHERE"),
    "offset": _Clause(TokenType.OFFSET, f"OFFSET is not supported, because {_ROWS}. To train on fewer rows, write a condition in WHERE"),
    "sample": _Clause(TokenType.TABLE_SAMPLE, "samples are not supported, because two readings would not agree; write a condition on a column in WHERE"),
    "into": _Clause(TokenType.INTO, "SELECT INTO is not supported, because nothing is ever written to an owner's database. Remove INTO"),
    "locks": _Clause(TokenType.FOR, "FOR UPDATE is not supported, because nothing is ever written to an owner's database. Remove it"),
    "laterals": _Clause(TokenType.LATERAL, "LATERAL is not supported; join a table of the federation on a key"),
    "pivots": _Clause(TokenType.PIVOT, "PIVOT is not supported; select the columns, or let an owner offer a view"),
}  # fmt: skip
_READ = frozenset({"expressions", "from_", "joins", "where"})


def check_clauses(text: str, tokens: list[Token], query: exp.Expr, read: frozenset[str] = _READ) -> None:
    """Refuses every clause of a query that is not read."""
    for key, value in query.args.items():
        if key in read or value is None or value is False or value == []:
            continue
        clause = _CLAUSES.get(key)
        if clause is None:
            raise refusal(text, f"{key.rstrip('_').upper()} is not supported in a query; remove it", query)
        nearby = start_of(value) if isinstance(value, exp.Expr) else None
        before = [t.start for t in tokens if t.token_type == clause.keyword and t.start <= (nearby or len(text))]
        raise refusal(text, clause.message, before[-1] if before else query)


def read_select(text: str, tokens: list[Token], select: exp.Select) -> Conjunctive:
    """A SELECT as a conjunctive query; all that can be checked without a schema is checked."""
    check_clauses(text, tokens, select)
    if select.args.get("from_") is None:
        raise refusal(text, "this SELECT has no FROM clause; name the tables that hold the columns", select)
    sources = tuple(read_from(text, tokens, select))
    items = tuple(_item(text, node) for node in select.expressions)
    if not items:
        raise refusal(text, "the SELECT list is empty; name the feature columns and the label", select)
    where = select.args.get("where")
    conjuncts = tuple(conjuncts_of(where.this)) if where is not None else ()
    for conjunct in conjuncts:
        check_scalar(text, conjunct)
    query = Conjunctive(items, sources, conjuncts)
    _check_tables(text, query)
    return query


def one_table(scope: Scope, expression: exp.Expr) -> int:
    """The table that a SELECT item is over; there must be exactly one."""
    relations = scope.relations(expression)
    if not relations:
        raise refusal(
            scope.text,
            "this item names no column; a constant teaches a model nothing, and an intercept is always added. Remove it",
            expression,
        )
    if len(relations) > 1:
        raise refusal(
            scope.text,
            f"this item mixes columns of {scope.names(relations)}, which lie with different owners. Select an expression "
            "of each table instead: a linear model adds them up by itself",
            expression,
        )
    return relations[0]


def _item(text: str, node: exp.Expr) -> Item | Star:
    """One item of the SELECT list."""
    star = node if isinstance(node, exp.Star) else node.this if isinstance(node, exp.Column) else None
    if isinstance(star, exp.Star):
        if any(star.args.values()):
            raise refusal(text, "EXCLUDE, REPLACE and RENAME are not supported after *; list the columns", node)
        return Star(node.args.get("table"), node)
    expression = node.this if isinstance(node, exp.Alias) else node
    name = node.args["alias"] if isinstance(node, exp.Alias) else None
    check_scalar(text, expression)
    return Item(expression.unnest(), name)


def _check_tables(text: str, query: Conjunctive) -> None:
    """Checks who owns what as far as the text alone tells: only columns that name their table."""
    scope = Scope(text, query.sources)
    for item in query.items:
        if isinstance(item, Star):
            if item.alias is not None:
                scope.relation(item.alias)
        elif is_resolved(item.expression):
            one_table(scope, item.expression)
    on = [condition for source in query.sources for condition in source.on]
    if all(is_resolved(c) for c in [*on, *query.where]) and not any(s.using for s in query.sources):
        join_tree(scope, query.sources, query.where)

