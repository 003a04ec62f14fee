"""The loops of boosted trees over rows, compiled once per machine.

Sums are of whole numbers, so the order of summation cannot change a bit. The g and h of a joined row lie in one number
of 64 bits, as its upper and its lower half.

Numbers of rows and places are unsigned: with signed ones every access would check whether they count from the end.
A signed and an unsigned number together would become a floating-point one, so they are never mixed.

Several nodes are done in one call: node k has the joined rows order[segments[k, 0] : segments[k, 1]].
"""

import logging
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting.tree_checks import Cells, Codes, Sums
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.threads import compile_loop

LOW = 0xFFFFFFFF
log = logging.getLogger(__name__)


@cache
def announce_compilation() -> None:
    """Warns that the first training on a machine waits for the compiler."""
    kept = Path(str(count_nodes.stats.cache_path)).glob("kernels.count_nodes*.nbi")  # type: ignore[attr-defined]
    written = Path(__file__).stat().st_mtime
    if not any(index.stat().st_mtime > written for index in kept):  # those of an earlier version are of no use
        log.warning("compiling the loops of boosted trees, once per machine; this takes some seconds")


class BlockRows(NamedTuple):
    """Which row of codes a joined row j has: numbers[j] + base, `missed` where numbers[j] is negative; j itself without
    numbers."""

    numbers: RowNumbers
    base: int
    missed: int
    codes: Codes


class NodeSplits(NamedTuple):
    """Of each node the column that it looks at, and for each code whether it goes right."""

    columns: Sums
    right: Codes


@compile_loop
def _row_of(block: BlockRows, j: Any) -> Any:
    r = np.int64(block.numbers[j]) if len(block.numbers) else np.int64(j)
    return np.uint64(r + block.base if r >= 0 else block.missed)


@compile_loop
def part_nodes(
    order: RowNumbers, segments: Sums, block: BlockRows, splits: NodeSplits, spare: RowNumbers, borders: Sums
) -> None:
    """In every segment, rows that go left first, both sides in the order they were in; where the right side begins."""
    for k in range(len(segments)):
        column, goes = np.uint64(splits.columns[k]), splits.right[k]
        left, others = np.uint64(segments[k, 0]), np.uint64(0)
        for t in range(np.uint64(segments[k, 0]), np.uint64(segments[k, 1])):
            j = order[t]
            side = np.uint64(goes[block.codes[_row_of(block, np.uint64(j)), column]])
            order[left] = j  # both are written and one of them counts: no branch to guess
            spare[others] = j
            others += side
            left += np.uint64(1) - side
        for t in range(others):
            order[left + t] = spare[t]
        borders[k] = left


@compile_loop
def add_values(order: RowNumbers, segments: Sums, values: Array, scores: Array) -> None:
    """scores[j] += values[k] for the rows of every segment."""
    for k in range(len(segments)):
        for t in range(np.uint64(segments[k, 0]), np.uint64(segments[k, 1])):
            scores[np.uint64(order[t])] += values[k]


@compile_loop
def sum_nodes(order: RowNumbers, segments: Sums, both: RowNumbers, out: Sums) -> None:
    """Σ(g, h) of every segment."""
    for k in range(len(segments)):
        total_g, total_h = np.int64(0), np.int64(0)
        for t in range(np.uint64(segments[k, 0]), np.uint64(segments[k, 1])):
            x = both[np.uint64(order[t])]
            total_g += x >> 32
            total_h += x & LOW
        out[k, 0], out[k, 1] = total_g, total_h


class NodeSums(NamedTuple):
    """Room for sums: per node and bin, and per row of the block. The last are zero before and after; empty: of no
    use."""

    out: Sums
    per_row: Sums


@compile_loop
def count_nodes(
    order: RowNumbers, segments: Sums, block: BlockRows, offsets: Any, both: RowNumbers, sums: NodeSums
) -> None:
    """out[k, bin] += (g, h) of every segment per bin of every column: over its joined rows, or over the block's rows
    with their sums, whichever are fewer."""
    columns = np.uint64(len(offsets) - 1)
    size = np.uint64(len(sums.per_row) * (len(offsets) if len(offsets) > 2 else 0))
    for k in range(len(segments)):
        rows = order[segments[k, 0] : segments[k, 1]]
        if size == 0 or np.uint64(len(rows)) * (columns - np.uint64(1)) <= size:
            _count_joined(rows, block, offsets, both, sums.out[k])
        else:
            _count_rows(rows, block, offsets, both, sums.per_row, sums.out[k])


@compile_loop
def _count_joined(rows: RowNumbers, block: BlockRows, starts: Any, both: RowNumbers, out: Sums) -> None:
    columns = np.uint64(len(starts) - 1)
    for t in range(np.uint64(len(rows))):
        j = np.uint64(rows[t])
        r, x = _row_of(block, j), both[j]
        for f in range(columns):
            place = starts[f] + block.codes[r, f]
            out[place, 0] += x >> 32
            out[place, 1] += x & LOW


@compile_loop
def _count_rows(rows: RowNumbers, block: BlockRows, starts: Any, both: RowNumbers, per_row: Sums, out: Sums) -> None:
    columns = np.uint64(len(starts) - 1)
    for t in range(np.uint64(len(rows))):
        j = np.uint64(rows[t])
        r, x = _row_of(block, j), both[j]
        per_row[r, 0] += x >> 32
        per_row[r, 1] += x & LOW
    for r in range(np.uint64(len(per_row))):
        if per_row[r, 1]:
            for f in range(columns):
                place = starts[f] + block.codes[r, f]
                out[place, 0] += per_row[r, 0]
                out[place, 1] += per_row[r, 1]
            per_row[r, 0] = 0
            per_row[r, 1] = 0


@compile_loop
def order_rows(block: BlockRows, starts: Sums, joined: RowNumbers) -> None:
    """Lists joined rows by the row of a block that they come from. On entry `starts` has rows + 2 zeros. Afterwards row
    r has the joined rows joined[starts[r] : starts[r + 1]]."""
    count, two = np.uint64(len(block.numbers)), np.uint64(2)
    for j in range(count):
        r = _row_of(block, j) + two
        if r < np.uint64(len(starts)):
            starts[r] += 1
    for r in range(np.uint64(1), np.uint64(len(starts))):
        starts[r] += starts[r - np.uint64(1)]
    for j in range(count):
        r = _row_of(block, j) + np.uint64(1)
        joined[np.uint64(starts[r])] = j
        starts[r] += 1


class RowOrder(NamedTuple):
    """Joined rows by the row of a block that they come from: those of row r are joined[starts[r] : starts[r + 1]];
    without a list, these numbers themselves."""

    joined: RowNumbers
    starts: Sums


class PairArrays(NamedTuple):
    """(row, cell) pairs in order: how many each row has, then their cells, Σg and Σh."""

    counts: NDArray[np.int32]
    cells: RowNumbers
    g: RowNumbers
    h: RowNumbers


@compile_loop
def sum_pairs(rows: RowOrder, cell: Cells, both: RowNumbers, here: Sums, out: PairArrays) -> Any:
    """Σ(g, h) of every pair of a row and a cell that occurs; how many pairs there are. `here` has room for every cell,
    zero before and after."""
    count, none = np.uint64(0), np.int64(len(here))
    for r in range(np.uint64(len(rows.starts) - 1)):
        before, low, high = count, none, np.int64(-1)
        for t in range(np.uint64(rows.starts[r]), np.uint64(rows.starts[r + np.uint64(1)])):
            j = np.uint64(rows.joined[t]) if len(rows.joined) else t
            c = np.int64(cell[j])
            if c >= 0:
                x = both[j]
                here[np.uint64(c), 0] += x >> 32
                here[np.uint64(c), 1] += x & LOW
                low, high = min(low, c), max(high, c)
        for own in range(np.uint64(min(low, high + 1)), np.uint64(high + 1)):
            if here[own, 1]:
                out.cells[count], out.g[count], out.h[count] = own, here[own, 0], here[own, 1]
                here[own, 0] = 0
                here[own, 1] = 0
                count += np.uint64(1)
        out.counts[r] = count - before
    return np.int64(count)


@compile_loop
def count_pairs(pairs: PairArrays, codes: Codes, offsets: Sums, out: Sums) -> None:
    """out[cell, bin] += (g, h) for the bin of every column, column by column, so that the sums stay in the cache;
    codes[f, row]."""
    for f in range(np.uint64(len(codes))):
        start, t = np.uint64(offsets[f]), np.uint64(0)
        for r in range(np.uint64(len(pairs.counts))):
            place = start + codes[f, r]
            for _ in range(pairs.counts[r]):
                c = np.uint64(pairs.cells[t])
                out[c, place, 0] += pairs.g[t]
                out[c, place, 1] += pairs.h[t]
                t += np.uint64(1)
