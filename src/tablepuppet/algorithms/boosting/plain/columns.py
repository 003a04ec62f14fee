"""Pairs of rows and cells that lie here, counted a few columns at a time."""

from __future__ import annotations

import numpy as np

from tablepuppet.algorithms.boosting.plain.bits import Codes, Integers, Sums, add_up

__all__ = ["count_listed", "count_spread", "spread_listed"]


def count_listed(listed: Sums, chunk: int, codes: Codes, offsets: Integers, out: Sums) -> None:
    cells, (rows, cell, g, h) = len(out), listed
    for f in range(len(offsets) - 1):
        bins = int(offsets[f + 1] - offsets[f])
        places = cell * bins + codes[rows, f]
        own = out[:, offsets[f] : offsets[f + 1]]
        for place, values in enumerate((g, h)):
            added = np.zeros(cells * bins, np.int64)
            add_up(places, values, added)
            own[:, :, place] += added.reshape(cells, bins)


def spread_listed(listed: Sums, out: Sums, runs: Integers) -> int:
    return -1  # of no use without loops that add many numbers at once


def count_spread(spread: Sums, runs: Integers, codes: Codes, first: int, offsets: Integers, out: Sums) -> None:
    raise AssertionError("nothing was spread")
