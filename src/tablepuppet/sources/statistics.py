"""Join-weighted statistics of a feature: each client's own, and merged over a block's clients.

In: a raw column, the rows that take part and how often each is joined (G). Out: NumberStatistics or CategoryStatistics,
the same as the materialised join would give (docs/algorithms.md). Row −1 stands for a row that a LEFT JOIN did not
find. It counts where the feature has a value there, and is skipped where it is NULL.

Clients of one table add statistics up under masks, so that no client's own show. Once categories and lengths of vectors
are agreed on, these arrays sum over the clients to the counts and moments of all rows:

    first    Σ G over rows with and without a value, Σ G x;  Σ G of each category and of NULL
    second   Σ G (x − m), Σ G (x − m)²  about the mean m that the first sum gave, which cancels less than Σ G x² would
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Codes, RowNumbers, effective_by_code, floats, pieces
from tablepuppet.errors import SourceError, TransportError
from tablepuppet.models.linear import count_by_code
from tablepuppet.privacy.options import Rounding
from tablepuppet.protocol.columns import CategoryStatistics, ColumnInfo, IdStatistics, NumberStatistics, Statistics
from tablepuppet.sources import columns as raw

_ROUNDING = 1e-6  # of effective rows: n rows that count alike are n
ROWS_PER_STATISTICS = 1 << 18  # rows per step


def statistics(
    column: pa.ChunkedArray, info: ColumnInfo, rows: RowNumbers | None, weights: NDArray[Any] | None, least: int = 1
) -> Statistics:
    """The statistics of a column over `rows` (None: all, in order), each counted `weights` times (None: once).

    Names of categories that fewer than `least` rows hold are left out. If all of these rows, or the rows without a
    value, are fewer than that, the statistics do not mention them.
    """
    taken = rows
    multiplicity = None if weights is None else np.asarray(weights)
    if taken is not None and info.absent is None and int(taken.min(initial=0)) < 0:
        exists = taken >= 0
        taken, multiplicity = taken[exists], None if multiplicity is None else multiplicity[exists]
    if info.kind in raw.NUMBER_KINDS:
        of_numbers = _of_numbers(column, taken, multiplicity, info)
        if least <= 1:
            return of_numbers
        return _without_few(of_numbers, raw.numbers_and_absent(column, info), RowWeights.of(taken, multiplicity), least)
    if info.kind in raw.STRING_KINDS:
        distinct, codes = raw.strings(column) if taken is None else raw.strings_and_absent(column, info)
        heavy = np.ones(len(codes) if taken is None else len(taken)) if multiplicity is None else floats(multiplicity)
        own = codes if taken is None else codes[taken]
        counts = count_by_code(own, heavy, len(distinct))
        seen = np.flatnonzero(counts > 0)
        found = _sort_categories(distinct.take(raw.arrow_of(seen)), counts[seen], float(heavy[own < 0].sum()))
        if least <= 1:
            return found
        return _without_rare(found, distinct, codes, RowWeights.of(taken, multiplicity), (least, info.absent))
    raise SourceError(
        f"column {info.name} has type {info.detail or info.kind}, which cannot be a feature; "
        "leave it out, or CAST it to a number or to VARCHAR"
    )


def without_moments(statistics: Statistics) -> Statistics:
    """How many values there are, and which categories; nothing about how large numbers are."""
    if not isinstance(statistics, NumberStatistics):
        return statistics
    zeros = np.zeros_like(statistics.mean)
    return msgspec.structs.replace(statistics, mean=zeros, spread=zeros)


def merge(parts: Sequence[Statistics]) -> Statistics:
    """The merged statistics of all parts (Chan's parallel formula; categories sorted by code point)."""
    if all(isinstance(part, NumberStatistics) for part in parts):
        return _merge_numbers(cast("Sequence[NumberStatistics]", parts))
    if all(isinstance(part, CategoryStatistics) for part in parts):
        return _merge_categories(cast("Sequence[CategoryStatistics]", parts))
    if all(isinstance(part, IdStatistics) for part in parts):
        return _merge_ids(cast("Sequence[IdStatistics]", parts))
    if not any(isinstance(part, NumberStatistics) for part in parts):
        raise TransportError(
            "some clients of one table take a text for an id that stays with its owner, and others for a category; "
            "say which it is: ids=[…] with its name, or without it"
        )
    raise TransportError(
        "the clients of one table disagree about a feature: numbers at some, strings at others; "
        "give the column the same type everywhere"
    )


def _of_numbers(
    column: pa.ChunkedArray, taken: RowNumbers | None, weights: NDArray[Any] | None, info: ColumnInfo
) -> NumberStatistics:
    """Some rows at a time, added up in order: of a long column, nothing on the way is as long."""
    rows = len(column) if taken is None else len(taken)
    values = None if taken is None else raw.numbers_and_absent(column, info)
    once = np.ones(min(rows, ROWS_PER_STATISTICS))
    has_missing = column.null_count > 0 or info.absent is True

    def present(here: slice) -> tuple[Array, Array, Array]:
        """The present numbers of some rows with their weights, and the weights of missing ones."""
        some = raw.numbers(column[here], info) if taken is None or values is None else values[taken[here]]
        heavy, without = once[: len(some)] if weights is None else floats(weights[here]), once[:0]
        if not has_missing:
            return some, heavy, without
        is_missing = raw.missing_rows(some)
        # Taken by their places: several times faster than by a mask without a pattern
        there, without = np.flatnonzero(~is_missing), heavy.take(np.flatnonzero(is_missing))
        return some.take(there, axis=0), heavy.take(there), without

    def total(summed: Callable[[Array, Array, Array], Array]) -> Array:
        found = np.zeros(1)
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below, with a better message
            for here in pieces(rows, ROWS_PER_STATISTICS):
                found = found + summed(*present(here))
        return found

    def first(some: Array, heavy: Array, without: Array) -> Array:
        return np.concatenate([heavy @ some, [heavy.sum(), without.sum()]])

    found = total(first)
    if not np.isfinite(found).all():  # NaN, which is missing, too; or infinite
        has_missing = True
        if total(lambda some, *_: np.isinf(some).sum(axis=0)).any():
            raise SourceError(
                f"column {info.name} contains infinity, which has no mean; filter such rows out, or use NULL"
            )
        found = total(first)
    *sums, weight, missing = found if rows else np.zeros(2)
    if weight == 0:
        return _no_values(float(missing), raw.numbers(column[:0], info).shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.array(sums) / weight
        # Once more: takes back the rounding of the first pass.
        mean += total(lambda some, heavy, _: heavy @ (some - mean)) / weight
        spread = total(lambda some, heavy, _: heavy @ np.square(some - mean))
    if not np.isfinite(spread).all():
        raise SourceError(f"column {info.name} has numbers too large to square; divide it by a power of ten")
    return NumberStatistics(weight=float(weight), missing=float(missing), mean=mean, spread=spread)


def round_moments(found: Statistics, rounding: Rounding, rows: float) -> Statistics:
    """Means and spreads to what `rounding.least` rows contribute, as metrics are: no digit of them is one row's."""
    if not isinstance(found, NumberStatistics) or not found.weight:
        return found
    share = min(rounding.least, math.ceil(math.sqrt(rows) / 2)) / max(1.0, rows)

    def near(what: str, value: float, size: float) -> float:
        return rounding.number(what, value, 2.0 ** round(math.log2(size * share)) if size > 0 else 0.0)

    deviations = np.sqrt(found.spread / found.weight)
    pairs = zip(found.mean.tolist(), deviations.tolist(), strict=True)
    mean = np.array([near("mean", value, deviation) for value, deviation in pairs])
    spread = np.array([max(0.0, near("spread", value, value)) for value in found.spread.tolist()])
    return NumberStatistics(weight=found.weight, missing=found.missing, mean=mean, spread=spread)


class RowWeights(NamedTuple):
    """Which rows take part, each once, and how often it counts."""

    rows: RowNumbers | None  # None: all
    weights: Array | None  # None: alike

    @classmethod
    def of(cls, taken: RowNumbers | None, multiplicity: NDArray[Any] | None) -> Self:
        if taken is None:
            return cls(None, None if multiplicity is None else floats(multiplicity))
        places = np.flatnonzero(np.bincount(taken + 1))  # −1 is the row of a LEFT JOIN that finds none
        return cls(places - 1, np.bincount(taken + 1, multiplicity)[places].astype(np.float64))

    def effective(self, codes: NDArray[Any], size: int) -> Array:
        own = codes if self.rows is None else codes[self.rows]
        return effective_by_code(own, np.ones(len(own)) if self.weights is None else self.weights, size) + _ROUNDING


def existing_rows(rows: RowNumbers | None, multiplicity: NDArray[Any] | None) -> RowWeights:
    """Those of a part that there are: −1 is none."""
    if rows is None or int(rows.min(initial=0)) >= 0:
        return RowWeights.of(rows, multiplicity)
    return RowWeights.of(rows[rows >= 0], None if multiplicity is None else multiplicity[rows >= 0])


def _without_rare(
    found: CategoryStatistics, distinct: pa.Array, codes: Codes, rows: RowWeights, rule: tuple[int, object]
) -> CategoryStatistics:
    """Without names that few rows hold; that of rows that are not there is the query's own, and stays."""
    least, absent = rule
    held = rows.effective(codes, len(distinct))
    often = distinct.take(raw.arrow_of(np.flatnonzero(held >= least)))
    is_kept = raw.numpy_of(pc.index_in(raw.arrow_texts(found.categories), value_set=often), missing=-1) >= 0
    is_kept |= np.array([name == absent for name in found.categories], np.bool_)
    kept = np.flatnonzero(is_kept)
    names = [found.categories[i] for i in kept.tolist()]
    is_rare = np.append(held < least, False)[codes] - 1  # code 0 of those with a rare name, −1 of the others
    is_cut = bool(names and rows.effective(is_rare, 1)[0] >= least)  # else they count as the most frequent name
    missing = found.missing if rows.effective(np.where(codes < 0, 0, -1), 1)[0] >= least else 0.0
    return CategoryStatistics(names, found.weights[kept], missing, is_cut=is_cut or not names)


def _without_few(found: NumberStatistics, values: Array, rows: RowWeights, least: int) -> NumberStatistics:
    """Fewer than `least` rows without a value count as if they had the mean, and get no column of their own."""
    if not found.missing:
        return found
    absent: NDArray[np.bool_] = np.asarray(np.isnan(values).any(axis=1))
    if rows.effective(absent - 1, 1)[0] >= least:
        return found
    return NumberStatistics(found.weight + found.missing, 0.0, found.mean, found.spread)


def _merge_numbers(parts: Sequence[NumberStatistics]) -> NumberStatistics:
    missing = sum(part.missing for part in parts)
    # A part without values contributes nothing, not even the length of its vectors.
    filled = [part for part in parts if part.weight > 0]
    if not filled:
        return _no_values(missing, max((part.mean.size for part in parts), default=0))
    if len({part.mean.size for part in filled}) > 1:
        raise TransportError("the clients of one table hold vectors of different lengths; make them equal")
    weight = sum(part.weight for part in filled)
    zeros = np.zeros(filled[0].mean.size)
    mean = sum((part.weight / weight * part.mean for part in filled), zeros)
    spread = sum((part.spread + part.weight * np.square(part.mean - mean) for part in filled), zeros)
    return NumberStatistics(weight=weight, missing=missing, mean=mean, spread=spread)


def _merge_categories(parts: Sequence[CategoryStatistics]) -> CategoryStatistics:
    named = pa.chunked_array([raw.arrow_texts(part.categories) for part in parts], pa.large_string())
    distinct, codes = raw.strings(named)
    weights = np.concatenate([part.weights for part in parts])
    found = _sort_categories(
        distinct, count_by_code(codes, weights, len(distinct)), sum(part.missing for part in parts)
    )
    return msgspec.structs.replace(found, is_cut=any(part.is_cut for part in parts))


def _merge_ids(parts: Sequence[IdStatistics]) -> IdStatistics:
    has_missing = any(part.has_missing for part in parts)
    if parts[0].tokens is None:  # which only one part reports
        return msgspec.structs.replace(parts[0], has_missing=has_missing)
    if len({part.check for part in parts}) > 1:
        raise TransportError("the clients of one table have different keys; give all of them the same key file")
    tokens = np.unique(np.concatenate([part.tokens for part in parts if part.tokens is not None]))
    return IdStatistics(count=len(tokens), has_missing=has_missing, tokens=tokens, check=parts[0].check)


def _no_values(missing: float, size: int) -> NumberStatistics:
    return NumberStatistics(weight=0.0, missing=missing, mean=np.zeros(size), spread=np.zeros(size))


def _sort_categories(categories: pa.Array, weights: Array, missing: float) -> CategoryStatistics:
    # Arrow compares the bytes of UTF-8, which is the order of code points.
    order = pc.sort_indices(categories)
    return CategoryStatistics(
        categories=categories.take(order).to_pylist(), weights=weights[raw.numpy_of(order)], missing=missing
    )


def names_only(statistics: Statistics) -> Statistics:
    """Which categories there are, or how long vectors are: no count and no sum."""
    if isinstance(statistics, CategoryStatistics):
        return msgspec.structs.replace(statistics, weights=np.zeros(len(statistics.categories)), missing=0.0)
    return statistics if isinstance(statistics, IdStatistics) else _no_values(0.0, statistics.mean.size)


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
            place = pc.index_in(raw.arrow_texts(mine.categories), value_set=raw.arrow_texts(common.categories))
            counts[raw.numpy_of(place, missing=-1)] = mine.weights
            counts[-1] = mine.missing  # also written over by a category that nobody agreed on
            found.append(counts)
        elif not (isinstance(mine, IdStatistics) and isinstance(common, IdStatistics)):
            raise TransportError("a feature that is a number here is a string at other clients of the table")
    return found


def first_totals(agreed: Sequence[Statistics], totals: Sequence[Array]) -> list[Statistics]:
    """Counts and means of all rows, from the first sum."""
    left = iter(totals)
    found: list[Statistics] = []
    for common in agreed:
        if isinstance(common, IdStatistics):
            found.append(common)
            continue
        counts = next(left)
        if isinstance(common, CategoryStatistics):
            found.append(
                msgspec.structs.replace(common, weights=np.rint(counts[:-1]), missing=float(np.rint(counts[-1])))
            )
        else:
            weight, missing = (float(count) for count in np.rint(counts))
            total = next(left)
            mean = total / weight if weight > 0 else np.zeros_like(total)
            found.append(NumberStatistics(weight=weight, missing=missing, mean=mean, spread=np.zeros_like(mean)))
    return found


def without_ids(agreed: Sequence[Statistics]) -> list[Statistics]:
    """The statistics that a client needs for the first sum, which includes no ids."""
    return [IdStatistics(0, has_missing=False) if isinstance(common, IdStatistics) else common for common in agreed]


def means_only(agreed: Sequence[Statistics]) -> list[Statistics]:
    """The statistics that a client needs for the second sum: the means, and no count of anything."""
    found: list[Statistics] = []
    for common in agreed:
        if isinstance(common, CategoryStatistics):
            found.append(CategoryStatistics([], np.empty(0), 0.0))
        elif isinstance(common, IdStatistics):
            found.append(IdStatistics(0, has_missing=False))
        else:
            found.append(msgspec.structs.replace(_no_values(0.0, common.mean.size), mean=common.mean))
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
