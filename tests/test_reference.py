"""Pages show the messages, errors, commands, options, rules and limits that the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from tools.reference_in_pages import WRITERS, with_reference

from tablepuppet.job.job import ARGUMENTS, PARTS, Job
from tablepuppet.owner.policy import LabelRules, Policy, TableRules
from tablepuppet.privacy.ledger import TableBudget
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


def _read_defaults(page: str) -> dict[str, str]:
    """The cell of defaults of each name in a page's tables: `a`, `b` | `1`, `2` | …"""
    found: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]*) \|", page, re.MULTILINE):
        listed = re.findall(r"`(\w+)`", names)
        cells = [defaults] if len(listed) == 1 else defaults.split(", ")
        found |= dict(zip(listed, cells, strict=False)) if len(cells) == len(listed) else {}
    return found


@pytest.mark.parametrize("kind", [Policy, LabelRules, TableRules, TableBudget], ids=lambda kind: kind.__name__)
def test_every_rule_of_a_policy_is_in_its_page(kind: type[msgspec.Struct]) -> None:
    page = (DOCS / "policy.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`(?:\[)?([a-z_]+)[^`]*`", page)}
    assert [name for name in kind.__struct_fields__ if name not in named] == []


def test_defaults_of_a_policy_are_those_of_its_page() -> None:
    shown = _read_defaults((DOCS / "policy.md").read_text(encoding="utf-8"))
    plain = {f.name: f.default for f in msgspec.structs.fields(Policy) if isinstance(f.default, bool | int)}
    assert len(plain) > 8
    assert {name: shown[name].strip("`") for name in plain} == {name: f"{v}".lower() for name, v in plain.items()}


def test_defaults_of_a_job_are_those_of_its_page() -> None:
    shown = _read_defaults((DOCS / "options.md").read_text(encoding="utf-8"))
    kinds: dict[str, type[msgspec.Struct]] = {**PARTS, "": Job}
    fields = {part: {f.name: f.default for f in msgspec.structs.fields(kind)} for part, kind in kinds.items()}
    compared = []
    for name, (part, field) in ARGUMENTS.items():
        default = fields[part][field]
        is_plain = isinstance(default, bool | int | float | str | tuple)  # None: the rest of the job decides
        if is_plain and re.fullmatch(r"`[^`]+`", shown.get(name, "")):
            compared.append(name)
            assert ast.literal_eval(shown[name].strip("`")) == default, name
    assert {"test_fraction", "seed", "standardize", "hidden", "monitor", "wire", "model"} <= set(compared)


def test_messages_on_the_page_of_errors_are_those_of_the_code() -> None:
    table = (DOCS / "errors.md").read_text(encoding="utf-8").partition("## Common refusals")[2].partition("## ")[0]
    messages = [
        text for cell in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for text in re.findall(r"`(.*?)`", cell)
    ]
    source = "".join(path.read_text(encoding="utf-8") for path in (DOCS.parent / "src" / "tablepuppet").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)  # of texts that go over lines
    assert len(messages) > 12
    assert [text for text in messages if text not in joined] == []
