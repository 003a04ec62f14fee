"""Ranking of two classes by ordered scores: areas under curves, and the effect of each threshold.

In: scores, each with its row's class, in ascending order and in any chunks. Rows are counted in whole numbers, so the
chunks do not matter. Scores that differ in their last bit alone are ties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.threads import pool

Integers = NDArray[np.int64]
BINS = 100  # of probabilities, which coarser bins are made of
_CHUNK = 1 << 18  # scores that are compared at a time: they stay in the cache
Probabilities = Callable[[Array], Array]  # of the second class, by score
_EDGES = np.linspace(0.0, 1.0, BINS + 1)[1:-1]  # of bins, which have their upper one
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

    def one(chunk: _Chunk) -> tuple[int, float, Array, Array]:
        first, high = _ties(chunk.tied)
        low = np.diff(first, append=len(chunk.tied)) - high
        lower = chunk.below + np.cumsum(low)
        true = positives - chunk.above - np.cumsum(high) + high  # of the rows at each score or above it
        predicted = rows - chunk.above - chunk.below - first
        kept = _choose_thresholds(true, predicted, rows, positives)
        scores = chunk.tied[first]
        halfway = scores - 0.5 * np.diff(scores, prepend=chunk.last)
        points = np.stack([halfway[kept], true[kept], predicted[kept]])
        calibrated = np.zeros((3, BINS)) if probabilities is None else _calibrate(probabilities(scores), low, high)
        return int(high @ (2 * lower - low)), float(high @ (true / predicted)), points, calibrated

    twice, precision = 0, 0.0  # twice the pairs, Σ precision
    points: list[Array] = [np.zeros((3, 0))]
    calibration = np.zeros((3, BINS))
    for pairs, precise, kept, calibrated in (map if rows <= _CHUNK else pool().map)(one, _count_chunks(chunks)):
        twice, precision = twice + pairs, precision + precise
        points.append(kept)
        calibration += calibrated
    above, below = positives, rows - positives
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


def rank_tie(rows: int, positives: int) -> Ranking:
    """The ranking of rows that all have one score."""
    share, none = positives / rows, np.empty(0)
    return Ranking(0.5 if 0 < positives < rows else float("nan"), share, share, none, none, none)


class _Chunk(NamedTuple):
    """Some scores in order, whose borders split no tie, and the counts below them."""

    tied: Array
    above: int  # positive rows
    below: int  # negative ones
    last: float  # the highest score


def _count_chunks(chunks: Iterable[Array]) -> Iterator[_Chunk]:
    above, below, last = 0, 0, -math.inf
    for tied in _whole_ties(chunks):
        yield _Chunk(tied, above, below, last)
        positive = int(_ties(tied)[1].sum()) if _is_one(tied) else int(np.count_nonzero(tied.view(np.int64) & 1))
        above, below = above + positive, below + len(tied) - positive
        last = float(tied[np.searchsorted(tied, _tie(tied[-1]).min())])


def _ties(tied: Array) -> tuple[Integers, Integers]:
    """Where each distinct score begins, and how many of its rows are positive."""
    if _is_one(tied):  # of any length: nothing as long as it is made
        above = _tie(tied[-1]).max()
        border = int(np.searchsorted(tied, above))
        positive = len(tied) - border if above.view(np.int64) & 1 else border
        return np.zeros(1, np.int64), np.array([positive])
    bits = tied.view(np.uint64)
    first = np.append(0, 1 + np.flatnonzero((bits[1:] ^ bits[:-1]) > 1))
    so_far = np.cumsum(tied.view(np.int64) & 1)
    return first, np.diff(so_far[np.append(first[1:], len(tied)) - 1], prepend=0)


def _is_one(tied: Array) -> bool:
    """Whether all scores are the same."""
    first, last = tied[[0, -1]].view(np.int64) >> 1
    return bool(first == last)


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
    found = np.sort(np.concatenate([even, [int(np.argmax(gain)) for gain in gains]]))
    return found[np.diff(found, prepend=-1) > 0]  # `np.unique` loads masked arrays, which takes longer than all this


def _whole_ties(pieces: Iterable[Array]) -> Iterator[Array]:
    """The same scores in chunks whose borders part no tie, and do not depend on how the scores come."""
    held = np.empty(0)  # from the last border on
    for values in pieces:
        held = np.concatenate([held, values]) if len(held) else values
        while len(held) > _CHUNK:
            tie = _tie(held[_CHUNK - 1])
            begin, stop = int(np.searchsorted(held, tie.min())), int(np.searchsorted(held, tie.max(), side="right"))
            if stop == len(held):  # the tie may continue
                break
            if stop - begin > _CHUNK:  # a long tie is a chunk of its own
                stop = begin or stop
            yield held[:stop]
            held = held[stop:]
    if len(held):
        begin = int(np.searchsorted(held, _tie(held[-1]).min()))
        yield from (part for part in np.split(held, [begin if len(held) - begin > _CHUNK else 0]) if len(part))


def _tie(labelled_score: np.float64) -> Array:
    """A score with either class."""
    bits = np.array(labelled_score).view(np.int64)
    return np.array([bits | 1, bits & ~np.int64(1)]).view(np.float64)
