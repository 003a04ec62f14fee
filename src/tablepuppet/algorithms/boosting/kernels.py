"""Compiled loops of boosted trees. What is summed is whole numbers, so no order of summation can change a bit.

Gains are the only floating-point numbers here; they are rounded as written (no fused products), so that a client and
the server that see the same sums find the same split whatever their processors are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.exchange import KNOWN_ONE_HOT, NUMBER, SORTED

F = TypeVar("F", bound=Callable[..., Any])
Array = NDArray[np.float64]
Codes = NDArray[np.uint8]
Integers = NDArray[np.signedinteger[Any]]
Sums = NDArray[np.int64]


def exact(function: F) -> F:
    """A compiled loop that releases the interpreter lock and rounds as it is written."""
    return cast(F, njit(function, nogil=True, cache=True, error_model="numpy"))


def fixed_type(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: a kernel is compiled once, wherever its arrays come from."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


# -- joined rows, at the server -------------------------------------------------------------


@exact
def fixed_point(values: Array, scale: float, least: int, out: Integers) -> None:
    """⌊v·scale + ½⌋, at least `least`."""
    for j in range(len(values)):
        out[j] = max(least, int(np.floor(values[j] * scale + 0.5)))


@exact
def squared_extent(scores: Array, labels: Array, index: Integers, start: int, weights: Array) -> tuple[float, float]:
    """max |g| and max h of ½(a − y)²."""
    most_g, most_h = 0.0, 0.0
    for j in range(len(scores)):
        row = index[start + j] if len(index) else start + j
        w = weights[row] if len(weights) else 1.0
        most_g, most_h = max(most_g, abs(w * (scores[j] - labels[row]))), max(most_h, w)
    return most_g, most_h


@exact
def squared_fixed(
    scores: Array, labels: Array, index: Integers, start: int, weights: Array, by: Array, g: Integers, h: Integers
) -> None:
    """g and h of ½(a − y)² in fixed point."""
    for j in range(len(scores)):
        row = index[start + j] if len(index) else start + j
        w = weights[row] if len(weights) else 1.0
        g[j] = int(np.floor(w * (scores[j] - labels[row]) * by[0] + 0.5))
        h[j] = max(1, int(np.floor(w * by[1] + 0.5)))


@exact
def logistic_extent(scores: Array, labels: Array, index: Integers, start: int, weights: Array) -> tuple[float, float]:
    """max |g| and max h of log(1 + eᵃ) − y·a."""
    most_g, most_h = 0.0, 0.0
    for j in range(len(scores)):
        row = index[start + j] if len(index) else start + j
        w = weights[row] if len(weights) else 1.0
        p = 1.0 / (1.0 + np.exp(-scores[j]))
        most_g, most_h = max(most_g, abs(w * (p - labels[row]))), max(most_h, w * p * (1.0 - p))
    return most_g, most_h


@exact
def logistic_fixed(
    scores: Array, labels: Array, index: Integers, start: int, weights: Array, by: Array, g: Integers, h: Integers
) -> None:
    """g and h of log(1 + eᵃ) − y·a in fixed point."""
    for j in range(len(scores)):
        row = index[start + j] if len(index) else start + j
        w = weights[row] if len(weights) else 1.0
        p = 1.0 / (1.0 + np.exp(-scores[j]))
        g[j] = int(np.floor(w * (p - labels[row]) * by[0] + 0.5))
        h[j] = max(1, int(np.floor(w * p * (1.0 - p) * by[1] + 0.5)))


@exact
def totals(rows: Integers, g: Integers, h: Integers) -> tuple[Any, Any]:
    """Σ g and Σ h of some joined rows."""
    total_g, total_h = np.int64(0), np.int64(0)
    for t in range(len(rows)):
        total_g += g[rows[t]]
        total_h += h[rows[t]]
    return total_g, total_h


@exact
def histogram_of_joined(
    rows: Integers, index: Integers, missed: int, codes: Codes, offsets: Integers, g: Integers, h: Integers, out: Sums
) -> None:
    """Σ (g, h) per bin of every column, over joined rows; `missed` is the row of those that have none here."""
    columns = codes.shape[1]
    for t in range(len(rows)):
        j = rows[t]
        r = index[j] if len(index) else j
        if r < 0:
            r = missed
        for f in range(columns):
            place = offsets[f] + codes[r, f]
            out[place, 0] += g[j]
            out[place, 1] += h[j]


@exact
def collapse(rows: Integers, index: Integers, missed: int, g: Integers, h: Integers, out: Sums) -> None:
    """Σ (g, h) per row of a block, over some joined rows."""
    for t in range(len(rows)):
        j = rows[t]
        r = index[j] if len(index) else j
        if r < 0:
            r = missed
        out[r, 0] += g[j]
        out[r, 1] += h[j]


@exact
def histogram_of_rows(sums: Sums, codes: Codes, offsets: Integers, out: Sums) -> None:
    """Σ (g, h) per bin of every column, from sums per row, which are zero again afterwards."""
    columns = codes.shape[1]
    for r in range(len(sums)):
        g, h = sums[r, 0], sums[r, 1]
        if h == 0:
            continue
        sums[r, 0] = 0
        sums[r, 1] = 0
        for f in range(columns):
            place = offsets[f] + codes[r, f]
            out[place, 0] += g
            out[place, 1] += h


@exact
def part_rows(
    rows: Integers, index: Integers, missed: int, codes: Codes, column: int, right: Codes, spare: Integers
) -> int:
    """Rows that go left first, both in the order they were in; how many they are. right[code]: goes right."""
    left, others = 0, 0
    for t in range(len(rows)):
        j = rows[t]
        r = index[j] if len(index) else j
        if r < 0:
            r = missed
        if right[codes[r, column]]:
            spare[others] = j
            others += 1
        else:
            rows[left] = j
            left += 1
    for t in range(others):
        rows[left + t] = spare[t]
    return left


@exact
def mark(rows: Integers, value: int, out: NDArray[np.uint16]) -> None:
    """out[rows] = value."""
    for t in range(len(rows)):
        out[rows[t]] = value


@exact
def add_value(rows: Integers, value: float, scores: Array) -> None:
    """scores[rows] += value."""
    for t in range(len(rows)):
        scores[rows[t]] += value


# -- sums per row and cell ------------------------------------------------------------------


@exact
def pairs_of_each(
    cell: NDArray[np.uint16], g: Integers, h: Integers, cells: int, start: int, stop: int, out: Sums
) -> int:
    """(row, cell, g, h), a column each, where every joined row has a row of its own; how many."""
    count = 0
    for j in range(start, stop):
        c = cell[j]
        if c < cells:
            out[0, count], out[1, count], out[2, count], out[3, count] = j, c, g[j], h[j]
            count += 1
    return count


@exact
def pairs_in_order(
    index: Integers, cell: NDArray[np.uint16], g: Integers, h: Integers, cells: int, start: int, out: Sums
) -> tuple[int, int]:
    """(row, cell, Σ g, Σ h) of joined rows whose row numbers never fall, until `out` is full; where it stopped."""
    sums = np.zeros((cells, 2), np.int64)
    touched = np.empty(cells, np.int64)
    count, j, size, room = 0, start, len(cell), out.shape[1]
    while j < size:
        row = index[j]
        several, began = 0, j
        while j < size and index[j] == row:
            c = cell[j]
            if c < cells:
                if sums[c, 1] == 0:
                    touched[several] = c
                    several += 1
                sums[c, 0] += g[j]
                sums[c, 1] += h[j]
            j += 1
        is_full = count + several > room
        here = np.sort(touched[:several]) if several > 1 else touched[:several]
        for k in range(several):
            c = here[k]
            if not is_full:
                out[0, count], out[1, count], out[2, count], out[3, count] = row, c, sums[c, 0], sums[c, 1]
                count += 1
            sums[c, 0] = 0
            sums[c, 1] = 0
        if is_full:
            return count, began
    return count, size


@exact
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
    """out[row − first, cell] += (g, h), for rows first ≤ row < last."""
    for j in range(len(cell)):
        c = cell[j]
        r = index[j]
        if r < 0:
            r = missed
        if c < cells and first <= r < last:
            out[r - first, c, 0] += g[j]
            out[r - first, c, 1] += h[j]


@exact
def emit_cells(sums: Sums, first: int, out: Sums) -> int:
    """(row, cell, Σ g, Σ h) of what was scattered, in order; how many."""
    count = 0
    for r in range(sums.shape[0]):
        for c in range(sums.shape[1]):
            if sums[r, c, 1] != 0:
                out[0, count], out[1, count] = first + r, c
                out[2, count], out[3, count] = sums[r, c, 0], sums[r, c, 1]
                count += 1
    return count


# -- whole numbers in few bits --------------------------------------------------------------


@exact
def widths_of(values: Sums, chunk: int, least: Sums, widths: Codes) -> int:
    """Of every chunk of values the least one and the bits that hold the rest; bits in all."""
    total = 0
    for c in range(len(widths)):
        low = high = values[c * chunk]
        stop = min(len(values), (c + 1) * chunk)
        for t in range(c * chunk, stop):
            low = values[t] if values[t] < low else low
            high = values[t] if values[t] > high else high
        least[c] = low
        span, bits = np.uint64(high - low), 0
        while span:
            span >>= np.uint64(1)
            bits += 1
        widths[c] = bits
        total += bits * (stop - c * chunk)
    return total


@exact
def pack(values: Sums, chunk: int, least: Sums, widths: Codes, out: Codes) -> None:
    """Values less the least of their chunk, as so many bits each, one after the other."""
    held, filled, place = np.uint64(0), 0, 0
    for t in range(len(values)):
        c = t // chunk
        rest = np.uint64(values[t] - least[c])
        bits = np.int64(widths[c])
        while bits > 0:
            taken: Any = bits if bits < 32 else 32
            held |= (rest & np.uint64((1 << taken) - 1)) << np.uint64(filled)
            filled += taken
            while filled >= 8:
                out[place] = np.uint8(held & np.uint64(255))
                held >>= np.uint64(8)
                place += 1
                filled -= 8
            rest >>= np.uint64(taken)
            bits -= taken
    if filled:
        out[place] = np.uint8(held)


@exact
def unpack(packed: Codes, chunk: int, least: Sums, widths: Codes, out: Sums) -> None:
    """What `pack` packed."""
    held, filled, place = np.uint64(0), 0, 0
    for t in range(len(out)):
        c = t // chunk
        value, shift = np.uint64(0), 0
        bits = np.int64(widths[c])
        while bits > 0:
            taken: Any = bits if bits < 32 else 32
            while filled < taken:
                held |= np.uint64(packed[place]) << np.uint64(filled)
                place += 1
                filled += 8
            value |= (held & np.uint64((1 << taken) - 1)) << np.uint64(shift)
            held >>= np.uint64(taken)
            filled -= taken
            shift += taken
            bits -= taken
        out[t] = least[c] + np.int64(value)


# -- a client's rows ------------------------------------------------------------------------


@exact
def histogram_of_pairs(rows: Sums, cells: Sums, g: Sums, h: Sums, codes: Codes, offsets: Integers, out: Sums) -> None:
    """out[cell, bin] += (g, h) for the bin of every column; a client's own rows."""
    columns = codes.shape[1]
    for t in range(len(rows)):
        r, c = rows[t], cells[t]
        for f in range(columns):
            place = offsets[f] + codes[r, f]
            out[c, place, 0] += g[t]
            out[c, place, 1] += h[t]


# -- the best split -------------------------------------------------------------------------


@exact
def best_split(
    sums: Sums, offsets: Integers, kinds: Codes, allowed: Codes, unit: Array, rules: Array, order: Integers
) -> tuple[float, int, int, int]:
    """The split of a node with the largest gain: (gain, column, bin, whether missing values go left); column −1: none.

    `sums` are (Σ g, Σ h) per bin in fixed point, `unit` their units, `rules` λ, the least Σ h of a side, the least
    gain, what λ is raised by for sorted categories, and what smooths their order. The first in this order wins a tie:
    column, missing values right before left, bin. Bin 0 is "missing". Sorted categories: the left side is
    order[:bin]; one against the rest: `bin` itself is the left side.
    """
    penalty, least_h, best = rules[0], rules[1], rules[2]
    found, at, to_left = -1, 0, 0
    total_g, total_h = np.int64(0), np.int64(0)
    if len(kinds):
        for b in range(offsets[0], offsets[1]):
            total_g += sums[b, 0]
            total_h += sums[b, 1]
    G, H = total_g * unit[0], total_h * unit[1]
    base = G * G / (H + penalty)
    for f in range(len(kinds)):
        if not allowed[f]:
            continue
        first, bins = offsets[f], offsets[f + 1] - offsets[f]
        if kinds[f] == NUMBER:
            missing_g, missing_h = sums[first, 0], sums[first, 1]
            for left in range(2):
                if left == 1 and missing_h == 0:
                    break
                gl = missing_g if left == 1 else np.int64(0)
                hl = missing_h if left == 1 else np.int64(0)
                for b in range(1, bins - (1 if missing_h == 0 else left)):
                    gl += sums[first + b, 0]
                    hl += sums[first + b, 1]
                    HL, HR = hl * unit[1], (total_h - hl) * unit[1]
                    if min(HL, HR) < least_h or hl == 0 or hl == total_h:
                        continue
                    GL, GR = gl * unit[0], (total_g - gl) * unit[0]
                    gain = GL * GL / (HL + penalty) + GR * GR / (HR + penalty) - base
                    if gain > best:
                        best, found, at, to_left = gain, f, b, left
            continue
        is_sorted = kinds[f] == SORTED
        ridge = penalty + rules[3] if is_sorted else penalty
        places = np.arange(bins)
        if is_sorted:
            ratio = np.full(bins, np.inf)
            for b in range(bins):
                if sums[first + b, 1] > 0:
                    ratio[b] = sums[first + b, 0] * unit[0] / (sums[first + b, 1] * unit[1] + rules[4])
            places = np.argsort(ratio, kind="mergesort")
        gl, hl = np.int64(0), np.int64(0)
        for t in range(1 if kinds[f] == KNOWN_ONE_HOT else 0, bins):
            b = places[t]
            if sums[first + b, 1] == 0:
                if is_sorted:
                    break
                continue
            if is_sorted:
                gl += sums[first + b, 0]
                hl += sums[first + b, 1]
            else:
                gl, hl = sums[first + b, 0], sums[first + b, 1]
            HL, HR = hl * unit[1], (total_h - hl) * unit[1]
            if min(HL, HR) < least_h or hl == total_h:
                continue
            GL, GR = gl * unit[0], (total_g - gl) * unit[0]
            gain = GL * GL / (HL + ridge) + GR * GR / (HR + ridge) - base
            if gain > best:
                best, found, at, to_left = gain, f, (t + 1 if is_sorted else b), 0
                if is_sorted:
                    for k in range(t + 1):
                        order[k] = places[k]
    return best, found, at, to_left
