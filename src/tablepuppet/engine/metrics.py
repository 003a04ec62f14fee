"""How good a model is on some joined rows: sums over shards, and the area under the curve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tablepuppet.algorithms.base import Walkable
from tablepuppet.arrays import Array
from tablepuppet.models.losses import Loss
from tablepuppet.models.losses.weighted import Weighted
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
    wants_auc = wants_auc and any(metric.is_ranked for metric in loss.metrics)
    if wants_auc:
        joined.allocate("scores", 1)
    writes = ("scores",) if wants_auc else ()
    if known is None:
        sums = joined.run(measure_step, per_row, writes=writes, loss=loss, intercept=intercept, channel=channel).sums
    else:
        sums = known
        if wants_auc:
            joined.run(score_step, per_row, writes=writes, intercept=intercept)
    if wants_auc:
        area, share = _area(joined.ordered("scores"))
        sums = {**sums, "area": area, "positives": share}
    return _figures(sums, loss, channel, wants_auc=wants_auc)


def measure_scores(
    scores: Array,
    labels: Array,
    weights: Array | None,
    loss: Loss,
    *,
    wants_auc: bool,
    channel: Channel | None = None,
) -> tuple[float, Metrics]:
    """The same from the score of every row, where an algorithm keeps them; `scores` is (rows, outputs)."""
    if not len(scores):
        return float("nan"), {}
    wants_auc = wants_auc and any(metric.is_ranked for metric in loss.metrics)
    totals = []
    for start in range(0, len(scores), _CHUNK):
        rows = slice(start, start + _CHUNK)
        own = loss if weights is None else Weighted(loss, weights[rows])
        totals.append(tally(own, np.ascontiguousarray(scores[rows]), labels[rows], channel))
    sums = {name: sum(t[name] for t in totals) for name in totals[0]}
    if wants_auc:
        area, share = _area([np.sort(_labelled(scores[:, 0], labels))])
        sums |= {"area": area, "positives": share}
    return _figures(sums, loss, channel, wants_auc=wants_auc)


def _figures(sums: Tally, loss: Loss, channel: Channel | None, *, wants_auc: bool) -> tuple[float, Metrics]:
    """The mean loss, and the metrics that follow from sums."""
    mean_loss = loss.mean(sums, is_noisy=channel is not None)
    if "weighted" in sums:
        mean_loss = sums["weighted"] / max(sums["weight"], 1e-300)
    found = {m.name: m.value(sums, channel) for m in loss.metrics if wants_auc or not m.is_ranked}
    return mean_loss, {name: value for name, value in found.items() if value is not None}


def area_under_curve(scores: Array, labels: Array) -> float:
    """The probability that a positive row scores above a negative one; ties count half.

    Scores that differ in their last bit alone are ties: they are equal but for rounding.

    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0.0, 0.0, 1.0, 1.0]))
    0.75
    """
    return _area([np.sort(_labelled(scores, labels))])[0]


def _labelled(scores: Array, labels: Array) -> Array:
    """Scores whose last bit is the row's class: one sort then orders rows and classes, far faster than an argsort."""
    bits = (scores + 0.0).view(np.int64)  # + 0.0: −0 is 0
    bits &= ~np.int64(1)
    bits |= labels > 0.5
    return bits.view(np.float64)


def _area(chunks: Iterable[Array]) -> tuple[float, float]:
    """The area under the curve, and the share of positive rows, from labelled scores in order, in any chunks.

    Pairs are counted in whole numbers, so that it does not matter which.
    """
    above, below, twice = 0, 0, 0  # positive rows, negative ones, and twice the pairs
    for tied in _whole_ties(chunks):
        bits = tied.view(np.int64)
        first = np.flatnonzero(np.diff(bits >> 1, prepend=~(bits[0] >> 1)))
        high = np.add.reduceat(bits & 1, first)
        low = np.diff(first, append=len(bits)) - high
        twice += int(high @ (2 * (below + np.cumsum(low)) - low))
        above += int(high.sum())
        below += int(low.sum())
    share = above / max(1, above + below)
    return twice / (2 * above * below) if above and below else float("nan"), share


def _whole_ties(chunks: Iterable[Array]) -> Iterator[Array]:
    """The same scores in chunks whose borders part no tie."""
    held = np.empty(0)  # the last tie, which may go on in the next chunk
    for values in chunks:
        found = np.concatenate([held, values]) if len(held) else values
        start, end = 0, int(np.searchsorted(found, _tie(found[-1]).min())) if len(found) else 0
        while start < end:
            stop = int(np.searchsorted(found, _tie(found[min(start + _CHUNK, end) - 1]).max(), side="right"))
            yield found[start:stop]
            start = stop
        held = found[end:].copy()
    if len(held):
        yield held


def _tie(labelled: np.float64) -> Array:
    """A score with either class."""
    bits = np.array(labelled).view(np.int64)
    return np.array([bits | 1, bits & ~np.int64(1)]).view(np.float64)
