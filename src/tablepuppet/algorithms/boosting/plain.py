"""The loops of compiled.py by NumPy, for machines without the compiler: the same arguments, the same integers, the same
gains; more slowly.

Sums are `bincount`s, whose floating-point numbers are exact for whole numbers below 2⁵³: numbers wider than 16 bits are
added up in two halves. Nothing loops over rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.exchange import KNOWN_ONE_HOT, NUMBER, SORTED

Array = NDArray[np.float64]
Codes = NDArray[np.uint8]
Integers = NDArray[np.signedinteger[Any]]
Sums = NDArray[np.int64]
Words = NDArray[np.uint64]
_TOGETHER = 256  # chunks that are packed at a time


# -- joined rows, at the server -------------------------------------------------------------


def _rows(index: Integers, joined: Integers, base: int, missed: int) -> Sums:
    """The rows of codes that some joined rows have."""
    found = np.asarray(index[joined] if len(index) else joined, np.int64)
    return np.where(found >= 0, found + base, missed)


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
    for k, (start, stop) in enumerate(segments.tolist()):
        own = order[start:stop].copy()
        goes_right = right[k][codes[_rows(index, own, base, missed), columns[k]]].astype(np.bool_)
        borders[k] = start + len(own) - int(np.count_nonzero(goes_right))
        order[start : borders[k]], order[borders[k] : stop] = own[~goes_right], own[goes_right]


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
    for k, (start, stop) in enumerate(segments.tolist()):
        own = order[start:stop]
        scores[own] += values[k][right[k][codes[_rows(index, own, base, missed), columns[k]]]]


def add_values(order: Integers, segments: Sums, values: Array, scores: Array) -> None:
    for k, (start, stop) in enumerate(segments.tolist()):
        scores[order[start:stop]] += values[k]


def mark_nodes(order: Integers, segments: Sums, cell: NDArray[np.uint16]) -> None:
    for k, (start, stop) in enumerate(segments.tolist()):
        cell[order[start:stop]] = k


def sum_nodes(order: Integers, segments: Sums, g: Integers, h: Integers, out: Sums) -> None:
    for k, (start, stop) in enumerate(segments.tolist()):
        own = order[start:stop]
        out[k] = g[own].sum(dtype=np.int64), h[own].sum(dtype=np.int64)


def _add_up(places: NDArray[Any], values: Integers, out: Sums) -> None:
    """out[place] += value; floating-point sums of whole numbers are exact."""
    wide = values.astype(np.int64)
    for part, shift in ((wide & 0xFFFF, 0), (wide >> 16 & 0xFFFF, 16), (wide >> 32 & 0xFFFF, 32), (wide >> 48, 48)):
        if part.any():
            out += np.bincount(places, part, minlength=len(out)).astype(np.int64) << shift


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
    for k, (start, stop) in enumerate(segments.tolist()):
        own = order[start:stop]
        rows, own_g, own_h = _rows(index, own, 0, missed), g[own], h[own]
        for f in range(len(offsets) - 1):
            bins, sums = codes[rows, f], out[k, offsets[f] : offsets[f + 1]]
            _add_up(bins, own_g, sums[:, 0])
            _add_up(bins, own_h, sums[:, 1])


# -- sums per row and cell ------------------------------------------------------------------


def pairs_of_each(
    cell: NDArray[np.uint16],
    g: Integers,
    h: Integers,
    cells: int,
    start: int,
    before: int,
    steps: Integers,
    own: NDArray[np.uint16],
    sums: Sums,
) -> tuple[int, int, int]:
    found = start + np.flatnonzero(cell[start:] < cells)[: len(steps)]
    count = len(found)
    if not count:
        return 0, len(cell), before
    steps[:count], own[:count] = np.diff(found, prepend=before), cell[found]
    sums[0, :count], sums[1, :count] = g[found], h[found]
    last = int(found[-1])
    return count, last + 1 if count == len(steps) else len(cell), last


def pairs_in_order(
    index: Integers,
    cell: NDArray[np.uint16],
    g: Integers,
    h: Integers,
    cells: int,
    start: int,
    stop: int,
    before: int,
    steps: Integers,
    own: NDArray[np.uint16],
    sums: Sums,
) -> tuple[int, int, int]:
    until = min(stop, start + len(steps))  # no more pairs than joined rows; whole rows of the block alone
    if until < stop:
        whole = int(np.searchsorted(index, index[until]))
        until = whole if whole > start else int(np.searchsorted(index, index[until], side="right"))
    inside = start + np.flatnonzero(cell[start:until] < cells)
    both = index[inside].astype(np.int64) * cells + cell[inside]
    found, places = np.unique(both, return_inverse=True)
    rows, count = found // cells, len(found)
    if not count:
        return 0, until, before
    steps[:count], own[:count] = np.diff(rows, prepend=before), found % cells
    sums[:, :count] = 0
    _add_up(places, g[inside], sums[0, :count])
    _add_up(places, h[inside], sums[1, :count])
    return count, until, int(rows[-1])


def scatter_cells(
    index: Integers,
    missed: int,
    cell: NDArray[np.uint16],
    g: Integers,
    h: Integers,
    cells: int,
    first: int,
    last: int,
    out: Sums,
) -> None:
    rows = np.where(index >= 0, index, missed)
    inside = np.flatnonzero((cell < cells) & (rows >= first) & (rows < last))
    places = (rows[inside].astype(np.int64) - first) * cells + cell[inside]
    folds = out.shape[2] == 1
    for place, values in enumerate((g, h)):
        added = np.zeros(out.shape[0] * cells, np.int64)
        _add_up(places, values[inside], added)
        if folds:
            out[:, :, 0] += added.reshape(-1, cells) << (32 if place == 0 else 0)
        else:
            out[:, :, place] += added.reshape(-1, cells)


def emit_cells(
    scattered: Sums, first: int, before: int, steps: Integers, own: NDArray[np.uint16], sums: Sums
) -> tuple[int, int]:
    if scattered.shape[2] == 1:
        h = scattered[:, :, 0] & 0xFFFFFFFF
        g = (scattered[:, :, 0] - h) >> 32
    else:
        g, h = scattered[:, :, 0].copy(), scattered[:, :, 1].copy()
    scattered[...] = 0
    rows, cells = np.nonzero(h)
    count = len(rows)
    if not count:
        return 0, before
    steps[:count], own[:count] = np.diff(first + rows, prepend=before), cells
    sums[0, :count], sums[1, :count] = g[rows, cells], h[rows, cells]
    return count, int(first + rows[-1])


# -- whole numbers in few bits --------------------------------------------------------------


def widths_of(values: Integers, chunk: int, least: Sums, widths: Codes) -> int:
    starts = np.arange(0, len(values), chunk)
    if not len(starts):
        return 0
    low = np.minimum.reduceat(values, starts).astype(np.int64)
    span = (np.maximum.reduceat(values, starts).astype(np.int64) - low).astype(np.uint64)
    bits = np.zeros(len(starts), np.int64)
    for bit in range(64):
        bits += span >> np.uint64(bit) != 0
    least[:], widths[:] = low, bits
    return int(_words(bits, chunk, len(values)).sum())


def _words(bits: Sums, chunk: int, size: int) -> Sums:
    """The words of every chunk."""
    counts = np.full(len(bits), chunk, np.int64)
    counts[-1:] = size - (len(bits) - 1) * chunk
    return (bits * counts + 63) // 64


def pack(values: Integers, chunk: int, least: Sums, widths: Codes, out: Words) -> None:
    chunks, bits = len(widths), widths.astype(np.int64)
    words = _words(bits, chunk, len(values))
    ends = np.cumsum(words)
    padded = np.zeros((chunks, chunk), np.int64)
    padded.ravel()[: len(values)] = values
    for width in np.unique(bits[bits > 0]).tolist():
        own = np.flatnonzero(bits == width)
        for some in np.split(own, range(_TOGETHER, len(own), _TOGETHER)):
            rest = (padded[some] - least[some, None]).astype("<u8")
            every = np.unpackbits(rest.view(np.uint8).reshape(len(some), chunk, 8), axis=2, bitorder="little")
            packed = np.packbits(every[:, :, :width].reshape(len(some), -1), axis=1, bitorder="little").view("<u8")
            for place, c in enumerate(some.tolist()):
                out[ends[c] - words[c] : ends[c]] = packed[place, : words[c]]
    if len(values) % chunk and bits[-1]:  # what pads the last chunk is no value
        used = int(bits[-1]) * (len(values) % chunk) % 64
        if used:
            out[ends[-1] - 1] &= np.uint64((1 << used) - 1)


def unpack(words: Words, chunk: int, least: Sums, widths: Codes, starts: Sums, out: Sums) -> None:
    for s in range(out.shape[0]):
        bits = widths[s].astype(np.int64)
        count = _words(bits, chunk, out.shape[1])
        ends = starts[s] + np.cumsum(count)
        found = np.repeat(least[s][:, None], chunk, axis=1)
        for width in np.unique(bits[bits > 0]).tolist():
            own = np.flatnonzero(bits == width)
            for some in np.split(own, range(_TOGETHER, len(own), _TOGETHER)):
                packed = np.zeros((len(some), chunk * width // 64), np.uint64)
                for place, c in enumerate(some.tolist()):
                    packed[place, : count[c]] = words[ends[c] - count[c] : ends[c]]
                every = np.zeros((len(some), chunk, 64), np.uint8)
                flat = np.unpackbits(packed.astype("<u8").view(np.uint8), axis=1, bitorder="little")
                every[:, :, :width] = flat.reshape(len(some), chunk, width)
                found[some] += np.packbits(every, axis=2, bitorder="little").view("<i8")[:, :, 0]
        out[s] = found.ravel()[: out.shape[1]]


# -- a client's rows ------------------------------------------------------------------------


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
    pairs = np.empty((4, size), np.int64)
    unpack(words, chunk, least, widths, starts, pairs)
    pairs[0, 0] += row
    rows = np.cumsum(pairs[0])
    cells, cell, g, h = out.shape[0], *pairs[1:]
    if rows.min() < 0 or rows.max() >= len(codes) or cell.min() < 0 or cell.max() >= cells:
        return -1
    for f in range(codes.shape[1]):
        bins = int(offsets[f + 1] - offsets[f])
        places = cell * bins + codes[rows, f]
        own = out[:, offsets[f] : offsets[f + 1]]
        for place, values in enumerate((g, h)):
            added = np.zeros(cells * bins, np.int64)
            _add_up(places, values, added)
            own[:, :, place] += added.reshape(cells, bins)
    return int(rows[-1])


# -- the best split -------------------------------------------------------------------------


def best_splits(
    sums: Sums,
    offsets: Integers,
    kinds: Codes,
    allowed: Codes,
    unit: Array,
    rules: Array,
    gain: Array,
    found: Sums,
    order: Codes,
) -> None:
    gain[:], found[:, 0] = rules[2], -1
    if not len(kinds):
        return
    total = sums[:, offsets[0] : offsets[1]].sum(axis=1)
    for f in range(len(kinds)):
        if allowed[f]:
            own = sums[:, offsets[f] : offsets[f + 1]]
            if kinds[f] == NUMBER:
                _numbers(f, own, total, unit, rules, gain, found)
            else:
                _categories(f, int(kinds[f]), own, total, unit, rules, gain, found, order)


def _gains(left: Sums, total: Sums, unit: Array, rules: Array, ridge: float) -> Array:
    """Of every node and candidate; −∞ where a side is too light."""
    G, H = total[:, 0] * unit[0], total[:, 1] * unit[1]
    right = total[:, None] - left
    GL, HL, GR, HR = left[..., 0] * unit[0], left[..., 1] * unit[1], right[..., 0] * unit[0], right[..., 1] * unit[1]
    with np.errstate(all="ignore"):
        base = G * G / (H + rules[0])
        gains = GL * GL / (HL + ridge) + GR * GR / (HR + ridge) - base[:, None]
    fits = (np.minimum(HL, HR) >= rules[1]) & (left[..., 1] > 0) & (right[..., 1] > 0)
    return np.where(fits & ~np.isnan(gains), gains, -np.inf)


def _take(f: int, gains: Array, at: int, to_left: int, left: Sums, gain: Array, found: Sums) -> NDArray[np.intp]:
    """Keeps the best candidate of each node where it is better than what there was; those nodes."""
    place = np.argmax(gains, axis=1)
    best = gains[np.arange(len(gains)), place]
    nodes = np.flatnonzero(best > gain)
    gain[nodes] = best[nodes]
    found[nodes, 0], found[nodes, 1], found[nodes, 2] = f, place[nodes] + at, to_left
    found[nodes, 3:] = left[nodes, place[nodes]]
    return nodes


def _numbers(f: int, own: Sums, total: Sums, unit: Array, rules: Array, gain: Array, found: Sums) -> None:
    bins = own.shape[1]
    missing = own[:, :1]
    for to_left in (0, 1):
        left = np.cumsum(own[:, 1:], axis=1) + to_left * missing
        gains = _gains(left, total, unit, rules, float(rules[0]))
        if to_left:
            gains[missing[:, 0, 1] == 0] = -np.inf
            gains[:, bins - 2 :] = -np.inf
        else:
            gains[missing[:, 0, 1] == 0, bins - 2 :] = -np.inf
        if gains.shape[1]:
            _take(f, gains, 1, to_left, left, gain, found)


def _categories(
    f: int,
    kind: int,
    own: Sums,
    total: Sums,
    unit: Array,
    rules: Array,
    gain: Array,
    found: Sums,
    order: Codes,
) -> None:
    is_sorted = kind == SORTED
    is_there = own[..., 1] > 0
    left, places = own, np.zeros((0, 0), np.int64)
    if is_sorted:
        ratio = np.where(is_there, own[..., 0] * unit[0] / (own[..., 1] * unit[1] + rules[4]), np.inf)
        places = np.asarray(np.argsort(ratio, axis=1, kind="stable"), np.int64)
        is_there = np.take_along_axis(is_there, places, axis=1)
        left = np.cumsum(np.take_along_axis(own, places[..., None], axis=1), axis=1)
    ridge = float(rules[0] + rules[3]) if is_sorted else float(rules[0])
    gains = np.where(is_there, _gains(left, total, unit, rules, ridge), -np.inf)
    if kind == KNOWN_ONE_HOT:
        gains[:, 0] = -np.inf
    nodes = _take(f, gains, 1 if is_sorted else 0, 0, left, gain, found)
    if is_sorted:
        order[nodes, : places.shape[1]] = places[nodes]
