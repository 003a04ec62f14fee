"""Metrics of a model, from sums over joined rows or from scores in order.

Each metric defines the sums that it needs of a shard of rows, and its value from the sums of all shards. A loss lists
the metrics of its models. Metrics equal scikit-learn's of the same names. If owners made the labels noisy, a metric is
an unbiased estimate of its value on the true labels; it is left out if none exists.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from tablepuppet.arrays import Array
from tablepuppet.privacy.labels import Channel

_MOST_RELATIVE = 1e4  # a mean relative error: a larger one is of labels at or near 0
Sums = dict[str, Any]
ShardSums = Callable[[Any, Array, Array, Channel | None], Sums]  # of a loss, scores and labels
Value = Callable[[Sums], float | None]  # None: undefined for such labels


class Moment(IntEnum):
    """When a metric is measured; each moment includes those before. Expensive metrics are measured less often."""

    EPOCH = 0  # of training rows, after each epoch
    HELD_OUT = 1  # of test and validation rows, after each epoch
    FINISHED = 2  # of the trained model


class Metric(msgspec.Struct, frozen=True):
    """One metric: its name in results and for `monitor`, and how it is computed."""

    name: str
    title: str  # in reports
    sums: ShardSums
    value: Value
    is_higher_better: bool = False
    can_monitor: bool = True  # whether less, or more, is always better: early stopping may watch it
    of_loss: float = 0.0  # the metric is this many times the mean loss
    since: Moment = Moment.EPOCH  # when it is measured
    is_ranked: bool = False  # needs the scores of all rows in order (training/ranking.py)
    is_headline: bool = True  # shown in one line, and charted epoch by epoch
    needs_true_labels: bool = False  # noise cannot be taken out of it: left out where owners made labels noisy
    debias: Callable[[Channel, float, Sums], float] | None = None  # its value of noisy labels; None: sums are enough

    def of(self, sums: Sums, channel: Channel | None) -> float | None:
        """Its value, or an estimate of it without bias where labels went through a channel; None: there is none."""
        if channel is not None and self.needs_true_labels:
            return None
        found = self.value(sums)
        return found if channel is None or found is None or self.debias is None else self.debias(channel, found, sums)


class Spread(msgspec.Struct, frozen=True):
    """Sums of label − origin and of its square, with the labels' own mean as the origin. Squares of labels far from 0
    would drown their differences. Spreads of several sets of rows can be added."""

    rows: int
    origin: float
    total: float
    squared: float

    @classmethod
    def of(cls, labels: Array) -> "Spread":
        origin = float(labels.mean()) if len(labels) else 0.0
        apart = labels - origin
        return cls(len(labels), origin, float(apart.sum()), float(apart @ apart))

    @property
    def squares(self) -> float:
        """Σ (label − mean)²."""
        return self.squared - self.total * self.total / max(1, self.rows)

    def __add__(self, other: "Spread") -> "Spread":
        if not self.rows:
            return other
        apart = other.origin - self.origin
        total = self.total + other.total + apart * other.rows
        squared = self.squared + other.squared + apart * (2.0 * other.total + apart * other.rows)
        return Spread(self.rows + other.rows, self.origin, total, squared)

    def __radd__(self, start: int) -> "Spread":
        return self  # sum() begins with 0


def no_sums(loss: Any, scores: Array, labels: Array, channel: Channel | None) -> Sums:
    """Nothing but the number of rows and the loss, which are always there."""
    return {}


def error_sums(loss: Any, scores: Array, labels: Array, channel: Channel | None) -> Sums:
    """Sums over errors of predicted numbers, and the labels' spread."""
    error = loss.predict(scores) - labels
    extra = 0.0 if channel is None else float((channel.unbiased_square(labels) - labels * labels).sum())
    spread = Spread.of(labels)
    return {
        "squared": float(error @ error) + extra,
        "absolute": float(np.abs(error).sum()),
        "spread": spread if channel is None else replace(spread, squared=spread.squared + extra),
    }


def ratio_sums(loss: Any, scores: Array, labels: Array, channel: Channel | None) -> Sums:
    """Of errors in proportion to their labels; a label of 0 counts as the smallest number there is, as elsewhere."""
    error = np.abs(loss.predict(scores) - labels)
    return {"relative": float((error / np.maximum(np.abs(labels), np.finfo(np.float64).eps)).sum())}


def binary_sums(loss: Any, scores: Array, labels: Array, channel: Channel | None) -> Sums:
    """The four counts of two classes: all rows, those of the second class, those predicted to be, and both."""
    seen, predicted = labels > 0.5, loss.predict(scores) > 0
    both, positives, found = (int(np.count_nonzero(x)) for x in (seen & predicted, seen, predicted))
    return {
        "correct": len(labels) - positives - found + 2 * both,
        "confusion": np.array([[len(labels) - positives - found + both, found - both], [positives - both, both]]),
    }


def class_sums(loss: Any, scores: Array, labels: Array, channel: Channel | None) -> Sums:
    """How many rows of each class are predicted to be of each: one line of `confusion` for every true class."""
    count = int(loss.outputs)
    predicted = loss.predict(scores)
    pairs = labels.astype(np.intp) * count + predicted.astype(np.intp)
    return {
        "correct": int(np.count_nonzero(predicted == labels)),
        "confusion": np.bincount(pairs, minlength=count * count).reshape(count, count),
    }


def coverage_sums(loss: Any, scores: Array, labels: Array, channel: Channel | None) -> Sums:
    return {"covered": int(np.count_nonzero(labels <= loss.predict(scores)))}


def _r2(sums: Sums) -> float:
    spread = sums["spread"].squares
    if spread > 0:
        return float(1.0 - sums["squared"] / spread)
    return float(sums["squared"] == 0.0)  # of labels that are all the same: whether all are met


def _mean_of(name: str, times: float = 1.0) -> Value:
    return lambda sums: float(times * sums[name] / sums["rows"])


def _mape(sums: Sums) -> float | None:
    """None where labels at or near 0 make it unreadably large."""
    found = sums["relative"] / sums["rows"]
    return None if found > _MOST_RELATIVE else found


def _rate(part: Array, whole: Array) -> Value:
    """The mean over classes of part / whole; 0 where there is none.

    Both weigh three counts of each class: rows that are predicted rightly, that are predicted to be, that are. Of two
    classes the second counts alone; of more, all that occur.
    """

    def value(sums: Sums) -> float:
        confusion = np.asarray(sums["confusion"], np.float64)
        found = np.stack([np.diag(confusion), confusion.sum(axis=0), confusion.sum(axis=1)])
        kept = found[:, 1:] if len(confusion) == 2 else found[:, found.sum(axis=0) > 0]
        rows, of = part @ kept, whole @ kept
        return float(np.divide(rows, of, out=np.zeros_like(rows), where=of > 0).mean())

    return value


RMSE = Metric("rmse", "RMSE", error_sums, lambda sums: float(np.sqrt(max(sums["squared"], 0.0) / sums["rows"])))
MAE = Metric("mae", "MAE", error_sums, _mean_of("absolute"), needs_true_labels=True)
R2 = Metric("r2", "R²", error_sums, _r2, is_higher_better=True)
MAPE = Metric("mape", "MAPE", ratio_sums, _mape, since=Moment.HELD_OUT, is_headline=False, needs_true_labels=True)
LOG_LOSS = Metric("log_loss", "Log loss", no_sums, _mean_of("loss"), of_loss=1.0)
# Of a loss that is half the deviance.
DEVIANCE = Metric("deviance", "Deviance", no_sums, _mean_of("loss", 2.0), of_loss=2.0, needs_true_labels=True)
PINBALL = Metric("pinball", "Pinball loss", no_sums, _mean_of("loss"), of_loss=1.0)
COVERAGE = Metric("coverage", "Coverage", coverage_sums, _mean_of("covered"), can_monitor=False)


def _of_classes(sums: ShardSums) -> tuple[Metric, ...]:
    """Accuracy, precision, recall, F1; of more than two classes the last three are means over classes."""
    right, predicted, actual = np.eye(3)
    rate: dict[str, Any] = {"is_higher_better": True, "is_headline": False, "needs_true_labels": True}
    accuracy = Metric("accuracy", "Accuracy", sums, _mean_of("correct"), is_higher_better=True)
    return (
        replace(accuracy, debias=lambda channel, found, sums: channel.accuracy(found)),
        Metric("precision", "Precision", sums, _rate(right, predicted), **rate),
        Metric("recall", "Recall", sums, _rate(right, actual), **rate),
        Metric("f1", "F1", sums, _rate(2.0 * right, predicted + actual), **rate),
    )


_RANKED: dict[str, Any] = {"is_higher_better": True, "is_ranked": True, "since": Moment.HELD_OUT}
ACCURACY, *_RATES = _of_classes(binary_sums)
AUC = Metric("auc", "AUC", no_sums, lambda sums: sums.get("area"), **_RANKED)  # too many classes have none
AUC = replace(AUC, debias=lambda channel, found, sums: channel.auc(found, sums["share"]))
PR_AUC = Metric("pr_auc", "PR AUC", no_sums, lambda sums: float(sums["average_precision"]), **_RANKED)
PR_AUC = replace(PR_AUC, is_headline=False, needs_true_labels=True)
_OF_ALL, *_MEANS = _of_classes(class_sums)

NUMBER = (RMSE, MAE, R2, MAPE)
BINARY = (ACCURACY, LOG_LOSS, AUC, *_RATES, PR_AUC)
CLASSES = (_OF_ALL, LOG_LOSS, replace(AUC, since=Moment.FINISHED, can_monitor=False), *_MEANS)


def metrics_of(task: str) -> tuple[Metric, ...]:
    """Metrics for any loss of such a label, also without probabilities."""
    return {"number": NUMBER, "binary": (ACCURACY, AUC, *_RATES, PR_AUC), "classes": (_OF_ALL, *_MEANS)}[task]


@cache
def sums_of(metrics: tuple[Metric, ...], moment: Moment = Moment.EPOCH) -> tuple[ShardSums, ...]:
    return tuple(dict.fromkeys(metric.sums for metric in metrics if metric.since <= moment))
