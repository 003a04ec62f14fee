"""The paper's four figures: convergence without and with privacy, metric against time for VFL/RFL-V and for RFL.

In: the outcomes of workloads. Out: each figure as SVG and as PNG; one row of panels per workload, and means over seeds
with a band of one standard deviation. A figure of one workload is the same figure with one row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from benchmarks.figures import Beginning
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from evaluation.curves import curve
from evaluation.lineup import LINEUP, Group
from evaluation.running import Outcome
from evaluation.workload import Workload
from tablepuppet.report.charts import COLOURS, TITLES, is_wide

Kind = Literal["convergence", "time"]
# RFL has the styles of RFL-V, with which it never shares a panel.
STYLES = {entry.name: i if i < 6 else i - 3 for i, entry in enumerate(LINEUP)}
DASHES = ("--", "-", "-", (0, (6, 2)), (0, (6, 2)), (0, (2, 1)))
MARKS = ("", "o", "s", "v", "^", "D")
GROUPS: tuple[Group, ...] = ("VFL and RFL-V", "RFL")
NETWORK = "us-uk"
LOOK: dict[Any, Any] = {
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans"],  # a list of ten would be in every label
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dfe3e8",
    "svg.hashsalt": "tablepuppet",  # the same figure twice is the same file
    "svg.fonttype": "none",
}


@dataclass(frozen=True, slots=True)
class Study:
    """All outcomes of one workload, without or with privacy."""

    workload: Workload
    is_private: bool
    outcomes: Sequence[Outcome]


def write_figures(studies: Sequence[Study], out: Path, prefix: str = "") -> list[Path]:
    """The figures for which there are runs, two files each."""
    plain = [study for study in studies if not study.is_private]
    private = [study for study in studies if study.is_private]
    figures: dict[str, list[tuple[str, list[Study], Group, Kind]]] = {
        "convergence": [(group, plain, group, "convergence") for group in GROUPS],
        "convergence-private": [(f"{group}, with privacy", private, group, "convergence") for group in GROUPS],
        **{
            f"time-{key}": [(group, plain, group, "time"), (f"{group}, with privacy", private, group, "time")]
            for key, group in zip(("v", "rfl"), GROUPS, strict=True)
        },
    }
    written = []
    for name, columns in figures.items():
        drawn = [c for c in columns if any(o.entry.group == c[2] for study in c[1] for o in study.outcomes)]
        if drawn:
            written += _draw(drawn, out / f"{prefix}{name}")
    return written


def _draw(columns: Sequence[tuple[str, list[Study], Group, Kind]], path: Path) -> list[Path]:
    """One figure: a column of panels per group or setting, a row per workload."""
    rows = list(dict.fromkeys(study.workload.name for _, studies, _, _ in columns for study in studies))
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(4.6 * len(columns), 3.1 * len(rows)), layout="constrained")
        panels = figure.subplots(len(rows), len(columns), squeeze=False)
        for column, (title, studies, group, kind) in enumerate(columns):
            by_name = {study.workload.name: study for study in studies}
            for row, name in enumerate(rows):
                if name in by_name:
                    _panel(panels[row][column], by_name[name], group, kind)
                    panels[row][column].set_title(f"{by_name[name].workload.title}\n{title}", fontsize=9)
                else:
                    panels[row][column].set_axis_off()
        files = [path.with_suffix(".svg"), path.with_suffix(".png")]
        commit = Beginning().provenance().commit
        figure.savefig(files[0], metadata={"Date": None, "Source": f"commit {commit or 'unknown'}"})
        figure.savefig(files[1], dpi=150)
    files[0].write_text(smaller(files[0].read_text(encoding="utf-8")), encoding="utf-8")
    return files


def smaller(svg: str) -> str:
    """The same drawing in fewer bytes: tenths of a point are enough, lines may be long."""
    svg = re.sub(r"-?\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), svg)
    svg = re.sub(r"\n([LQCMz])", r"\1", re.sub(r' transform="rotate\(-0 [^"]*"', "", svg))
    return re.sub(r"\n\s+", "\n", re.sub(r"<!--.*?-->", "", svg, flags=re.S))


def _panel(axes: Axes, study: Study, group: Group, kind: Kind) -> None:
    """Every algorithm of the group, and the centralised model as a level."""
    metric = study.workload.metric
    places: list[float] = []
    for outcome in study.outcomes:
        name, moments = outcome.entry.name, curve(outcome, metric)
        style = STYLES[name]
        look: dict[str, Any] = {"color": COLOURS[style], "linestyle": DASHES[style], "label": name}
        if outcome.entry.group == "baseline":
            axes.axhline(moments[-1].value, linewidth=1, **look)
        elif outcome.entry.group == group:
            x = [m.epoch if kind == "convergence" else m.seconds[NETWORK] for m in moments]
            y = [m.value for m in moments]
            axes.plot(x, y, marker=MARKS[style], markersize=3.5, linewidth=1.4, **look)
            spread = [m.spread for m in moments]
            low, high = [a - s for a, s in zip(y, spread, strict=True)], [a + s for a, s in zip(y, spread, strict=True)]
            axes.fill_between(x, low, high, color=COLOURS[style], alpha=0.12, linewidth=0)
            places += x
    if kind == "time" and is_wide(places):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("epochs" if kind == "convergence" else f"communication time on {NETWORK.upper()}, seconds")
    axes.set_ylabel(f"test {TITLES.get(metric, metric)}")
    axes.legend(fontsize=7.5, frameon=False)
