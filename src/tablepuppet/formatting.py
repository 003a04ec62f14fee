"""Formats for people, in explain, reports and on the command line: sizes, times, numbers, columns.

Also makes foreign text safe to show: no control character reaches a terminal or a log. Also HTML for
notebooks: small fragments, without script and without style sheets of their own, in which all text is escaped.
"""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits, without noise.

    >>> number(0.123456), number(2101827), number(1.5e-9), number(None)
    ('0.1235', '2,101,827', '1.5e-09', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1e4:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:,.{decimals}f}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.{digits - 1}g}"


def size(count: float) -> str:
    """A number of bytes, in powers of ten as networks count.

    >>> size(999), size(12_345), size(123_456), size(2_500_000_000)
    ('999 B', '12.3 kB', '123 kB', '2.5 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 999.5 * factor else f"{count / factor:,.0f} {unit}"
    return f"{count:.0f} B"


def seconds(value: float) -> str:
    """A time, as precise as an estimate deserves.

    >>> seconds(0.0123), seconds(47.71), seconds(7384)
    ('12 ms', '47.7 s', '2 h 03 min')
    """
    if value < 1:
        return f"{value * 1000:.2g} ms" if value < 0.01 else f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.3g} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def tick_text(value: float) -> str:
    """A number on an axis; one of four digits may be a year.

    >>> tick_text(0.9), tick_text(1990.0), tick_text(20000.0), tick_text(1e-06)
    ('0.9', '1990', '20,000', '1e-06')
    """
    return f"{value:,.10g}" if abs(value) >= 1e4 else f"{value:.10g}"


def format_count(count: int) -> str:
    """
    >>> format_count(2000), format_count(9_000_000_000)
    ('2,000', '9.0e9')
    """
    return f"{count:,}" if count < 10**9 else f"{count:.1e}".replace("e+0", "e").replace("e+", "e")


def plural(count: int, word: str) -> str:
    """
    >>> plural(1, "row"), plural(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {word}{'s' * (count != 1)}"


def columns(rows: Sequence[Sequence[str]], indent: str = "  ", flush_first: bool = True) -> list[str]:
    """Lines of a table: by default the first column to the left, the others to the right.

    >>> print(*columns([["", "rows"], ["orders", "12"]]), sep="\\n")
               rows
      orders     12
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        if flush_first:
            cells[0] = row[0].ljust(widths[0])
        lines.append((indent + "   ".join(cells)).rstrip())
    return lines


def groups(titles: Sequence[str], tables: Sequence[Sequence[Sequence[str]]]) -> list[str]:
    """Tables side by side, each under its title, a rule between them.

    >>> print(*groups(["", "time"], [[["", "rows"], ["a", "1"]], [["UK", "US"], ["2 s", "1 s"]]]), sep="\\n")
               │ time
          rows │  UK    US
      a      1 │ 2 s   1 s
    """
    made = []
    for i, (title, table) in enumerate(zip(titles, tables, strict=True)):
        lines = [title, *columns(table, indent="", flush_first=i == 0)]
        width = max(map(len, lines))
        made.append([line.ljust(width) for line in lines])
    return [("  " + " │ ".join(line)).rstrip() for line in zip(*made, strict=True)]


LONGEST_FAILURE = 1000  # characters of another party's error message
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # controls, formats (writing direction among them), line separators
_JOINERS = "\u200c\u200d"  # inside words and emoji


def printable(text: str, *, keep: str = "", most: int | None = None) -> str:
    """The text with its control characters spelled out; those in `keep` stay. `most`: so many characters of it.

    >>> print(printable("a\\x1b[31mb\\nc\\u202ed"))
    a\\x1b[31mb\\nc\\u202ed
    >>> print(printable("two\\nlines", keep="\\n"))
    two
    lines
    >>> print(printable("a" * 60_000, most=5))
    aaaaa… (59,995 more characters)
    """
    if most is not None and len(text) > most:
        return f"{printable(text[:most], keep=keep)[:most]}… ({len(text) - most:,} more characters)"
    if text.isascii() and text.isprintable():
        return text
    kept = {*keep, *_JOINERS, *(c for c in set(text) if unicodedata.category(c) not in _HIDDEN)}
    return "".join(c if c in kept else c.encode("unicode_escape").decode("ascii") for c in text)


_NUMBER = ' style="text-align: right; font-variant-numeric: tabular-nums"'
_TEXT = ' style="text-align: left"'


def fragment(title: str, *parts: str) -> str:
    """One thing under its title; the parts are HTML."""
    return f'<div class="tablepuppet"><p><strong>{escape(title)}</strong></p>{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> str:
    """A table whose first columns are text and whose others are numbers.

    >>> table(["side", "r2"], [["<test>", "0.5"]]).count("&lt;test&gt;")
    1
    """

    def cells(tag: str, row: Sequence[str]) -> str:
        styles = [_TEXT if i < text_columns else _NUMBER for i in range(len(row))]
        return "".join(f"<{tag}{style}>{escape(cell)}</{tag}>" for style, cell in zip(styles, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def lines_of(texts: Iterable[str]) -> str:
    """Text whose columns and branches are aligned."""
    return f'<pre style="line-height: 1.3">{escape(chr(10).join(texts))}</pre>'


def details(summary: str, shown: str) -> str:
    """HTML that is shown on demand."""
    return f"<details><summary>{escape(summary)}</summary>{shown}</details>"
