"""Joined rows of nodes, at the server: parted, summed, counted by bin.

Several nodes are done in one call: node k of a call has the joined rows order[segments[k, 0] : segments[k, 1]].
"""

from __future__ import annotations

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
    row_of,
    unfold,
)

__all__ = ["add_split", "add_values", "count_nodes", "count_sides", "mark_nodes", "part_nodes", "sum_nodes"]


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
        start, stop, column = segments[k, 0], segments[k, 1], columns[k]
        left, others = start, np.int64(0)
        for t in range(start, stop):
            j = order[t]
            r = row_of(index, j, base, missed)
            side = np.int64(right[k, codes[r, column]])
            order[left] = j  # both are written and one of them counts: no branch to guess
            spare[others] = j
            others += side
            left += 1 - side
        for t in range(others):
            order[left + t] = spare[t]
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
        column = columns[k]
        for t in range(segments[k, 0], segments[k, 1]):
            j = order[t]
            r = row_of(index, j, base, missed)
            scores[j] += values[k, right[k, codes[r, column]]]


@exact
def add_values(order: Integers, segments: Sums, values: Array, scores: Array) -> None:
    """scores[j] += values[k] for the rows of every segment."""
    for k in range(len(segments)):
        for t in range(segments[k, 0], segments[k, 1]):
            scores[order[t]] += values[k]


@exact
def mark_nodes(order: Integers, segments: Sums, cell: Cells) -> None:
    """cell[j] = k for the rows of every segment."""
    for k in range(len(segments)):
        for t in range(segments[k, 0], segments[k, 1]):
            cell[order[t]] = k


@exact
def sum_nodes(order: Integers, segments: Sums, g: Integers, h: Integers, out: Sums) -> None:
    """Σ(g, h) of every segment."""
    for k in range(len(segments)):
        total_g, total_h = np.int64(0), np.int64(0)
        for t in range(segments[k, 0], segments[k, 1]):
            total_g += g[order[t]]
            total_h += h[order[t]]
        out[k, 0], out[k, 1] = total_g, total_h


@exact
def count_nodes(
    order: Integers,
    segments: Sums,
    index: Integers,
    missed: int,
    codes: Codes,
    offsets: Integers,
    g: Integers,
    h: Integers,
    folds: bool,
    out: Sums,
) -> None:
    """out[k, bin] = Σ(g, h) of every segment per bin of every column: over its joined rows, or over the block's with
    their sums, whichever are fewer. `folds`: the sums of a row stay within half of 32 bits."""
    columns = len(offsets) - 1
    folded = np.zeros(out.shape[1], np.int64)
    room = missed + 1 if len(index) and columns > 1 else 0
    sums = np.zeros((room, 1 if folds else 2), np.int64)
    for k in range(len(segments)):
        start, stop = segments[k, 0], segments[k, 1]
        if room == 0 or (stop - start) * (columns - 1) <= room * (columns + 1):
            _count_joined(order[start:stop], index, missed, codes, offsets, g, h, folded, out[k])
        else:
            _collapse(order[start:stop], index, missed, g, h, sums)
            _count_rows(sums, codes, offsets, folded, out[k])


@exact
def count_sides(codes: Codes, right: NDArray[np.bool_], sides: Sums) -> None:
    """sides[code, side] += 1 for every row."""
    for r in range(len(codes)):
        sides[codes[r], np.int64(right[r])] += 1


@exact
def _count_joined(
    rows: Integers,
    index: Integers,
    missed: int,
    codes: Codes,
    offsets: Integers,
    g: Integers,
    h: Integers,
    folded: Sums,
    out: Sums,
) -> None:
    columns = len(offsets) - 1
    if g.itemsize == 2:
        for begin in range(0, len(rows), FEW):
            for t in range(begin, min(len(rows), begin + FEW)):
                j = rows[t]
                r = row_of(index, j, 0, missed)
                both = (np.int64(g[j]) << 32) + h[j]
                for f in range(columns):
                    folded[offsets[f] + codes[r, f]] += both
            unfold(folded, out)
        return
    for t in range(len(rows)):
        j = rows[t]
        r = row_of(index, j, 0, missed)
        for f in range(columns):
            place = offsets[f] + codes[r, f]
            out[place, 0] += g[j]
            out[place, 1] += h[j]


@exact
def _collapse(rows: Integers, index: Integers, missed: int, g: Integers, h: Integers, sums: Sums) -> None:
    """Σ(g, h) per row of a block, over some joined rows."""
    if sums.shape[1] == 1:
        for t in range(len(rows)):
            j = rows[t]
            sums[row_of(index, j, 0, missed), 0] += (np.int64(g[j]) << 32) + h[j]
        return
    for t in range(len(rows)):
        j = rows[t]
        r = row_of(index, j, 0, missed)
        sums[r, 0] += g[j]
        sums[r, 1] += h[j]


@exact
def _count_rows(sums: Sums, codes: Codes, offsets: Integers, folded: Sums, out: Sums) -> None:
    """Σ(g, h) per bin of every column, from sums per row, which are zero again afterwards."""
    columns = len(offsets) - 1
    most_g, most_h = np.int64(0), np.int64(0)
    for r in range(len(sums)):
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
                place = offsets[f] + codes[r, f]
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
            folded[offsets[f] + codes[r, f]] += both
    unfold(folded, out)
