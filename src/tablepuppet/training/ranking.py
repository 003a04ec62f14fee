"""Ranking of two classes by ordered scores: areas under curves, and the effect of each threshold.

In: scores, each with its row's class, in ascending order and in any chunks. Rows are counted in whole numbers, so the
chunks do not matter. Scores that differ in their last bit alone are ties.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array

Integers = NDArray[np.int64]
BINS = 100  # of probabilities, which coarser bins are made of
_SCORES_PER_CHUNK = 1 << 18  # scores that are compared at a time: they stay in the cache
Probabilities = Callable[[Array], Array]  # of the second class, by score
_EDGES = np.linspace(0.0, 1.0, BINS + 1)[1:-1]  # of bins, which have their upper one
_POINTS = 2_000  # of a curve: thresholds between which so small a part of the rows lies


class Ranking(msgspec.Struct, frozen=True, eq=False):
    """Areas, and points of the curve: rows whose score is at least `scores`, and how many of them are positive.

    A point lies halfway to the next score below it, so that rounding moves no row to its other side.
    """

    area: float  # the probability that a positive row scores above a negative one; ties count half
    share: float  # of positive rows
    average_precision: float
    scores: Array
    true_positives: Array
    predicted: Array
    calibration: Array | None = None  # as in Curves


def pack_labels(scores: Array, labels: NDArray[Any]) -> Array:
    """Scores whose last bit is the row's class: one sort then orders rows and classes, far faster than an argsort."""
    bits = (scores + 0.0).view(np.int64)  # + 0.0: −0 is 0
    bits &= ~np.int64(1)
    bits |= labels > 0.5
    return bits.view(np.float64)


def rank(chunks: Iterable[Array], rows: int, positives: int, probabilities: Probabilities | None = None) -> Ranking:
    """The ranking of labelled scores in order; with the calibration of their probabilities, where those are given.

    >>> scores = np.sort(pack_labels(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])))
    >>> rank([scores], rows=4, positives=2).area
    0.75
    """
    above, below, last = 0, 0, -math.inf  # positive rows so far, negative ones, and the highest score
    twice, precision = 0, 0.0  # twice the pairs, Σ precision
    points: list[Array] = [np.zeros((3, 0))]
    calibration = np.zeros((3, BINS))
    for scores, (low, high) in _count_ties(chunks):
        lower, higher = below + np.cumsum(low), above + np.cumsum(high)
        true = positives - higher + high  # of the rows at each score or above it
        predicted = rows - lower + low - higher + high
        twice += int(high @ (2 * lower - low))
        precision += float(high @ (true / predicted))
        kept = _choose_thresholds(true, predicted, rows, positives)
        halfway = scores - 0.5 * np.diff(scores, prepend=last)
        points.append(np.stack([halfway[kept], true[kept], predicted[kept]]))
        if probabilities is not None:
            calibration += _calibrate(probabilities(scores), low, high)
        above, below, last = int(higher[-1]), int(lower[-1]), float(scores[-1])
    halfway, true_positives, all_predicted = np.concatenate(points, axis=1)
    return Ranking(
        area=twice / (2 * above * below) if above and below else float("nan"),
        share=above / max(1, above + below),
        average_precision=precision / above if above else 0.0,
        scores=halfway,
        true_positives=true_positives,
        predicted=all_predicted,
        calibration=None if probabilities is None else calibration,
    )


def _count_ties(pieces: Iterable[Array]) -> Iterator[tuple[Array, Integers]]:
    """Distinct scores, and how many rows of either class have each; a tie is never parted."""
    before: tuple[Array, Integers] | None = None
    for chunk in _cut_evenly(pieces):
        bits = chunk.view(np.uint64)
        first = np.append(0, 1 + np.flatnonzero((bits[1:] ^ bits[:-1]) > 1))
        high = np.add.reduceat(chunk.view(np.int64) & 1, first)
        scores, counts = chunk[first], np.stack([np.diff(first, append=len(chunk)) - high, high])
        if before is not None:
            if (before[0][-1:].view(np.uint64) ^ bits[0])[0] <= 1:  # the last tie goes on
                before[1][:, -1] += counts[:, 0]
                scores, counts = scores[1:], counts[:, 1:]
            if not len(scores):
                continue
            yield before
        before = scores, counts
    if before is not None:
        yield before


def _cut_evenly(pieces: Iterable[Array]) -> Iterator[Array]:
    """The same scores, so many at a time, however they come."""
    held = np.empty(0)
    for values in pieces:
        held = np.concatenate([held, values]) if len(held) else values
        while len(held) > _SCORES_PER_CHUNK:
            yield held[:_SCORES_PER_CHUNK]
            held = held[_SCORES_PER_CHUNK:]
    if len(held):
        yield held


def _calibrate(probabilities: Array, low: Integers, high: Integers) -> Array:
    """(rows, Σ probability, Σ label) of each bin. In: ascending probabilities, and the rows of either class at each."""
    rows = low + high
    ends = np.append(np.searchsorted(probabilities, _EDGES, side="right"), len(rows))
    sums = [np.append(0, np.cumsum(counted))[ends] for counted in (rows, rows * probabilities, high)]
    return np.diff(sums, axis=1, prepend=0)


def _choose_thresholds(true: Integers, predicted: Integers, rows: int, positives: int) -> Integers:
    """Which thresholds a curve keeps: some at even distances, and the best ones by F1, accuracy and Youden's J."""
    place = predicted * _POINTS // max(1, rows)
    even = np.flatnonzero(np.diff(place, prepend=-1))
    gains = (
        2.0 * true / (predicted + positives),
        2.0 * true - predicted,
        true / max(1, positives) - (predicted - true) / max(1, rows - positives),
    )
    return np.unique(np.concatenate([even, [int(np.argmax(gain)) for gain in gains]]))
