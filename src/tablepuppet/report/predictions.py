"""Predictions and weights of models, for the report: confusion, curves, partial dependence, coefficients.

In: run records. Out: charts, and rows for the template.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tablepuppet.formatting import number, tick_text
from tablepuppet.output_files import as_path, write_whole
from tablepuppet.report.charts import Cell, Chart, Point, Series, render_template
from tablepuppet.report.record import CurvesRecord, NumbersRecord, RunRecord
from tablepuppet.report.recording import curves_record

if TYPE_CHECKING:
    from tablepuppet.training.curves import Curves

_MAX_CLASSES = 20  # that a table in the page has room for
_MAX_WEIGHTS = 6000  # in the page, which keeps it small; the run's record has them all


@dataclass(frozen=True, slots=True)
class Matrix:
    """How often each class was predicted for each."""

    caption: str
    classes: list[str]
    rows: list[tuple[str, list[int]]] | None  # None: too many for a page


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of test rows, or of training rows where none were kept out."""

    matrices: list[Matrix]
    charts: list[Chart]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Charts that a notebook shows."""

    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return "Drawing: a notebook shows it; .write(path) keeps it as an HTML file"

    def write(self, path: str | Path) -> None:
        """Writes the charts as a page of their own."""
        page = f"<!doctype html><meta charset=utf-8>{self.html}"
        write_whole(as_path(path, "the charts"), lambda file: file.write_text(page, encoding="utf-8"), "the charts")


def draw_curves(curves: Curves) -> Drawing:
    """The curves of one side of the split."""
    found = _draw_predictions([("", "", curves_record(curves))])
    return Drawing(str(render_template("curves.html", predictions=found)))


def predictions(runs: Sequence[RunRecord], names: Sequence[str]) -> Predictions | None:
    """Confusion matrices and curves; None where no run has any."""
    found = [(name, *_test_side(run)) for run, name in zip(runs, names, strict=True) if run.curves]
    return _draw_predictions(found) if found else None


def _draw_predictions(found: Sequence[tuple[str, str, CurvesRecord]]) -> Predictions:
    """In: the name of a run, which rows, and their curves."""
    names = [f"{name if len(found) > 1 else ''} {side} rows".strip() for name, side, _ in found]
    matrices = [_matrix(name, curves) for name, (_, _, curves) in zip(names, found, strict=True) if curves.classes]
    curved = [(i, name, curves) for i, (name, _, curves) in enumerate(found) if curves.precision_recall]
    numbers = [(i, name, curves.numbers) for i, (name, _, curves) in enumerate(found) if curves.numbers]
    charts = [_predicted_actual(name if len(numbers) > 1 else "", counted) for _, name, counted in numbers]
    if numbers:
        charts.append(
            Chart(
                "Residuals", "label − prediction", "share of rows", tuple(map(_residuals, *zip(*numbers, strict=True)))
            )
        )
    if curved:
        unit = {"limits": (0.0, 1.0)}
        diagonal: dict[str, Any] = {**unit, "guide": ((0.0, 0.0), (1.0, 1.0))}
        share = min(curves.precision_recall["precision"][0] for _, _, curves in curved)
        flat: dict[str, Any] = {**unit, "guide": ((0.0, share), (1.0, share))}
        columns = tuple(zip(*curved, strict=True))
        charts += [
            Chart("ROC", "false positive rate", "true positive rate", tuple(map(_roc, *columns)), **diagonal),
            Chart("Precision and recall", "recall", "precision", tuple(map(_precision_recall, *columns)), **flat),
            Chart("Calibration", "predicted", "observed", tuple(map(_calibration, *columns)), **diagonal),
        ]
    return Predictions(matrices, charts)


def _test_side(run: RunRecord) -> tuple[str, CurvesRecord]:
    side = "test" if "test" in run.curves else "train"
    return side, run.curves[side]


def _matrix(caption: str, curves: CurvesRecord) -> Matrix:
    classes = [str(c) for c in curves.classes]
    is_small = len(classes) <= _MAX_CLASSES
    return Matrix(caption, classes, list(zip(classes, curves.confusion, strict=True)) if is_small else None)


def _line(style: int, name: str, columns: Mapping[str, Sequence[float]]) -> Series:
    """A line through the first two columns; every point's text has all of them."""
    points = [
        Point(row[0], row[1], "\n".join(filter(None, [name, *map(_describe, columns, row)])))
        for row in zip(*columns.values(), strict=True)
    ]
    return Series(name, style, tuple(points))


def _describe(name: str, value: float) -> str:
    return f"{name} {number(value, 4)}"


def _roc(style: int, name: str, curves: CurvesRecord) -> Series:
    c, (negatives, positives) = curves.precision_recall, map(sum, curves.confusion)
    rows = negatives + positives
    found = [round(share * rows - r * positives) for share, r in zip(c["predicted"], c["recall"], strict=True)]
    wrong = [count / max(1, negatives) for count in found]
    ends = {"false positive rate": [*wrong, 0.0], "true positive rate": [*c["recall"], 0.0]}
    return _line(style, name, {**ends, "threshold": [*c["threshold"], 1.0]})


def _precision_recall(style: int, name: str, curves: CurvesRecord) -> Series:
    return _line(style, name, {n: curves.precision_recall[n] for n in ("recall", "precision", "threshold", "f1")})


def _calibration(style: int, name: str, curves: CurvesRecord) -> Series:
    return _line(style, name, curves.calibration)


def _residuals(style: int, name: str, numbers: NumbersRecord) -> Series:
    rows = max(1, sum(numbers.rows))
    return _line(
        style, name, {"label − prediction": numbers.residual, "share of rows": [n / rows for n in numbers.rows]}
    )


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


@dataclass(frozen=True, slots=True)
class Dependence:
    """Mean predictions at each value of a feature: a chart of numbers, or rows of texts."""

    feature: str
    names: list[str]
    chart: Chart | None
    caption: str
    rows: list[tuple[float | str | None, list[float | None]]]
    largest: float


_Line = tuple[str, list[float | str | None], list[float]]


def dependence(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Dependence]:
    """Every requested feature."""
    features = dict.fromkeys(curve.feature for run in runs for curve in run.dependence)
    return [_dependence_on(feature, runs, names) for feature in features]


def _dependence_on(feature: str, runs: Sequence[RunRecord], names: Sequence[str]) -> Dependence:
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
    return Dependence(
        feature,
        [name for name, _, _ in lines],
        None if has_texts else _dependence_chart(feature, lines),
        f"{feature} (missing: {', '.join(missing)})" if missing else feature,
        [(value, [means.get(value) for means in tables]) for value in values],
        max((abs(mean) for means in tables for mean in means.values()), default=0.0) or 1.0,
    )


def _title(mean: str) -> str:
    """probability_gold → probability of gold."""
    first, _, label = mean.partition("_")
    return f"{first} of {label}" if label else first


def _dependence_chart(feature: str, lines: Sequence[_Line]) -> Chart:
    series = tuple(
        Series(
            name,
            style,
            tuple(
                Point(float(x), y, f"{feature} = {tick_text(float(x))}\n{name} {number(y, 5)}")
                for x, y in zip(values, means, strict=True)
                if x is not None
            ),
        )
        for style, (name, values, means) in enumerate(lines)
    )
    what = lines[0][0] if len(lines) == 1 else "mean"
    return Chart(f"{feature}: {what}", feature, what, series, x_from_zero=False)


_Cell = tuple[float | None, float | None]  # the weight, and that of the encoded column


@dataclass(frozen=True, slots=True)
class Weights:
    """The coefficients of all runs side by side, the largest on the encoded scale first."""

    head: list[str]
    texts: int  # columns of text
    rows: list[tuple[list[str], list[_Cell]]]
    count: int  # of all rows
    largest: float
    numbers: int
    zeros: int


def weights(runs: Sequence[RunRecord], names: Sequence[str]) -> Weights:
    """One row per coefficient; none where no model is linear."""
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
    return Weights(
        head,
        texts,
        [(list(key[:texts]), cells) for key, cells in ordered[: _MAX_WEIGHTS // len(runs)]],
        len(rows),
        max((_largest(cells) for cells in rows.values()), default=0.0) or 1.0,
        len(scaled),
        sum(value == 0.0 for value in scaled),
    )


def _largest(cells: Sequence[_Cell]) -> float:
    return max((abs(s) for _, s in cells if s is not None and math.isfinite(s)), default=0.0)
