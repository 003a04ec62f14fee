"""A part's columns in bins (algorithms/boosting/bins.py), and rows that answer the splits of a trained model.

In: raw Arrow columns. Out: codes, sketches that clients of one block make common bins from, rules, bits.
A vector counts as one column per entry.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.bins import BinRules, category_bins, further_bins, number_bins
from tablepuppet.algorithms.boosting.messages import CategorySketch, NumberSketch, Sketch, SplitRule
from tablepuppet.algorithms.boosting.tree_checks import Bins, CategoryBins, Codes, Key, NumberBins
from tablepuppet.arrays import Array, RowNumbers, effective_by_code, effective_rows
from tablepuppet.errors import ModelError, SourceError, TransportError
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources import columns as raw

_ROUNDING = 1e-6  # of effective rows: n rows that count alike are n
_UNSEEN = 255  # the code of a category that nobody knows

Counted = tuple[list[str], Array, bool]  # categories in order, their weights, and whether there are others
Bounds = tuple[float, float] | None  # of a number


class RawColumn(msgspec.Struct, frozen=True, eq=False):
    """One column of some rows: numbers, or codes of the distinct strings (−1: missing)."""

    feature: int
    entry: int
    is_number: bool
    values: NDArray[Any]
    names: pa.Array = msgspec.field(default_factory=lambda: raw.arrow_texts([]))  # the distinct strings
    absent: float = np.nan  # the number or code of a row that a LEFT JOIN did not find

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: RowNumbers) -> Self:
        """These rows; −1 is one that was not found."""
        return replace(self, values=np.append(self.values, self.values.dtype.type(self.absent))[rows])

    def and_missing(self) -> Self:
        """These rows, and one that does not exist: its value is missing, whatever that of a row not found is."""
        missing = self.values.dtype.type(np.nan if self.is_number else -1)
        return replace(self, values=np.append(self.values, missing))

    def find(self, names: Sequence[str]) -> NDArray[Any]:
        """The place of each of the distinct strings among some names; −1: none."""
        return raw.numpy_of(pc.index_in(self.names, value_set=raw.arrow_texts(names)), missing=-1)

    def is_frequent(self, weights: Array, least: int) -> NDArray[np.bool_]:
        """Which of the distinct strings `least` or more rows hold; that of rows that are not there is the query's."""
        held = effective_by_code(self.values, weights, len(self.names))
        return np.asarray((held >= least - _ROUNDING) | (np.arange(len(held)) == self.absent))


def raw_columns(columns: Sequence[pa.ChunkedArray], infos: Sequence[ColumnInfo]) -> list[RawColumn]:
    """All columns of a scan that are features, a vector's entries one by one."""
    found = []
    for feature, (column, info) in enumerate(zip(columns, infos, strict=True)):
        if info.kind in raw.NUMBER_KINDS:
            values = raw.numbers_and_absent(column, info)
            if np.isinf(values).any():
                raise SourceError(f"column {info.name} contains infinity; filter such rows out, or use NULL")
            for k in range(values.shape[1]):
                own = np.ascontiguousarray(values[: len(column), k])
                absent = np.nan if info.absent is None else values[-1, k]
                found.append(RawColumn(feature, k, True, own, absent=absent))
        elif info.kind in raw.STRING_KINDS:
            names, codes = raw.strings_and_absent(column, info)
            absent = -1 if info.absent is None else codes[-1]
            found.append(RawColumn(feature, 0, False, codes[: len(column)], names, absent))
        else:
            raise SourceError(
                f"column {info.name} has type {info.detail or info.kind}, which cannot be a feature; "
                "leave it out, or CAST it to a number or to VARCHAR"
            )
    return found


def sketch(column: RawColumn, weights: Array, most: int, least: int = 1) -> Sketch:
    """At most `most` values with weights, which give number_bins nearly the same bins as all values; or categories.

    No name that fewer than `least` rows hold is among them, nor a value for every fewer rows.
    """
    if not column.is_number:
        names, counts, is_cut = _categories(column, weights, least)
        return CategorySketch(categories=names, weights=counts, is_cut=is_cut)
    rows = len(weights) if least <= 1 else int(effective_rows(weights))
    most = max(1, min(most, rows // least))
    present = ~np.isnan(column.values) & (weights > 0)
    distinct, where = np.unique(column.values[present], return_inverse=True)
    counts = np.bincount(where, weights[present], len(distinct)).astype(np.float64)
    if len(distinct) > most:
        cumulated = np.cumsum(counts)
        place = np.minimum((cumulated - counts / 2) * most // cumulated[-1], most - 1).astype(np.intp)
        first = np.flatnonzero(np.diff(place, prepend=-1))
        middle = (first + np.append(first[1:], len(place)) - 1) // 2
        distinct, counts = distinct[middle], np.add.reduceat(counts, first)
    return NumberSketch(values=distinct, weights=counts)


def merged_bins(columns: Sequence[Sequence[Sketch]], rules: BinRules) -> list[Bins]:
    """The bins of columns that several clients hold, from a sketch of each; further ones of categories at the end."""

    def merge(sketches: Sequence[Sketch]) -> NumberBins | Counted:
        numbers = [s for s in sketches if isinstance(s, NumberSketch)]
        if len(numbers) < len(sketches):
            return _total(sketches)
        values, weights = (np.concatenate([getattr(s, n) for s in numbers]) for n in ("values", "weights"))
        return number_bins(values, weights, rules.bins, rules.least)

    return _with_further(map(merge, columns), rules)


def _with_further(columns: Iterable[NumberBins | Counted], rules: BinRules) -> list[Bins]:
    first: list[Bins] = []
    further: list[Bins] = []
    most = min(rules.bins, rules.categories)
    for place, own in enumerate(columns):
        if isinstance(own, NumberBins):
            first.append(own)
        else:
            names, weights, is_cut = own
            first.append(category_bins(names, weights, most, is_cut))
            further += further_bins(place, names, weights, most, rules.categories, is_cut)
    return [*first, *further]


def _total(sketches: Sequence[Sketch]) -> Counted:
    """The categories of some sketches, in order, their weights, and whether there are others."""
    total: dict[str, float] = {}
    for one in sketches:
        if not isinstance(one, CategorySketch):
            raise TransportError("a column is text at one of its owners and a number at another")
        for name, weight in zip(one.categories, one.weights.tolist(), strict=True):
            total[name] = total.get(name, 0.0) + weight
    names = sorted(total)
    is_cut = any(isinstance(one, CategorySketch) and one.is_cut for one in sketches)
    return names, np.array([total[n] for n in names]), is_cut


def own_bins(columns: Sequence[RawColumn], weights: Array, rules: BinRules, least: int = 1) -> list[Bins]:
    """The bins of columns that one client holds alone; further ones of categories at the end."""

    def bin_column(column: RawColumn) -> NumberBins | Counted:
        if not column.is_number:
            return _categories(column, weights, least)
        if least <= 1:
            return number_bins(column.values, weights, rules.bins, rules.least)
        found = number_bins(column.values, weights, max(2, min(rules.bins, len(weights) // least)), rules.least)
        return _without_light(found, column.values, weights, least)

    return _with_further(map(bin_column, columns), rules)


def _without_light(bins: NumberBins, values: Array, weights: Array, least: int) -> NumberBins:
    """Neighbouring bins of numbers become one until each has `least` effective rows: none is one row's own."""
    present = ~np.isnan(values) & (weights > 0)
    place, heavy = np.searchsorted(bins.borders, values[present]), weights[present]
    total, squares = (np.bincount(place, w, len(bins.borders) + 1) for w in (heavy, heavy * heavy))
    kept: list[int] = []
    own = np.zeros(2)
    for border in range(len(bins.borders)):
        own += total[border], squares[border]
        rest = total[border + 1 :].sum(), squares[border + 1 :].sum()
        if all(w * w >= (least - _ROUNDING) * s and s > 0 for w, s in (own, rest)):
            kept.append(border)
            own = np.zeros(2)
    return NumberBins(bins.borders[kept])


def public_bins(columns: Sequence[Sequence[Sketch]], bounds: Sequence[Bounds], bins: int) -> list[Bins]:
    """Bins that depend on no number, from each client's sketch of a column: equal widths between public bounds. For
    strings: all public names, or the first of them in order."""
    if len(columns) != len(bounds):
        raise TransportError("a vector that several owners hold has no public borders; make it columns of numbers")
    found: list[Bins] = []
    for own, between in zip(columns, bounds, strict=True):
        if between is not None:  # borders at even steps
            low, high = between
            found.append(NumberBins(np.unique(low + (high - low) * np.arange(1, bins) / bins)))
        else:
            names, _, is_cut = _total(own)
            found.append(category_bins(names, np.ones(len(names)), bins, is_cut))
    return found


def columns_of(bins: Sequence[Bins], columns: Sequence[RawColumn]) -> list[RawColumn]:
    """The column that each of a part's bins is of: one after the other, then those that have further ones."""
    further = [own.further_of if isinstance(own, CategoryBins) else -1 for own in bins]
    places = further[len(columns) :]
    if len(bins) < len(columns) or max(further[: len(columns)], default=-1) >= 0:
        raise TransportError(f"bins of {len(bins)} columns were sent, and there are {len(columns)}")
    if any(not 0 <= place < len(columns) or columns[place].is_number for place in places):
        raise TransportError("further bins were sent of a column that is no text")
    return [*columns, *(columns[place] for place in places)]


def codes_of(column: RawColumn, bins: Bins) -> Codes:
    if isinstance(bins, NumberBins) != column.is_number:
        raise TransportError("bins of numbers do not fit a column of text, nor categories a column of numbers")
    if isinstance(bins, NumberBins):
        return bins.codes(column.values)
    unseen = len(bins.categories) + 1 if bins.has_other else _UNSEEN
    known = column.find(bins.categories)
    becomes = np.append(np.where(known < 0, unseen, known + 1), 0).astype(np.uint8)  # position −1: missing
    return np.asarray(becomes[column.values])


def without_rare(bins: Sequence[Bins], columns: Sequence[RawColumn], weights: Array, least: int) -> list[Bins]:
    """Bins in which names that fewer than `least` rows hold match no row: such rows are others."""
    found: list[Bins] = list(bins)
    for place, (own, column) in enumerate(zip(bins, columns, strict=True)):
        if least > 1 and isinstance(own, CategoryBins) and not column.is_number:
            rare = _rare(own.categories, column, weights, least)
            named = [f"\0{n}" if name in rare else name for n, name in enumerate(own.categories)]
            found[place] = CategoryBins(named, own.has_other)
    return found


def rules_without_rare(rules: Sequence[SplitRule], columns: Sequence[RawColumn], least: int) -> list[SplitRule]:
    """Rules in which names that fewer than `least` of all rows hold are others."""
    by_place = {(c.feature, c.entry): c for c in columns}
    found = []
    for rule in rules:
        column = by_place.get((rule.feature, rule.entry))
        if not rule.is_number and column is not None and not column.is_number:
            rare = _rare([*rule.left, *rule.known], column, np.ones(len(column)), least)
            left, known = ([name for name in names if name not in rare] for names in (rule.left, rule.known))
            rule = msgspec.structs.replace(rule, left=left, known=known)
        found.append(rule)
    return found


def _rare(names: Sequence[str], column: RawColumn, weights: Array, least: int) -> set[str]:
    """Those of some names that there are, in fewer than `least` rows."""
    places = raw.numpy_of(pc.index_in(raw.arrow_texts(names), value_set=column.names), missing=-1)
    is_rare = np.append(~column.is_frequent(weights, least), False)
    return {name for name, place in zip(names, places.tolist(), strict=True) if is_rare[place]}


def rule_of(key: Key, column: RawColumn, bins: Bins) -> SplitRule:
    """A key as a rule, independent of any bins."""
    if isinstance(bins, NumberBins):
        border = float(bins.borders[key.border - 1]) if key.border <= len(bins.borders) else None
        return SplitRule(column.feature, column.entry, True, border)
    left = [bins.categories[c - 1] for c in key.left if 0 < c <= len(bins.categories)]
    other = (len(bins.categories) + 1 if bins.has_other else _UNSEEN) in key.left  # a lazy tree's sets may have it
    known = list(bins.categories) if other else []
    return SplitRule(column.feature, column.entry, False, None, left, 0 in key.left, other, known)


def answers(columns: Sequence[RawColumn], rules: Sequence[SplitRule]) -> NDArray[np.uint8]:
    """Whether a row goes right, for every rule and row; eight rows a byte."""
    by_place = {(c.feature, c.entry): c for c in columns}
    return (
        np.stack([np.packbits(_goes_right(by_place, rule)) for rule in rules]) if rules else np.zeros((0, 0), np.uint8)
    )


def _goes_right(columns: dict[tuple[int, int], RawColumn], rule: SplitRule) -> NDArray[np.bool_]:
    column = columns.get((rule.feature, rule.entry))
    if column is None or column.is_number != rule.is_number:
        raise ModelError("the model does not fit this table: a split is of a column of another type; retrain")
    if column.is_number:
        missing = np.isnan(column.values)
        return missing if rule.border is None else np.asarray(missing | (column.values > rule.border))
    is_left = column.find(rule.left) >= 0
    if rule.other_left:
        is_left |= column.find(rule.known) < 0
    return np.asarray(~np.append(is_left, rule.null_left)[column.values])


def _categories(column: RawColumn, weights: Array, least: int) -> Counted:
    """The categories of `least` or more rows that take part, in order, their weights, and whether there are others."""
    place = column.values.astype(np.intp) + 1
    counts = np.asarray(np.bincount(place, weights, len(column.names) + 1)[1:], np.float64)
    is_frequent = column.is_frequent(weights, least)
    seen = np.flatnonzero((counts > 0) & is_frequent)
    is_cut = bool(((counts > 0) & ~is_frequent).any())
    names = column.names.take(raw.arrow_of(seen)).to_pylist()
    order = sorted(range(len(names)), key=names.__getitem__)
    return [names[i] for i in order], counts[seen][order].astype(np.float64), is_cut
