"""Figures and columns as a plan prints them."""

from __future__ import annotations

from collections.abc import Sequence


def size(count: float) -> str:
    """Bytes, for people.

    >>> size(999), size(12_345), size(67_200_000)
    ('999 B', '12.3 kB', '67.2 MB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count:,.0f} B"


def seconds(value: float) -> str:
    """Seconds, as precise as an estimate deserves.

    >>> seconds(0.1361), seconds(25.24), seconds(4771.2)
    ('0.14 s', '25.2 s', '4,771 s')
    """
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f} s"


def plural(count: int, word: str) -> str:
    """
    >>> plural(1, "row"), plural(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {word}{'s' * (count != 1)}"


def columns(rows: Sequence[Sequence[str]], indent: str = "  ", flush_first: bool = True) -> list[str]:
    """Lines of a table: the first column to the left unless told otherwise, the others to the right.

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


def groups(titles: Sequence[str], tables: Sequence[Sequence[Sequence[str]]], indent: str = "  ") -> list[str]:
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
    return [(indent + " │ ".join(line)).rstrip() for line in zip(*made, strict=True)]
