"""Pages show the figures that were measured, and where they were measured."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from benchmarks.figures import IDLE, Beginning, Provenance
from tools.figures_in_pages import with_figures

DOCS = Path(__file__).parents[1] / "docs"
MARKED = [page for page in sorted(DOCS.glob("*.md")) if "<!-- figures: " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.name)
def test_a_page_shows_the_figures_of_its_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_figures(text, DOCS / "figures") == text, "run python -m tools.figures_in_pages"


def test_performance_and_evaluation_are_such_pages() -> None:
    assert {"performance.md", "evaluation.md"} <= {page.name for page in MARKED}


def test_no_table_beside_pooling_is_written_by_hand() -> None:
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    section = page[page.index("## Compared with pooling the tables") : page.index("## Over a network")]
    by_hand = re.sub(r"<!-- figures: .*?<!-- end of figures -->", "", section, flags=re.S)
    assert "total s" not in by_hand
    assert "CPU s |" not in by_hand


def test_make_bench_writes_every_file_that_the_pages_show() -> None:
    page = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("performance.md", "factorised.md"))
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    shown = set(re.findall(r"<!-- figures: ([\w.-]+) -->", page))
    assert shown == set(re.findall(r"--out docs/figures/([\w.-]+)", makefile))


def test_every_file_of_measurements_is_shown_and_says_where_it_is_from() -> None:
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    for file in (DOCS / "figures").glob("bench-*.json"):
        assert f"<!-- figures: {file.name} -->" in page
        document = json.loads(file.read_text(encoding="utf-8"))
        assert document["command"].startswith("python -m benchmarks ")
        assert Provenance(**document["provenance"]).commit


def test_every_table_of_the_evaluation_is_of_a_file_and_every_file_is_shown() -> None:
    """What is no figure: which workloads there are."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in MARKED}
    by_hand = re.sub(r"<!-- figures: .*?<!-- end of figures -->", "", pages["evaluation.md"], flags=re.S)
    assert re.findall(r"^\|[^\n]*\n\|[-:| ]+\|$", by_hand, flags=re.M) == [
        "| workload | tables | folder in `DATA` and files |\n|---|---|---|"
    ]
    shown = {name for page in pages.values() for name in re.findall(r"<!-- figures: (evaluation-[\w.-]+) -->", page)}
    assert shown == {file.name for file in (DOCS / "figures").glob("evaluation-*.json")}


def test_a_page_of_several_commits_says_so(tmp_path: Path) -> None:
    for name, commit in (("one", "abc"), ("other", "abc")):
        made = asdict(Provenance("0.1.0", commit, "2026-01-01", "a machine", 0.0))
        (tmp_path / f"evaluation-{name}.json").write_text(json.dumps({"provenance": made}), encoding="utf-8")
    page = "<!-- provenance: evaluation -->\n<!-- end of provenance -->\n"
    assert "of one run, of commit abc." in with_figures(page, tmp_path)
    (tmp_path / "curve.svg").write_text("<dc:source>commit def</dc:source>", encoding="utf-8")
    assert "of several commits: abc (one, other); def (curve.svg)." in with_figures(page, tmp_path)


def test_another_figure_in_the_file_is_another_page(tmp_path: Path) -> None:
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    for file in (DOCS / "figures").glob("*.json"):
        text = file.read_text(encoding="utf-8")
        document = json.loads(text)
        found = document.get("figures", [])
        for row in [found] if isinstance(found, dict) else found:
            name = next(name for name in ("median", "peak", "ours") if name in row)
            row[name] = 10 * row[name]
        (tmp_path / file.name).write_text(json.dumps(document), encoding="utf-8")
    assert with_figures(page, tmp_path) != page


def test_a_machine_that_others_use_is_not_idle() -> None:
    def at(elsewhere: float | None) -> Provenance:
        return Provenance("0.1.0", "abc", "2026-01-01", "a machine", elsewhere)

    assert at(IDLE).is_idle
    assert "not idle: other work took 40%" in at(0.4).sentence()
    assert "not known" in at(None).sentence()
    assert not at(None).is_idle


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="other work is counted on Linux")
def test_other_work_is_a_share_of_the_cores() -> None:
    beginning = Beginning()
    sum(i * i for i in range(300_000))  # of our own
    elsewhere = beginning.provenance().elsewhere
    assert elsewhere is not None
    assert 0.0 <= elsewhere <= 1.0 + 0.1 * (os.cpu_count() or 1)
