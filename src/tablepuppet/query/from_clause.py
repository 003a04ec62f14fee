"""read_from: the FROM clause of a SELECT → one Source for each table, in the order of the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from sqlglot import Token, TokenType, exp

from tablepuppet.errors import QueryError
from tablepuppet.query.conjuncts import conjuncts_of
from tablepuppet.query.position import At, refusal, start_of
from tablepuppet.query.scalar import check_scalar
from tablepuppet.query.ucq import Source

_JOINS = {
    "RIGHT": "RIGHT JOIN is not supported; swap the two tables and write LEFT JOIN",
    "FULL": "FULL JOIN is not supported, because rows without a label cannot be trained on. Begin with the table that holds the label and write LEFT JOIN",
    "SEMI": "SEMI JOIN is not supported; write JOIN. If a key occurs several times in the other table, let its owner offer a view with each key once",
    "ANTI": "ANTI JOIN is not supported, because no row of the other table would take part",
    "NATURAL": "NATURAL JOIN is not supported, because it depends on which columns the owners have today; write USING (key)",
    "ASOF": "ASOF JOIN is not supported, because tables can only be joined on equal keys; write JOIN … ON with =",
    "POSITIONAL": "POSITIONAL JOIN is not supported, because rows have no order; join on a key",
}  # fmt: skip


def read_from(text: str, tokens: list[Token], select: exp.Select) -> Iterator[Source]:
    """The tables, and how each is joined to those before it."""
    table, alias = _table(text, select.args["from_"].this)
    yield Source(table, alias, "inner", (), (), tree=0)
    tree = 0
    for join in select.args.get("joins") or ():
        at = start_of(join.this)
        before = _join_tokens(tokens, at)
        _check_kind(text, join, before[0].start if before else at)
        table, alias = _table(text, join.this)
        comma = before[-1:] == [] or before[-1].token_type == TokenType.COMMA
        tree += comma
        yield _source(text, join, table, alias, tree, comma)


def _source(
    text: str, join: exp.Join, table: exp.Identifier, alias: exp.Identifier, tree: int, comma: bool
) -> Source:
    on = tuple(conjuncts_of(join.args["on"])) if join.args.get("on") is not None else ()
    using = tuple(_using(text, node) for node in join.args.get("using") or ())
    kind: Literal["inner", "left"] = "left" if join.side == "LEFT" else "inner"
    if not on and not using and not comma and join.kind != "CROSS":
        raise refusal(
            text,
            f"JOIN {alias.name} has no ON; write ON with the keys, for example ON a.id = {alias.name}.id, or USING (id)",
            table,
        )
    for condition in on:
        check_scalar(text, condition)
    return Source(table, alias, kind, on, using, tree)


def _using(text: str, node: exp.Expr) -> exp.Identifier:
    """A column name of USING."""
    name = node.this if isinstance(node, exp.Column) and not node.args.get("table") else node
    if isinstance(name, exp.Identifier):
        return name
    raise refusal(text, "USING takes bare column names, as in USING (id); for anything else write ON", node)


def _check_kind(text: str, join: exp.Join, at: At) -> None:
    """Only INNER, LEFT [OUTER] and CROSS JOIN, and the comma."""
    for word in (join.method, join.side, join.kind):
        if word in _JOINS:
            raise refusal(text, _JOINS[word], at)
    known = {"this", "on", "using", "side", "kind"}
    if join.method or join.kind not in ("", "INNER", "OUTER", "CROSS") or any(
        value for key, value in join.args.items() if key not in known
    ):
        raise refusal(text, "this kind of join is not supported; write JOIN or LEFT JOIN with ON or USING", at)


def _join_tokens(tokens: list[Token], table_start: int | None) -> list[Token]:
    """The words between the last table and this one that say how it is joined: `LEFT OUTER JOIN`, or a comma."""
    words = {"natural", "left", "right", "full", "outer", "inner", "cross", "semi", "anti", "asof", "positional"}
    found: list[Token] = []
    for token in reversed([t for t in tokens if table_start is not None and t.start < table_start]):
        if token.text.lower() in words | {"join", ","} and not (found and token.text == ","):
            found.insert(0, token)
        elif token.token_type == TokenType.L_PAREN or token.text.lower() == "lateral":
            continue
        else:
            break
    return found


def _table(text: str, node: exp.Expr) -> tuple[exp.Identifier, exp.Identifier]:
    """A table's name and its alias."""
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        raise _not_a_table(text, node)
    if node.args.get("db") is not None:
        raise refusal(
            text,
            f"a table has one name, as the federation calls it; {node.sql('duckdb')} has several parts. "
            "Give the owner's schema in the federation's source, not in the query",
            node,
        )
    extra = next((key for key, value in node.args.items() if value and key not in ("this", "alias")), None)
    if extra == "joins":
        raise refusal(text, "joins in parentheses are not supported; write them one after the other", node)
    if extra is not None:
        raise refusal(text, f"{extra.upper()} is not supported after a table; write its name and an alias", node)
    alias = node.args.get("alias")
    if alias is None:
        return node.this, node.this
    if alias.args.get("columns") or not isinstance(alias.this, exp.Identifier):
        raise refusal(text, "an alias cannot rename columns; rename them with AS in the SELECT list", alias)
    return node.this, alias.this


def _not_a_table(text: str, node: exp.Expr) -> QueryError:
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
        message = "joins in parentheses are not supported; write them one after the other"
    elif isinstance(node, exp.Lateral):
        message = "LATERAL is not supported; join a table of the federation on a key"
    elif isinstance(node, (exp.Subquery, exp.Query)):
        message = (
            "a subquery in FROM is not supported; join its tables directly, or let their owner offer it as a view"
        )
    else:
        message = "FROM takes the names of the federation's tables only; give files and functions to the federation as sources"
    return refusal(text, message, node)
