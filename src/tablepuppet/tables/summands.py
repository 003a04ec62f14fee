"""Statistics of features as summands: what the clients of one table add up under masks, so that no client's own show.

In: one client's Statistics (statistics.py), the categories and lengths of vectors that all clients agreed on, and, in a
second sum, means. Out: arrays whose sums over the clients are the counts and moments of all rows:

    first    Σ G over rows with and without a value, Σ G x;  Σ G of each category and of NULL
    second   Σ G (x − m), Σ G (x − m)²  about the mean m that the first sum gave, which cancels less than Σ G x² would
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow.compute as pc

from tablepuppet.arrays import Array
from tablepuppet.errors import TransportError
from tablepuppet.protocol import CategoryStatistics, NumberStatistics
from tablepuppet.tables.columns import arrow_texts, numpy_of
from tablepuppet.tables.statistics import Statistics


def names_only(statistics: Statistics) -> Statistics:
    """Which categories there are, or how long vectors are: no count and no sum."""
    if isinstance(statistics, CategoryStatistics):
        return CategoryStatistics(statistics.categories, np.zeros(len(statistics.categories)), 0.0)
    zeros = np.zeros(statistics.mean.size)
    return NumberStatistics(weight=0.0, missing=0.0, mean=zeros, spread=zeros)


def first_summands(own: Sequence[Statistics], agreed: Sequence[Statistics]) -> list[Array]:
    """Counts and sums of every feature, in the order of the agreed categories."""
    found: list[Array] = []
    for mine, common in zip(own, agreed, strict=True):
        if isinstance(mine, NumberStatistics) and isinstance(common, NumberStatistics):
            total = np.zeros(common.mean.size)
            if mine.weight > 0:
                total += _alike(mine.weight * mine.mean, total)
            found += [np.array([mine.weight, mine.missing]), total]
        elif isinstance(mine, CategoryStatistics) and isinstance(common, CategoryStatistics):
            counts = np.zeros(len(common.categories) + 1)
            place = pc.index_in(arrow_texts(mine.categories), value_set=arrow_texts(common.categories))
            counts[numpy_of(place, missing=-1)] = mine.weights
            counts[-1] = mine.missing  # also written over by a category that nobody agreed on
            found.append(counts)
        else:
            raise TransportError("a feature that is a number here is a string at other clients of the table")
    return found


def first_totals(agreed: Sequence[Statistics], totals: Sequence[Array]) -> list[Statistics]:
    """Counts and means of all rows, from the first sum."""
    left = iter(totals)
    found: list[Statistics] = []
    for common in agreed:
        counts = next(left)
        if isinstance(common, CategoryStatistics):
            found.append(CategoryStatistics(common.categories, np.rint(counts[:-1]), float(np.rint(counts[-1]))))
        else:
            weight, missing = (float(count) for count in np.rint(counts))
            total = next(left)
            mean = total / weight if weight > 0 else np.zeros_like(total)
            found.append(NumberStatistics(weight=weight, missing=missing, mean=mean, spread=np.zeros_like(mean)))
    return found


def means_only(agreed: Sequence[Statistics]) -> list[Statistics]:
    """What a client needs for the second sum: the means, and no count of anything."""
    found: list[Statistics] = []
    for common in agreed:
        if isinstance(common, CategoryStatistics):
            found.append(CategoryStatistics([], np.empty(0), 0.0))
        else:
            found.append(NumberStatistics(weight=0.0, missing=0.0, mean=common.mean, spread=np.zeros(common.mean.size)))
    return found


def second_summands(own: Sequence[Statistics], agreed: Sequence[Statistics]) -> list[Array]:
    """First and second moments of every number about the agreed mean."""
    found: list[Array] = []
    for mine, common in zip(own, agreed, strict=True):
        if isinstance(mine, NumberStatistics) and isinstance(common, NumberStatistics):
            moments = np.zeros((2, common.mean.size))
            if mine.weight > 0:
                gap = _alike(mine.mean, common.mean) - common.mean
                moments += [mine.weight * gap, mine.spread + mine.weight * np.square(gap)]
            found += [moments[0], moments[1]]
    return found


def second_totals(agreed: Sequence[Statistics], totals: Sequence[Array]) -> list[Statistics]:
    """The statistics of all rows, from the second sum."""
    left = iter(totals)
    found: list[Statistics] = []
    for common in agreed:
        if isinstance(common, NumberStatistics):
            gap, spread = next(left), next(left)
            if common.weight > 0:
                gap = gap / common.weight
                spread = np.maximum(spread - common.weight * np.square(gap), 0.0)
                common = msgspec.structs.replace(common, mean=common.mean + gap, spread=spread)
        found.append(common)
    return found


def _alike(own: Array, agreed: Array) -> Array:
    if own.size != agreed.size:
        raise TransportError("the clients of one table hold vectors of different lengths; make them equal")
    return own
