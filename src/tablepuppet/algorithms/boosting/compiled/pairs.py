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
    "add_children",
    "count_pairs",
    "emit_cells",
    "less_followed",
    "pairs_in_order",
    "pairs_of_each",
    "scatter_cells",
    "write_paths",
]

HALFWAY = np.uint64(32)  # of a number whose halves are two
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
        if np.int64(cell[j]) >= cells:  # as most are, where a few nodes are looked at
            j += np.uint64(1)
            continue
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
def emit_cells(
    scattered: Sums, first: int, before: int, start: int, steps: Integers, own: Cells, sums: Sums
) -> tuple[Any, Any]:
    """(row less the one before, cell, Σg, Σh) of what was scattered, now zero again, after the `start` that are there;
    how many there are then, and the last row."""
    count, last = np.uint64(start), np.int64(before)
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


@exact
def add_children(left: Integers, cells: Sums, out: Sums) -> None:
    """out[node] is a cell's own sums, in order, or those of the node's children, which come after it."""
    place = len(cells)
    for node in range(len(left) - 1, -1, -1):
        child = left[node]
        if child < 0:
            place -= 1
            out[node] = cells[place]
        else:
            out[node] = out[child] + out[child + 1]


@inlined
def _bit(bits: Codes, at: Any) -> Any:
    return (np.uint64(bits[at >> np.uint64(3)]) >> (at & np.uint64(7))) & np.uint64(1)


@exact
def write_paths(cells: Cells, turns: Codes, asked: Codes, counts: Sums, out: Codes) -> None:
    """Level by level the turns of every cell that are asked for, as bits; `out` has room for a bit of every pair and
    level that asks any, and `counts` is how many there are of each level."""
    both = np.empty(turns.shape[1], np.uint64)
    at, held, filled = np.uint64(0), np.uint64(0), np.uint64(0)
    for d in range(np.uint64(len(turns))):
        before = np.int64((at << np.uint64(3)) + filled)
        counts[d] = 0
        if not asked[d].any():
            continue
        for c in range(np.uint64(len(both))):
            both[c] = np.uint64(turns[d, c]) | (np.uint64(asked[d, c]) << np.uint64(1))
        for t in range(np.uint64(len(cells))):
            own = both[np.uint64(cells[t])]
            held |= (own & np.uint64(1)) << filled
            filled += own >> np.uint64(1)
            if filled == np.uint64(32):
                for k in range(np.uint64(4)):
                    out[at + k] = np.uint8((held >> (k << np.uint64(3))) & np.uint64(255))
                at += np.uint64(4)
                held, filled = np.uint64(0), np.uint64(0)
        counts[d] = np.int64((at << np.uint64(3)) + filled) - before
    while filled != np.uint64(0):
        out[at] = np.uint8(held & np.uint64(255))
        at += np.uint64(1)
        held >>= np.uint64(8)
        filled -= min(filled, np.uint64(8))


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
    listed: Sums,
) -> int:
    """out[cell, bin] += (g, h) for the bin of every column, of packed pairs (step, g, h) after row `row`, whose cells
    follow from their paths; the last row, or −1 where a row or a path is none. `listed` takes each pair's row, cell, g
    and h, unless it has no room."""
    cells, bins = out.shape[0], out.shape[1]
    here = np.empty((3, chunk), np.int64)
    steps, gs, hs = here[0], here[1], here[2]
    rows, node, firsts = np.empty(chunk, np.uint64), np.empty(chunk, np.uint64), offsets.astype(np.uint64)
    places, plain, folded = starts.copy(), out.reshape(cells * bins, 2), np.zeros(cells * bins, np.int64)
    most_g, most_h = np.int64(0), np.int64(0)
    at = borders[:-1].astype(np.uint64)  # by level
    turns = np.empty(
        len(after), np.uint64
    )  # of a node its left child, the column that it looks at, whether it is asked
    for v in range(len(after)):
        turns[v] = (np.uint64(after[v]) << HALFWAY) | (np.uint64(column[v]) << np.uint64(1)) | np.uint64(asked[v])
    goes, flat, stride = right.reshape(len(after) * 256), codes.reshape(codes.size), np.uint64(codes.shape[1])
    for c in range(widths.shape[1]):
        count = min(chunk, size - c * chunk)
        n = np.uint64(count)
        for s in range(3):
            bits, upper = np.int64(widths[s, c]), np.int64(unary[s, c])
            places[s] = unpack_chunk(words, places[s], bits, upper, least[s, c], here[s], count)
            if places[s] < 0:
                return -1
        if top:
            for t in range(n):
                hs[t] += (abs(gs[t]) * (top - abs(gs[t]))) >> shift
        is_wrong: Any = False
        for t in range(n):
            row += steps[t]
            rows[t] = np.uint64(row) * stride
            is_wrong |= np.uint64(row) >= np.uint64(len(codes))
        if is_wrong:
            return -1
        is_small, own_g, own_h = True, np.int64(0), np.int64(0)
        for t in range(n):
            is_small &= (gs[t] > -HALF) & (gs[t] < HALF) & (hs[t] >= 0) & (hs[t] < HALF)
            own_g += abs(gs[t])
            own_h += hs[t]
        node[:count] = np.uint64(roots[0])
        if width:
            node[:count] = np.uint64(0)
            for d in range(np.uint64(width)):
                for t in range(n):
                    node[t] |= _bit(paths, at[d] + t) << d
                at[d] += n
            for t in range(n):
                if node[t] >= np.uint64(len(roots)):
                    return -1
                node[t] = np.uint64(roots[node[t]])
        for d in range(np.uint64(width), np.uint64(len(at))):
            place = at[d]
            for t in range(n):
                v = node[t]
                turn = turns[v]
                is_asked, looks_at = turn & np.uint64(1), (turn & np.uint64(LOW)) >> np.uint64(1)
                own = np.uint64(goes[(v << np.uint64(8)) | np.uint64(flat[rows[t] + looks_at])])
                node[t] = (turn >> HALFWAY) + (own | (_bit(paths, place) & is_asked))
                place += is_asked
            at[d] = place
        for d in range(len(at)):
            if at[d] > np.uint64(borders[d + 1]):
                return -1
        for t in range(n):
            is_wrong |= cell_of[node[t]] < 0
            node[t] = np.uint64(cell_of[node[t]])
        if is_wrong:
            return -1
        if listed.shape[1]:
            first = np.uint64(c * chunk)
            for t in range(n):
                listed[0, first + t], listed[1, first + t] = rows[t] // stride, node[t]
                listed[2, first + t], listed[3, first + t] = gs[t], hs[t]
        for t in range(n):
            node[t] *= np.uint64(bins)
        if not is_small or own_g >= HALF or own_h >= HALF:
            for t in range(n):
                for e in range(np.uint64(len(offsets) - 1)):
                    place = node[t] + firsts[e] + flat[rows[t] + e]
                    plain[place, 0] += gs[t]
                    plain[place, 1] += hs[t]
            continue
        if most_g + own_g >= HALF or most_h + own_h >= HALF:
            unfold(folded, plain)
            most_g, most_h = np.int64(0), np.int64(0)
        most_g += own_g
        most_h += own_h
        for t in range(n):
            steps[t] = (gs[t] << 32) + hs[t]
        f: Any = np.uint64(0)
        while f < np.uint64(len(offsets) - 1):
            f += add_columns(rows[:count], node, steps, flat, firsts, f, folded)
    unfold(folded, plain)
    return row if (at == borders[1:].astype(np.uint64)).all() else -1


@exact
def add_columns(rows: Words, bases: Words, both: Sums, codes: Codes, firsts: Words, f: Any, folded: Sums) -> Any:
    """folded[base + bin] += both for the next columns, up to four at a time, written out; how many they were."""
    left = np.uint64(len(firsts) - 1) - f
    a = firsts[f]
    if left == np.uint64(1):
        for t in range(np.uint64(len(rows))):
            folded[bases[t] + (a + codes[rows[t] + f])] += both[t]
        return np.uint64(1)
    g = f + np.uint64(1)
    b = firsts[g]
    if left == np.uint64(2):
        for t in range(np.uint64(len(rows))):
            r, base, x = rows[t], bases[t], both[t]
            folded[base + (a + codes[r + f])] += x
            folded[base + (b + codes[r + g])] += x
        return np.uint64(2)
    h = g + np.uint64(1)
    c = firsts[h]
    if left == np.uint64(3) or left == np.uint64(5):
        for t in range(np.uint64(len(rows))):
            r, base, x = rows[t], bases[t], both[t]
            folded[base + (a + codes[r + f])] += x
            folded[base + (b + codes[r + g])] += x
            folded[base + (c + codes[r + h])] += x
        return np.uint64(3)
    i = h + np.uint64(1)
    d = firsts[i]
    for t in range(np.uint64(len(rows))):
        r, base, x = rows[t], bases[t], both[t]
        folded[base + (a + codes[r + f])] += x
        folded[base + (b + codes[r + g])] += x
        folded[base + (c + codes[r + h])] += x
        folded[base + (d + codes[r + i])] += x
    return np.uint64(4)
