"""The report's coefficients: all runs in one table, side by side, with a filter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tablepuppet.formatting import number
from tablepuppet.report.markup import bar
from tablepuppet.report.record import RunRecord

MOST = 6000  # weights in the page, which keeps it small; the run's record has them all

Key = tuple[str, str, str]
Cell = tuple[float | None, float | None]


def coefficients(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """One row per coefficient, the largest on the encoded scale first."""
    rows: dict[Key, list[Cell]] = {}
    for i, run in enumerate(runs):
        if run.coefficients is None:
            continue
        c = run.coefficients
        for table, feature, label, *cell in zip(c.table, c.feature, c.class_, c.weight, c.scaled, strict=True):
            key = (table, feature, "" if label is None else str(label))
            rows.setdefault(key, [(None, None)] * len(runs))[i] = (cell[0], cell[1])
    if not rows:
        return '<p class="note">These models have no coefficients to list.</p>'
    ordered = sorted(rows.items(), key=lambda item: -_largest(item[1]))
    has_classes = len({key[2] for key in rows}) > 1
    largest = max((_largest(cells) for cells in rows.values()), default=0.0) or 1.0
    head = ["Feature", "Table", *(["Class"] if has_classes else [])]
    for name in names:
        suffix = f", {name}" if len(names) > 1 else ""
        head += [f"Weight{suffix}", f"Per encoded unit{suffix}"]
    most = MOST // len(runs)
    body = "".join(_row(key, cells, largest, has_classes) for key, cells in ordered[:most])
    texts = 3 if has_classes else 2
    heads = "".join(
        f'<th{"" if i < texts else " class=number"}><button type="button" class="sort">{escape(h)}</button></th>'
        for i, h in enumerate(head)
    )
    left_out = f" The {most:,} largest of {len(ordered):,} are here; the run's record has all." * (len(ordered) > most)
    scaled = [value for cells in rows.values() for _, value in cells if value is not None]
    zeros = sum(value == 0.0 for value in scaled)
    left_out += f" {zeros:,} of {len(scaled):,} weights are 0." * (zeros > 0)
    intercepts = "; ".join(
        f"{escape(n)} {', '.join(number(v, 5) for v in run.intercept)}" for run, n in zip(runs, names, strict=True)
    )
    return (
        '<p class="note">“Weight” is on the original scale. “Per encoded unit” is the effect of one standard deviation '
        "of a number, or of having a category: it compares across columns, and orders the table."
        f"{left_out} Intercept: {intercepts}.</p>"
        '<p class="controls"><label>Filter <input type="search" id="filter" placeholder="feature, table or class" '
        'autocomplete="off"></label> <span id="filter-count" role="status"></span></p>'
        '<div class="wide tall" tabindex="0" role="region" aria-label="Coefficients">'
        f'<table id="weights"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(key: Key, cells: list[Cell], largest: float, has_classes: bool) -> str:
    table, feature, label = key
    texts = [feature, table, *([label] if has_classes else [])]
    out = "".join(f"<td>{escape(text)}</td>" for text in texts)
    for weight, scaled in cells:
        out += f'<td class="number" data-value="{_raw(weight)}">{number(weight, 4)}</td>'
        share = abs(scaled or 0.0) / largest
        out += f'<td class="number" data-value="{_raw(scaled)}">{bar(share, number(scaled, 4))}</td>'
    return f"<tr>{out}</tr>"


def _raw(value: float | None) -> str:
    return "" if value is None else f"{value:.9g}"


def _largest(cells: Sequence[Cell]) -> float:
    return max((abs(s) for _, s in cells if s is not None and math.isfinite(s)), default=0.0)
