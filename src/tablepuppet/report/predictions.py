"""Predictions and weights of models, for the report: confusion, curves, partial dependence, coefficients.

In: run records. Out: charts, and rows for the template.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tablepuppet.formatting import number
from tablepuppet.output_files import as_path, write_whole
from tablepuppet.report.charts import Cell, Chart, Point, Series, render_template
from tablepuppet.report.record import CurvesRecord, NumbersRecord, RunRecord
from tablepuppet.report.recording import curves_record

if TYPE_CHECKING:
    from tablepuppet.training.curves import Curves

Columns = Mapping[str, Sequence[float]]
_RECALL = ("recall", "precision", "threshold", "f1")  # columns of that curve, in order
_MAX_CLASSES = 20  # that a table in the page has room for
_MAX_WEIGHTS = 6000  # in the page, which keeps it small; the run's record has them all
_GUIDES = {  # what the dashed line of a chart is
    "ROC": "a model that guesses (“ROC”)",
    "Precision and recall": "a model that guesses (“Precision and recall”)",
    "Calibration": "calibrated probabilities (“Calibration”: three in ten rows with probability 0.3 are positive)",
    "Predicted and actual": "exact predictions (“Predicted and actual”: numbers beyond three standard deviations are "
    "counted at the border)",
}


class Drawing(msgspec.Struct, frozen=True):
    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return "Drawing: a notebook shows it; .write(path) keeps it as an HTML file"

    def write(self, path: str | Path) -> None:
        """Writes the charts as a page of their own."""
        page = f"<!doctype html><meta charset=utf-8>{self.html}"
        write_whole(as_path(path, "the charts"), lambda file: file.write_text(page, encoding="utf-8"), "the charts")


def draw_curves(curves: "Curves") -> Drawing:
    """The curves of one side of the split."""
    found = _draw_predictions([("", "", curves_record(curves))])
    return Drawing(str(render_template("curves.html", predictions=found)))


def predictions(runs: Sequence[RunRecord], names: Sequence[str]) -> dict[str, Any]:
    """Confusion matrices and curves of test rows, or of training rows where none were kept out; or nothing."""
    sides = ["test" if "test" in run.curves else "train" for run in runs]
    named = zip(names, sides, runs, strict=True)
    found = [(name, side, run.curves[side]) for name, side, run in named if run.curves]
    return _draw_predictions(found) if found else {}


def _draw_predictions(found: Sequence[tuple[str, str, CurvesRecord]]) -> dict[str, Any]:
    """In: the name of a run, which rows, and their curves."""
    names = [f"{name if len(found) > 1 else ''} {side} rows".strip() for name, side, _ in found]
    matrices = [_matrix(name, curves) for name, (_, _, curves) in zip(names, found, strict=True) if curves.classes]
    curved = [(i, name, curves) for i, (name, _, curves) in enumerate(found) if curves.precision_recall]
    both = [line for line in curved if all(map(sum, line[2].confusion))]  # rows of either class
    numbers = [(i, name, curves.numbers) for i, (name, _, curves) in enumerate(found) if curves.numbers]
    charts = [_predicted_actual(name if len(numbers) > 1 else "", counted) for _, name, counted in numbers]
    if numbers:
        charts.append(_draw_lines("Residuals", [(i, name, _residuals(counted)) for i, name, counted in numbers]))
    if curved:
        share = min(curves.precision_recall["precision"][0] for _, _, curves in curved)
        for title, drawn, columns, (start, end) in (
            ("ROC", both, _roc, (0.0, 1.0)),
            ("Precision and recall", both, lambda c: {n: c.precision_recall[n] for n in _RECALL}, (share, share)),
            ("Calibration", curved, lambda c: c.calibration, (0.0, 1.0)),
        ):
            lines = [(i, name, columns(curves)) for i, name, curves in drawn]
            if lines:
                charts.append(_draw_lines(title, lines, limits=(0.0, 1.0), guide=((0.0, start), (1.0, end))))
    guides = [text for chart in charts for title, text in _GUIDES.items() if chart.title.startswith(title)]
    return {"matrices": matrices, "charts": charts, "guides": guides}


def _matrix(caption: str, curves: CurvesRecord) -> dict[str, Any]:
    """How often each class was predicted for each; without rows where they are too many for a page."""
    classes = [str(c) for c in curves.classes]
    rows = list(zip(classes, curves.confusion, strict=True)) if len(classes) <= _MAX_CLASSES else None
    return {"caption": caption, "classes": classes, "rows": rows}


def _draw_lines(title: str, lines: Sequence[tuple[int, str, Columns]], **axes: Any) -> Chart:
    """Of each line its style, its name, and columns: it goes through the first two, and every point's text has all."""
    series = []
    for style, name, columns in lines:
        points = []
        for row in zip(*columns.values(), strict=True):
            texts = [f"{column} {number(value, 4)}" for column, value in zip(columns, row, strict=True)]
            points.append(Point(row[0], row[1], "\n".join(filter(None, [name, *texts]))))
        series.append(Series(name, style, tuple(points)))
    x, y, *_ = lines[0][2]
    return Chart(title, x, y, tuple(series), **axes)


def _roc(curves: CurvesRecord) -> Columns:
    c, (negatives, positives) = curves.precision_recall, map(sum, curves.confusion)
    rows = negatives + positives
    found = [round(share * rows - r * positives) for share, r in zip(c["predicted"], c["recall"], strict=True)]
    wrong = [count / max(1, negatives) for count in found]
    ends = {"false positive rate": [*wrong, 0.0], "true positive rate": [*c["recall"], 0.0]}
    return {**ends, "threshold": [*c["threshold"], 1.0]}


def _residuals(numbers: NumbersRecord) -> Columns:
    rows = max(1, sum(numbers.rows))
    return {"label − prediction": numbers.residual, "share of rows": [n / rows for n in numbers.rows]}


def _predicted_actual(name: str, numbers: NumbersRecord) -> Chart:
    """How often labels meet predictions: on the diagonal they are equal."""
    half = (numbers.centres[1] - numbers.centres[0]) / 2
    most = max(1, *map(max, numbers.cells))
    cells = tuple(
        Cell(
            (at - half, at + half),
            (to - half, to + half),
            0.08 + 0.92 * math.sqrt(count / most),
            f"predicted about {number(at, 4)}\nlabel about {number(to, 4)}\n{number(count)} rows",
        )
        for to, counts in zip(numbers.centres, numbers.cells, strict=True)
        for at, count in zip(numbers.centres, counts, strict=True)
        if count
    )
    low, high = numbers.centres[0] - half, numbers.centres[-1] + half
    title = " ".join(filter(None, ["Predicted and actual", name and f"({name})"]))
    return Chart(title, "prediction", "label", (), cells=cells, limits=(low, high), guide=((low, low), (high, high)))


_Line = tuple[str, list[float | str | None], list[float]]


def dependence(runs: Sequence[RunRecord], names: Sequence[str]) -> list[dict[str, Any]]:
    """Mean predictions at each value of every requested feature: a chart of numbers, or rows of texts."""
    features = dict.fromkeys(curve.feature for run in runs for curve in run.dependence)
    return [_dependence_on(feature, runs, names) for feature in features]


def _dependence_on(feature: str, runs: Sequence[RunRecord], names: Sequence[str]) -> dict[str, Any]:
    lines = [
        (" ".join(part for part in (name if len(runs) > 1 else "", _title(mean)) if part), curve.values, means)
        for run, name in zip(runs, names, strict=True)
        for curve in run.dependence
        if curve.feature == feature
        for mean, means in curve.means.items()
    ]
    has_texts = any(isinstance(value, str) for _, values, _ in lines for value in values)
    tables = [dict(zip(values, means, strict=True)) for _, values, means in lines]
    missing = [
        f"{name} {number(means[None], 4)}" for (name, _, _), means in zip(lines, tables, strict=True) if None in means
    ]
    values = list(dict.fromkeys(value for means in tables for value in means))
    return {
        "feature": feature,
        "names": [name for name, _, _ in lines],
        "chart": None if has_texts else _dependence_chart(feature, lines),
        "caption": f"{feature} (missing: {', '.join(missing)})" if missing else feature,
        "rows": [(value, [means.get(value) for means in tables]) for value in values],
        "largest": max((abs(mean) for means in tables for mean in means.values()), default=0.0) or 1.0,
    }


def _title(mean: str) -> str:
    """probability_gold → probability of gold."""
    first, _, label = mean.partition("_")
    return f"{first} of {label}" if label else first


def _dependence_chart(feature: str, lines: Sequence[_Line]) -> Chart:
    what = lines[0][0] if len(lines) == 1 else "mean"
    drawn: list[tuple[int, str, Columns]] = []
    for style, (name, values, means) in enumerate(lines):
        known = [(float(x), y) for x, y in zip(values, means, strict=True) if x is not None]
        columns = {feature: [x for x, _ in known], what: [y for _, y in known]}
        drawn.append((style, "" if len(lines) == 1 else name, columns))
    return _draw_lines(f"{feature}: {what}", drawn, x_from_zero=False)


_Cell = tuple[float | None, float | None]  # the weight, and that of the encoded column


def weights(runs: Sequence[RunRecord], names: Sequence[str]) -> dict[str, Any]:
    """One row per coefficient of all runs, the largest on the encoded scale first; none where no model is linear."""
    rows: dict[tuple[str, str, str], list[_Cell]] = {}
    for i, run in enumerate(runs):
        c = run.coefficients
        for table, feature, label, *cell in (
            zip(c.table, c.feature, c.class_, c.weight, c.scaled, strict=True) if c else ()
        ):
            key = (feature, table, "" if label is None else str(label))
            rows.setdefault(key, [(None, None)] * len(runs))[i] = (cell[0], cell[1])
    texts = 3 if len({label for _, _, label in rows}) > 1 else 2
    head = ["Feature", "Table", "Class"][:texts]
    for name in names:
        suffix = f", {name}" if len(names) > 1 else ""
        head += [f"Weight{suffix}", f"Per encoded unit{suffix}"]
    scaled = [value for cells in rows.values() for _, value in cells if value is not None]
    ordered = sorted(rows.items(), key=lambda item: -_largest(item[1]))
    return {
        "head": head,
        "texts": texts,  # columns of text
        "rows": [(list(key[:texts]), cells) for key, cells in ordered[: _MAX_WEIGHTS // len(runs)]],
        "count": len(rows),
        "largest": max((_largest(cells) for cells in rows.values()), default=0.0) or 1.0,
        "numbers": len(scaled),
        "zeros": sum(value == 0.0 for value in scaled),
    }


def _largest(cells: Sequence[_Cell]) -> float:
    return max((abs(s) for _, s in cells if s is not None and math.isfinite(s)), default=0.0)
