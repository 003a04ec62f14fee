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
    row_of,
    unfold,
    unpack_chunk,
)

__all__ = ["count_pairs", "emit_cells", "pairs_in_order", "pairs_of_each", "scatter_cells"]


@exact
def pairs_of_each(
    cell: Cells,
    g: Integers,
    h: Integers,
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
        c = cell[j]
        if c < cells:
            steps[count], own[count] = j - row, c
            sums[0, count], sums[1, count] = g[j], h[j]
            row = j
            count += 1
        j += 1
    return count, j, row


@exact
def pairs_in_order(
    index: Integers,
    cell: Cells,
    g: Integers,
    h: Integers,
    cells: int,
    start: int,
    stop: int,
    before: int,
    steps: Integers,
    own: Cells,
    sums: Sums,
) -> tuple[int, int, Any]:
    """The same for joined rows start ≤ j < stop whose row numbers never fall."""
    here = np.zeros((cells, 2), np.int64)
    touched = np.empty(cells, np.int64)
    count, j, last = 0, start, np.int64(before)
    while j < stop:
        row = np.int64(index[j])
        several, began = 0, j
        while j < stop and index[j] == row:
            c = cell[j]
            if c < cells:
                if here[c, 1] == 0:
                    touched[several] = c
                    several += 1
                here[c, 0] += g[j]
                here[c, 1] += h[j]
            j += 1
        is_full = count + several > len(steps)
        found = np.sort(touched[:several]) if several > 1 else touched[:several]
        for k in range(several):
            c = found[k]
            if not is_full:
                steps[count], own[count] = row - last, c
                sums[0, count], sums[1, count] = here[c, 0], here[c, 1]
                last = row
                count += 1
            here[c, 0] = 0
            here[c, 1] = 0
        if is_full:
            return count, began, last
    return count, stop, last


@exact
def scatter_cells(
    index: Integers,
    missed: int,
    cell: Cells,
    g: Integers,
    h: Integers,
    cells: int,
    first: int,
    last: int,
    out: Sums,
) -> None:
    """out[row − first, cell] += (g, h), for rows first ≤ row < last; folded where `out` has one number for both."""
    folds = out.shape[2] == 1
    for j in range(len(cell)):
        c = cell[j]
        r = row_of(index, j, 0, missed)
        if c < cells and first <= r < last:
            if folds:
                out[r - first, c, 0] += (np.int64(g[j]) << 32) + h[j]
            else:
                out[r - first, c, 0] += g[j]
                out[r - first, c, 1] += h[j]


@exact
def emit_cells(scattered: Sums, first: int, before: int, steps: Integers, own: Cells, sums: Sums) -> tuple[int, int]:
    """(row less the one before, cell, Σg, Σh) of what was scattered, now zero again; how many, and the last row."""
    count, last = 0, before
    folds = scattered.shape[2] == 1
    for r in range(scattered.shape[0]):
        for c in range(scattered.shape[1]):
            if folds:
                both = scattered[r, c, 0]
                h = both & LOW
                g = (both - h) >> 32
            else:
                g, h = scattered[r, c, 0], scattered[r, c, 1]
                scattered[r, c, 1] = 0
            scattered[r, c, 0] = 0
            if h != 0:
                steps[count], own[count] = first + r - last, c
                sums[0, count], sums[1, count] = g, h
                last = first + r
                count += 1
    return count, last


@exact
def count_pairs(
    words: Words,
    chunk: int,
    size: int,
    least: Sums,
    widths: Codes,
    starts: Sums,
    row: int,
    codes: Codes,
    offsets: Integers,
    out: Sums,
) -> int:
    """out[cell, bin] += (g, h) for the bin of every column, of packed pairs (step, cell, g, h) after row `row`; the
    last row, or −1 where a row or a cell is none."""
    columns, cells = codes.shape[1], out.shape[0]
    here = np.empty((4, chunk), np.int64)
    places = starts.copy()
    folded = np.zeros((cells, out.shape[1]), np.int64)
    most_g, most_h = np.int64(0), np.int64(0)
    for c in range(widths.shape[1]):
        count = min(chunk, size - c * chunk)
        for s in range(4):
            places[s] = unpack_chunk(words, places[s], np.int64(widths[s, c]), least[s, c], here[s], count)
        for t in range(count):
            row += here[0, t]
            cell, g, h = here[1, t], here[2, t], here[3, t]
            if row < 0 or row >= len(codes) or cell < 0 or cell >= cells:
                return -1
            if g <= -HALF or g >= HALF or h < 0 or h >= HALF:
                for f in range(columns):
                    place = offsets[f] + codes[row, f]
                    out[cell, place, 0] += g
                    out[cell, place, 1] += h
                continue
            most_g += abs(g)
            most_h += h
            if most_g >= HALF or most_h >= HALF:
                for k in range(cells):
                    unfold(folded[k], out[k])
                most_g, most_h = abs(g), h
            both = (g << 32) + h
            own = folded[cell]
            for f in range(columns):
                own[offsets[f] + codes[row, f]] += both
    for k in range(cells):
        unfold(folded[k], out[k])
    return row
