"""read_from: the FROM clause of a SELECT → one Source for each table, in the order of the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlglot import Token, TokenType, exp

from tablepuppet.errors import QueryError
from tablepuppet.query.conditions import conjuncts_of
from tablepuppet.query.derived import Ctes, base_tables, derive
from tablepuppet.query.grammar import SAMPLE
from tablepuppet.query.position import At, refusal, start_of, word_before, words
from tablepuppet.query.scalar import check_scalar
from tablepuppet.query.ucq import Source

_NESTED = "joins inside joins are not supported; write them one after the other, each with its own ON"
_READ = frozenset({"this", "on", "using", "side", "kind"})
_KINDS: Final = {
    "RIGHT": "RIGHT JOIN is not supported; swap the two tables and write LEFT JOIN",
    "FULL": (
        "FULL JOIN is not supported, because rows without a label cannot be trained on. Begin FROM with the table that "
        "holds the label and write LEFT JOIN"
    ),
    "SEMI": (
        "SEMI JOIN is not supported; write JOIN. If a key occurs several times in the other table, let its owner offer "
        "a view that has each key once"
    ),
    "ANTI": "ANTI JOIN is not supported, because no row of the other table takes part; let an owner offer a view",
    "NATURAL": "NATURAL JOIN is not supported, because owners may add columns; name the keys: JOIN … USING (key)",
    "ASOF": "ASOF JOIN is not supported, because tables can only be joined on equal keys; write JOIN … ON with =",
    "POSITIONAL": "POSITIONAL JOIN is not supported, because rows have no order; join on a key",
}
_JOIN_WORDS = frozenset({*(kind.lower() for kind in _KINDS), "left", "outer", "inner", "cross", "join", "lateral"})


def read_from(text: str, select: exp.Select, ctes: Ctes) -> Iterator[Source]:
    """The tables, and how each is joined to those before it."""
    yield Source(*_table(text, select.args["from_"].this, ctes))
    tree = 0
    for join in select.args.get("joins") or ():
        before = _join_words(text, start_of(join.this))
        _check_kind(text, join, before[0].start if before else join)
        if before and before[-1].token_type == TokenType.COMMA:
            tree += 1
        yield _source(text, join, tree, ctes)


def _source(text: str, join: exp.Join, tree: int, ctes: Ctes) -> Source:
    on = tuple(conjuncts_of(join.args["on"])) if join.args.get("on") else ()
    for condition in on:
        check_scalar(text, condition)
    using = tuple(_using(text, node) for node in join.args.get("using") or ())
    table, alias, derived = _table(text, join.this, ctes)
    return Source(table, alias, derived, "left" if join.side == "LEFT" else "inner", on, using, tree)


def _using(text: str, node: exp.Expr) -> exp.Identifier:
    """A column name of USING."""
    name = node.this if isinstance(node, exp.Column) and not node.args.get("table") else node
    if isinstance(name, exp.Identifier):
        return name
    raise refusal(text, "USING takes bare column names, as in USING (id); for anything else write ON", node)


def _check_kind(text: str, join: exp.Join, at: At) -> None:
    """Only INNER, LEFT [OUTER] and CROSS JOIN, and the comma."""
    for word in (join.method, join.side, join.kind):
        if word in _KINDS:
            raise refusal(text, _KINDS[word], at)
    plain = join.kind in ("", "INNER", "OUTER", "CROSS") and join.side in ("", "LEFT")
    if not plain or any(value for key, value in join.args.items() if key not in _READ):
        raise refusal(text, "this kind of join is not supported; write JOIN or LEFT JOIN with ON or USING", at)


def _join_words(text: str, table_start: int | None) -> list[Token]:
    """The words just before a table that say how it is joined: LEFT OUTER JOIN, or a comma."""
    found: list[Token] = []
    for word in reversed([w for w in words(text) if table_start is not None and w.start < table_start]):
        if word.token_type == TokenType.COMMA and not found:
            return [word]
        if word.text.lower() in _JOIN_WORDS:
            found.insert(0, word)
        elif word.token_type != TokenType.L_PAREN:
            break
    return found


def _table(text: str, node: exp.Expr, ctes: Ctes) -> tuple[exp.Identifier, exp.Identifier, exp.Query | None]:
    """A table's name, its alias, and the query that stands for it, if it is one."""
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
        return _subquery(text, node, ctes)
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        raise _not_a_table(text, node)
    if node.args.get("db") is not None:
        raise refusal(
            text,
            "a table has one name, as the federation calls it, without a schema or a database before it. "
            "Give those in the federation's source, not in the query",
            node,
        )
    extra = next((key for key, value in node.args.items() if value and key not in ("this", "alias")), None)
    if extra == "joins":
        raise refusal(text, _NESTED, node)
    if extra == "sample":
        raise refusal(text, SAMPLE, node)
    if extra is not None:
        raise refusal(text, "only an alias may follow the name of a table in FROM; remove the rest", node)
    alias = node.args.get("alias")
    if alias is None:
        return _named(text, node.this, node.this, ctes)
    if alias.args.get("columns") or not isinstance(alias.this, exp.Identifier):
        raise refusal(text, "an alias cannot rename columns; rename them with AS in the SELECT list", alias)
    return _named(text, node.this, alias.this, ctes)


def _named(
    text: str, name: exp.Identifier, alias: exp.Identifier, ctes: Ctes
) -> tuple[exp.Identifier, exp.Identifier, exp.Query | None]:
    """A table of the federation, or a query that WITH names."""
    if name.name.lower() not in ctes:
        return name, alias, None
    query = derive(text, exp.select("*").from_(exp.Table(this=name.copy())), ctes)
    return base_tables(query)[0].this, alias, query


def _subquery(text: str, node: exp.Subquery, ctes: Ctes) -> tuple[exp.Identifier, exp.Identifier, exp.Query]:
    alias = node.args.get("alias")
    at = word_before(text, node, TokenType.SELECT)
    if alias is None or not isinstance(alias.this, exp.Identifier):
        raise refusal(text, "a subquery in FROM needs a name; write (SELECT …) AS t", at)
    if alias.args.get("columns"):
        raise refusal(text, "an alias cannot rename columns; rename them with AS inside the subquery", alias)
    query = derive(text, node.this, ctes)
    return base_tables(query)[0].this, alias.this, query


def _not_a_table(text: str, node: exp.Expr) -> QueryError:
    at: At = node
    if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
        message = _NESTED
    elif isinstance(node, exp.Lateral):
        message = "LATERAL is not supported; join a table of the federation on a key"
        at = word_before(text, node, TokenType.LATERAL)
    else:
        message = "FROM takes names of the federation's tables; give a file or a function to the federation as a source"
    return refusal(text, message, at)
