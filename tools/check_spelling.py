"""Checks the spelling of pages: python -m tools.check_spelling [page …].

In: the Markdown pages of the repository except decisions, the common English words of words/english.txt (in British
spelling, from the lists of pyspellchecker) and our own terms of words/terms.txt. Out: every word that neither list has,
with its pages; the exit code is 1 if there is one. Code, links, abbreviations and names of code are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.check_prose import find_pages

WORDS = Path(__file__).parent / "words"
_CODE = re.compile(
    r"^```.*?^```|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)|https?://\S+|^ {4}.*?$|<[^>]+>", re.DOTALL | re.MULTILINE
)
_ENDINGS = {"ies": ("y",), "es": ("", "e"), "s": ("",), "ied": ("y",), "ed": ("", "e"), "ing": ("", "e"), "ly": ("",)}
_WORD = re.compile(r"(?<![\w.{/@-])[A-Za-z][A-Za-z’']*(?![\w/@}]|\.\w)")


def read_words(folder: Path = WORDS) -> frozenset[str]:
    """All words that are spelt right, in lower case."""
    files = sorted(folder.glob("*.txt"))
    return frozenset(word.lower() for file in files for word in file.read_text(encoding="utf-8").split())


def find_unknown(text: str, known: frozenset[str]) -> list[str]:
    """The words of a page that are not known, in their order.

    >>> find_unknown("The sever's `cfg` key of `a_b` is tokn TLS", frozenset({"the", "server", "key", "of", "is"}))
    ['sever', 'tokn']
    """
    found = dict[str, None]()
    for word in _WORD.findall(_CODE.sub(" ", text)):
        plain = re.sub(r"(?:['’]s?)$", "", word)
        is_name = plain[1:] != plain[1:].lower()  # an abbreviation, or a name of code
        if len(plain) > 2 and not is_name and not any(stem in known for stem in _find_stems(plain.lower())):
            found[plain] = None
    return list(found)


def _find_stems(word: str) -> Iterator[str]:
    """The word, and what it may be a regular form of.

    >>> list(_find_stems("unmatched"))
    ['unmatched', 'unmatch', 'unmatche', 'matched']
    """
    yield word
    for ending, others in _ENDINGS.items():
        if word.endswith(ending):
            yield from (word[: -len(ending)] + other for other in others)
    if word.startswith(("un", "re", "non", "pre", "sub")):
        yield re.sub("^(?:un|re|non|pre|sub)", "", word)


def main(given: list[str]) -> int:
    """Prints unknown words and their pages."""
    known, places = read_words(), dict[str, list[str]]()
    for page in [Path(word) for word in given] or find_pages():
        for word in find_unknown(page.read_text(encoding="utf-8"), known):
            places.setdefault(word, []).append(page.name)
    for word, pages in sorted(places.items()):
        print(f"{word}: {', '.join(pages)}")
    print("Correct these words, or add them to tools/words/terms.txt." if places else "The pages are spelt well.")
    return int(bool(places))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
