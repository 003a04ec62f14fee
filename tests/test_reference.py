"""Pages show the messages, errors, commands, options and limits that the code has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from tools.reference_in_pages import WRITERS, with_reference

from tablepuppet.protocol.base import What

DOCS = Path(__file__).parents[1] / "docs"
MARK = re.compile(r"<!-- reference: ([\w ]+) -->")
MARKED = [page for page in sorted(DOCS.glob("*.md")) if MARK.search(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.name)
def test_a_page_shows_the_tables_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_reference(text) == text, "run python -m tools.reference_in_pages"


def test_every_table_is_in_a_page() -> None:
    shown = [name for page in MARKED for name in MARK.findall(page.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted(WRITERS)


def test_every_word_for_a_disclosure_is_explained() -> None:
    page = (DOCS / "messages.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|", page.partition("## The words for disclosures")[2], re.MULTILINE)
    explained = {word for row in rows for word in row.split(", ")}
    assert set(get_args(What)) - explained == set()


def test_another_table_in_the_code_is_another_page(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "<!-- reference: limits -->\n| old |\n<!-- end of reference -->\n"
    monkeypatch.setitem(WRITERS, "limits", lambda: ["| new |"])
    assert with_reference(page) == page.replace("old", "new")
