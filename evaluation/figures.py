"""The paper's four kinds of figure: convergence per epoch and metric against communication time, for VFL/RFL-V and RFL.

In: the outcomes of a workload. Out: SVG files, drawn by the charts of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from evaluation.curves import Moment, curve
from evaluation.lineup import LINEUP, Group
from evaluation.running import Outcome
from evaluation.workload import Workload
from tablepuppet.report.charts import Chart, Point, Series, svg
from tablepuppet.report.convergence import TITLES, is_wide
from tablepuppet.report.format import number, seconds, tick_text

# One style per algorithm; RFL has those of RFL-V, with which it never shares a figure.
STYLES = {entry.name: i if i < 6 else i - 3 for i, entry in enumerate(LINEUP)}
GROUPS: dict[str, Group] = {"v": "VFL and RFL-V", "rfl": "RFL"}
NETWORK = "us-uk"


def write_figures(workload: Workload, outcomes: Sequence[Outcome], out: Path, suffix: str = "") -> list[Path]:
    """Four files: two kinds, for each of two groups of algorithms."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for group, title in GROUPS.items():
        chosen = [o for o in outcomes if o.entry.group == title]
        central = [o for o in outcomes if o.entry.group == "baseline"]
        if not chosen:
            continue
        for kind, chart in (
            ("convergence", _chart(workload, title, chosen, central, "epochs", lambda m: m.epoch, tick_text)),
            (
                "time",
                _chart(
                    workload,
                    title,
                    chosen,
                    central,
                    f"communication time on {NETWORK.upper()}",
                    lambda m: m.seconds[NETWORK],
                    seconds,
                ),
            ),
        ):
            path = out / f"{workload.name}{suffix}-{kind}-{group}.svg"
            path.write_text(svg(chart) + "\n", encoding="utf-8")
            written.append(path)
    return written


def _chart(
    workload: Workload,
    group: str,
    outcomes: Sequence[Outcome],
    central: Sequence[Outcome],
    x_label: str,
    x: Callable[[Moment], float],
    x_text: Callable[[float], str],
) -> Chart:
    label = f"test {TITLES.get(workload.metric, workload.metric)}"
    lines = []
    for outcome in outcomes:
        name = outcome.entry.name
        points = tuple(
            Point(x(m), m.value, f"{name}, epoch {m.epoch}\n{label} {number(m.value, 5)}\n{x_text(x(m))}")
            for m in curve(outcome, workload.metric)
        )
        lines.append(Series(name, STYLES[name], points))
    places = [p.x for line in lines for p in line.points]
    is_log = is_wide(places)
    nearest, furthest = (min(places) if is_log else 0.0), max(places)
    for outcome in central:
        value = curve(outcome, workload.metric)[-1].value
        ends = tuple(
            Point(at, value, f"{outcome.entry.name}\n{label} {number(value, 5)}") for at in (nearest, furthest)
        )
        lines.append(Series(outcome.entry.name, STYLES[outcome.entry.name], ends))
    title = f"{workload.title}: {group}"
    return Chart(title, x_label, label, tuple(lines), is_log_x=is_log, has_legend=True, x_text=x_text)
