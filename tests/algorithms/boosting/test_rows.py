"""Sums per row and cell are the joined rows' own, however many pieces, batches and parts they come in."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablepuppet.algorithms.boosting import rows
from tablepuppet.algorithms.boosting.fixed_point import Derivatives
from tablepuppet.algorithms.boosting.packing import unpack
from tablepuppet.algorithms.boosting.paths import PathCode


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([64, 1 << 17]), st.sampled_from([128, 1 << 20]))
def test_pairs_of_parts_are_those_of_their_joined_rows(seed: int, pairs: int, entries: int) -> None:
    rng = np.random.default_rng(seed)
    count, joined, cells = int(rng.integers(1, 200)), int(rng.integers(50, 3000)), int(rng.integers(1, 20))
    index = rng.integers(-1, count, joined).astype(np.int32)
    cell = rng.integers(0, cells + 1, joined).astype(np.uint16)
    cell[cell == cells] = rows.NO_CELL
    g, h = rng.integers(-1000, 1000, joined), rng.integers(1, 100, joined)
    starts = sorted([0, *rng.integers(0, count + 1, int(rng.integers(0, 4))).tolist()])
    code = PathCode(np.zeros((0, cells), np.uint8), np.zeros((0, cells), np.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_PAIRS", pairs)
        patch.setattr(rows, "_ENTRIES", entries)
        block = rows.BlockIndex.of(count, index, is_sorted=False)
        given = Derivatives(((g << 16) + h).astype(np.int32), (1.0, 1.0))
        scratch = rows.Scratch()
        for _ in range(2):  # the second time in sums that the first one has left at zero
            parts = block.pairs(starts, cell, code, given, scratch)
    row = np.where(index < 0, count, index).astype(np.int64)
    for pieces, (start, stop) in zip(parts, pairwise([*starts, count + 1]), strict=True):
        assert all(piece.size <= max(pairs, cells) for piece in pieces)
        steps, sum_g, sum_h = np.concatenate([np.zeros((3, 0), np.int64), *(unpack(p) for p in pieces)], axis=1)
        own = (cell < cells) & (row >= start) & (row < stop)
        found, place = np.unique((row[own] - start) * cells + cell[own], return_inverse=True)
        assert np.array_equal(np.cumsum(steps) - 1, found // cells)
        assert np.array_equal(sum_g, np.bincount(place, g[own], minlength=len(found)))
        assert np.array_equal(sum_h, np.bincount(place, h[own], minlength=len(found)))
