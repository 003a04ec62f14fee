"""How good a model is on some joined rows: sums over shards, and the area under the curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tablepuppet.algorithms.base import Array, Walkable
from tablepuppet.models.losses import Loss, Squared
from tablepuppet.models.tally import Tally, tally
from tablepuppet.privacy.labels import Channel

Metrics = dict[str, float]
_CHUNK = 1 << 18  # scores that are compared at a time: they stay in the cache


def measure_step(
    shard: Any, *, loss: Loss, intercept: Array, channel: Channel | None
) -> tuple[Sequence[Array], dict[str, Any]]:
    """Sums from which all metrics but the AUC follow; scores are kept where the state has room."""
    sums = tally(loss, shard.scores + intercept, shard.labels, channel)
    return (), sums | (score_step(shard, intercept=intercept)[1] if "scores" in shard.state else {})


def score_step(shard: Any, *, intercept: Array) -> tuple[Sequence[Array], dict[str, Any]]:
    """Keeps the scores, each with its row's class."""
    shard.state["scores"][...] = _labelled(shard.scores + intercept, shard.labels[:, None])
    return (), {}


def measure(
    joined: Walkable,
    per_row: Sequence[Array],
    loss: Loss,
    intercept: Array,
    *,
    wants_auc: bool,
    channel: Channel | None = None,
    known: Tally | None = None,
) -> tuple[float, Metrics]:
    """The mean loss and the metrics of a model's predictions on some joined rows.

    Where rows have weights, the loss is their weighted mean; metrics count every row alike. `known`: the sums, where
    an algorithm's own walk has counted them.
    """
    if joined.rows == 0:
        return float("nan"), {}
    wants_auc = wants_auc and loss.outputs == 1 and not isinstance(loss, Squared)
    if wants_auc:
        joined.allocate("scores", 1)
    writes = ("scores",) if wants_auc else ()
    if known is None:
        sums = joined.run(measure_step, per_row, writes=writes, loss=loss, intercept=intercept, channel=channel).sums
    else:
        sums = known
        if wants_auc:
            joined.run(score_step, per_row, writes=writes, intercept=intercept)
    n = sums["rows"]
    plain_loss = mean_loss = sums["loss"] / n
    if "weighted" in sums:
        mean_loss = sums["weighted"] / max(sums["weight"], 1e-300)
    if isinstance(loss, Squared):
        spread = sums["label_squared"] - sums["label"] ** 2 / n
        metrics = {
            "rmse": float(np.sqrt(max(sums["squared"], 0.0) / n)),
            "mae": sums["absolute"] / n,
            "r2": 1.0 - sums["squared"] / spread if spread > 0 else 0.0,
        }
        if channel is not None:
            del metrics["mae"]  # the noise cannot be taken out of it
            mean_loss = 0.5 * sums["squared"] / n
        return mean_loss, metrics
    agreement = sums["correct"] / n
    metrics = {"accuracy": agreement if channel is None else channel.accuracy(agreement), "log_loss": plain_loss}
    if wants_auc:
        area, share = _area(joined.collect("scores")[:, 0])
        metrics["auc"] = area if channel is None else channel.auc(area, share)
    return mean_loss, metrics


def area_under_curve(scores: Array, labels: Array) -> float:
    """The probability that a positive row scores above a negative one; ties count half.

    Scores that differ in their last bit alone are ties: they are equal but for rounding.

    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0.0, 0.0, 1.0, 1.0]))
    0.75
    """
    return _area(_labelled(scores, labels))[0]


def _labelled(scores: Array, labels: Array) -> Array:
    """Scores whose last bit is the row's class: one sort then orders rows and classes, far faster than an argsort."""
    bits = (scores + 0.0).view(np.int64)  # + 0.0: −0 is 0
    bits &= ~np.int64(1)
    bits |= labels > 0.5
    return bits.view(np.float64)


def _area(labelled: Array) -> tuple[float, float]:
    """The area under the curve, and the share of positive rows; the scores are sorted where they lie."""
    labelled.sort()
    bits = labelled.view(np.int64)
    above, below, pairs, start = 0, 0, 0.0, 0
    while start < len(bits):
        last = bits[min(start + _CHUNK, len(bits)) - 1]
        tie = np.array([last | 1, last & ~np.int64(1)]).view(np.float64).max()
        stop = int(np.searchsorted(labelled, tie, side="right"))
        chunk = bits[start:stop]
        first = np.flatnonzero(np.diff(chunk >> 1, prepend=~(chunk[0] >> 1)))
        high = np.add.reduceat(chunk & 1, first)
        low = np.diff(first, append=len(chunk)) - high
        pairs += float(high @ (below + np.cumsum(low) - 0.5 * low))
        above += int(high.sum())
        below += int(low.sum())
        start = stop
    share = above / max(1, len(bits))
    return pairs / (above * below) if above and below else float("nan"), share
