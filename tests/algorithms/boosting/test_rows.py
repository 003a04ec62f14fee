"""Sums per row and cell are the joined rows' own, in whatever parts they come."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.algorithms.boosting import rows
from tablepuppet.algorithms.boosting.fixed_point import Derivatives
from tablepuppet.algorithms.boosting.tree_checks import Packed


@given(st.integers(0, 2**32), st.booleans())
def test_pairs_of_parts_are_those_of_their_joined_rows(seed: int, is_sorted: bool) -> None:
    rng = np.random.default_rng(seed)
    count, joined, cells = int(rng.integers(1, 200)), int(rng.integers(50, 3000)), int(rng.integers(1, 20))
    index = rng.integers(-1, count, joined).astype(np.int32)
    index = np.sort(np.abs(index)) if is_sorted else index
    cell = rng.integers(rows.NO_CELL, cells, joined).astype(np.int16)
    g, h = rng.integers(-1000, 1000, joined), rng.integers(1, 100, joined)
    starts = sorted([0, *rng.integers(0, count + 1, int(rng.integers(0, 4))).tolist()])
    block = rows.BlockIndex.of(count, index, is_sorted=is_sorted)
    both = (g << 32) + h
    spare = np.empty(joined, np.int32)
    parts = block.pairs(starts, (cell, cells), Derivatives(both, (1.0, 1.0)), spare)
    row = np.where(index < 0, count, index).astype(np.int64)
    for pairs, (start, stop) in zip(parts, pairwise([*starts, count + 1]), strict=True):
        own = (cell >= 0) & (row >= start) & (row < stop)
        found, place = np.unique((row[own] - start) * cells + cell[own], return_inverse=True)
        counts = pairs.counts.numbers(count + 2)
        assert len(counts) == stop - start + (stop <= count)
        assert np.array_equal(np.repeat(np.arange(len(counts)), counts), found // cells)
        assert np.array_equal(pairs.cells.numbers(joined), found % cells)
        assert np.array_equal(pairs.g.numbers(joined), np.bincount(place, g[own], minlength=len(found)))
        assert np.array_equal(pairs.h.numbers(joined), np.bincount(place, h[own], minlength=len(found)))


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)))
def test_numbers_of_any_size_travel_whole(values: list[int]) -> None:
    given_ = np.array(values, np.int64)
    assert np.array_equal(Packed.of(given_).numbers(len(values)), given_)
