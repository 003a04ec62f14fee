"""HTML that a notebook shows: small fragments, escaped, without script and without style sheets of their own.

Everything that is given as text is escaped here. What is shown are names, counts and figures; never a row's value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_NUMBER = ' style="text-align: right; font-variant-numeric: tabular-nums"'
_TEXT = ' style="text-align: left"'


def fragment(title: str, *parts: str) -> str:
    """One thing under its title; the parts are HTML."""
    return f'<div class="tablepuppet"><p><strong>{escape(title)}</strong></p>{"".join(parts)}</div>'


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1, caption: str = "", marked: int = -1
) -> str:
    """A table whose first columns are text and whose others are numbers; one of its rows may be marked.

    >>> table(["side", "r2"], [["<test>", "0.5"]]).count("&lt;test&gt;")
    1
    """

    def cells(tag: str, row: Sequence[str], is_marked: bool = False) -> str:
        shown = (f"<b>{escape(cell)}</b>" if is_marked else escape(cell) for cell in row)
        return "".join(f"<{tag}{_TEXT if i < text_columns else _NUMBER}>{cell}</{tag}>" for i, cell in enumerate(shown))

    title = f"<caption{_TEXT}>{escape(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{cells('td', row, number == marked)}</tr>" for number, row in enumerate(rows))
    return f"<table>{title}<thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def lines(texts: Iterable[str]) -> str:
    """Text whose columns and branches are aligned."""
    return f'<pre style="line-height: 1.3">{escape(chr(10).join(texts))}</pre>'


def items(texts: Iterable[str]) -> str:
    """A list of sentences."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def folded(summary: str, *parts: str) -> str:
    """Parts that are shown on demand."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(parts)}</details>"
