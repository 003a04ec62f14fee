"""What models predict and what they weigh, for the report: confusion, curves, partial dependence, coefficients.

In: run records. Out: charts, and rows for the template.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tablepuppet.formatting import number
from tablepuppet.report.charts import Chart, Point, Series
from tablepuppet.report.record import CurvesRecord, RunRecord

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
    """What classifiers make of test rows, or of training rows where none were kept out."""

    matrices: list[Matrix]
    charts: list[Chart]


def predictions(runs: Sequence[RunRecord], names: Sequence[str]) -> Predictions | None:
    """Confusion matrices and curves; None where no run is a classifier's."""
    found = [(name, *_test_side(run)) for run, name in zip(runs, names, strict=True) if run.curves]
    if not found:
        return None
    matrices = [
        _matrix(f"{name}, {side} rows" if len(runs) > 1 else f"{side} rows", curves) for name, side, curves in found
    ]
    curved = [(i, name, curves) for i, (name, _, curves) in enumerate(found) if curves.precision_recall]
    if not curved:
        return Predictions(matrices, [])
    ranks = Chart("Precision and recall", "recall", "precision", tuple(_precision_recall(*item) for item in curved))
    shares = Chart("Calibration", "predicted", "observed", tuple(_calibration(*item) for item in curved))
    return Predictions(matrices, [ranks, shares])


def _test_side(run: RunRecord) -> tuple[str, CurvesRecord]:
    side = "test" if "test" in run.curves else "train"
    return side, run.curves[side]


def _matrix(caption: str, curves: CurvesRecord) -> Matrix:
    classes = [str(c) for c in curves.classes]
    is_small = len(classes) <= _MAX_CLASSES
    return Matrix(caption, classes, list(zip(classes, curves.confusion, strict=True)) if is_small else None)


def _precision_recall(style: int, name: str, curves: CurvesRecord) -> Series:
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


@dataclass(frozen=True, slots=True)
class Dependence:
    """What models say on average at each value of a feature: a chart of numbers, or rows of texts."""

    feature: str
    names: list[str]
    chart: Chart | None
    caption: str
    rows: list[tuple[float | str | None, list[float | None]]]
    largest: float


_Line = tuple[str, list[float | str | None], list[float]]


def dependence(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Dependence]:
    """Every feature that somebody asked about."""
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
                Point(float(x), y, f"{feature} = {number(float(x), 5)}\n{name} {number(y, 5)}")
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
