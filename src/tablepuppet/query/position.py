"""Where in the text: a node of the syntax tree or an offset → line and column, and the error that points there."""

from __future__ import annotations

from functools import lru_cache

from sqlglot import Dialect, Token, TokenType, exp

from tablepuppet.errors import QueryError

At = exp.Expr | int | None
DIALECT = Dialect.get_or_raise("duckdb")


@lru_cache(maxsize=8)
def words(text: str) -> tuple[Token, ...]:
    """The text as SQL words, without the semicolons at its end; raises what sqlglot raises if it cannot be split."""
    tokens = DIALECT.tokenize(text)
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    return tuple(tokens)


def start_of(node: exp.Expr) -> int | None:
    """The offset of the first character of a node, as far as its parts remember theirs."""
    return min((n.meta["start"] for n in node.walk() if "start" in n.meta), default=None)


def word_before(text: str, at: At, *kinds: TokenType) -> int | None:
    """The offset of the last word of these kinds that does not come after `at`; `at` itself if there is none.

    Keywords leave no trace in the syntax tree: GROUP BY is found as the last GROUP BY before its first column.
    """
    offset = start_of(at) if isinstance(at, exp.Expr) else at
    end = len(text) if offset is None else offset
    found = [w.start for w in words(text) if w.token_type in kinds and w.start <= end]
    return found[-1] if found else offset


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """The place of an offset, both counted from 1; an offset past the end is just behind the last character.

    >>> line_and_column("SELECT x\\nFROM t", 14)
    (2, 6)
    """
    lines = text.splitlines(keepends=True) or [""]
    for number, line in enumerate(lines, start=1):
        if offset < len(line):
            return number, offset + 1
        offset -= len(line)
    return len(lines), len("".join(lines[-1].splitlines())) + 1


def refusal(text: str, message: str, at: At, kind: type[QueryError] = QueryError) -> QueryError:
    """An error that shows the text with a caret below `at`."""
    offset = start_of(at) if isinstance(at, exp.Expr) else at
    if offset is None:
        return kind(message, text=text)
    line, column = line_and_column(text, offset)
    return kind(message, text=text, line=line, column=column)
