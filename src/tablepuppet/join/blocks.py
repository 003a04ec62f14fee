"""Blocks: where the rows of a query's tables lie in each block, and each client's share of them.

In: a bound query, how many rows each client has, and the rows that joined rows come from. Out: a `Span` and the parts
of every block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import RowNumbers, freeze
from tablepuppet.join.join import Span
from tablepuppet.join.mapping import Part
from tablepuppet.sql.bound import Block, BoundQuery


@dataclass(frozen=True, slots=True)
class Place:
    """Where one client's rows lie in a block."""

    client: str
    scan: int
    columns: tuple[int, ...]
    end: int
    has_absent: bool = False  # whether the last of them stands for the row that a LEFT JOIN did not find


def block_span(
    bound: BoundQuery, block: Block, client_rows: Sequence[dict[str, int]], assumed: Sequence[Collection[int]] = ()
) -> tuple[Span, list[Place]]:
    """Where each branch's rows lie in the block, and where each client's.

    Members of different branches that read the same columns of the same scan share their rows. A column such as
    COALESCE(x, 0) has a value although a LEFT JOIN finds no row; the last client then has one more row for it.
    Relations in `assumed` (by branch), such as those of a missing owner, get no such row.
    """
    offsets: dict[tuple[int, tuple[int, ...]], int] = {}
    places: list[Place] = []
    total = 0
    starts, absent = [], []
    for number, (branch, member) in enumerate(zip(bound.branches, block.members, strict=True)):
        scan = branch.relations[member.relation].scan
        key = (scan, member.columns)
        has_absent = any(bound.scans[scan].columns[c].absent is not None for c in member.columns)
        has_absent &= not assumed or member.relation not in assumed[number]
        if key not in offsets:
            offsets[key] = total
            *others, last = bound.scans[scan].clients
            for client in (*others, last):
                total += client_rows[scan][client] + (has_absent and client == last)
                places.append(Place(client, scan, member.columns, total, has_absent and client == last))
        starts.append(offsets[key])
        absent.append(has_absent)
    return Span(tuple(member.relation for member in block.members), tuple(starts), total, tuple(absent)), places


def parts_of_block(
    block: int,
    places: Sequence[Place],
    sides: tuple[RowNumbers, RowNumbers],
    number: int,
    masks: Callable[[int], bool] = lambda clients: False,
) -> list[Part]:
    """The clients' shares of a block. A client without used rows takes no part, with two exceptions: it is the only
    client (a LEFT JOIN may find nobody), or too few would be left for masks. Then its sums are zero."""
    ends = np.array(
        [0, *(place.end for place in places)], dtype=sides[0].dtype
    )  # of another, NumPy would widen all rows
    borders = [np.searchsorted(rows, ends).tolist() for rows in sides]
    inside = [[slice(*own[i : i + 2]) for own in borders] for i in range(len(places))]
    are_used = [any(s.stop > s.start for s in own) for own in inside]
    used = {place.client for place, is_used in zip(places, are_used, strict=True) if is_used}
    keeps_all = masks(len({place.client for place in places})) and not masks(len(used))
    parts: list[Part] = []
    for i, place in enumerate(places):
        is_last = place is places[-1] and not parts
        if not (keeps_all or is_last or are_used[i]):
            continue
        start, stop = (0 if i == 0 else places[i - 1].end), place.end
        dtype = np.int32 if stop - start < 2**31 else np.int64
        only, held = (np.subtract(rows[own], start, dtype=dtype) for rows, own in zip(sides, inside[i], strict=True))
        if place.has_absent:
            only, held = (np.where(rows == stop - start - 1, dtype(-1), rows) for rows in (only, held))
        is_whole = len(only) == stop - start and not place.has_absent  # they ascend
        given = (number + len(parts), block, place.client, place.scan, place.columns)
        parts.append(Part(*given, None if is_whole else freeze(only), freeze(held), *inside[i]))
    return parts
