"""Curves: what a classifier does on one side of the split, beyond one figure.

In: sums over joined rows and the scores in order (metrics.py). Out: a confusion matrix; of two classes also the
calibration curve, and what every threshold would give, from which one is chosen. Counts only: no row is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.engine.ranking import Ranking
from tablepuppet.errors import JobError
from tablepuppet.mapping.mapping import Class
from tablepuppet.models.losses import Loss

if TYPE_CHECKING:
    import pandas as pd

BINS = 100  # of probabilities, which coarser bins are made of
GOALS = ("f1", "accuracy", "youden")


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """The predictions of a classifier on one side of the split, counted."""

    confusion: Array  # rows of each class (down) that are predicted to be of each (across)
    classes: tuple[Class, ...] = ()
    calibration: Array | None = None  # (rows, Σ probability, Σ label) of BINS even bins
    thresholds: Array | None = None  # probabilities, ascending; the two below: of the rows that have at least these
    true_positives: Array | None = None
    predicted: Array | None = None

    def confusion_matrix(self, threshold: float | None = None) -> pd.DataFrame:
        """Rows of each class (down) that are predicted to be of each (across); of two classes, at any threshold."""
        counts = self.confusion
        if threshold is not None:
            thresholds, true, predicted = self._points()
            at = int(np.searchsorted(thresholds, threshold))
            found = (true[at], predicted[at]) if at < len(thresholds) else (0, 0)
            counts = self._counts(int(found[0]), int(found[1]))
        return _frame(counts, index=list(self.classes), columns=list(self.classes)).rename_axis(
            index="label", columns="prediction"
        )

    def calibration_curve(self, bins: int = 10) -> pd.DataFrame:
        """Probabilities in even bins: their mean, the share of rows that are positive, and how many rows there are.

        As scikit-learn's `calibration_curve(…, n_bins=bins)`; empty bins are left out.
        """
        if self.calibration is None:
            raise JobError("a calibration curve needs a model of two classes that predicts probabilities")
        if not 1 <= bins <= BINS or BINS % bins:
            raise JobError(f"bins must divide {BINS}: 5, 10, 20, 25, 50, …")
        rows, probability, positive = self.calibration.reshape(3, bins, -1).sum(axis=2)
        rows, probability, positive = (values[rows > 0] for values in (rows, probability, positive))
        return _frame({"predicted": probability / rows, "observed": positive / rows, "rows": rows.astype(np.int64)})

    def precision_recall(self) -> pd.DataFrame:
        """Precision, recall, F1 and the share of rows that are predicted positive, by threshold."""
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

    def threshold(
        self,
        best: str = "f1",
        *,
        precision: float | None = None,
        recall: float | None = None,
        costs: tuple[float, float] | None = None,
    ) -> float:
        """The probability from which on a row is predicted to be of the second class.

        `best`: the highest "f1", "accuracy" or "youden" (recall of both classes). `precision`: at least so much, with
        the highest recall; `recall`: at least so much, with the highest precision; `costs`: of a wrong positive and of
        a wrong negative, the lowest sum.
        """
        thresholds, true, predicted = self._points()
        positives, rows = float(self.confusion[1].sum()), float(self.confusion.sum())
        wrong, missed = predicted - true, positives - true
        if costs is not None:
            gain = -(costs[0] * wrong + costs[1] * missed)
        elif precision is not None:
            gain = np.where(true / predicted >= precision, true, -np.inf)
        elif recall is not None:
            gain = np.where(true >= recall * positives, true / predicted, -np.inf)
        elif best in GOALS:
            gain = {
                "f1": 2.0 * true / (predicted + positives),
                "accuracy": -(wrong + missed),
                "youden": true / max(1.0, positives) - wrong / max(1.0, rows - positives),
            }[best]
        else:
            raise JobError(f"best must be one of {', '.join(GOALS)}, or give precision=, recall= or costs=(…, …)")
        if not np.isfinite(gain).any():
            raise JobError(f"no threshold reaches precision {precision}; the highest is {(true / predicted).max():.3f}")
        return float(thresholds[int(np.argmax(gain))])

    def _points(self) -> tuple[Array, Array, Array]:
        if self.thresholds is None or self.true_positives is None or self.predicted is None:
            raise JobError("a threshold needs a model of two classes that predicts probabilities")
        return self.thresholds, self.true_positives, self.predicted

    def _counts(self, true: int, predicted: int) -> Array:
        rows, positives = int(self.confusion.sum()), int(self.confusion[1].sum())
        return np.array([[rows - positives - predicted + true, predicted - true], [positives - true, true]])


def curves_of(sums: dict[str, Any], loss: Loss, ranked: Sequence[Ranking]) -> Curves:
    """The curves that follow from sums, and from the ranks of the second of two classes."""
    confusion = np.asarray(sums["confusion"])
    if loss.outputs > 1 or "calibration" not in sums or not ranked:
        return Curves(confusion, tuple(range(len(confusion))))
    points = ranked[0]
    probabilities = loss.probabilities(points.scores[:, None])
    assert probabilities is not None
    found = (probabilities[:, 1], points.true_positives, points.predicted)
    return Curves(confusion, (0, 1), np.asarray(sums["calibration"]), *found)


def _frame(data: Any, **given: Any) -> pd.DataFrame:
    import pandas as pd  # not to be loaded with every run

    return pd.DataFrame(data, **given)
