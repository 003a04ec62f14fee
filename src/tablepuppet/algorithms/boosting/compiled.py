"""Loops of boosted trees, compiled. What is summed is whole numbers, so no order of summation can change a bit.

Several nodes are done in one call: node k of a call has the joined rows order[segments[k, 0] : segments[k, 1]]. Σg and
Σh are added up as the upper and the lower half of one 64-bit number where neither can leave its half (`_FEW` rows of 16
bits), and unfolded from there.

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


_FEW = 1 << 16  # joined rows whose 16-bit numbers add up to less than half of 32 bits
_HALF = 1 << 30
_LOW = 0xFFFFFFFF


# -- joined rows, at the server -------------------------------------------------------------


@exact
def _row(index: Integers, j: Any, base: int, missed: int) -> Any:
    """The row of codes that a joined row has."""
    r = np.int64(index[j]) if len(index) else np.int64(j)
    return r + base if r >= 0 else np.int64(missed)


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
            r = _row(index, j, base, missed)
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
            r = _row(index, j, base, missed)
            scores[j] += values[k, right[k, codes[r, column]]]


@exact
def add_values(order: Integers, segments: Sums, values: Array, scores: Array) -> None:
    """scores[j] += values[k] for the rows of every segment."""
    for k in range(len(segments)):
        for t in range(segments[k, 0], segments[k, 1]):
            scores[order[t]] += values[k]


@exact
def mark_nodes(order: Integers, segments: Sums, cell: NDArray[np.uint16]) -> None:
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
def _unfold(folded: Sums, out: Sums) -> None:
    """Adds folded sums to plain ones; they are zero again afterwards."""
    for p in range(len(folded)):
        low = folded[p] & _LOW
        out[p, 0] += (folded[p] - low) >> 32
        out[p, 1] += low
        folded[p] = 0


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
        for begin in range(0, len(rows), _FEW):
            for t in range(begin, min(len(rows), begin + _FEW)):
                j = rows[t]
                r = _row(index, j, 0, missed)
                both = (np.int64(g[j]) << 32) + h[j]
                for f in range(columns):
                    folded[offsets[f] + codes[r, f]] += both
            _unfold(folded, out)
        return
    for t in range(len(rows)):
        j = rows[t]
        r = _row(index, j, 0, missed)
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
            sums[_row(index, j, 0, missed), 0] += (np.int64(g[j]) << 32) + h[j]
        return
    for t in range(len(rows)):
        j = rows[t]
        r = _row(index, j, 0, missed)
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
            h = both & _LOW
            g = (both - h) >> 32
            sums[r, 0] = 0
        else:
            g, h = sums[r, 0], sums[r, 1]
            sums[r, 0] = 0
            sums[r, 1] = 0
        if h == 0:
            continue
        if abs(g) >= _HALF or h >= _HALF:
            for f in range(columns):
                place = offsets[f] + codes[r, f]
                out[place, 0] += g
                out[place, 1] += h
            continue
        most_g += abs(g)
        most_h += h
        if most_g >= _HALF or most_h >= _HALF:
            _unfold(folded, out)
            most_g, most_h = abs(g), h
        both = (g << 32) + h
        for f in range(columns):
            folded[offsets[f] + codes[r, f]] += both
    _unfold(folded, out)


# -- sums per row and cell ------------------------------------------------------------------


@exact
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
    cell: NDArray[np.uint16],
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
        r = _row(index, j, 0, missed)
        if c < cells and first <= r < last:
            if folds:
                out[r - first, c, 0] += (np.int64(g[j]) << 32) + h[j]
            else:
                out[r - first, c, 0] += g[j]
                out[r - first, c, 1] += h[j]


@exact
def emit_cells(
    scattered: Sums, first: int, before: int, steps: Integers, own: NDArray[np.uint16], sums: Sums
) -> tuple[int, int]:
    """(row less the one before, cell, Σg, Σh) of what was scattered, now zero again; how many, and the last row."""
    count, last = 0, before
    folds = scattered.shape[2] == 1
    for r in range(scattered.shape[0]):
        for c in range(scattered.shape[1]):
            if folds:
                both = scattered[r, c, 0]
                h = both & _LOW
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


# -- whole numbers in few bits --------------------------------------------------------------


@exact
def widths_of(values: Integers, chunk: int, least: Sums, widths: Codes) -> int:
    """Of every chunk of values the least one and the bits that hold the rest; 64-bit words in all."""
    total = 0
    for c in range(len(widths)):
        low = high = np.int64(values[c * chunk])
        stop = min(len(values), (c + 1) * chunk)
        for t in range(c * chunk, stop):
            value = np.int64(values[t])
            low = value if value < low else low
            high = value if value > high else high
        least[c] = low
        span, bits = np.uint64(high - low), 0
        while span:
            span >>= np.uint64(1)
            bits += 1
        widths[c] = bits
        total += (bits * (stop - c * chunk) + 63) // 64
    return total


@exact
def pack(values: Integers, chunk: int, least: Sums, widths: Codes, out: NDArray[np.uint64]) -> None:
    """Values less the least of their chunk, as so many bits each; a chunk begins with a word."""
    place = 0
    for c in range(len(widths)):
        bits = np.int64(widths[c])
        if bits == 0:
            continue
        held, filled = np.uint64(0), np.int64(0)
        for t in range(c * chunk, min(len(values), (c + 1) * chunk)):
            rest = np.uint64(np.int64(values[t]) - least[c])
            held |= rest << np.uint64(filled)
            filled += bits
            if filled >= 64:
                out[place] = held
                place += 1
                filled -= 64
                held = rest >> np.uint64(bits - filled) if filled else np.uint64(0)
        if filled:
            out[place] = held
            place += 1


@exact
def _unpack_chunk(words: NDArray[np.uint64], place: Any, bits: Any, least: Any, out: Sums, count: int) -> Any:
    """The next values, into `out`; where the words after them begin."""
    if bits == 0:
        for t in range(count):
            out[t] = least
        return place
    mask = ~np.uint64(0) if bits == 64 else (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    word, shift = place, np.int64(0)
    for t in range(count):
        value = words[word] >> np.uint64(shift)
        if shift + bits > 64:
            value |= words[word + 1] << np.uint64(64 - shift)
        out[t] = least + np.int64(value & mask)
        shift += bits
        if shift >= 64:
            shift -= 64
            word += 1
    return place + (count * bits + 63) // 64


@exact
def unpack(words: NDArray[np.uint64], chunk: int, least: Sums, widths: Codes, starts: Sums, out: Sums) -> None:
    """What `pack` packed: out[stream], whose words begin at starts[stream]."""
    for s in range(out.shape[0]):
        place = starts[s]
        for c in range(widths.shape[1]):
            count = min(chunk, out.shape[1] - c * chunk)
            place = _unpack_chunk(words, place, np.int64(widths[s, c]), least[s, c], out[s, c * chunk :], count)


# -- a client's rows ------------------------------------------------------------------------


@exact
def count_pairs(
    words: NDArray[np.uint64],
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
            places[s] = _unpack_chunk(words, places[s], np.int64(widths[s, c]), least[s, c], here[s], count)
        for t in range(count):
            row += here[0, t]
            cell, g, h = here[1, t], here[2, t], here[3, t]
            if row < 0 or row >= len(codes) or cell < 0 or cell >= cells:
                return -1
            if g <= -_HALF or g >= _HALF or h < 0 or h >= _HALF:
                for f in range(columns):
                    place = offsets[f] + codes[row, f]
                    out[cell, place, 0] += g
                    out[cell, place, 1] += h
                continue
            most_g += abs(g)
            most_h += h
            if most_g >= _HALF or most_h >= _HALF:
                for k in range(cells):
                    _unfold(folded[k], out[k])
                most_g, most_h = abs(g), h
            both = (g << 32) + h
            own = folded[cell]
            for f in range(columns):
                own[offsets[f] + codes[row, f]] += both
    for k in range(cells):
        _unfold(folded[k], out[k])
    return row


# -- the best split -------------------------------------------------------------------------


@exact
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
    """Of every node the split with the largest gain: gain[k], and found[k] = (column, bin, whether missing values go
    left, Σg and Σh of the left side); column −1: none.

    `sums[k]` are (Σg, Σh) per bin in fixed point, `unit` their units, `rules` λ, the least Σh of a side, the least
    gain, what λ is raised by for sorted categories, and what smooths their order. The first in this order wins a tie:
    column, missing values right before left, bin. Bin 0 is "missing". Sorted categories: the left side is
    order[k, :bin]; one against the rest: `bin` itself is the left side.
    """
    for k in range(len(sums)):
        gain[k] = _best(sums[k], offsets, kinds, allowed, unit, rules, found[k], order[k])


@exact
def _best(
    sums: Sums, offsets: Integers, kinds: Codes, allowed: Codes, unit: Array, rules: Array, found: Sums, order: Codes
) -> Any:
    penalty, least_h, best = rules[0], rules[1], rules[2]
    found[0] = -1
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
                    if sums[first + b, 1] == 0:
                        continue  # the split before has the same sides, or its mirror image had
                    gl += sums[first + b, 0]
                    hl += sums[first + b, 1]
                    HL, HR = hl * unit[1], (total_h - hl) * unit[1]
                    if min(HL, HR) < least_h or hl == total_h:
                        continue
                    GL, GR = gl * unit[0], (total_g - gl) * unit[0]
                    gain = GL * GL / (HL + penalty) + GR * GR / (HR + penalty) - base
                    if gain > best:
                        best = gain
                        found[0], found[1], found[2], found[3], found[4] = f, b, left, gl, hl
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
                best = gain
                found[0], found[1], found[2], found[3], found[4] = f, (t + 1 if is_sorted else b), 0, gl, hl
                if is_sorted:
                    for p in range(t + 1):
                        order[p] = places[p]
    return best
