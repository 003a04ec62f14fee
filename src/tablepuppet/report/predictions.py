"""The report's section on classifiers: who is taken for whom, what thresholds give, and whether probabilities hold."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tablepuppet.formatting import number
from tablepuppet.report.charts import Chart, Point, Series, svg
from tablepuppet.report.markup import bar, table
from tablepuppet.report.record import CurvesRecord, RunRecord

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
