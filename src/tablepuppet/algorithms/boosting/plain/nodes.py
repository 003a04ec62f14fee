"""Joined rows of nodes, at the server."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.plain.bits import Array, Cells, Codes, Integers, Sums, add_up, parted

__all__ = [
    "add_split",
    "add_values",
    "class_slopes",
    "count_nodes",
    "count_sides",
    "mark_nodes",
    "mix_nodes",
    "part_nodes",
    "residuals",
    "sum_nodes",
    "write_sides",
]

_SHARD = 1 << 15


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


def mark_nodes(order: Integers, segments: Sums, cell: Cells) -> None:
    for k, (start, stop) in enumerate(segments.tolist()):
        cell[order[start:stop]] = k


def sum_nodes(order: Integers, segments: Sums, both: Integers, out: Sums) -> None:
    for k, (start, stop) in enumerate(segments.tolist()):
        g, h = parted(both[order[start:stop]])
        out[k] = g.sum(dtype=np.int64), h.sum(dtype=np.int64)


def mix_nodes(order: Integers, segments: Sums, mark: Codes, rows: Integers) -> None:
    mark[:] = 255
    for k, (start, stop) in enumerate(segments.tolist()):
        mark[order[start:stop]] = k
    found = np.flatnonzero(mark != 255)
    rows[: len(found)] = found


def count_nodes(
    order: Integers,
    segments: Sums,
    mark: Codes,
    index: Integers,
    missed: int,
    codes: Codes,
    offsets: Integers,
    both: Integers,
    sums: Sums,
    out: Sums,
) -> None:
    for k, (start, stop) in enumerate(segments.tolist()):
        own = order[mark[order] == k] if len(mark) else order[start:stop]
        rows, (own_g, own_h) = _rows(index, own, 0, missed), parted(both[own])
        for f in range(len(offsets) - 1):
            bins, found = codes[rows, f], out[k, offsets[f] : offsets[f + 1]]
            add_up(bins, own_g, found[:, 0])
            add_up(bins, own_h, found[:, 1])


def count_sides(codes: Codes, right: NDArray[np.bool_], sides: Sums) -> None:
    sides += np.bincount(codes * np.uint16(2) + right, minlength=512).reshape(256, 2)


def write_sides(codes: Codes, column: Any, right: NDArray[np.bool_], at: int, out: Codes) -> None:
    bits = np.append(np.zeros(at % 8, np.bool_), right[codes[:, int(column)]])
    packed = np.packbits(bits)
    out[at // 8 : at // 8 + len(packed)] |= packed


def residuals(scores: Array, labels: Array, index: Integers, scale: float, both: Integers) -> float:
    most = 0.0
    for start in range(0, len(scores), _SHARD):
        own = slice(start, min(start + _SHARD, len(scores)))
        r = scores[own] - labels[index[own] if len(index) else own]
        both[own] = (np.floor(r * scale + 0.5).astype(np.int64) << 4 * both.itemsize) + 1
        most = float(np.maximum(most, np.abs(r).max()))
    return most


def class_slopes(
    e: Array, index: Integers, labels: Array, by_g: float, by_h: float, both: Integers, extents: Array
) -> None:
    p = 1.0 / (e + 1.0)
    g, h = p - (labels[index] if len(index) else labels), p - p * p
    extents[0], extents[1] = np.maximum(extents, [np.abs(g).max(initial=0.0), h.max(initial=0.0)])
    fixed = np.floor(g * by_g + 0.5).astype(np.int64) << 4 * both.itemsize
    both[:] = fixed + np.maximum(np.floor(h * by_h + 0.5), 1.0).astype(np.int64)
