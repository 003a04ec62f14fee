"""The report's section on classifiers: who is taken for whom, what thresholds give, and whether probabilities hold.

And the coefficients: all runs in one table, side by side, with a filter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tablepuppet.formatting import number
from tablepuppet.report.charts import Chart, Point, Series, svg, swatch
from tablepuppet.report.record import CurvesRecord, RunRecord
from tablepuppet.report.sections import bar, table

_CLASSES = 20  # that a table in the page has room for


def predictions(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """Confusion matrices and curves of test rows, or of training rows where none were kept out."""
    found = [(name, *_side(run)) for run, name in zip(runs, names, strict=True) if run.curves]
    if not found:
        return ""
    several = len(runs) > 1
    matrices = "".join(
        _matrix(f"{name}, {side} rows" if several else f"{side} rows", curves) for name, side, curves in found
    )
    curved = [(i, name, curves) for i, (name, _, curves) in enumerate(found) if curves.precision_recall]
    charts = ""
    if curved:
        ranks = Chart("Precision and recall", "recall", "precision", tuple(_ranks(*item) for item in curved))
        shares = Chart("Calibration", "predicted", "observed", tuple(_calibration(*item) for item in curved))
        charts = "".join(
            f"<figure>{svg(chart)}<figcaption>{escape(chart.title)}</figcaption></figure>" for chart in (ranks, shares)
        )
    return (
        f'{matrices}<div class="charts">{charts}</div>'
        '<p class="note">Down: the label; across: what is predicted. Each point of “Precision and recall” is a '
        "threshold of the probability. Where probabilities hold, “Calibration” lies on the diagonal: of the rows that "
        "are predicted with 0.3, three in ten are positive.</p>"
    )


def dependence(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """A chart for every feature that is a number, a table for every other: what models say on average at each value."""
    features = dict.fromkeys(curve.feature for run in runs for curve in run.dependence)
    parts = []
    for feature in features:
        found = [
            (name, curve)
            for run, name in zip(runs, names, strict=True)
            for curve in run.dependence
            if curve.feature == feature
        ]
        lines = [
            (" ".join(part for part in (name if len(runs) > 1 else "", _said(mean)) if part), curve.values, means)
            for name, curve in found
            for mean, means in curve.means.items()
        ]
        texts = any(isinstance(value, str) for _, values, _ in lines for value in values)
        parts.append(_values(feature, lines) if texts else _line(feature, lines))
    if not parts:
        return ""
    about = "; ".join(dict.fromkeys(curve.about for run in runs for curve in run.dependence if curve.about))
    return (
        f'<div class="charts">{"".join(parts)}</div>'
        f'<p class="note">The mean prediction over {escape(about or "the rows")} where the feature has this value in '
        "all of them and everything else is as it is. Values that never occur together with the rest of a row are "
        "among them.</p>"
    )


def _said(mean: str) -> str:
    """probability_gold → probability of gold."""
    first, _, label = mean.partition("_")
    return f"{first} of {label}" if label else first


Line = tuple[str, list[float | str | None], list[float]]


def _line(feature: str, lines: Sequence[Line]) -> str:
    series = tuple(
        Series(
            name,
            style,
            tuple(
                Point(float(x), y, f"{feature} = {number(float(x), 5)}\n{name} {number(y, 5)}")
                for x, y in zip(values, means, strict=True)
                if x is not None
            ),
        )
        for style, (name, values, means) in enumerate(lines)
    )
    what = lines[0][0] if len(lines) == 1 else "mean"
    shown = Chart(f"{feature}: {what}", feature, what, series, x_from_zero=False)
    legend = "".join(f"<li>{swatch(s.style)} {escape(s.name)}</li>" for s in series) if len(series) > 1 else ""
    missing = [
        f"{name} {number(mean, 4)}"
        for name, values, means in lines
        for value, mean in zip(values, means, strict=True)
        if value is None
    ]
    noted = f" (missing: {escape(', '.join(missing))})" if missing else ""
    listed = f'<ul class="legend">{legend}</ul>' if legend else ""
    return f"<figure>{svg(shown)}<figcaption>{escape(feature)}{noted}</figcaption>{listed}</figure>"


def _values(feature: str, lines: Sequence[Line]) -> str:
    values = list(dict.fromkeys(value for _, own, _ in lines for value in own))
    known = [dict(zip(own, means, strict=True)) for _, own, means in lines]
    largest = max((abs(mean) for means in known for mean in means.values()), default=0.0) or 1.0
    rows = [
        [
            "<i>missing</i>" if value is None else escape(str(value)),
            *(bar(abs(means[value]) / largest, number(means[value], 4)) if value in means else "–" for means in known),
        ]
        for value in values
    ]
    return f"<figure>{table([escape(feature), *(escape(name) for name, _, _ in lines)], rows)}</figure>"


def _side(run: RunRecord) -> tuple[str, CurvesRecord]:
    side = "test" if "test" in run.curves else "train"
    return side, run.curves[side]


def _matrix(caption: str, curves: CurvesRecord) -> str:
    names = [str(c) for c in curves.classes]
    if len(names) > _CLASSES:
        return f'<p class="note">{len(names)} classes are too many for a table; the run\'s record has all counts.</p>'
    rows = []
    for name, counts in zip(names, curves.confusion, strict=True):
        whole = max(1, sum(counts))
        rows.append([escape(name), *(bar(count / whole, number(count)) for count in counts)])
    return table(["", *map(escape, names)], rows, caption=caption)


def _ranks(style: int, name: str, curves: CurvesRecord) -> Series:
    c = curves.precision_recall
    points = zip(c["recall"], c["precision"], c["threshold"], c["f1"], strict=True)
    return Series(
        name,
        style,
        tuple(
            Point(
                r,
                p,
                f"{name}, threshold {number(t, 4)}\nprecision {number(p, 4)}\nrecall {number(r, 4)}\nF1 {number(f, 4)}",
            )
            for r, p, t, f in sorted(points)
        ),
    )


def _calibration(style: int, name: str, curves: CurvesRecord) -> Series:
    c = curves.calibration
    return Series(
        name,
        style,
        tuple(
            Point(p, o, f"{name}, {number(n)} rows\npredicted {number(p, 4)}\nobserved {number(o, 4)}")
            for p, o, n in zip(c["predicted"], c["observed"], c["rows"], strict=True)
        ),
    )


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
        for name, feature, label, *cell in zip(c.table, c.feature, c.class_, c.weight, c.scaled, strict=True):
            key = (name, feature, "" if label is None else str(label))
            rows.setdefault(key, [(None, None)] * len(runs))[i] = (cell[0], cell[1])
    trees = "".join(_trees(run, name) for run, name in zip(runs, names, strict=True))
    if not rows:
        return trees or '<p class="note">These models have no coefficients to list.</p>'
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
        f'<table id="weights"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>{trees}'
    )


def _trees(run: RunRecord, name: str) -> str:
    """What the features of boosted trees gained, and the first trees, to be opened one by one."""
    if not run.importance:
        return ""
    largest = max((gain or 0.0 for _, _, gain, _ in run.importance), default=0.0) or 1.0
    rows = "".join(
        f'<tr><td>{escape(feature)}</td><td>{escape(owner)}</td><td class="number">'
        f'{bar((gain or 0.0) / largest, number(gain, 4))}</td><td class="number">{number(splits, 4)}</td></tr>'
        for owner, feature, gain, splits in run.importance
    )
    opened = "".join(
        f"<details><summary>Tree {k}</summary><pre>{escape(text)}</pre></details>"
        for k, text in enumerate(run.trees, 1)
    )
    return (
        f'<p class="note">Trees of {escape(name)}: what all splits of a feature gained, and how many they are. Of '
        "splits that stay with their owners nothing is known here.</p>"
        '<div class="wide" tabindex="0" role="region" aria-label="Importance"><table><thead><tr><th>Feature</th>'
        '<th>Table</th><th class="number">Gain</th><th class="number">Splits</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{opened}"
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
