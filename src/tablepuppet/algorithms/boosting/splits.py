"""The best split of each of some nodes, from Σ(g, h) of every node and bin.

Gains are the only floating-point numbers. They are rounded as written (no fused products). So a client and the server
with the same sums find the same split on any processors.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.bins import Columns
from tablepuppet.algorithms.boosting.tree_checks import KNOWN_ONE_HOT, NUMBER, RARE, SORTED, SPARSE, Codes, Sums
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.threads import compile_loop

CACHED = 1 << 17  # sums that are searched at a time, if they are counted for the search alone
CLOSE = 1 - 1e-9  # more than products and quotients are rounded by
_LARGEST = 32  # categories of a sorted set
_GROUP = 5  # a set, its next categories and the rest: so many times the least Σh of a side


class SplitRules(NamedTuple):
    unit: Array  # of g and of h
    rules: Array  # as the options have them
    bounds: Array  # (nodes, 2): bounds of the values of leaves; (0, 2): nothing is bound
    least: Array  # (nodes, 3): Σh that a side must have, that of a sorted category, and of a rare one


class SearchedColumns(NamedTuple):
    """Where each column's bins lie, and its number; −1: it may not be used."""

    offsets: Sums
    kinds: Codes
    signs: RowNumbers
    numbers: Sums


class Splits(NamedTuple):
    gain: Array  # infinite: nobody asks about the node
    found: Sums  # (nodes, 5): column (−1: none), bin, whether missing values go left, Σg and Σh of the left
    order: Codes  # (nodes, 256): of sorted categories, those that go left come first

    @classmethod
    def of(cls, asks: NDArray[np.bool_], least: Any) -> "Splits":
        """None yet; a gain must be more than `least`."""
        nodes = len(asks)
        gain = np.where(asks, least, np.inf)
        return cls(gain, np.full((nodes, 5), -1, np.int64), np.empty((nodes, 256), np.uint8))


def search_splits(sums: Sums, columns: Columns, numbers: Sums, how: SplitRules, best: Splits) -> None:
    """Finds the splits that gain more than the best so far. The first in this order wins a tie: column, missing values
    left with the last bin first, missing values right with the first bin first, as in LightGBM. Bin 0 is "missing".
    Sorted categories: the left side is order[k, :bin]; one against the rest: `bin` itself is the left side. Leaves of a
    column with a sign rise, or fall, with its values."""
    own = SearchedColumns(columns.offsets, columns.kinds, columns.signs, numbers)
    best_splits(sums, own, SplitRules(*map(np.array, how)), best)  # copies: arrays of a message are read-only


@compile_loop
def _value(G: Any, H: Any, bound: Array) -> Any:
    return min(max(-G / H, bound[0]), bound[1])


@compile_loop
def _worth(G: Any, H: Any, bound: Array) -> Any:
    """The gain of a leaf: G²/H, or less where it is bound."""
    if len(bound) == 0:
        return G * G / H
    w = _value(G, H, bound)
    return -(2 * G * w + H * w * w)


@compile_loop
def best_splits(sums: Sums, columns: SearchedColumns, how: SplitRules, out: Splits) -> None:
    free, total, places, ratio = np.empty(0), np.empty(2, np.int64), np.empty(256, np.int64), np.empty(256)
    for k in range(len(sums)):
        if out.gain[k] == np.inf:
            continue
        node = (how, how.bounds[k] if len(how.bounds) else free, how.least[k, 0])
        total[0], total[1] = 0, 0
        for b in range(columns.offsets[0], columns.offsets[1] if len(columns.kinds) else columns.offsets[0]):
            total[0] += sums[k, b, 0]
            total[1] += sums[k, b, 1]
        for f in range(len(columns.kinds)):
            own, kind = sums[k, columns.offsets[f] : columns.offsets[f + 1]], columns.kinds[f]
            number = columns.numbers[f]
            if number < 0:
                continue
            if kind == NUMBER:
                out.gain[k] = _search_numbers(own, total, number, columns.signs[f], node, out.gain[k], out.found[k])
                continue
            is_sorted, count = kind in (SORTED, SPARSE, RARE), np.int64(0)
            least = how.least[k, 2 if kind == RARE else 1] if is_sorted else -np.inf
            for b in range(1 if kind == KNOWN_ONE_HOT else 0, len(own)):
                if own[b, 1] > 0 and own[b, 1] * how.unit[1] >= least:
                    places[count] = b
                    ratio[b] = own[b, 0] * how.unit[0] / (own[b, 1] * how.unit[1] + how.rules[4])
                    count += 1
            if is_sorted:
                _sort(places, ratio, count)
            for _ in range(2 if is_sorted else 1):  # the lowest go left, then the highest: light ones never do
                given = (own, total, number, places[:count], is_sorted)
                best = _search_categories(given, node, out.gain[k], out.found[k])
                if is_sorted and best > out.gain[k]:
                    for p in range(out.found[k, 1]):
                        out.order[k, p] = places[p]
                out.gain[k] = best
                for p in range(count // 2):
                    places[p], places[count - 1 - p] = places[count - 1 - p], places[p]


@compile_loop
def _search_numbers(sums: Sums, total: Sums, column: int, sign: Any, node: Any, best: Any, found: Sums) -> Any:
    """The best gain, that of a border if it is more than `best` was; that border is written to `found`. A node has
    rules, bounds, and the least Σh of a side."""
    how, bound, least = node
    penalty, (total_g, total_h), (unit_g, unit_h) = how.rules[0], (total[0], total[1]), (how.unit[0], how.unit[1])
    base = _worth(total_g * unit_g, total_h * unit_h + penalty, bound)
    missing_h = sums[0, 1]
    for left in range(1, -1 if missing_h else 0, -1):
        gl = total_g if left == 1 else np.int64(0)
        hl = total_h if left == 1 else np.int64(0)
        for t in range(1, len(sums) - left):
            b = len(sums) - 1 - t if left == 1 else t
            own = sums[b + left]
            if own[1] == 0:
                continue  # the split before has the same sides
            gl += -own[0] if left == 1 else own[0]
            hl += -own[1] if left == 1 else own[1]
            HL, HR = hl * unit_h, (total_h - hl) * unit_h
            if min(HL, HR) < least or hl == 0 or hl == total_h:
                continue
            GL, GR = gl * unit_g, (total_g - gl) * unit_g
            whole = (HL + penalty) * (HR + penalty) * CLOSE * (best + base)
            if len(bound) == 0 and GL * GL * (HR + penalty) + GR * GR * (HL + penalty) < whole:
                continue  # surely less, without a division
            gain = _worth(GL, HL + penalty, bound) + _worth(GR, HR + penalty, bound) - base
            if gain > best:
                if len(bound) and sign:
                    rise = _value(GR, HR + penalty, bound) - _value(GL, HL + penalty, bound)
                    if rise * sign < 0:
                        continue
                best = gain
                found[0], found[1], found[2], found[3], found[4] = column, b, left, gl, hl
    return best


@compile_loop
def _search_categories(given: Any, node: Any, best: Any, found: Sums) -> Any:
    """The same for categories, each against the rest; or for the first ones, where they are sorted: at most half of
    them, and enough of them at a time."""
    (sums, total, column, places, is_sorted), (how, bound, least) = given, node
    (total_g, total_h), (unit_g, unit_h) = (total[0], total[1]), (how.unit[0], how.unit[1])
    base = _worth(total_g * unit_g, total_h * unit_h + how.rules[0], bound)
    ridge = how.rules[0] + how.rules[3] if is_sorted else how.rules[0]
    gl, hl, last = np.int64(0), np.int64(0), 0.0
    for t in range(min(_LARGEST, (len(places) + 1) // 2) if is_sorted else len(places)):
        b = places[t]
        gl = sums[b, 0] + (gl if is_sorted else np.int64(0))
        hl = sums[b, 1] + (hl if is_sorted else np.int64(0))
        HL, HR = hl * unit_h, (total_h - hl) * unit_h
        if min(HL, HR) < least or hl == total_h:
            continue
        if is_sorted:
            if min(HL - last, HR) < _GROUP * least:
                continue
            last = HL
        GL, GR = gl * unit_g, (total_g - gl) * unit_g
        gain = _worth(GL, HL + ridge, bound) + _worth(GR, HR + ridge, bound) - base
        if gain > best:
            best = gain
            found[0], found[1], found[2], found[3], found[4] = column, t + 1 if is_sorted else b, 0, gl, hl
    return best


@compile_loop
def _sort(places: Sums, ratio: Array, count: Any) -> None:
    """The first places by their ratio, then by their number (Shell's sort: a library's takes seconds to compile)."""
    gap = 1
    while gap < count:
        gap = 3 * gap + 1
    while gap > 1:
        gap //= 3
        for t in range(gap, count):
            own, at = places[t], t
            while at >= gap:
                other = places[at - gap]
                if ratio[other] < ratio[own] or (ratio[other] == ratio[own] and other < own):
                    break
                places[at] = other
                at -= gap
            places[at] = own
