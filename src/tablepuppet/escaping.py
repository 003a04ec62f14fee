"""Text of somebody else, made safe to show: no control character reaches a terminal or a log."""

from __future__ import annotations

import unicodedata

_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # controls, formats (writing direction among them), line separators
_JOINERS = "\u200c\u200d"  # inside words and emoji


def printable(text: str, *, keep: str = "") -> str:
    """The text with its control characters spelled out; those in `keep` stay.

    >>> print(printable("a\\x1b[31mb\\nc\\u202ed"))
    a\\x1b[31mb\\nc\\u202ed
    >>> print(printable("two\\nlines", keep="\\n"))
    two
    lines
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or c in _JOINERS or not _is_hidden(c) else _spelled(c) for c in text)


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
