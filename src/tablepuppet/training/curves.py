"""Curves: a model's behaviour on one side of the split, beyond one number.

In: sums over joined rows and the scores in order (metrics.py). Out: a confusion matrix. For two classes also the
calibration curve, and the effect of every threshold, from which one is chosen. For numbers: how often labels meet
predictions, and residuals. Curves hold counts only, and no row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.calls import check_calls
from tablepuppet.errors import JobError
from tablepuppet.join.mapping import Class
from tablepuppet.models.losses import Loss
from tablepuppet.models.metrics import Spread
from tablepuppet.training.ranking import BINS, Ranking

if TYPE_CHECKING:
    import pandas as pd

    from tablepuppet.report.predictions import Drawing

Integers = NDArray[np.int64]
_CELLS = 24  # of a number's label, and of its prediction
GOALS = ("f1", "accuracy", "youden")
_NONE = (1.0, 0.0, 0.0)  # the point of a curve at which no row is predicted to be of the second class


class Grid(msgspec.Struct, frozen=True, eq=False):
    """Even steps in which numbers are counted; a number outside counts in the first or the last."""

    middle: float
    reach: float  # from the middle to either end
    steps: int

    def places(self, values: Array) -> Integers:
        share = (values - self.middle) / (2.0 * self.reach) + 0.5
        return (np.clip(share, 0.0, 1.0 - 1e-9) * self.steps).astype(np.int64)

    @property
    def centres(self) -> Array:
        return self.middle + self.reach * ((2.0 * np.arange(self.steps) + 1.0) / self.steps - 1.0)


class NumberCounts(msgspec.Struct, frozen=True, eq=False):
    """The predictions of a number, counted: rows by label (down) and prediction (across), and by label − prediction."""

    labels: Grid
    cells: Array
    errors: Grid
    residuals: Array

    @classmethod
    def grids(cls, spread: Spread, squared: float) -> tuple[Grid, Grid]:
        """Three standard deviations of labels around their mean, and of residuals around 0."""
        rows = max(1, spread.rows)
        reach, error = (3.0 * math.sqrt(max(0.0, total) / rows) or 1.0 for total in (spread.squares, squared))
        return Grid(spread.origin + spread.total / rows, reach, _CELLS), Grid(0.0, error, _CELLS + 1)


def count_numbers(predicted: Array, labels: Array, grids: tuple[Grid, Grid]) -> dict[str, NDArray[Any]]:
    """Rows of each cell, and of each step of the residual."""
    of_labels, of_errors = grids
    cells = of_labels.places(labels) * _CELLS + of_labels.places(predicted)
    return {
        "cells": np.bincount(cells, minlength=_CELLS * _CELLS).reshape(_CELLS, _CELLS),
        "residuals": np.bincount(of_errors.places(labels - predicted), minlength=of_errors.steps),
    }


@check_calls
class Curves(msgspec.Struct, frozen=True, eq=False):
    """The predictions of a model on one side of the split, counted: `result.curves["test"]`.

    >>> result.curves["test"].classes
    (False, True)
    """

    confusion: Array  # rows of each class (down) that are predicted to be of each (across); of numbers: empty
    classes: tuple[Class, ...] = ()
    calibration: Array | None = None  # (rows, Σ probability, Σ label) of BINS even bins
    thresholds: Array | None = None  # probabilities, ascending; the two below: of the rows that have at least these
    true_positives: Array | None = None
    predicted: Array | None = None
    numbers: NumberCounts | None = None

    def plot(self) -> Drawing:
        """The curves as charts, which a notebook shows; `.write("curves.html")` keeps them.

        >>> "<svg" in result.curves["test"].plot().html
        True
        """
        from tablepuppet.report.predictions import draw_curves  # not to be loaded with every run

        return draw_curves(self)

    def _repr_html_(self) -> str:
        return self.plot().html

    def __repr__(self) -> str:
        if self.numbers is not None:
            return (
                f"Curves(of numbers, {int(self.numbers.cells.sum()):,} rows: plot(), residuals(), predicted_actual())"
            )
        more = ", roc(), precision_recall(), calibration_curve(), threshold()" if self.thresholds is not None else ""
        rows, classes = int(self.confusion.sum()), len(self.classes)
        return f"Curves(of {classes} classes, {rows:,} rows: plot(), confusion_matrix(){more})"

    def residuals(self) -> pd.DataFrame:
        """Counts of rows by label − prediction, for a number; the ends hold all that lies beyond."""
        numbers = self._numbers()
        return _frame({"residual": numbers.errors.centres, "rows": numbers.residuals})

    def predicted_actual(self) -> pd.DataFrame:
        """Counts of rows by label (down) and prediction (across), for a number."""
        numbers = self._numbers()
        centres = numbers.labels.centres
        return _frame(numbers.cells, index=centres, columns=centres).rename_axis(index="label", columns="prediction")

    def _numbers(self) -> NumberCounts:
        if self.numbers is None:
            raise JobError("residuals need a model that predicts a number; of classes there is confusion_matrix()")
        return self.numbers

    def confusion_matrix(self, threshold: float | None = None) -> pd.DataFrame:
        """Rows of each class (down) that are predicted as each class (across): a data frame. `threshold`: of two
        classes.

        >>> int(result.curves["test"].confusion_matrix().to_numpy().sum())
        19
        """
        if self.numbers is not None:
            raise JobError("a confusion matrix needs classes; of a number there are predicted_actual() and residuals()")
        counts = self.confusion
        if threshold is not None:
            thresholds, true, predicted = self._points()
            at = int(np.searchsorted(thresholds, threshold))
            right, chosen = (int(true[at]), int(predicted[at])) if at < len(thresholds) else (0, 0)
            rows, positives = int(counts.sum()), int(counts[1].sum())
            counts = np.array([[rows - positives - chosen + right, chosen - right], [positives - right, right]])
        return _frame(counts, index=list(self.classes), columns=list(self.classes)).rename_axis(
            index="label", columns="prediction"
        )

    def calibration_curve(self, bins: int = 10) -> pd.DataFrame:
        """Calibration: a data frame of the mean probability, the share of positive rows and the rows of each bin.

        It equals scikit-learn's `calibration_curve(…, n_bins=bins)`; empty bins are left out. `bins`: a divisor of 100.

        >>> list(result.curves["test"].calibration_curve(bins=10).columns)
        ['predicted', 'observed', 'rows']
        """
        if self.calibration is None:
            raise JobError("a calibration curve needs a model of two classes that predicts probabilities")
        if not 1 <= bins <= BINS or BINS % bins:
            raise JobError(f"bins must divide {BINS}: 5, 10, 20, 25, 50, …")
        rows, probability, positive = self.calibration.reshape(3, bins, -1).sum(axis=2)
        rows, probability, positive = (values[rows > 0] for values in (rows, probability, positive))
        return _frame({"predicted": probability / rows, "observed": positive / rows, "rows": rows.astype(np.int64)})

    def precision_recall(self) -> pd.DataFrame:
        """Precision, recall, F1 and the share of rows that are predicted positive, by threshold: a data frame.

        >>> list(result.curves["test"].precision_recall().columns)
        ['threshold', 'precision', 'recall', 'f1', 'predicted']
        """
        thresholds, true, predicted = self._points()
        positives, rows = self.confusion[1].sum(), self.confusion.sum()
        return _frame(
            {
                "threshold": thresholds,
                "precision": true / predicted,
                "recall": true / max(1, positives),
                "f1": 2.0 * true / (predicted + positives),
                "predicted": predicted / rows,
            }
        )

    def roc(self) -> pd.DataFrame:
        """The shares of negative and of positive rows that are predicted positive, by threshold: a data frame.

        They are those of scikit-learn's `roc_curve`: NaN where no row is of the class.

        >>> list(result.curves["test"].roc().columns)
        ['threshold', 'false_positive_rate', 'true_positive_rate']
        """
        thresholds, true, predicted = self._points()
        negatives, positives = self.confusion.sum(axis=1)
        nan = float("nan")
        rates = {
            "false_positive_rate": (predicted - true) / (negatives or nan),
            "true_positive_rate": true / (positives or nan),
        }
        return _frame({"threshold": thresholds, **rates})

    def threshold(
        self,
        best: str = "f1",
        *,
        precision: float | None = None,
        recall: float | None = None,
        costs: tuple[float, float] | None = None,
    ) -> float:
        """The probability from which a row is predicted as the second class.

        - `best`: the highest "f1", "accuracy" or "youden" (recall of both classes).
        - `precision`: at least so much, with the highest recall; `recall`: at least so much, with the highest
          precision.
        - `costs`: of a wrong positive and of a wrong negative; the lowest sum wins.

        It is 1 if it is best to predict no row as the second class.

        >>> 0.0 <= result.curves["train"].threshold(costs=(1, 5)) <= 1.0
        True
        """
        if (precision is not None) + (recall is not None) + (costs is not None) > 1:
            raise JobError("give one of precision=, recall= and costs=(…, …)")
        thresholds, true, predicted = (
            np.append(points, end) for points, end in zip(self._points(), _NONE, strict=True)
        )
        positives, rows = float(self.confusion[1].sum()), float(self.confusion.sum())
        precise, found = true / np.maximum(predicted, 1.0), true / max(1.0, positives)
        wrong, missed = predicted - true, positives - true
        if costs is not None:
            if len(costs) != 2 or not all(isinstance(c, int | float) and 0.0 <= c < math.inf for c in costs):
                raise JobError("costs are two numbers from 0 up: of a wrong positive and of a wrong negative")
            gain = -(costs[0] * wrong + costs[1] * missed)
        elif precision is not None:
            gain = np.where((precise >= precision) & (predicted > 0), true, -np.inf)
        elif recall is not None:
            gain = np.where(found >= recall, precise, -np.inf)
        elif best in GOALS:
            gain = {
                "f1": 2.0 * true / (predicted + positives),
                "accuracy": -(wrong + missed),
                "youden": found - wrong / max(1.0, rows - positives),
            }[best]
        else:
            raise JobError(f"best must be one of {', '.join(GOALS)}, or give precision=, recall= or costs=(…, …)")
        if not np.isfinite(gain).any():
            name, wanted, best_found = (
                ("recall", recall, found) if precision is None else ("precision", precision, precise)
            )
            raise JobError(f"no threshold reaches {name} {wanted}; the highest is {best_found.max():.3f}")
        return float(thresholds[int(np.argmax(gain))])

    def _points(self) -> tuple[Array, Array, Array]:
        if self.thresholds is None or self.true_positives is None or self.predicted is None:
            raise JobError("a threshold needs a model of two classes that predicts probabilities")
        return self.thresholds, self.true_positives, self.predicted


def curves_of(sums: dict[str, Any], loss: Loss, ranked: Sequence[Ranking]) -> Curves:
    """The curves that follow from sums, and from the ranks of the second of two classes."""
    if "cells" in sums:
        grids = sums["grids"]
        numbers = NumberCounts(grids[0], sums["cells"], grids[1], sums["residuals"])
        return Curves(np.zeros((0, 0), np.int64), numbers=numbers)
    confusion = np.asarray(sums["confusion"])
    if loss.outputs > 1 or not ranked or ranked[0].calibration is None:
        return Curves(confusion, tuple(range(len(confusion))))
    points = ranked[0]
    probabilities = loss.probabilities(points.scores[:, None])
    assert probabilities is not None
    found = (probabilities[:, 1], points.true_positives, points.predicted)
    return Curves(confusion, (0, 1), points.calibration, *found)


def _frame(data: Any, **given: Any) -> pd.DataFrame:
    import pandas as pd  # not to be loaded with every run

    return pd.DataFrame(data, **given)
