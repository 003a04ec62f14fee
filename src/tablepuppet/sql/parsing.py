"""parse: SQL text → Ucq, or a QueryError that points at the text and says what to write instead.

sqlglot makes the tree of one SELECT statement. An invalid text, however long, deep or
strange, always raises a QueryError.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError

from tablepuppet.errors import QueryError
from tablepuppet.sources.syntax import conditions_of, relations_of
from tablepuppet.sql import grammar
from tablepuppet.sql.grammar import TOO_DEEP, check_grammar, refusal, word_before, words
from tablepuppet.sql.history import join_histories
from tablepuppet.sql.select import read_select
from tablepuppet.sql.ucq import Tables, Ucq, has_subquery

Columns = Mapping[str, Sequence[str]]  # by the name of a table in lower case
MAX_CHARACTERS = 100_000
MAX_NODES = 50_000  # of queries that WITH names, once they stand in the place of their names
MAX_DEPTH = 100  # sqlglot recurses, and the Python stack must hold our caller too
_EMPTY = "the query is empty; write SELECT features, label FROM tables"
_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END)
_UNKNOWN = (
    "this SQL has a construct that is not known here; "
    "write SELECT … FROM … JOIN … ON … WHERE with plain expressions over columns"
)
_BACKTICK = 'names are quoted by double quotes here, as in o."unit price", not by backticks'
_DEFAULT_SCHEMAS = ("main", "public", "dbo")  # DuckDB's and SQLite's, PostgreSQL's, SQL Server's
_CONTEXT = 100  # characters that sqlglot gives before the place of an error


def syntax_tree(text: str) -> exp.Expr:
    """The tree of a text that is one SELECT, or several with a set operation between them."""
    if not isinstance(text, str):
        raise QueryError(f"the query must be SQL text, and its type is {type(text).__name__}; pass a string")
    if len(text) > MAX_CHARACTERS:
        raise QueryError(f"the query has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read. Shorten it")
    if not text.isprintable() and any("\ud800" <= c <= "\udfff" or c == "\0" for c in text):
        raise QueryError("the query holds characters that are not text; check how it was read or typed")
    check_grammar(text, _words(text))
    tree = _tree(text)
    for node in list(tree.find_all(exp.Table, exp.Column)):  # a default schema adds nothing to a table's name
        schema = node.args.get("db")
        if schema is not None and schema.name.lower() in _DEFAULT_SCHEMAS and not node.args.get("catalog"):
            node.set("db", None)
    _Inliner(text).inline(tree, {})
    return tree


def _words(text: str) -> Sequence[Token]:
    """The words of the text, which must be exactly one statement, a SELECT, not nested too deeply."""
    try:
        tokens = words(text)
    # The tokenizer meets arbitrary text here: any error means that the text is not SQL.
    except Exception as error:
        check_grammar(text)
        raise QueryError(f"{grammar.INVALID}: a word, a number or a quote in it cannot be read") from error
    if not tokens:
        raise QueryError(_EMPTY)
    first = next((t for t in tokens if t.token_type != TokenType.L_PAREN), tokens[0])
    if first.token_type not in (TokenType.SELECT, TokenType.WITH):
        raise refusal(
            text,
            f"a query begins with SELECT or WITH, and this text begins with {first.text[:40]}. "
            "Nothing else is ever sent to an owner",
            first.start,
        )
    semicolon = next((t for t in tokens if t.token_type == TokenType.SEMICOLON), None)
    if semicolon is not None:
        raise refusal(text, "the text holds several statements; pass one SELECT", semicolon.start)
    depth = 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth > MAX_DEPTH:
            raise refusal(text, TOO_DEEP, token.start)
    return tokens


def _tree(text: str) -> exp.Expr:
    """sqlglot's tree, not too deep."""
    try:
        (tree,) = grammar.DIALECT.parser().parse(list(words(text)), text)
    except RecursionError:
        raise
    # DuckDB has read this text, so that it is SQL; sqlglot, which fails in many ways, does not know it.
    except Exception as error:
        found = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        start = found.get("start_context")
        # The context is cut to its last hundred characters; a longer one does not locate the error.
        at = len(start) if isinstance(start, str) and len(start) < _CONTEXT else None
        if "`" in re.sub("'[^']*'", "", text):
            raise refusal(text, _BACKTICK, text.index("`")) from error
        # sqlglot reads %s as "modulo s", and stops at the s.
        known = at is not None and grammar.is_parameter(text, at - 1)
        raise refusal(text, grammar.PARAMETER if known else _UNKNOWN, at) from error
    if tree is None:
        raise QueryError(_EMPTY)
    waiting = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise refusal(text, TOO_DEEP, node)
        # Chains of AND and UNION ALL are taken apart link by link, however long.
        deeper = 0 if isinstance(node, (exp.And, exp.Union)) else 1
        waiting += [(child, depth + deeper) for child in node.iter_expressions()]
    return tree


def parse(text: str, columns: Columns | None = None, tables: Tables | None = None) -> Ucq:
    """The union of conjunctive queries that a text describes.

    `columns`: those of its tables, where the text needs them; `tables`: who holds them, which histories depend on.

    >>> query = parse("SELECT o.quantity, o.returned FROM orders AS o")
    >>> query.branches[0].sources[0].alias.name
    'o'
    """
    try:
        tree = syntax_tree(text)
        if columns is not None:
            qualify(tree, columns)
        selects = list(_selects(text, tree))
        if tables is not None:
            for select in selects:
                join_histories(text, select, tables)
        return Ucq(text, tuple(read_select(text, s, is_branch=len(selects) > 1) for s in selects))
    except RecursionError:
        raise QueryError(TOO_DEEP) from None


class _Inliner:
    """Writes the query that WITH names in the place of each use of the name: a subquery like any other."""

    def __init__(self, text: str) -> None:
        self._text, self._left = text, MAX_NODES

    def inline(self, node: exp.Expr, around: Mapping[str, exp.CTE]) -> None:
        """In place; `around`: the names of the queries around this one. A query of WITH sees those before it, and a
        table that it hides."""
        known, clause = dict(around), node.args.get("with_")
        if clause is not None:
            if clause.args.get("recursive"):
                at = word_before(self._text, clause, TokenType.WITH)
                advice = "let the table's owner offer the result as a view"
                raise refusal(self._text, f"WITH RECURSIVE is not supported; {advice}", at)
            for cte in clause.expressions:
                if not isinstance(cte.this, exp.Query):
                    message = "WITH names queries; write WITH name AS (SELECT …)"
                    if isinstance(cte.this, exp.Pivot | exp.Table):
                        message += ", and for PIVOT an aggregate for each value: sum(x) FILTER (WHERE kind = 'a') AS a"
                    raise refusal(self._text, message, cte)
                self.inline(cte.this, known)
                known[cte.alias.lower()] = cte
            node.set("with_", None)
        for child in list(node.iter_expressions()):
            self.inline(child, known)
            if isinstance(child, exp.Table) and child.name.lower() in known and child.args.get("db") is None:
                child.replace(self._as_subquery(child, known[child.name.lower()]))

    def _as_subquery(self, table: exp.Table, cte: exp.CTE) -> exp.Subquery:
        """A use of a name, whose columns have the names that WITH gives them."""
        self._left -= sum(1 for _ in cte.this.walk())
        if self._left < 0:
            raise refusal(self._text, "names of WITH are used so often that the query is too long; use fewer", table)
        query, renamed = cte.this.copy(), cte.args["alias"]
        if renamed.columns:
            query = exp.select("*").from_(exp.Subquery(this=query, alias=renamed.copy()))
        alias = table.args.get("alias") or exp.TableAlias(this=table.this.copy())
        others = {key: value for key, value in table.args.items() if key not in ("this", "alias")}
        return exp.Subquery(**others | {"this": query, "alias": alias.copy()})


def _selects(text: str, tree: exp.Expr) -> Iterator[exp.Select]:
    """The branches of a UNION ALL from left to right, out of their parentheses."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, exp.Select):
            yield node
        elif isinstance(node, exp.Subquery):
            grammar.check_clauses(text, node, frozenset({"this"}))
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
    grammar.check_clauses(text, node, frozenset({"this", "expression", "distinct"}))


def unqualified_columns(tree: exp.Expr) -> list[exp.Column]:
    """The columns that may belong to either of two queries."""
    found: dict[int, exp.Column] = {}
    for select in tree.find_all(exp.Select):
        histories = [join for join in select.args.get("joins") or () if _may_be_history(join)]
        for node in [*conditions_of(select), *select.expressions, *histories]:
            if has_subquery(node) or node in histories:
                columns = (c for c in node.find_all(exp.Column) if not c.args.get("table"))
                own = (c for c in columns if isinstance(c.find_ancestor(exp.Query), exp.Select))  # no ORDER BY of UNION
                found.update((id(c), c) for c in own if not isinstance(c.this, exp.Star))
    return list(found.values())


def _may_be_history(join: exp.Join) -> bool:
    """Whether a join may read a table until a moment (sql/history.py)."""
    inner = join.this.this if isinstance(join.this, exp.Subquery) else None
    is_grouped = isinstance(inner, exp.Select) and inner.args.get("group") is not None and bool(inner.args.get("joins"))
    return isinstance(join.this, exp.Lateral) or join.method == "ASOF" or is_grouped


def qualify(tree: exp.Expr, columns: Columns) -> None:
    """Names the table of each such column, in place: TPC's o_custkey = c_custkey names no table.

    A column is looked up as SQL does: in the FROM clause around it, then in the one around that. A column that
    two tables have, or may have, stays as it was written.
    """
    for column in unqualified_columns(tree):
        scope = column.find_ancestor(exp.Select)
        while scope is not None:
            sources = [(alias, _names(source, columns)) for alias, source in _sources(scope)]
            holders = [alias for alias, names in sources if names is not None and column.name.lower() in names]
            is_alias = any(
                isinstance(i, exp.Alias) and i.alias.lower() == column.name.lower() for i in scope.expressions
            )
            if len(holders) == 1 and not (is_alias and _clause(scope, column) in ("order", "having", "qualify")):
                column.set("table", holders[0].copy())
            if holders or is_alias or any(names is None for _, names in sources):
                break
            scope = scope.find_ancestor(exp.Select)


def _clause(select: exp.Select, node: exp.Expr) -> str | None:
    """Which part of a SELECT a node below it is in."""
    while node.parent is not select and node.parent is not None:
        node = node.parent
    return node.arg_key


def _sources(select: exp.Select) -> Iterator[tuple[exp.Identifier, exp.Expr]]:
    """The sources of a FROM clause, by alias. A subquery without one is given DuckDB's, in place."""
    for number, node in enumerate(relations_of(select)):
        alias = node.args.get("alias")
        if alias is None and isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
            alias = exp.TableAlias(this=exp.to_identifier(f"unnamed_subquery{number or ''}"))
            node.set("alias", alias)
        named = alias.this if alias is not None else node.this
        yield named if isinstance(named, exp.Identifier) else exp.to_identifier(""), node


def _names(source: exp.Expr, columns: Columns) -> set[str] | None:
    """The columns of a source in lower case; None: unknown."""
    if isinstance(source, exp.Table) and not source.args.get("joins"):
        known = columns.get(source.name.lower())
        return None if known is None else {name.lower() for name in known}
    if isinstance(source, exp.Subquery) and source.args["alias"] is not None and source.args["alias"].columns:
        return {column.name.lower() for column in source.args["alias"].columns}
    return _selected_names(source.this) if isinstance(source, exp.Subquery) else None


def _selected_names(query: exp.Expr) -> set[str] | None:
    if not isinstance(query, exp.Query):
        return None
    names = query.named_selects
    if names == ["*"] and isinstance(query, exp.Select) and len(relations_of(query)) == 1:
        return _names(relations_of(query)[0], {})  # as WITH t(a, b) is written
    return None if "*" in names else {name.lower() for name in names}
