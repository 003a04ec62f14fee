"""Which joined rows and which columns a tree sees: drawn from the seed and the tree's number alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.fixed_point import Labels, uniform
from tablepuppet.algorithms.boosting.rows import RowNumbers

_SHARD = 1 << 20


def sampled_rows(labels: Labels, rows: int, fraction: float, seed: int, tree: int) -> RowNumbers:
    """The joined rows of a tree, ascending: a sample, without those that weigh nothing."""
    dtype = np.int32 if rows < 2**31 else np.int64
    if fraction == 1.0 and (labels.weights is None or bool((labels.weights > 0).all())):
        return np.arange(rows, dtype=dtype)
    found: list[RowNumbers] = [np.zeros(0, dtype)]
    for start in range(0, rows, _SHARD):
        stop = min(start + _SHARD, rows)
        is_in = uniform(seed, tree, np.arange(start, stop, dtype=np.uint64)) < fraction
        if labels.weights is not None:
            is_in &= labels.weights[labels.numbers(start, stop)] > 0
        found.append((np.flatnonzero(is_in) + start).astype(dtype))
    return np.concatenate(found)


def allowed_columns(widths: Sequence[int], fraction: float, seed: int, tree: int) -> list[NDArray[np.bool_]]:
    """By block: the columns that a tree may use."""
    total = sum(widths)
    drawn = uniform(seed + 1, tree, np.arange(total, dtype=np.uint64))
    chosen = np.zeros(total, np.bool_)
    chosen[np.argsort(drawn, kind="stable")[: max(1, ceil(fraction * total))]] = True
    return np.split(chosen, np.cumsum(widths)[:-1])
