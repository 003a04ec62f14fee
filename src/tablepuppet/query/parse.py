"""parse: SQL text → Ucq, or a QueryError that points at the text and says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError

from tablepuppet.errors import QueryError
from tablepuppet.query.position import refusal
from tablepuppet.query.select import check_clauses, read_select
from tablepuppet.query.ucq import Ucq

MAX_CHARACTERS = 100_000
MAX_DEPTH = 100  # sqlglot recurses; the Python stack must hold whoever calls us too
_DIALECT = Dialect.get_or_raise("duckdb")
TOO_DEEP = "the query is nested too deeply; write x IN (1, 2, …) for a long OR, and let owners offer views for the rest"


def parse(text: str) -> Ucq:
    """The union of conjunctive queries that a text describes.

    >>> parse("SELECT o.quantity, o.returned FROM orders AS o").branches[0].sources[0].alias.name
    'o'
    """
    try:
        tokens = _tokens(text)
        tree = _tree(text, tokens)
        return Ucq(text, tuple(read_select(text, tokens, select) for select in _selects(text, tokens, tree)))
    except RecursionError:
        raise QueryError(TOO_DEEP) from None


def _tokens(text: str) -> list[Token]:
    """The words of one SELECT statement, without its last semicolon."""
    if not isinstance(text, str):
        raise QueryError(f"the query must be SQL text, and it is a {type(text).__name__}; pass a string")
    if len(text) > MAX_CHARACTERS:
        raise QueryError(f"the query has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read. Shorten it")
    try:
        tokens = _DIALECT.tokenize(text)
    # The tokenizer meets arbitrary text here: whatever it raises means that the text is no SQL.
    except Exception as error:
        raise refusal(text, *_unreadable(text)) from error
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise QueryError("the query is empty; write SELECT features and label FROM tables")
    _check_start(text, tokens)
    return tokens


def _check_start(text: str, tokens: list[Token]) -> None:
    """Exactly one statement, and a SELECT."""
    first = next((t for t in tokens if t.token_type != TokenType.L_PAREN), tokens[0])
    if first.token_type == TokenType.WITH:
        raise refusal(
            text, "WITH is not supported; name the tables in FROM, or let an owner offer a view", first.start
        )
    if first.token_type != TokenType.SELECT:
        raise refusal(
            text,
            f"a query begins with SELECT, and this text begins with {first.text[:40]}. "
            "Nothing but SELECT is ever sent to an owner",
            first.start,
        )
    semicolon = next((t for t in tokens if t.token_type == TokenType.SEMICOLON), None)
    if semicolon is not None:
        raise refusal(text, "the text holds several statements; pass one SELECT", semicolon.start)
    depth = 0
    for token in tokens:
        depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE)
        depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END)
        if depth > MAX_DEPTH:
            raise refusal(text, TOO_DEEP, token.start)


def _unreadable(text: str) -> tuple[str, int | None]:
    """Why a text cannot be split into words: a quote or a comment that is never closed."""
    closing = {"'": "'", '"': '"', "/*": "*/", "--": "\n"}
    position = 0
    while position < len(text):
        opening = next((o for o in closing if text.startswith(o, position)), None)
        if opening is None:
            position += 1
            continue
        end = text.find(closing[opening], position + len(opening))
        if end < 0 and opening != "--":
            return f"the query is not valid SQL: {opening} is never closed; write {closing[opening]} at its end", position
        position = len(text) if end < 0 else end + len(closing[opening])
    return "the query is not valid SQL: it has a character or a number that cannot be read; remove it", None


def _tree(text: str, tokens: list[Token]) -> exp.Expr:
    """The syntax tree."""
    try:
        (tree,) = _DIALECT.parser().parse(tokens, text)
    except ParseError as error:
        raise _syntax_error(text, error) from None
    except RecursionError:
        raise
    # sqlglot reads arbitrary text here and sometimes fails in other ways: the text is no SQL either way.
    except Exception as error:
        raise QueryError("the query is not valid SQL; check it word by word against SELECT … FROM … JOIN … ON") from error
    if tree is None:
        raise QueryError("the query is empty; write SELECT features and label FROM tables")
    _check_depth(tree)
    return tree


def _check_depth(tree: exp.Expr) -> None:
    """Bounds the depth of the tree, where a chain of AND counts as one level."""
    waiting = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise QueryError(TOO_DEEP)
        flat = isinstance(node, (exp.And, exp.Union))
        waiting += [(child, depth if flat else depth + 1) for child in node.iter_expressions()]


def _syntax_error(text: str, error: ParseError) -> QueryError:
    """sqlglot's complaint in our words; its `col` is the last column of the word it stopped at."""
    found = error.errors[0] if error.errors else {}
    word = str(found.get("highlight") or "")
    what = f"unexpected {word[:40]}" if word else "it ends too early"
    message = f"the query is not valid SQL: {what}; check the words just before the caret"
    line, column = found.get("line"), found.get("col")
    if not isinstance(line, int) or not isinstance(column, int):
        return QueryError(message)
    return QueryError(message, text=text, line=line, column=max(column - len(word) + 1, 1))


def _selects(text: str, tokens: list[Token], tree: exp.Expr) -> Iterator[exp.Select]:
    """The branches of a UNION ALL from left to right, out of their parentheses."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, exp.Select):
            yield node
        elif isinstance(node, exp.Subquery):
            check_clauses(text, tokens, node, frozenset({"this"}))
            waiting.append(node.this)
        elif isinstance(node, exp.SetOperation):
            _check_union(text, tokens, node)
            waiting += [node.expression, node.this]
        else:
            raise refusal(text, "a query is a SELECT, or several with UNION ALL between them", node)


def _check_union(text: str, tokens: list[Token], node: exp.SetOperation) -> None:
    word = node.key.upper()
    at = next((t.start for t in tokens if t.text.upper() == word), None)
    if not isinstance(node, exp.Union):
        raise refusal(text, f"{word} is not supported; write conditions in WHERE, and UNION ALL to add rows", at)
    if node.args.get("distinct"):
        raise refusal(text, "UNION would drop rows that occur twice; write UNION ALL to keep every row", at)
    if node.args.get("by_name"):
        raise refusal(text, "UNION ALL BY NAME is not supported; list the columns in the same order", at)
    check_clauses(text, tokens, node, frozenset({"this", "expression", "distinct"}))
