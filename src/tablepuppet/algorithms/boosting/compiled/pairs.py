"""Sums per row and cell: made at the server, counted by bin at a client."""

from __future__ import annotations

from typing import Any

import numpy as np

from tablepuppet.algorithms.boosting.compiled.bits import (
    HALF,
    LOW,
    Cells,
    Codes,
    Integers,
    Sums,
    Words,
    exact,
    folded_of,
    inlined,
    row_of,
    unfold,
    unpack_chunk,
)

__all__ = [
    "count_pairs",
    "emit_cells",
    "less_followed",
    "pairs_in_order",
    "pairs_of_each",
    "scatter_cells",
    "write_paths",
]

FEW_CELLS = 32  # of one row, that are put in order as they come


@exact
def pairs_of_each(
    cell: Cells,
    both: Integers,
    cells: int,
    start: int,
    before: int,
    steps: Integers,
    own: Cells,
    sums: Sums,
) -> tuple[int, int, int]:
    """(row less the one before, cell, g, h) where every joined row has a row of its own, until `steps` is full or the
    cells end; how many, where it stopped, and the last row. `before` is the row before `start` in the part."""
    count, j, row = 0, start, before
    while j < len(cell) and count < len(steps):
        c = cell[np.uint64(j)]
        if c < cells:
            x, at = folded_of(both, np.uint64(j)), np.uint64(count)
            steps[at], own[at] = j - row, c
            sums[0, at], sums[1, at] = x >> 32, x & LOW
            row = j
            count += 1
        j += 1
    return count, j, row


@exact
def pairs_in_order(
    index: Integers,
    cell: Cells,
    both: Integers,
    cells: int,
    start: int,
    stop: int,
    before: int,
    steps: Integers,
    own: Cells,
    sums: Sums,
) -> tuple[Any, Any, Any]:
    """The same for joined rows start ≤ j < stop whose row numbers never fall."""
    here = np.zeros((cells, 2), np.int64)
    touched = np.empty(cells, np.int64)
    count, last = np.uint64(0), np.int64(before)
    j, end, room = np.uint64(start), np.uint64(stop), np.uint64(len(steps))
    while j < end:
        row, began = np.int64(index[j]), j
        several = np.uint64(0)
        while j < end and index[j] == row:
            c = np.int64(cell[j])
            if c < cells:
                x = folded_of(both, j)
                if here[np.uint64(c), 1] == 0:
                    k = several  # in order of cells, for few of them
                    while k != np.uint64(0) and several < np.uint64(FEW_CELLS) and touched[k - np.uint64(1)] > c:
                        touched[k] = touched[k - np.uint64(1)]
                        k -= np.uint64(1)
                    touched[k] = c
                    several += np.uint64(1)
                here[np.uint64(c), 0] += x >> 32
                here[np.uint64(c), 1] += x & LOW
            j += np.uint64(1)
        if several > np.uint64(FEW_CELLS):
            touched[:several].sort()
        is_full = count + several > room
        for at in range(several):
            here_at = np.uint64(touched[at])
            if not is_full:
                steps[count], own[count] = row - last, here_at
                sums[0, count], sums[1, count] = here[here_at, 0], here[here_at, 1]
                last = row
                count += np.uint64(1)
            here[here_at, 0] = 0
            here[here_at, 1] = 0
        if is_full:
            return np.int64(count), np.int64(began), last
    return np.int64(count), stop, last


@exact
def scatter_cells(
    index: Integers,
    missed: int,
    cell: Cells,
    both: Integers,
    cells: int,
    first: int,
    last: int,
    out: Sums,
) -> None:
    """out[row − first, cell] += (g, h), for rows first ≤ row < last; folded where `out` has one number for both."""
    folds = out.shape[2] == 1
    begin, count, most = np.uint64(first), np.uint64(last - first), np.uint64(cells)
    for j in range(np.uint64(len(cell))):
        c = np.uint64(cell[j])
        r = row_of(index, j, 0, missed) - begin  # of a row before the first, beyond all of them
        if c < most and r < count:
            x = folded_of(both, j)
            if folds:
                out[r, c, 0] += x
            else:
                out[r, c, 0] += x >> 32
                out[r, c, 1] += x & LOW


@exact
def emit_cells(scattered: Sums, first: int, before: int, steps: Integers, own: Cells, sums: Sums) -> tuple[Any, Any]:
    """(row less the one before, cell, Σg, Σh) of what was scattered, now zero again; how many, and the last row."""
    count, last = np.uint64(0), np.int64(before)
    folds = scattered.shape[2] == 1
    for r in range(np.uint64(scattered.shape[0])):
        for c in range(np.uint64(scattered.shape[1])):
            both = scattered[r, c, 0]
            if folds:
                h = both & LOW
                g = (both - h) >> 32
            else:
                g, h = both, scattered[r, c, 1]
            if h != 0:
                steps[count], own[count] = np.int64(first) + np.int64(r) - last, c
                sums[0, count], sums[1, count] = g, h
                last = np.int64(first) + np.int64(r)
                count += np.uint64(1)
    scattered[:] = 0
    return np.int64(count), last


@inlined
def _bit(bits: Codes, at: Any) -> Any:
    return (np.uint64(bits[at >> np.uint64(3)]) >> (at & np.uint64(7))) & np.uint64(1)


@exact
def write_paths(cells: Cells, turns: Codes, asked: Codes, out: Codes) -> None:
    """Level by level the turns of every cell that are asked for, as bits; one byte more than they need is there."""
    at = np.uint64(0)
    for d in range(np.uint64(len(turns))):
        for t in range(np.uint64(len(cells))):
            c = np.uint64(cells[t])
            out[at >> np.uint64(3)] |= np.uint8(np.uint64(turns[d, c]) << (at & np.uint64(7)))
            at += np.uint64(asked[d, c])


@exact
def less_followed(g: Integers, h: Integers, top: int, shift: int, out: Sums) -> None:
    """h less what follows from g (packing.py)."""
    for t in range(np.uint64(len(g))):
        most = abs(np.int64(g[t]))
        out[t] = np.int64(h[t]) - ((most * (top - most)) >> shift)


@exact
def count_pairs(
    words: Words,
    chunk: int,
    size: int,
    least: Sums,
    widths: Codes,
    unary: Integers,
    starts: Sums,
    top: int,
    shift: int,
    paths: Codes,
    borders: Sums,
    roots: Sums,
    width: int,
    after: Sums,
    column: Sums,
    right: Codes,
    asked: Codes,
    cell_of: Sums,
    row: int,
    codes: Codes,
    offsets: Integers,
    out: Sums,
) -> int:
    """out[cell, bin] += (g, h) for the bin of every column, of packed pairs (step, g, h) after row `row`, whose cells
    follow from their paths; the last row, or −1 where a row or a path is none."""
    cells, bins, columns = out.shape[0], out.shape[1], np.uint64(len(offsets) - 1)
    here = np.empty((3, chunk), np.int64)
    rows, bases, firsts = np.empty(chunk, np.uint64), np.empty(chunk, np.uint64), offsets.astype(np.uint64)
    places, plain, folded = starts.copy(), out.reshape(cells * bins, 2), np.zeros(cells * bins, np.int64)
    most_g, most_h = np.int64(0), np.int64(0)
    at, first = borders[:-1].astype(np.uint64), np.empty(chunk, np.uint64)  # by level; the node of each pair
    for c in range(widths.shape[1]):
        count = min(chunk, size - c * chunk)
        for s in range(3):
            bits, upper = np.int64(widths[s, c]), np.int64(unary[s, c])
            places[s] = unpack_chunk(words, places[s], bits, upper, least[s, c], here[s], count)
            if places[s] < 0:
                return -1
        if top:
            for t in range(np.uint64(count)):
                here[2, t] += (abs(here[1, t]) * (top - abs(here[1, t]))) >> shift
        is_wrong, is_small = False, True
        own_g, own_h = np.int64(0), np.int64(0)
        for t in range(np.uint64(count)):
            row += here[0, t]
            g, h = here[1, t], here[2, t]
            rows[t] = np.uint64(row)
            is_wrong |= rows[t] >= np.uint64(len(codes))
            is_small &= (g > -HALF) & (g < HALF) & (h >= 0) & (h < HALF)
            own_g += abs(g)
            own_h += h
        if is_wrong:
            return -1
        first[:count] = 0
        for d in range(np.uint64(width)):
            for t in range(np.uint64(count)):
                first[t] |= _bit(paths, at[d] + t) << d
            at[d] += np.uint64(count)
        for t in range(np.uint64(count)):
            if first[t] >= np.uint64(len(roots)):
                return -1
            first[t] = np.uint64(roots[first[t]])
        for d in range(np.uint64(width), np.uint64(len(at))):
            place = at[d]
            for t in range(np.uint64(count)):
                v = first[t]
                is_asked = np.uint64(asked[v])
                own = np.uint64(right[v, codes[rows[t], np.uint64(column[v])]])
                first[t] = np.uint64(after[v]) + (own | (_bit(paths, place) & is_asked))
                place += is_asked
            at[d] = place
        for d in range(len(at)):
            if at[d] > np.uint64(borders[d + 1]):
                return -1
        for t in range(np.uint64(count)):
            is_wrong |= cell_of[first[t]] < 0
            bases[t] = np.uint64(cell_of[first[t]]) * np.uint64(bins)
        if is_wrong:
            return -1
        if not is_small or own_g >= HALF or own_h >= HALF:
            for t in range(np.uint64(count)):
                for f in range(columns):
                    place = bases[t] + firsts[f] + codes[rows[t], f]
                    plain[place, 0] += here[1, t]
                    plain[place, 1] += here[2, t]
            continue
        if most_g + own_g >= HALF or most_h + own_h >= HALF:
            unfold(folded, plain)
            most_g, most_h = np.int64(0), np.int64(0)
        most_g += own_g
        most_h += own_h
        for t in range(np.uint64(count)):
            r, base, x = rows[t], bases[t], (here[1, t] << 32) + here[2, t]
            for f in range(columns):
                folded[base + firsts[f] + codes[r, f]] += x
    unfold(folded, plain)
    return row if (at == borders[1:].astype(np.uint64)).all() else -1
