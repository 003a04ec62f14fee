"""Metrics: what a model is judged by, from sums over joined rows or from scores in order.

Each metric says which sums it needs of a shard of rows, and how it follows from the sums of all of them; a loss lists
the metrics that its models have. Equal to scikit-learn's of the same names. Labels that their owners made noisy give
estimates of what the true labels would, where there is one without bias; otherwise the metric is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.privacy.labels import Channel

Sums = dict[str, Any]
ShardSums = Callable[[Any, Array, Array, Channel | None], Sums]  # of a loss, scores and labels
Value = Callable[[Sums, Channel | None], float | None]  # None: cannot be had of such labels


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name in results and for `monitor`, and how it is computed."""

    name: str
    title: str  # in reports
    sums: ShardSums
    value: Value
    is_higher_better: bool = False
    can_monitor: bool = True  # whether less, or more, is always better: early stopping may watch it
    of_loss: float = 0.0  # the metric is this many times the mean loss
    is_ranked: bool = False  # needs the scores of all rows in order; its sums are then `area` and `positives`


# -- sums of a shard ---------------------------------------------------------------------------


def no_sums(loss: Any, scores: Array, labels: Array, channel: Channel | None) -> Sums:
    """Nothing but the number of rows and the loss, which are always there."""
    return {}


def error_sums(loss: Any, scores: Array, labels: Array, channel: Channel | None) -> Sums:
    """Of predicted numbers beside labels."""
    error = loss.predict(scores) - labels
    squares = labels * labels
    extra = 0.0 if channel is None else float((channel.unbiased_square(labels) - squares).sum())
    return {
        "squared": float(error @ error) + extra,
        "absolute": float(np.abs(error).sum()),
        "label": float(labels.sum()),
        "label_squared": float(squares.sum()) + extra,
    }


def agreement_sums(loss: Any, scores: Array, labels: Array, channel: Channel | None) -> Sums:
    """How often the predicted class is the label's."""
    seen = labels if channel is None or loss.outputs > 1 else labels > 0.5
    return {"correct": int(np.count_nonzero(loss.predict(scores) == seen))}


def coverage_sums(loss: Any, scores: Array, labels: Array, channel: Channel | None) -> Sums:
    """How many labels do not exceed their prediction."""
    return {"covered": int(np.count_nonzero(labels <= loss.predict(scores)))}


# -- from sums over all rows -------------------------------------------------------------------


def _rmse(sums: Sums, channel: Channel | None) -> float:
    return float(np.sqrt(max(sums["squared"], 0.0) / sums["rows"]))


def _mae(sums: Sums, channel: Channel | None) -> float | None:
    return None if channel is not None else sums["absolute"] / sums["rows"]  # the noise cannot be taken out of it


def _r2(sums: Sums, channel: Channel | None) -> float:
    spread = sums["label_squared"] - sums["label"] ** 2 / sums["rows"]
    return 1.0 - sums["squared"] / spread if spread > 0 else 0.0


def _accuracy(sums: Sums, channel: Channel | None) -> float:
    agreement = sums["correct"] / sums["rows"]
    return agreement if channel is None else channel.accuracy(agreement)


def _mean_loss(sums: Sums, channel: Channel | None) -> float:
    return float(sums["loss"] / sums["rows"])


def _auc(sums: Sums, channel: Channel | None) -> float:
    return float(sums["area"] if channel is None else channel.auc(sums["area"], sums["positives"]))


def _deviance(sums: Sums, channel: Channel | None) -> float | None:
    return None if channel is not None else 2.0 * sums["loss"] / sums["rows"]


def _coverage(sums: Sums, channel: Channel | None) -> float:
    return float(sums["covered"] / sums["rows"])


RMSE = Metric("rmse", "RMSE", error_sums, _rmse)
MAE = Metric("mae", "MAE", error_sums, _mae)
R2 = Metric("r2", "R²", error_sums, _r2, is_higher_better=True)
ACCURACY = Metric("accuracy", "Accuracy", agreement_sums, _accuracy, is_higher_better=True)
LOG_LOSS = Metric("log_loss", "Log loss", no_sums, _mean_loss, of_loss=1.0)
AUC = Metric("auc", "AUC", no_sums, _auc, is_higher_better=True, is_ranked=True)
DEVIANCE = Metric("deviance", "Deviance", no_sums, _deviance, of_loss=2.0)  # of a loss that is half the deviance
PINBALL = Metric("pinball", "Pinball loss", no_sums, _mean_loss, of_loss=1.0)
COVERAGE = Metric("coverage", "Coverage", coverage_sums, _coverage, can_monitor=False)

NUMBER = (RMSE, MAE, R2)
BINARY = (ACCURACY, LOG_LOSS, AUC)
CLASSES = (ACCURACY, LOG_LOSS)


@cache
def sums_of(metrics: tuple[Metric, ...]) -> tuple[ShardSums, ...]:
    """What must be summed over rows for all of them."""
    return tuple(dict.fromkeys(metric.sums for metric in metrics))
