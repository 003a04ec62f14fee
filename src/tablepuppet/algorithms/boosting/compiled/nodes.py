"""Joined rows of nodes, at the server: parted, summed, counted by bin.

Several nodes are done in one call: node k of a call has the joined rows order[segments[k, 0] : segments[k, 1]].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.compiled.bits import (
    FEW,
    HALF,
    LOW,
    Array,
    Cells,
    Codes,
    Integers,
    Sums,
    exact,
    folded_of,
    inlined,
    row_of,
    unfold,
)

__all__ = [
    "add_split",
    "add_values",
    "class_slopes",
    "count_nodes",
    "count_sides",
    "mark_nodes",
    "mix_nodes",
    "part_nodes",
    "residuals",
    "sum_nodes",
    "write_sides",
]

NO_NODE = 255


@exact
def part_nodes(
    order: Integers,
    segments: Sums,
    index: Integers,
    base: int,
    missed: int,
    codes: Codes,
    columns: Sums,
    right: Codes,
    spare: Integers,
    borders: Sums,
) -> None:
    """In every segment, rows that go left first, both sides in the order they were in; where the right side begins.

    A joined row is code row index[j] + base, or `missed` where it has none. right[k, code]: it goes right.
    """
    for k in range(len(segments)):
        column, goes = np.uint64(columns[k]), right[k]
        left, others = np.uint64(segments[k, 0]), np.uint64(0)
        for t in range(np.uint64(segments[k, 0]), np.uint64(segments[k, 1])):
            j = order[t]
            r = row_of(index, np.uint64(j), base, missed)
            side = np.uint64(goes[codes[r, column]])
            order[left] = j  # both are written and one of them counts: no branch to guess
            spare[others] = j
            others += side
            left += np.uint64(1) - side
        order[left : left + others] = spare[:others]
        borders[k] = left


@exact
def add_split(
    order: Integers,
    segments: Sums,
    index: Integers,
    base: int,
    missed: int,
    codes: Codes,
    columns: Sums,
    right: Codes,
    values: Array,
    scores: Array,
) -> None:
    """scores[j] += values[k, side] for the rows of every segment, which is split once more."""
    for k in range(len(segments)):
        column, goes, own = np.uint64(columns[k]), right[k], values[k]
        for t in range(np.uint64(segments[k, 0]), np.uint64(segments[k, 1])):
            j = np.uint64(order[t])
            scores[j] += own[goes[codes[row_of(index, j, base, missed), column]]]


@exact
def add_values(order: Integers, segments: Sums, values: Array, scores: Array) -> None:
    """scores[j] += values[k] for the rows of every segment."""
    for k in range(len(segments)):
        for t in range(np.uint64(segments[k, 0]), np.uint64(segments[k, 1])):
            scores[np.uint64(order[t])] += values[k]


@exact
def mark_nodes(order: Integers, segments: Sums, cell: Cells) -> None:
    """cell[j] = k for the rows of every segment."""
    for k in range(len(segments)):
        for t in range(np.uint64(segments[k, 0]), np.uint64(segments[k, 1])):
            cell[np.uint64(order[t])] = k


@exact
def sum_nodes(order: Integers, segments: Sums, both: Integers, out: Sums) -> None:
    """Σ(g, h) of every segment."""
    for k in range(len(segments)):
        total_g, total_h = np.int64(0), np.int64(0)
        for t in range(np.uint64(segments[k, 0]), np.uint64(segments[k, 1])):
            x = folded_of(both, np.uint64(order[t]))
            total_g += x >> 32
            total_h += x & LOW
        out[k, 0], out[k, 1] = total_g, total_h


@exact
def mix_nodes(order: Integers, segments: Sums, mark: Codes, rows: Integers) -> None:
    """mark[j] = k for the rows of every segment, fewer than 255, and `rows` lists them all, ascending."""
    mark[:] = NO_NODE
    for k in range(len(segments)):
        for t in range(np.uint64(segments[k, 0]), np.uint64(segments[k, 1])):
            mark[np.uint64(order[t])] = k
    count = np.uint64(0)
    for j in range(np.uint64(len(mark))):
        rows[count] = j  # written over unless it is marked: no branch to guess
        count += np.uint64(mark[j] != NO_NODE)


@exact
def count_nodes(
    order: Integers,
    segments: Sums,
    mark: Codes,
    index: Integers,
    missed: int,
    codes: Codes,
    offsets: Integers,
    both: Integers,
    sums: Sums,
    out: Sums,
) -> None:
    """out[k, bin] = Σ(g, h) of every segment per bin of every column: over its joined rows, or over the block's with
    their sums, whichever are fewer. `sums` are zero, and again afterwards: of each row of the block, folded if they
    are one number, which stays within half of 32 bits; or of none, where joined rows are as few.

    With `mark`, `order` has the rows of all nodes mixed, of 32 bits each, and mark[j] is the node of one of them.
    """
    columns, bins, room = len(offsets) - 1, out.shape[1], len(sums)
    folded = np.zeros(out.shape[0] * bins if len(mark) else bins, np.int64)
    if len(mark):
        _count_joined(order, mark, index, missed, codes, offsets, both, folded, out.reshape(len(folded), 2))
        return
    for k in range(len(segments)):
        rows = order[segments[k, 0] : segments[k, 1]]
        if room == 0 or len(rows) * (columns - 1) <= room * (columns + 1):
            _count_joined(rows, mark, index, missed, codes, offsets, both, folded, out[k])
        else:
            _collapse(rows, index, missed, both, sums)
            _count_rows(sums, codes, offsets, folded, out[k])


@exact
def count_sides(codes: Codes, right: NDArray[np.bool_], sides: Sums) -> None:
    """sides[code, side] += 1 for every row."""
    for r in range(len(codes)):
        sides[codes[r], np.uint64(right[r])] += 1


@exact
def write_sides(codes: Codes, column: Any, right: NDArray[np.bool_], at: int, out: Codes) -> None:
    """A bit for every row, after the `at` that are there: whether its code goes right."""
    held, place = np.uint64(0), np.uint64(at)
    for r in range(np.uint64(len(codes))):
        held = (held << np.uint64(1)) | np.uint64(right[codes[r, column]])
        if place & np.uint64(7) == np.uint64(7):
            out[place >> np.uint64(3)] |= np.uint8(held)
            held = np.uint64(0)
        place += np.uint64(1)
    if place & np.uint64(7):
        out[place >> np.uint64(3)] |= np.uint8(held << (np.uint64(8) - (place & np.uint64(7))))


@exact
def residuals(scores: Array, labels: Array, index: Integers, scale: float, both: Integers) -> float:
    """both[j] = ⌊(score − label)·scale + ½⌋ and 1, as its halves; the largest |score − label|."""
    most, half = 0.0, 16 if both.itemsize == 4 else 32
    for j in range(np.uint64(len(scores))):
        r = scores[j] - (labels[np.uint64(index[j])] if len(index) else labels[j])
        both[j] = (np.int64(np.floor(r * scale + 0.5)) << half) + 1
        if abs(r) > most or r != r:
            most = abs(r)
    return most


@inlined
def _base(mark: Codes, j: Any, bins: Any) -> Any:
    """Where the sums of a joined row's node begin."""
    return np.uint64(mark[j]) * bins if len(mark) else np.uint64(0)


@exact
def class_slopes(
    e: Array, index: Integers, labels: Array, by_g: float, by_h: float, both: Integers, extents: Array
) -> None:
    """both[j] = ⌊g·by_g + ½⌋ and max(1, ⌊h·by_h + ½⌋), as its halves, of p = 1 / (1 + e): g = p − label, h = p − p²;
    extents are raised to the largest |g| and h."""
    most_g, most_h, half = extents[0], extents[1], 16 if both.itemsize == 4 else 32
    for j in range(np.uint64(len(e))):
        p = 1.0 / (e[j] + 1.0)
        g = p - (labels[np.uint64(index[j])] if len(index) else labels[j])
        h = p - p * p
        if abs(g) > most_g or g != g:
            most_g = abs(g)
        most_h = max(most_h, h)
        both[j] = (np.int64(np.floor(g * by_g + 0.5)) << half) + max(np.int64(1), np.int64(np.floor(h * by_h + 0.5)))
    extents[0], extents[1] = most_g, most_h


@exact
def _count_joined(
    rows: Integers,
    mark: Codes,
    index: Integers,
    missed: int,
    codes: Codes,
    offsets: Integers,
    both: Integers,
    folded: Sums,
    out: Sums,
) -> None:
    if both.itemsize == 4:
        for begin in range(0, len(rows), FEW):
            some, f = rows[begin : begin + FEW], 0
            while f < len(offsets) - 1:
                f += _count_some(some, mark, index, missed, codes, offsets, f, both, folded)
            unfold(folded, out)
        return
    for t in range(len(rows)):
        j = np.uint64(rows[t])
        r, x = row_of(index, j, 0, missed), folded_of(both, j)
        for f in range(len(offsets) - 1):
            place = np.uint64(offsets[f]) + codes[r, f]
            out[place, 0] += x >> 32
            out[place, 1] += x & LOW


@exact
def _count_some(
    rows: Integers,
    mark: Codes,
    index: Integers,
    missed: int,
    codes: Codes,
    offsets: Integers,
    first: int,
    both: Integers,
    folded: Sums,
) -> int:
    """The next columns, up to five at a time: the loop over them is written out; how many they were."""
    f, left, bins = np.uint64(first), len(offsets) - 1 - first, np.uint64(offsets[len(offsets) - 1])
    a = np.uint64(offsets[f])
    if left == 1:
        for t in range(np.uint64(len(rows))):
            j = np.uint64(rows[t])
            r, x, own = row_of(index, j, 0, missed), folded_of(both, j), _base(mark, j, bins)
            folded[own + (a + codes[r, f])] += x
        return 1
    g = f + np.uint64(1)
    b = np.uint64(offsets[g])
    if left == 2:
        for t in range(np.uint64(len(rows))):
            j = np.uint64(rows[t])
            r, x, own = row_of(index, j, 0, missed), folded_of(both, j), _base(mark, j, bins)
            folded[own + (a + codes[r, f])] += x
            folded[own + (b + codes[r, g])] += x
        return 2
    h = g + np.uint64(1)
    c = np.uint64(offsets[h])
    if left == 3:
        for t in range(np.uint64(len(rows))):
            j = np.uint64(rows[t])
            r, x, own = row_of(index, j, 0, missed), folded_of(both, j), _base(mark, j, bins)
            folded[own + (a + codes[r, f])] += x
            folded[own + (b + codes[r, g])] += x
            folded[own + (c + codes[r, h])] += x
        return 3
    i = h + np.uint64(1)
    d = np.uint64(offsets[i])
    if left != 5:
        for t in range(np.uint64(len(rows))):
            j = np.uint64(rows[t])
            r, x, own = row_of(index, j, 0, missed), folded_of(both, j), _base(mark, j, bins)
            folded[own + (a + codes[r, f])] += x
            folded[own + (b + codes[r, g])] += x
            folded[own + (c + codes[r, h])] += x
            folded[own + (d + codes[r, i])] += x
        return 4
    k = i + np.uint64(1)
    e = np.uint64(offsets[k])
    for t in range(np.uint64(len(rows))):
        j = np.uint64(rows[t])
        r, x, own = row_of(index, j, 0, missed), folded_of(both, j), _base(mark, j, bins)
        folded[own + (a + codes[r, f])] += x
        folded[own + (b + codes[r, g])] += x
        folded[own + (c + codes[r, h])] += x
        folded[own + (d + codes[r, i])] += x
        folded[own + (e + codes[r, k])] += x
    return 5


@exact
def _collapse(rows: Integers, index: Integers, missed: int, both: Integers, sums: Sums) -> None:
    """Σ(g, h) per row of a block, over some joined rows."""
    if sums.shape[1] == 1:
        for t in range(np.uint64(len(rows))):
            j = np.uint64(rows[t])
            sums[row_of(index, j, 0, missed), 0] += folded_of(both, j)
        return
    for t in range(np.uint64(len(rows))):
        j = np.uint64(rows[t])
        r, x = row_of(index, j, 0, missed), folded_of(both, j)
        sums[r, 0] += x >> 32
        sums[r, 1] += x & LOW


@exact
def _count_rows(sums: Sums, codes: Codes, offsets: Integers, folded: Sums, out: Sums) -> None:
    """Σ(g, h) per bin of every column, from sums per row, which are zero again afterwards."""
    columns = np.uint64(len(offsets) - 1)
    starts = offsets.astype(np.uint64)
    most_g, most_h = np.int64(0), np.int64(0)
    for r in range(np.uint64(len(sums))):
        if sums.shape[1] == 1:
            both = sums[r, 0]
            h = both & LOW
            g = (both - h) >> 32
            sums[r, 0] = 0
        else:
            g, h = sums[r, 0], sums[r, 1]
            sums[r, 0] = 0
            sums[r, 1] = 0
        if h == 0:
            continue
        if abs(g) >= HALF or h >= HALF:
            for f in range(columns):
                place = starts[f] + codes[r, f]
                out[place, 0] += g
                out[place, 1] += h
            continue
        most_g += abs(g)
        most_h += h
        if most_g >= HALF or most_h >= HALF:
            unfold(folded, out)
            most_g, most_h = abs(g), h
        both = (g << 32) + h
        for f in range(columns):
            folded[starts[f] + codes[r, f]] += both
    unfold(folded, out)
