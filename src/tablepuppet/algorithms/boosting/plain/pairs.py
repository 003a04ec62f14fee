"""Sums per row and cell."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tablepuppet.algorithms.boosting.plain.bits import Cells, Codes, Integers, Sums, Words, add_up, parted, unpack
from tablepuppet.algorithms.boosting.plain.columns import count_listed

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
    found = start + np.flatnonzero(cell[start:] < cells)[: len(steps)]
    count = len(found)
    if not count:
        return 0, len(cell), before
    steps[:count], own[:count] = np.diff(found, prepend=before), cell[found]
    sums[0, :count], sums[1, :count] = parted(both[found])
    last = int(found[-1])
    return count, last + 1 if count == len(steps) else len(cell), last


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
) -> tuple[int, int, int]:
    until = min(stop, start + len(steps))  # no more pairs than joined rows; whole rows of the block alone
    if until < stop:
        whole = int(np.searchsorted(index, index[until]))
        until = whole if whole > start else int(np.searchsorted(index, index[until], side="right"))
    inside = start + np.flatnonzero(cell[start:until] < cells)
    at = index[inside].astype(np.int64) * cells + cell[inside]
    found, places = np.unique(at, return_inverse=True)
    rows, count = found // cells, len(found)
    if not count:
        return 0, until, before
    steps[:count], own[:count] = np.diff(rows, prepend=before), found % cells
    sums[:, :count] = 0
    g, h = parted(both[inside])
    add_up(places, g, sums[0, :count])
    add_up(places, h, sums[1, :count])
    return count, until, int(rows[-1])


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
    rows = np.where(index >= 0, index, missed)
    inside = np.flatnonzero((cell < cells) & (rows >= first) & (rows < last))
    places = (rows[inside].astype(np.int64) - first) * cells + cell[inside]
    folds = out.shape[2] == 1
    for place, values in enumerate(parted(both[inside])):
        added = np.zeros(out.shape[0] * cells, np.int64)
        add_up(places, values, added)
        if folds:
            out[:, :, 0] += added.reshape(-1, cells) << (32 if place == 0 else 0)
        else:
            out[:, :, place] += added.reshape(-1, cells)


def emit_cells(
    scattered: Sums, first: int, before: int, start: int, steps: Integers, own: Cells, sums: Sums
) -> tuple[int, int]:
    if scattered.shape[2] == 1:
        h = scattered[:, :, 0] & 0xFFFFFFFF
        g = (scattered[:, :, 0] - h) >> 32
    else:
        g, h = scattered[:, :, 0].copy(), scattered[:, :, 1].copy()
    scattered[...] = 0
    rows, cells = np.nonzero(h)
    if not len(rows):
        return start, before
    count = start + len(rows)
    steps[start:count], own[start:count] = np.diff(first + rows, prepend=before), cells
    sums[0, start:count], sums[1, start:count] = g[rows, cells], h[rows, cells]
    return count, int(first + rows[-1])


def add_children(left: Integers, cells: Sums, out: Sums) -> None:
    out[left < 0] = cells
    for node in np.flatnonzero(left >= 0)[::-1].tolist():
        np.add(out[left[node]], out[left[node] + 1], out=out[node])


def write_paths(cells: Cells, turns: Codes, asked: Codes, counts: Sums, out: Codes) -> None:
    levels = [turn[cells[own[cells] > 0]] for turn, own in zip(turns, asked, strict=True)]
    counts[:] = [len(level) for level in levels]
    packed = np.packbits(np.concatenate([*levels, np.zeros(0, np.uint8)]), bitorder="little")
    out[: len(packed)] = packed


def less_followed(g: Integers, h: Integers, top: int, shift: int, out: Sums) -> None:
    most = abs(g.astype(np.int64))
    out[:] = h - ((most * (top - most)) >> shift)


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
    pairs = np.empty((3, size), np.int64)
    if not unpack(words, chunk, least, widths, unary, starts, pairs):
        return -1
    if top:
        pairs[2] += (abs(pairs[1]) * (top - abs(pairs[1]))) >> shift
    pairs[0, 0] += row
    rows = np.cumsum(pairs[0])
    g, h = pairs[1:]
    if rows.min() < 0 or rows.max() >= len(codes):
        return -1
    bits = np.unpackbits(paths, bitorder="little").astype(np.int64)
    node = np.zeros(size, np.int64)
    for d in range(width):
        if borders[d + 1] - borders[d] != size:
            return -1
        node |= bits[borders[d] : borders[d + 1]] << d
    if node.max() >= len(roots):
        return -1
    node = roots[node]
    for start, stop in pairwise(borders[width:].tolist()):
        told = np.flatnonzero(asked[node])
        if len(told) != stop - start:
            return -1
        side = right[node, codes[rows, column[node]]].astype(np.int64)
        side[told] = bits[start:stop]
        node = after[node] + side
    cell = cell_of[node]
    if cell.min() < 0:
        return -1
    own = np.stack([rows, cell, g, h])
    if listed.shape[1]:
        listed[:] = own
    count_listed(own, chunk, codes, offsets, out)
    return int(rows[-1])
