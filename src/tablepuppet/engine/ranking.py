"""What scores in order say of two classes: areas under curves, and what each threshold would give.

In: scores, each with its row's class, in ascending order and in any chunks. Out: a Ranking. Rows are counted in whole
numbers, so that it does not matter how they are cut; scores that differ in their last bit alone are ties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array

_CHUNK = 1 << 18  # scores that are compared at a time: they stay in the cache
Integers = NDArray[np.int64]
_POINTS = 2_000  # of a curve: thresholds between which so small a part of the rows lies


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Areas, and points of the curve: rows whose score is at least `scores`, and how many of them are positive.

    A point lies halfway to the next score below it, so that rounding moves no row to its other side.
    """

    area: float  # the probability that a positive row scores above a negative one; ties count half
    share: float  # of positive rows
    average_precision: float
    scores: Array
    true_positives: Array
    predicted: Array


def area_under_curve(scores: Array, labels: Array) -> float:
    """The probability that a positive row scores above a negative one; ties count half.

    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0.0, 0.0, 1.0, 1.0]))
    0.75
    """
    return rank_rows(scores, labels).area


def rank_rows(scores: Array, labels: Array) -> Ranking:
    """The ranking of rows that are all here."""
    return rank([np.sort(labelled(scores, labels))], len(labels), int(np.count_nonzero(labels > 0.5)))


def labelled(scores: Array, labels: Array) -> Array:
    """Scores whose last bit is the row's class: one sort then orders rows and classes, far faster than an argsort."""
    bits = (scores + 0.0).view(np.int64)  # + 0.0: −0 is 0
    bits &= ~np.int64(1)
    bits |= labels > 0.5
    return bits.view(np.float64)


def rank(chunks: Iterable[Array], rows: int, positives: int) -> Ranking:
    """The ranking of labelled scores in order."""
    above, below, twice, precision = 0, 0, 0, 0.0  # positive rows, negative ones, twice the pairs, Σ precision
    points: list[Array] = [np.zeros((3, 0))]
    last = -np.inf  # the highest score of the chunk before
    for tied in _whole_ties(chunks):
        bits = tied.view(np.int64)
        first = np.flatnonzero(np.diff(bits >> 1, prepend=~(bits[0] >> 1)))
        high = np.add.reduceat(bits & 1, first)
        low = np.diff(first, append=len(bits)) - high
        lower = below + np.cumsum(low)
        twice += int(high @ (2 * lower - low))
        true = positives - above - np.cumsum(high) + high  # of the rows at each score or above it
        predicted = rows - above - below - first
        precision += float(high @ (true / predicted))
        kept = _kept(true, predicted, rows, positives)
        scores = tied[first]
        halfway = scores - 0.5 * np.diff(scores, prepend=last)
        last = float(scores[-1])
        points.append(np.stack([halfway[kept], true[kept], predicted[kept]]))
        above += int(high.sum())
        below += int(low.sum())
    halfway, true_positives, all_predicted = np.concatenate(points, axis=1)
    return Ranking(
        area=twice / (2 * above * below) if above and below else float("nan"),
        share=above / max(1, above + below),
        average_precision=precision / above if above else 0.0,
        scores=halfway,
        true_positives=true_positives,
        predicted=all_predicted,
    )


def _kept(true: Integers, predicted: Integers, rows: int, positives: int) -> Integers:
    """Which thresholds a curve keeps: some at even distances, and the best ones by F1, accuracy and Youden's J."""
    place = predicted * _POINTS // max(1, rows)
    even = np.flatnonzero(np.diff(place, prepend=-1))
    gains = (
        2.0 * true / (predicted + positives),
        2.0 * true - predicted,
        true / max(1, positives) - (predicted - true) / max(1, rows - positives),
    )
    return np.unique(np.concatenate([even, [int(np.argmax(gain)) for gain in gains]]))


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


def _tie(labelled_score: np.float64) -> Array:
    """A score with either class."""
    bits = np.array(labelled_score).view(np.int64)
    return np.array([bits | 1, bits & ~np.int64(1)]).view(np.float64)
