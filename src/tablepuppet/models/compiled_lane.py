"""The two ends of a compiled pass over a view of joined rows: gather and collapse, some hundred rows at a time.

In: a view's source and target. A pass takes a chunk of joined rows from `expand`, computes on it in the first-level
cache, and gives the outcome to `collapse`: each joined row is fetched once, and nothing as long as the view is made.
Sums are added in an order that depends on the view alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.models.jit import kernel

CHUNK = 512  # joined rows at a time


@kernel
def expand(first: int, source: tuple[Any, ...], blocks: Array, scores: Array, labels: Array) -> None:
    """Each block's values, their sum, and the labels, of as many joined rows as `scores` has room for."""
    values, indices, per_label, label_index = source
    rows = len(scores)
    for i in range(len(values)):
        _gather(first, values[i], indices[i], blocks[i, :rows])
    scores[:] = blocks[0, :rows]
    for i in range(1, len(values)):
        scores += blocks[i, :rows]
    _gather(first, per_label, label_index, labels)


@kernel
def collapse(first: int, target: tuple[Any, ...], blocks: Array, signal: Array) -> None:
    """Adds the signal, less a block's own values, to that block's rows; `blocks` is spent afterwards."""
    indices, out, base, shared, edge, own = target
    rows = len(signal)
    for i in range(len(out)):
        values = blocks[i, :rows]
        for j in range(rows):
            values[j] = signal[j] - own * values[j]
        if len(indices[i]) == 0:
            out[i][first : first + rows] = values
        elif shared[i] >= 0:
            here, head = indices[i][first : first + rows], min(max(shared[i] - first, 0), rows)
            edge[i] += _total(values[:head])
            _add_runs(here[head:], base[i], values[head:], out[i])
        else:
            _scatter(indices[i][first : first + rows], values, out[i])


@kernel
def _gather(first: int, values: Array, index: RowNumbers, out: Array) -> None:
    rows, limit = len(out), len(values)
    if len(index) == 0:
        out[:] = values[first : first + rows]
        return
    here = index[first : first + rows]
    for j in range(rows):
        out[j] = values[here[j]] if here[j] < limit else 0.0


@kernel
def _scatter(here: RowNumbers, values: Array, out: Array) -> None:
    limit = len(out)
    for j in range(len(here)):
        if here[j] < limit:
            out[here[j]] += values[j]


@kernel
def _add_runs(here: RowNumbers, base: int, values: Array, out: Array) -> None:
    """Row numbers in order: a run of the same one is summed in a register."""
    first = 0
    while first < len(here):
        row, stop, total = here[first], first, 0.0
        while stop < len(here) and here[stop] == row:
            total += values[stop]
            stop += 1
        out[np.int64(row) - base] += total
        first = stop


@kernel
def _total(values: Array) -> float:
    total = 0.0
    for j in range(len(values)):
        total += values[j]
    return total
