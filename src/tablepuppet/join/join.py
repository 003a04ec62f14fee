"""Keys → joined rows: the join of the key columns that clients sent.

In: the keys of every scan. Out: the joined rows of a branch, to be counted and read. They are ordered by the label's
row first, then by the other relations' rows in the order of the query. So the same keys always give the same order.
Joins that form a tree are counted out (tree_join.py); all others are DuckDB's (duckdb_join.py).

`JoinedSide`: one side of the joined table (training, validation or test rows) before it is written down. In: for each
branch the joined rows of the side, and for each block the new numbers of its rows. Out: p_i of any view of joined rows.
The branches' joined rows follow each other. `block_span` and `parts_of_block`: where the rows of tables lie in a block,
and each client's share of them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
import numpy as np

from tablepuppet.arrays import RowNumbers, freeze
from tablepuppet.errors import MappingError
from tablepuppet.join.duckdb_join import Counts, ListedRows, count_joined, list_joined
from tablepuppet.join.keys import ScanKeys
from tablepuppet.join.mapping import Part
from tablepuppet.join.row_index import RowIndex
from tablepuppet.join.tree_join import BranchJoin, BranchSide, TreeJoin
from tablepuppet.sql.bound import Block, BoundQuery, Branch


class Span(msgspec.Struct, frozen=True, eq=False):
    """Where the rows of the branches' relations lie among the rows of a block, or among label rows."""

    relations: tuple[int, ...]  # one of each branch
    offsets: tuple[int, ...]  # of its rows
    rows: int  # of all
    has_absent: tuple[bool, ...] = ()  # whether one more row follows its own: the row that a LEFT JOIN did not find

    def total(self, counts: Sequence[Sequence[Counts]]) -> Counts:
        """Counts per row here, from those of each branch and relation; relations of several branches may share rows."""
        own = [counts[branch][relation] for branch, relation in enumerate(self.relations)]
        for branch, has_absent in enumerate(self.has_absent):
            if has_absent:
                joined = max(int(count.sum()) for count in counts[branch])  # some relation has a row in all of them
                own[branch] = np.append(own[branch], joined - int(own[branch].sum()))
        if len(own) == 1:
            return own[0]
        total: Counts = np.zeros(self.rows, np.int64)
        for offset, count in zip(self.offsets, own, strict=True):
            total[offset : offset + len(count)] += count
        return total

    def occurring(self, counts: Sequence[Sequence[Counts]]) -> RowNumbers:
        """The rows that some of the counted joined rows come from, ascending."""
        total, dtype = self.total(counts), np.int32 if self.rows < 2**31 else np.int64
        if total.all():
            return np.arange(len(total), dtype=dtype)
        return np.flatnonzero(total).astype(dtype, copy=False)

    def numbers(self, branches: Sequence[ListedRows]) -> RowNumbers:
        """The row here of every joined row, branch after branch; −1 where there is none."""
        found = []
        for side, relation, offset in zip(branches, self.relations, self.offsets, strict=True):
            rows = side.numbers(relation)
            found.append(np.where(rows >= 0, rows.astype(np.int64) + offset, -1) if offset else rows)
        return found[0] if len(found) == 1 else np.concatenate(found)


class Place(msgspec.Struct, frozen=True):
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
    ends = np.array([0, *(place.end for place in places)], sides[0].dtype)  # of another, NumPy would widen all rows
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


class Column(msgspec.Struct, frozen=True, eq=False):
    """p_i: the source of a block's row numbers, and the new number of each."""

    rows: int  # that occur: joined rows have numbers below this, or −1
    relations: tuple[int, ...]  # one of each branch
    becomes: tuple[RowNumbers | None, ...]  # for each branch: the number of each row, and of row −1; None: its own

    @classmethod
    def of(cls, span: Span, rows: RowNumbers, sizes: Sequence[Sequence[int]]) -> "Column":
        """The rows that occur (ascending) numbered in order; `sizes` are those of each branch's relations."""
        if len(rows) == span.rows and not any(span.offsets) and not any(span.has_absent):
            return cls(len(rows), span.relations, (None,) * len(span.relations))
        number: RowNumbers = np.full(span.rows + 1, -1, np.int32 if span.rows < 2**31 else np.int64)
        number[rows] = np.arange(len(rows), dtype=number.dtype)
        becomes = []
        for branch, (relation, offset) in enumerate(zip(span.relations, span.offsets, strict=True)):
            end = offset + sizes[branch][relation]
            if any(span.has_absent[branch : branch + 1]):
                becomes.append(number[offset : end + 1])
                continue
            becomes.append(number[offset:] if end == span.rows else np.append(number[offset:end], number[-1:]))
        return cls(len(rows), span.relations, tuple(becomes))


class JoinedSide(msgspec.Struct, frozen=True, eq=False):
    branches: tuple[BranchSide, ...]
    columns: tuple[Column, ...]  # of the blocks, then that of the labels, if it is none of theirs
    blocks: int
    label: int  # which column is the labels'

    @property
    def rows(self) -> int:
        return sum(branch.rows for branch in self.branches)

    def numbers(self, start: int, stop: int) -> list[RowNumbers]:
        """p_i of joined rows start ≤ j < stop, for each column."""
        out: list[RowNumbers] = [
            np.empty(stop - start, np.int32 if column.rows < 2**31 else np.int64) for column in self.columns
        ]
        begin = 0
        for number, branch in enumerate(self.branches):
            inside = [min(max(j - begin, 0), branch.rows) for j in (start, stop)]
            before = begin + inside[0] - start

            def write(first: int, found: Mapping[int, RowNumbers], number: int = number, before: int = before) -> None:
                for into, column in zip(out, self.columns, strict=True):
                    rows, becomes = found[column.relations[number]], column.becomes[number]
                    place = slice(before + first, before + first + len(rows))
                    into[place] = rows if becomes is None else becomes.take(rows, mode="wrap")

            branch.each(inside[0], inside[1], write)
            begin += branch.rows
        return out

    def indices(self) -> list[RowIndex]:
        numbers = self.numbers(0, self.rows)
        return [RowIndex.of(numbers.pop(0), column.rows) for column in self.columns]

    def label_counts(self) -> RowNumbers:
        """How many joined rows have their label from each label row."""
        column = self.columns[self.label]
        total: RowNumbers = np.zeros(column.rows, np.int32 if self.rows < 2**31 else np.int64)
        for branch, relation, becomes in zip(self.branches, column.relations, column.becomes, strict=True):
            counts = branch.counts()[relation]
            rows = np.flatnonzero(counts)
            total[rows if becomes is None else becomes[rows]] += counts[rows]
        return total


BYTES_PER_JOINED_ROW = 40


class SizeLimit(msgspec.Struct, frozen=True):
    rows: int
    here: int  # that this machine may make; it alone makes joins that are no tree
    bounds_trees: bool = True  # False: a tree may have any number, for nobody writes them down
    prefers_trees: bool = False  # whether joined rows may come in any order, for the sake of a tree
    advice: str = "add a WHERE, join on more keys, or raise max_joined_rows"


def join_branch(branch: Branch, keys: Sequence[ScanKeys], limit: SizeLimit) -> BranchJoin:
    """The joined rows of a branch, if they are not too many."""
    tree = TreeJoin.of(branch, keys, in_any_order=limit.prefers_trees)
    most = limit.rows if tree is not None else min(limit.rows, limit.here)
    count = count_joined(branch, keys) if tree is None else tree.count()
    if tree is None and count <= most:
        sizes = tuple(keys[relation.scan].rows for relation in branch.relations)
        return ListedRows(sizes, branch.label_relation, list_joined(branch, keys, count))
    if tree is None and not limit.bounds_trees:
        tree = TreeJoin.of(branch, keys, in_any_order=True)
    if tree is not None and (count <= most or not limit.bounds_trees):
        return tree
    cyclic = "" if limit.bounds_trees else ", and forms no tree from which rows could be drawn"
    raise MappingError(f"the query joins to {count:,} rows, more than the limit of {most:,}{cyclic}; {limit.advice}")
