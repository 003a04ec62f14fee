"""BoundQuery without a label → NewRows: joined rows to predict on, none of them split off or left out.

One round: keys. If an owner is missing, its rows are unknown. A join with its table then keeps rows without a partner,
as LEFT JOIN does, and `assumed` marks them.
"""

from collections.abc import Collection, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.join.duckdb_join import ListedRows
from tablepuppet.join.join import Column, JoinedSide, SizeLimit, block_span, join_branch, parts_of_block
from tablepuppet.join.joined_rows import JoinedRows, RowIndex
from tablepuppet.join.keys import gather_keys
from tablepuppet.join.mapping import Part
from tablepuppet.join.walk_choice import default_limit
from tablepuppet.privacy.options import Privacy
from tablepuppet.sql.bound import Block, BoundQuery, Branch
from tablepuppet.transport.link import Link

_ADVICE = "predict some keys at a time, as in keys=[17, 18], add a WHERE, or raise max_joined_rows"


class NewRows(msgspec.Struct, frozen=True, eq=False):
    """Joined rows without labels."""

    bound: BoundQuery
    joined: JoinedRows
    parts: tuple[Part, ...]  # the rows to predict on are their test rows
    base_rows: tuple[RowNumbers, ...]  # of each branch: the base relation's row of each joined row
    client_rows: tuple[dict[str, int], ...]  # of each scan
    assumed: tuple[NDArray[np.bool_] | None, ...]  # per block: joined rows whose partner is with a missing owner


def map_new_rows(
    bound: BoundQuery,
    link: Link,
    *,
    job: str,
    max_joined_rows: int | None = None,
    incomplete: Collection[str] = (),
    privacy: Privacy | None = None,
) -> NewRows:
    """The joined rows of a query to predict on; `incomplete` names the tables with a missing owner."""
    limit = max_joined_rows if max_joined_rows is not None else default_limit()
    keys, client_rows = gather_keys(bound, link, job, privacy)
    branches: list[ListedRows] = []
    lenient = []
    for branch in bound.branches:
        relations = _out_of_reach(bound, branch, incomplete)
        lenient.append(relations)
        joins = (replace(j, kind="left") if j.relation in relations and not j.is_lookup else j for j in branch.joins)
        join = join_branch(replace(branch, joins=tuple(joins)), keys, SizeLimit(limit, limit, advice=_ADVICE))
        branches.append(ListedRows.of(join.side(None), join.sizes))
        limit -= branches[-1].rows
    total = sum(side.rows for side in branches)
    counts, sizes = [side.counts() for side in branches], [side.sizes for side in branches]
    parts: list[Part] = []
    columns: list[Column] = []
    assumed: list[NDArray[np.bool_] | None] = []
    for number, block in enumerate(bound.blocks):
        span, places = block_span(bound, block, client_rows, lenient)
        rows = span.occurring(counts)
        columns.append(Column.of(span, rows, sizes))
        found = parts_of_block(number, places, (np.empty(0, np.int32), rows), len(parts))
        parts += [part for part in found if len(part.test_rows)]  # nobody is asked about nothing
        assumed.append(_mark_assumed(block, lenient, branches))
    side = JoinedSide(tuple(branches), tuple(columns), len(columns), len(columns))
    indices = tuple(side.indices())
    identity = RowIndex(total, None, is_sorted=True)
    joined = JoinedRows(total, indices, identity, np.zeros(total))
    base_rows = tuple(side.numbers(b.label_relation) for b, side in zip(bound.branches, branches, strict=True))
    return NewRows(bound, joined, tuple(parts), base_rows, tuple(client_rows), tuple(assumed))


def _out_of_reach(bound: BoundQuery, branch: Branch, incomplete: Collection[str]) -> frozenset[int]:
    """The relations whose partners may lie with a missing owner, or can only be found through such a relation."""
    found: set[int] = set()
    for join in branch.joins:
        through = {side for pair in join.on for side in (pair.left, pair.right)}
        if bound.scans[branch.relations[join.relation].scan].table in incomplete or through & found:
            found.add(join.relation)
    return frozenset(found)


def _mark_assumed(
    block: Block, lenient: Sequence[frozenset[int]], branches: Sequence[ListedRows]
) -> NDArray[np.bool_] | None:
    marks = [
        side.numbers(member.relation) < 0 if member.relation in relations else np.zeros(side.rows, np.bool_)
        for member, relations, side in zip(block.members, lenient, branches, strict=True)
    ]
    whole = np.concatenate(marks)
    return whole if whole.any() else None
