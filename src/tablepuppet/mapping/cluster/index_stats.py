"""What must be known of all joined rows before any is written: is p_i sorted, is it the identity, who appears when.

In: p_i of consecutive views of joined rows, looked at apart. Out: what p_i is as a whole, as RowIndex says it of
one array.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import RowNumbers
from tablepuppet.mapping.cluster.partitions import IndexFacts
from tablepuppet.mapping.join.side import JoinedSide
from tablepuppet.mapping.rows.index import is_worth_arranging
from tablepuppet.mapping.walk.gather_scatter import loops


@dataclass(frozen=True, slots=True, eq=False)
class IndexStats:
    """What one view of p_i is like."""

    first: int
    last: int
    is_sorted: bool
    is_partial: bool
    is_identity: bool
    appearing: RowNumbers | None  # its rows, as they first come; None: nobody asks


def collect(side: JoinedSide, start: int, stop: int, wants_order: Sequence[bool]) -> list[IndexStats]:
    """What joined rows start ≤ j < stop are like, for each column; `wants_order`: which walks may want arranged."""
    found = []
    for numbers, column, wants in zip(side.numbers(start, stop), side.columns, wants_order, strict=True):
        is_partial = int(numbers.min()) < 0
        is_sorted = not is_partial and bool((numbers[1:] >= numbers[:-1]).all())
        is_identity = column.rows == side.rows and bool((numbers == np.arange(start, stop)).all())
        first, last = int(numbers[0]), int(numbers[-1])
        wanted = wants and is_worth_arranging(column.rows, side.rows)
        appearing = _appearing(numbers, column.rows) if wanted else None  # which leaves other numbers behind
        found.append(IndexStats(first, last, is_sorted, is_partial, is_identity, appearing))
    return found


def merge(rows: int, views: Sequence[IndexStats]) -> tuple[IndexFacts, RowNumbers | None]:
    """What p_i of `rows` rows is as a whole, and its rows as walks shall number them; None: as they are."""
    is_partial = any(seen.is_partial for seen in views)
    is_identity = all(seen.is_identity for seen in views)
    follows = all(a.last <= b.first for a, b in itertools.pairwise(views))
    is_sorted = not is_partial and follows and all(seen.is_sorted for seen in views)
    orders = [seen.appearing for seen in views if seen.appearing is not None]
    order = None if is_sorted or not orders else _merged(rows, orders)
    return IndexFacts(rows, is_identity, is_sorted, is_partial), order


def _appearing(numbers: RowNumbers, rows: int) -> RowNumbers:
    """The rows as they first come; `numbers` are overwritten."""
    number = np.full(rows, -1, numbers.dtype)
    order = np.empty(rows, numbers.dtype)
    loops().number_by_appearance(numbers, number, order)
    return order[: int(np.count_nonzero(number >= 0))].copy()


def _merged(rows: int, orders: Sequence[RowNumbers]) -> RowNumbers:
    """The order in which rows first appear in views that follow each other."""
    is_known = np.zeros(rows, np.bool_)
    found = []
    for order in orders:
        new = order[~is_known[order]]
        is_known[new] = True
        found.append(new)
    return np.concatenate(found)
