"""Checks how the pages read: python tools/check_prose.py [page …].

In: the Markdown pages of the repository except decisions. Out: every long sentence, worn word and link to a decision
inside a sentence. The exit code is 1 if the pages exceed one of `LIMITS`. Only prose counts: code, tables, headings and
short items of lists are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG = 35  # words: a sentence above is too long
LIMITS = {"share of long sentences": 0.01, "median of words": 15, "share with worn words": 0.01}
_WORN = re.compile(
    r"\b(told|tells? (?:the|it|a|more|of)|by the way|(?:is|be) had|what (?:owners|a|the|an|is|was|smaller|nobody)|"
    r"need not|beside (?:the|it|other|another)|goes on|gone over|of which some|a look at|little back)\b",
    re.IGNORECASE,
)
_LEFT_OUT = re.compile(r"^\s*(?:\|.*|#+ .*|[-*] .{0,60}|    .*|[!?]{3} .*)$", re.MULTILINE)
_ITEM = re.compile(r"^(\s*(?:[-*]|\d+\.) )", re.MULTILINE)
_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z*`(])")
_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_DECISION = re.compile(r"\]\([^)]*decisions/\d[^)]*\)")


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page, code and targets of links left out."""

    page: str
    text: str
    words: int

    @property
    def is_long(self) -> bool:
        return self.words > LONG

    @property
    def is_worn(self) -> bool:
        return _WORN.search(self.text) is not None


def find_pages(root: Path = ROOT) -> list[Path]:
    """The pages that are checked."""
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    return sorted(page for page in pages if "decisions" not in page.relative_to(root).parts)


def read_sentences(page: str, text: str) -> Iterator[Sentence]:
    """The sentences of a page.

    >>> [s.words for s in read_sentences("a.md", "# Title\\n\\nOne short sentence. And another one, of `code`.")]
    [3, 5]
    """
    for paragraph in _split(text):
        for sentence in _END.split(" ".join(paragraph.split())):
            words = len(_WORD.findall(sentence))
            if words > 2:
                yield Sentence(page, sentence, words)


def _split(text: str) -> list[str]:
    text = re.sub(r"```.*?```|<!--.*?-->", " ", text, flags=re.DOTALL)
    text = _ITEM.sub(r"\n\n\1", _LEFT_OUT.sub(" ", text))
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "x", text))
    return re.split(r"\n\s*\n", text)


def find_decisions_in_sentences(text: str) -> list[str]:
    """The paragraphs that link to a decision and are no line of background.

    >>> find_decisions_in_sentences("Keys are tokens ([0005](decisions/0005-a.md)).")
    ['Keys are tokens ([0005](decisions/0005-a.md)).']
    >>> find_decisions_in_sentences("Background: decision [0005](decisions/0005-a.md).")
    []
    """
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) ?)", text)
    found = (" ".join(paragraph.split()) for paragraph in paragraphs)
    return [one for one in found if _DECISION.search(one) and not one.startswith("Background:")]


def find_breaches(sentences: list[Sentence], decisions: list[str]) -> list[str]:
    """What the pages as a whole break."""
    number = max(len(sentences), 1)
    counted = {
        "share of long sentences": sum(s.is_long for s in sentences) / number,
        "median of words": sorted(s.words for s in sentences)[number // 2] if sentences else 0,
        "share with worn words": sum(s.is_worn for s in sentences) / number,
    }
    breaches = [
        f"{name}: {value:.3g}, at most {LIMITS[name]}" for name, value in counted.items() if value > LIMITS[name]
    ]
    return breaches + [f"link to a decision inside a sentence: {one}" for one in decisions]


def main(words: list[str]) -> int:
    """Prints what to rewrite, then what is broken."""
    chosen = [Path(word).resolve() for word in words if not word.startswith("-")] or find_pages()
    sentences, decisions = list[Sentence](), list[str]()
    for path in chosen:
        text, page = path.read_text(encoding="utf-8"), path.name
        sentences += read_sentences(page, text)
        decisions += [f"{page}: {one}" for one in find_decisions_in_sentences(text)]
    for one in sentences:
        if one.is_long or one.is_worn:
            print(f"{one.page}: {one.words} words{', worn' if one.is_worn else ''}: {one.text}")
    breaches = find_breaches(sentences, decisions)
    counts = sum(s.is_long for s in sentences), sum(s.is_worn for s in sentences)
    print(f"{len(sentences)} sentences; long {counts[0]}; worn {counts[1]}")
    print("\n".join(breaches or ["The pages read well."]))
    return int(bool(breaches))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
