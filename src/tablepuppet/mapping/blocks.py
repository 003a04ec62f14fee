"""Blocks and the clients that hold their rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tablepuppet.arrays import RowNumbers
from tablepuppet.catalog.bound import Block, BoundQuery
from tablepuppet.mapping.join.side import Span
from tablepuppet.mapping.mapping import Part

Place = tuple[str, int, tuple[int, ...], int]  # client, scan, columns, end of its rows in the block


def block_span(bound: BoundQuery, block: Block, client_rows: Sequence[dict[str, int]]) -> tuple[Span, list[Place]]:
    """Where each branch's rows lie in the block, and where each client's.

    Members of different branches that read the same columns of the same scan share their rows.
    """
    offsets: dict[tuple[int, tuple[int, ...]], int] = {}
    places: list[Place] = []
    total = 0
    starts = []
    for branch, member in zip(bound.branches, block.members, strict=True):
        scan = branch.relations[member.relation].scan
        key = (scan, member.columns)
        if key not in offsets:
            offsets[key] = total
            for client in bound.scans[scan].clients:
                total += client_rows[scan][client]
                places.append((client, scan, member.columns, total))
        starts.append(offsets[key])
    return Span(tuple(member.relation for member in block.members), tuple(starts), total), places


def parts_of_block(block: int, places: Sequence[Place], train: RowNumbers, test: RowNumbers, number: int) -> list[Part]:
    """The clients' shares of a block; a client none of whose rows are used takes no part."""
    parts: list[Part] = []
    start = 0
    for client, scan, columns, stop in places:
        inside = [slice(*np.searchsorted(rows, [start, stop]).tolist()) for rows in (train, test)]
        if any(s.stop > s.start for s in inside):
            dtype = np.int32 if stop - start < 2**31 else np.int64
            rows: list[RowNumbers] = [
                np.asarray(r[s] - start, dtype) for r, s in zip((train, test), inside, strict=True)
            ]
            parts.append(
                Part(number + len(parts), block, client, scan, columns, rows[0], rows[1], inside[0], inside[1])
            )
        start = stop
    return parts
