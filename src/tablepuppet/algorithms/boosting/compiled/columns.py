"""Pairs of rows and cells that lie here, counted a few columns at a time: their histograms stay in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from tablepuppet.algorithms.boosting.compiled.bits import HALF, LOW, Codes, Integers, Sums, exact, unfold
from tablepuppet.algorithms.boosting.compiled.pairs import add_columns

__all__ = ["count_listed", "count_spread", "spread_listed"]


@exact
def count_listed(listed: Sums, chunk: int, codes: Codes, offsets: Integers, out: Sums) -> None:
    """out[cell, bin] += (g, h) for the bin of every column, of pairs that lie here."""
    cells, bins = out.shape[0], out.shape[1]
    plain, folded = out.reshape(cells * bins, 2), np.zeros(cells * bins, np.int64)
    flat, stride, firsts = codes.reshape(codes.size), np.uint64(codes.shape[1]), offsets.astype(np.uint64)
    rows, bases, both = np.empty(chunk, np.uint64), np.empty(chunk, np.uint64), np.empty(chunk, np.int64)
    most_g, most_h = np.int64(0), np.int64(0)
    for begin in range(0, listed.shape[1], chunk):
        own = listed[:, begin : begin + chunk]
        is_small, own_g, own_h = True, np.int64(0), np.int64(0)
        n = np.uint64(own.shape[1])
        for t in range(n):
            g, h = own[2, t], own[3, t]
            rows[t], bases[t], both[t] = (
                np.uint64(own[0, t]) * stride,
                np.uint64(own[1, t] * bins),
                (g << 32) + h,
            )
            is_small &= (g > -HALF) & (g < HALF) & (h >= 0) & (h < HALF)
            own_g += abs(g)
            own_h += h
        if not is_small or own_g >= HALF or own_h >= HALF:
            for t in range(n):
                for e in range(np.uint64(len(offsets) - 1)):
                    place = bases[t] + firsts[e] + flat[rows[t] + e]
                    plain[place, 0] += own[2, t]
                    plain[place, 1] += own[3, t]
            continue
        if most_g + own_g >= HALF or most_h + own_h >= HALF:
            unfold(folded, plain)
            most_g, most_h = np.int64(0), np.int64(0)
        most_g += own_g
        most_h += own_h
        f: Any = np.uint64(0)
        while f < np.uint64(len(offsets) - 1):
            f += add_columns(rows[:n], bases, both, flat, firsts, f, folded)
    unfold(folded, plain)


@exact
def spread_listed(listed: Sums, out: Sums, runs: Integers) -> int:
    """out[row, cell] = (g, h), folded. Rows runs[k] ≤ row < runs[k + 1] can be added up folded; how many such runs
    there are, or −1 where a pair is too large."""
    for t in range(np.uint64(listed.shape[1])):
        g, h = listed[2, t], listed[3, t]
        if not (-HALF < g < HALF and 0 <= h < HALF):
            return -1
        out[np.uint64(listed[0, t]), np.uint64(listed[1, t])] += (g << 32) + h
    most_g, most_h = np.int64(0), np.int64(0)  # of any cell: the largest of each row, added up
    found = 0
    runs[0] = 0
    for r in range(np.uint64(len(out))):
        own_g, own_h = np.int64(0), np.int64(0)
        for c in range(np.uint64(out.shape[1])):
            h = out[r, c] & LOW
            own_g, own_h = max(own_g, abs((out[r, c] - h) >> 32)), max(own_h, h)
        most_g += own_g
        most_h += own_h
        if most_g >= HALF or most_h >= HALF:
            found += 1
            runs[found] = r
            most_g, most_h = own_g, own_h
    runs[found + 1] = len(out)
    return found + 1


@exact
def count_spread(spread: Sums, runs: Integers, codes: Codes, first: int, offsets: Integers, out: Sums) -> None:
    """out[cell, bin] += (g, h) for the bin of every column from the `first` on: a row's cells are added to those
    of its bin all at once."""
    bins, width = np.uint64(out.shape[1]), np.uint64(spread.shape[1])
    flat, own, stride = spread.reshape(spread.size), codes.reshape(codes.size), np.uint64(codes.shape[1])
    folded = np.zeros(bins * width, np.int64)
    for k in range(len(runs) - 1):
        for f in range(np.uint64(len(offsets) - 1)):
            begin, column = np.uint64(offsets[f]) * width, np.uint64(first) + f
            for r in range(np.uint64(runs[k]), np.uint64(runs[k + 1])):
                place, start = begin + np.uint64(own[r * stride + column]) * width, r * width
                for c in range(width):
                    folded[place + c] += flat[start + c]
        for b in range(bins):
            for c in range(np.uint64(len(out))):
                x = folded[b * width + c]
                low = x & LOW
                out[c, b, 0] += (x - low) >> 32
                out[c, b, 1] += low
        folded[:] = 0
