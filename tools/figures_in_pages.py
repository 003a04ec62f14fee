"""Writes measured figures into the pages of docs/: python -m tools.figures_in_pages [--check].

In: docs/figures/*.json as `make bench` and `make evaluation` write them. Out: between the marks of a page

    <!-- figures: bench-star.json -->
    <!-- end of figures -->

the command, where the figures come from (version, commit, machine, whether it was idle), and their table; between

    <!-- provenance: evaluation -->
    <!-- end of provenance -->

of which commits the files are whose names begin so. With --check nothing is written, and the exit code is 1 where a
page shows other figures than its file.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.figures import Provenance
from tools.pages import DOCS, rewrite_pages

from benchmarks import epochs, figures, processes

_MARKED = re.compile(r"<!-- figures: (?P<file>[\w.-]+) -->\n.*?<!-- end of figures -->\n", re.S)
_COMMITS = re.compile(r"<!-- provenance: (?P<kind>[\w-]+) -->\n.*?<!-- end of provenance -->\n", re.S)
_WIDTH = 120


def with_figures(text: str, folder: Path) -> str:
    """A page with the figures of the files that its marks name."""
    text = _COMMITS.sub(lambda found: _commits(found["kind"], folder), text)
    return _MARKED.sub(lambda found: _block(found["file"], folder), text)


def _commits(kind: str, folder: Path) -> str:
    """Of which commits tables and drawings are: one, or that they are of several, and which."""
    files: dict[str, list[str]] = {}
    for file in sorted(folder.glob(f"{kind}-*.json")):
        commit = Provenance(**json.loads(file.read_text(encoding="utf-8"))["provenance"]).commit
        files.setdefault(commit, []).append(file.stem.removeprefix(f"{kind}-"))
    for drawing in sorted(folder.glob("*.svg")):
        found = re.search(r"<dc:source>commit (\S+)</dc:source>", drawing.read_text(encoding="utf-8"))
        files.setdefault(found[1] if found else "of an earlier version", []).append(drawing.name)
    if len(files) == 1:
        said = f"All tables and drawings are of one run, of commit {next(iter(files))}."
    else:
        parts = [f"{commit} ({', '.join(names)})" for commit, names in files.items()]
        said = f"These tables and drawings are of several commits: {'; '.join(parts)}."
    lines = textwrap.wrap(said, _WIDTH, break_on_hyphens=False, break_long_words=False)
    return "\n".join([f"<!-- provenance: {kind} -->", *lines, "<!-- end of provenance -->"]) + "\n"


def _block(file: str, folder: Path) -> str:
    document = json.loads((folder / file).read_text(encoding="utf-8"))
    lines = [f"<!-- figures: {file} -->", *_shown(document), "<!-- end of figures -->"]
    return "\n".join(lines) + "\n"


def _shown(document: dict[str, Any]) -> list[str]:
    where = Provenance(**document["provenance"]).sentence()
    said = textwrap.wrap(f"`{document['command']}`: {where}", _WIDTH, break_on_hyphens=False, break_long_words=False)
    if "head" in document:  # of the evaluation: a table as it was written
        return [*document["text"], "", *said, "", *_table(document["head"], document["rows"])]
    found = document["figures"]
    if isinstance(found, dict):  # what a network adds to a round
        runs = zip(found["in_process"], found["over_network"], found["added"], strict=True)
        rows = [[str(run), *(f"{value:.2f}" for value in row)] for run, row in enumerate(runs, 1)]
        rows.append(["median", "", "", f"{found['median']:.2f}"])
        return [*said, "", *_table(("run", "in process ms", "over the network ms", "added ms"), rows)]
    if "torch" in found[0]:
        return [*said, "", *_table(epochs.HEADINGS, [epochs.cells(epochs.Epochs(**f)) for f in found])]
    if "mapping_cpu" in found[0]:
        return [*said, "", *_table(processes.HEADINGS, [processes.cells(processes.Apart(**f)) for f in found])]
    return [*said, "", *_table(figures.HEADINGS, [figures.cells(figures.Figures(**f)) for f in found])]


def _table(head: Any, rows: Any) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


if __name__ == "__main__":
    sys.exit(
        rewrite_pages(
            lambda text: with_figures(text, DOCS / "figures"), sys.argv[1:], "other figures than docs/figures has"
        )
    )
