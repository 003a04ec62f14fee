"""Gather and scatter as compiled loops (numba): one pass each, no temporaries, no interpreter lock.

The contract is that of gather_scatter.py. Scattering has a loop for each number of columns, without an inner one where
they are few: twice as fast as one column after the other, for a row that is far away is fetched once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.models.jit import kernel


def place(index: RowNumbers, *, is_partial: bool) -> RowNumbers:
    """Row numbers as they are: loops look for −1 anyway."""
    return index


def gather(out: Array, values: Array, index: RowNumbers) -> None:
    """out[j] = values[index[j]]; 0 where index[j] is −1."""
    if out.shape[1] == 1:
        _gather_first(out.reshape(-1), values.reshape(-1), index)
    else:
        out[...] = 0.0
        _gather_many(out, values, index)


def gather_add(out: Array, values: Array, index: RowNumbers) -> None:
    """out[j] += values[index[j]]."""
    if out.shape[1] == 1:
        _gather_one(out.reshape(-1), values.reshape(-1), index)
    else:
        _gather_many(out, values, index)


def scatter_add(out: Array, base: int, index: RowNumbers, columns: Sequence[Array]) -> None:
    """out[index[j] − base] += the columns' j-th entries, side by side."""
    values = np.ascontiguousarray(columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1))
    if out.shape[1] == 1:
        _scatter_one(out.reshape(-1), base, index, values.reshape(-1))
    else:
        _scatter_wide(out.shape[1])(out, base, index, values)


@kernel
def _gather_first(out: Array, values: Array, index: RowNumbers) -> None:
    for j in range(len(index)):
        i = index[j]
        out[j] = values[i] if i >= 0 else 0.0


@kernel
def _gather_one(out: Array, values: Array, index: RowNumbers) -> None:
    for j in range(len(index)):
        i = index[j]
        if i >= 0:
            out[j] += values[i]


@kernel
def _gather_many(out: Array, values: Array, index: RowNumbers) -> None:
    for j in range(len(index)):
        i = index[j]
        if i >= 0:
            for k in range(out.shape[1]):
                out[j, k] += values[i, k]


@kernel
def _scatter_one(out: Array, base: int, index: RowNumbers, values: Array) -> None:
    for j in range(len(index)):
        i = index[j]
        if i >= 0:
            out[i - base] += values[j]


@cache
def _scatter_wide(columns: int) -> Callable[[Array, int, RowNumbers, Array], None]:
    """The loop for so many columns, which the compiler writes out where they are few."""

    @kernel
    def scatter(out: Array, base: int, index: RowNumbers, values: Array) -> None:
        for j in range(len(index)):
            i = index[j]
            if i >= 0:
                for k in range(columns):
                    out[i - base, k] += values[j, k]

    return scatter


@kernel
def number_by_appearance(index: RowNumbers, number: RowNumbers, order: RowNumbers) -> None:
    """Numbers rows anew, first come, first numbered; `number` is −1 at first, and row order[k] gets number k."""
    count = 0
    for j in range(len(index)):
        i = index[j]
        if i < 0:
            continue
        if number[i] < 0:
            number[i] = count
            order[count] = i
            count += 1
        index[j] = number[i]


@kernel
def put(out: NDArray[Any], values: NDArray[Any], order: RowNumbers) -> None:
    """out[order[j]] = values[j]."""
    for j in range(len(order)):
        for k in range(out.shape[1]):
            out[order[j], k] = values[j, k]


@kernel
def add_triangles(out: Array, base: int, index: RowNumbers, values: Array, scaled: Array, z: Array) -> None:
    """out[index[j] − base] += the j-th values, and behind them the upper triangle of scaled_j z_jᵀ."""
    size = z.shape[1]
    for j in range(len(index)):
        i = index[j] - base
        if index[j] < 0:
            continue
        place = values.shape[1]
        for k in range(place):
            out[i, k] += values[j, k]
        for row in range(size):
            left = scaled[j, row]
            for column in range(row, size):
                out[i, place] += left * z[j, column]
                place += 1
