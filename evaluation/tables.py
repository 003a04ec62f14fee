"""The table of a workload, beside the paper's figures: as JSON, and as Markdown."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from evaluation.curves import CLOSE, curve, seconds_to
from evaluation.lineup import PAPER_SECONDS
from evaluation.running import KEPT, Outcome
from evaluation.workload import Workload
from tablepuppet.formatting import size
from tablepuppet.output_files import write_whole
from tablepuppet.report.record import RunRecord
from tablepuppet.transport.meter import NETWORKS

HEAD = ("algorithm", "test {metric}", "objective", "epochs", "rounds an epoch", "bytes an epoch", "US-UK s", "US-US s")
Line = TypeVar("Line", list[str], dict[str, Any])
DISTANCES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
FIRST = "US-UK s until centralised"


@dataclass(frozen=True, slots=True)
class WorkloadTable:
    """What docs/figures keeps of a workload's runs (tools/figures_in_pages.py writes it into a page)."""

    title: str
    text: list[str]
    head: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table under its title."""
        lines = [
            *(f"### {self.title}", "", *self.text, ""),
            f"| {' | '.join(self.head)} |",
            f"|---|{'---:|' * (len(self.head) - 1)}",
            *(f"| {' | '.join(row)} |" for row in self.rows),
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class KeptLines:
    """Lines of a study that take long: each is kept in a file, and an interrupted command goes on with the next."""

    out: Path
    study: str
    resumes: bool
    say: Callable[[str], None]

    def __call__(self, name: str, measure: Callable[[], Line]) -> Line:
        """The line of this name; measured, unless it is resumed and there."""
        plain = "".join(letter if letter.isalnum() else "-" for letter in name)
        file = self.out / "lines" / f"{self.study}-{plain}.json"
        is_there = self.resumes and file.exists()
        line: Line = json.loads(file.read_text(encoding="utf-8")) if is_there else measure()
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(line)
        write_whole(file, lambda path: path.write_text(text, encoding="utf-8"), "a line")
        shown = line.values() if isinstance(line, dict) else line
        self.say(f"{self.study}, line {' | '.join(map(str, shown))}" + KEPT * is_there)
        return line


def workload_table(workload: Workload, outcomes: Sequence[Outcome]) -> WorkloadTable:
    """One row per algorithm; seconds are of one epoch's communication, the server's link shared by all clients.

    The first outcome is what the others are measured against.
    """
    data = outcomes[0].runs[0].data
    has_paper = workload.name == "movielens-linear"
    head = [h.format(metric=workload.metric) for h in HEAD] + [FIRST] + (["paper, US-UK s"] if has_paper else [])
    privacy = outcomes[-1].runs[0].job["privacy"]["features"]
    seeds = len(outcomes[0].runs)
    text = [
        f"{data.train_rows:,} joined training rows, {data.test_rows:,} test rows; "
        + ", ".join(f"{b.name} {b.rows:,} × {b.width}" for b in data.blocks)
        + f"; {seeds} {'seeds, mean ± standard deviation' if seeds > 1 else 'seed'}. "
        f"“Until centralised”: until the test {workload.metric} stays within {CLOSE:g} of the centralised one.",
        *([f"The paper reports {workload.paper['all']}."] if workload.paper else []),
        *([_promise(outcomes[-1].runs[0])] if privacy else []),
        *_searched(outcomes),
    ]
    rows = []
    for outcome in outcomes:
        reached = seconds_to(outcome, outcomes[0], workload.metric, "us-uk")
        is_central = outcome.entry.group == "baseline"
        cells = [*_cells(workload, outcome), "–" if is_central or reached is None else f"{reached:.3g}"]
        if has_paper:
            cells.append(f"{PAPER_SECONDS[outcome.entry.name]:g}" if outcome.entry.name in PAPER_SECONDS else "–")
        rows.append(cells)
    text = [line for paragraph in text for line in textwrap.wrap(paragraph, 120)]
    return WorkloadTable(workload.title + (", with privacy" if privacy else ""), text, head, rows)


def distance_table(workload: Workload, outcomes: Sequence[Outcome]) -> WorkloadTable:
    """Seconds of communication until an algorithm stays within a distance of the centralised one."""

    def cells(outcome: Outcome) -> list[str]:
        found = [seconds_to(outcome, outcomes[0], workload.metric, "us-uk", close) for close in DISTANCES]
        return [outcome.entry.name, *("–" if value is None else f"{value:.3g}" for value in found)]

    said = f"Seconds on US-UK until the test {workload.metric} stays within a distance of the centralised one."
    head = ["algorithm", *(f"{close:.0e}".replace("e-0", "e-") for close in DISTANCES)]
    return WorkloadTable(f"{workload.title}: time to a distance", [said], head, [cells(o) for o in outcomes[1:]])


def _promise(run: RunRecord) -> str:
    """What the runs with privacy promise; the centralised one is without."""
    features, label = run.job["privacy"]["features"], run.job["privacy"]["label"]
    return (
        f"With privacy: ε = {features['epsilon']:g}, δ = {features['delta']:g} for a row of any table, whole "
        f"model, towards outsiders, labels at ε = {label['epsilon']:g}; {run.data.train_rows:,} joined training rows "
        "are within the caps. The centralised model is without privacy."
    )


def _searched(outcomes: Sequence[Outcome]) -> list[str]:
    """What the grid search chose, where there was one."""
    chosen = {}
    for outcome in outcomes:
        value = outcome.runs[0].job["options"].get(outcome.entry.searched or "")
        if value is not None:
            chosen[outcome.entry.name] = f"{outcome.entry.searched} {value:g}".replace("_", " ")
    return ["Chosen by grid search: " + ", ".join(f"{n} {v}" for n, v in chosen.items()) + "."] if chosen else []


def _cells(workload: Workload, outcome: Outcome) -> list[str]:
    last = curve(outcome, workload.metric)[-1]
    epochs = fmean(len(run.history) for run in outcome.runs)
    rounds = fmean(run.traffic.training.rounds for run in outcome.runs) / epochs
    passed = fmean(run.history[-1].bytes for run in outcome.runs) / epochs
    objectives = [run.objective for run in outcome.runs if run.objective is not None]
    return [
        outcome.entry.name,
        f"{last.value:.5f}" + (f" ± {last.spread:.5f}" if len(outcome.runs) > 1 else ""),
        f"{fmean(objectives):.6f}" if len(objectives) == len(outcome.runs) else "–",
        f"{epochs:.3g}",
        f"{rounds:,.4g}",
        size(passed),
        *(f"{rounds * net.latency + passed * 8e-9 / net.bandwidth:.3g}" for net in NETWORKS.values()),
    ]
