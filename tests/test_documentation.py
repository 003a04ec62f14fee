"""What the documentation shows is true: links lead somewhere, SQL is accepted, the quickstart runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import tablepuppet as tp
from tablepuppet.algorithms.registry import ALGORITHMS
from tablepuppet.job import ARGUMENTS
from tablepuppet.owner.policy import LabelRules, Policy, TableRules
from tablepuppet.privacy.ledger import TableBudget
from tablepuppet.privacy.options import Budget, FeaturePrivacy, LabelPrivacy, PredictionPrivacy, Privacy
from tablepuppet.sql import parse

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get: lower case, hyphens for spaces, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("text", blocks(ROOT / "docs" / "sql.md", "sql"))
def test_every_query_of_the_sql_reference_is_accepted(text: str) -> None:
    assert parse(text).branches


@pytest.mark.slow
def test_privacys_first_example_runs_on_the_quickstarts_tables(tmp_path: Path) -> None:
    tables = blocks(ROOT / "docs" / "quickstart.md", "python")[0]
    code = "\n".join([tables, blocks(ROOT / "docs" / "privacy.md", "python")[0], "print(result.privacy.lines())"])
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "ε = 3 towards everyone" in process.stdout


def test_every_command_is_in_the_list_of_the_command_line() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-m", "tablepuppet", "--help"], capture_output=True, text=True, timeout=120, check=True
    )
    commands = re.findall(r"^│ ([a-z]+) +\S", process.stdout.partition("Commands")[2], re.MULTILINE)
    assert {"demo", "train", "predict", "report", "certs"} <= set(commands)
    assert [name for name in commands if not re.search(rf"^\| `tablepuppet {name}[ `]", page, re.MULTILINE)] == []


@pytest.mark.parametrize(
    "names",
    [tuple(ARGUMENTS), *(a.options.__struct_fields__ for a in ALGORITHMS)],
    ids=["job", *(a.name for a in ALGORITHMS)],
)
def test_every_option_of_a_job_and_of_an_algorithm_is_documented(names: tuple[str, ...]) -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert [name for name in names if name != "options" and f"`{name}`" not in page] == []


@pytest.mark.parametrize("rules", [Policy, LabelRules, TableRules, TableBudget], ids=lambda rules: rules.__name__)
def test_every_rule_of_a_policy_is_documented(rules: type[msgspec.Struct]) -> None:
    page = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    sections = {"budget": "[budget.TABLE]", "tables": "[tables.TABLE]"}
    assert [name for name in rules.__struct_fields__ if f"`{sections.get(name, name)}`" not in page] == []


@pytest.mark.parametrize("section", ["", "label", "features", "predictions", "budget"])
def test_every_option_of_privacy_is_documented(section: str) -> None:
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    sections = {
        "label": LabelPrivacy,
        "features": FeaturePrivacy,
        "predictions": PredictionPrivacy,
        "budget": Budget,
    }
    named = [f"{section}.{name}" for name in sections[section].__struct_fields__] if section else []
    named = named or [name for name in Privacy.__struct_fields__ if name not in sections]
    assert [name for name in named if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", ["max_categories", "test_where", "wire", "progress", "on_round", "max_joined_rows"])
def test_what_one_looks_for_is_in_the_docstring_of_train(name: str) -> None:
    assert f"`{name}`:" in (tp.Federation.train.__doc__ or "")


def test_the_quickstart_runs_from_top_to_bottom(tmp_path: Path) -> None:
    code = "\n".join(blocks(ROOT / "docs" / "quickstart.md", "python"))
    # In an empty folder and a process of its own, as a reader would.
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stderr


def test_every_file_that_the_code_and_the_documentation_name_is_there() -> None:
    code = list((ROOT / "src/tablepuppet").rglob("*.py"))
    folders = ("src", "tests", "tools", "examples", "evaluation")
    known = {str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py")}
    missing = []
    for path in (*code, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"):
        text = path.read_text(encoding="utf-8")
        written = re.findall(r'^```python title="(.+)"$', text, re.MULTILINE)  # by the reader of a tutorial
        for name in re.findall(r"(?<![\w/.…])(?:[a-z_]+/)*[a-z][a-z_]*\.py\b", text):
            if name not in written and not any(one == name or one.endswith(f"/{name}") for one in known):
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []
