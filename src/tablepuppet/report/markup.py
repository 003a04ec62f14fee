"""Pieces of HTML that the report's sections share; all text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", text_columns: int = 1) -> str:
    """A table whose first columns are text and whose other columns are numbers; heads and cells are HTML."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = ["" if i < text_columns else ' class="number"' for i in range(len(row))]
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table>{title}<thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def bar(share: float, text: str) -> str:
    """A number with a bar behind it."""
    return f'<span class="bar" style="--share: {max(0.0, min(share, 1.0)) * 100:.1f}%">{escape(text)}</span>'


def section(key: str, title: str, body: str) -> str:
    """One section with a heading that can be linked to."""
    return (
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{escape(title)}</h2>{body}</section>'
    )


def code(text: str) -> str:
    """A block of code that can be scrolled and copied."""
    button = '<button type="button" class="copy">Copy</button>'
    return f'<div class="code">{button}<pre tabindex="0">{escape(text)}</pre></div>'
