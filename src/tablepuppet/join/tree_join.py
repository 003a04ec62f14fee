"""The join of numbered keys by counting: for queries whose joins form a tree, which are nearly all.

In: numbered keys (keys.py). Out: for any rows of the label's relation, the row numbers of their joined rows in each
relation. They are ordered by the label's row, then by the other relations' rows in the order of the query. Only the
tables themselves are sorted or hashed. A relation's rows are grouped by key once. The number of joined rows below each
row is summed from the leaves to the label's relation. So every joined row's place is known before it is made.

Some joined rows of a tree are those of some rows of the label's relation, made on demand. The joined rows of each row
of each relation are counted from the root to the leaves, without making one.

Here an anti-joined relation is one row, found by the rows of its parent that have no match. A semi-joined relation is
one row, found by those that have a match.

Any joined row is found by its number. So every j from 0 to N − 1, drawn uniformly, gives a uniform joined row.
"""

import itertools
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import JOINED_ROWS_PER_PIECE, ROWS_IN_CACHE, Array, RowNumbers, pieces
from tablepuppet.join.duckdb_join import Counts, ListedRows, Marks, Use
from tablepuppet.join.keys import ScanKeys
from tablepuppet.sql.bound import Branch
from tablepuppet.threads import pool

Numbers = NDArray[np.int64]


class Edge(msgspec.Struct, frozen=True, eq=False):
    """A relation, and how its parent's rows find rows in it: by groups of rows with the same key."""

    parent: int
    relation: int
    is_outer: bool
    group: RowNumbers  # that each row of the parent finds; at the end that of row −1, which finds none
    starts: RowNumbers  # of each group in `grouped`, and the end; the last group is empty
    grouped: RowNumbers  # rows here, group by group, in order within a group; then −1

    def per_group(self, values: Array) -> Array:
        found, is_filled = np.zeros(len(self.starts) - 1), np.diff(self.starts) > 0
        found[is_filled] = np.add.reduceat(values[self.grouped[:-1]], self.starts[:-1][is_filled])
        return found  # small sums next to huge ones, too, which a running sum would swallow


class TreeJoin(msgspec.Struct, frozen=True, eq=False):
    """A branch whose joins form a tree that can be walked from the label's relation in the order of the query."""

    sizes: tuple[int, ...]  # rows of each relation
    root: int
    order: RowNumbers  # the root's rows
    edges: tuple[Edge, ...]  # parents first
    below: tuple[Array, ...]  # for each row of each relation (and −1) the joined rows below it

    @classmethod
    def of(cls, branch: Branch, keys: Sequence[ScanKeys], *, in_any_order: bool = False) -> "TreeJoin | None":
        """The join of a branch; None if DuckDB must do it. `in_any_order`: of its joined rows."""
        own = [keys[relation.scan] for relation in branch.relations]
        tree = _tree(branch, in_any_order)
        if tree is None:
            return None
        edges = tuple(_edge(own, parent, relation, kind, columns) for relation, (parent, kind, columns) in tree.items())
        root = branch.label_relation
        lookups = {join.relation for join in branch.joins if join.is_lookup}
        sizes = tuple(1 if relation in lookups else scan.rows for relation, scan in enumerate(own))
        return cls(sizes, root, _in_order(own[root]), edges, _below(edges, sizes))

    def count(self) -> int:
        """N."""
        return int(self.below[self.root][:-1].sum())

    def side(self, marks: Marks | None) -> "TreeSide":
        """The joined rows whose label's row is marked; None: all."""
        roots = self.order if marks is None else self.order[marks[self.order]]
        found = self.below[self.root][roots]
        return TreeSide(self, roots, np.cumsum(found, dtype=np.int32 if found.sum() < 2**31 else np.int64))

    def expand(self, rows: RowNumbers) -> dict[int, RowNumbers]:
        """All joined rows of some rows of the root."""
        found = {self.root: rows}
        for edge in self.edges:
            group = edge.group.take(found[edge.parent], mode="wrap")  # unlike brackets, for several threads at once
            place = edge.starts.take(group)
            counts = edge.starts.take(group + 1) - place
            copies = np.maximum(counts, 1) if edge.is_outer else counts
            if not bool((copies == 1).all()):
                above = np.repeat(np.arange(len(copies)), copies)
                found = {i: known.take(above) for i, known in found.items()}
                place = (place - np.cumsum(copies) + copies).take(above) + np.arange(len(above))
                counts = counts.take(above)
            if edge.is_outer:
                place = np.where(counts == 0, -1, place)
            found[edge.relation] = edge.grouped.take(place, mode="wrap")
        return found


def _tree(branch: Branch, in_any_order: bool) -> dict[int, tuple[int, str, list[tuple[int, int]]]] | None:
    """For each relation but the label's: its parent, how it is joined, and the pairs of columns; parents first.

    None if the joins form no tree, or if an outer join would be walked from its optional side. None, too, if a relation
    comes before its parent, because joined rows would not follow the walk's order; `in_any_order` allows it.
    """
    root = branch.label_relation
    given: dict[int, dict[int, tuple[str, list[tuple[int, int]]]]] = {i: {} for i in range(len(branch.relations))}
    for join in branch.joins:
        others = {pair.left if pair.right == join.relation else pair.right for pair in join.on}
        if len(others) != 1:
            return None
        [other] = others
        columns = [
            (p.left_column, p.right_column) if p.left == other else (p.right_column, p.left_column) for p in join.on
        ]
        given[other][join.relation] = (join.kind, columns)
        if join.kind == "inner":
            given[join.relation][other] = (join.kind, [(b, a) for a, b in columns])
    tree: dict[int, tuple[int, str, list[tuple[int, int]]]] = {}
    left = [i for i in range(len(branch.relations)) if i != root]
    while left:
        open_ones = left if in_any_order else left[:1]
        found = [(parent, i) for i in open_ones for parent in (root, *tree) if i in given[parent]]
        if not found:
            return None
        parent, relation = found[0]
        tree[relation] = (parent, *given[parent][relation])
        left.remove(relation)
    return tree


def _edge(own: Sequence[ScanKeys], parent: int, relation: int, kind: str, columns: list[tuple[int, int]]) -> Edge:
    above, here = _common([own[parent].column(a) for a, _ in columns], [own[relation].column(b) for _, b in columns])
    groups = int(max(above.max(initial=-1), here.max(initial=-1))) + 1
    order = _in_order(own[relation])
    here = here[order]
    counts = np.bincount(here + 1, minlength=groups + 1)  # those without a key come first
    group = np.empty(len(above) + 1, order.dtype)
    group[:-1], group[-1] = above, groups
    np.copyto(group, groups, where=group < 0)
    if kind in ("semi", "anti", "not in"):
        # NOT IN a list with a NULL is never true. For a NULL, NOT IN is true only of an empty list.
        has_match = np.append(counts[1:] > 0, kind == "not in" and len(here) > 0)[group]
        is_found = has_match if kind == "semi" else ~has_match & (kind == "anti" or not counts[0])
        found = np.where(is_found, np.int32(0), np.int32(1))
        return Edge(parent, relation, False, found, np.array([0, 1, 1], np.int32), np.array([0, -1], np.int32))
    starts = np.concatenate([[0], np.cumsum(counts[1:]), [len(here) - counts[0]]]).astype(order.dtype)
    grouped = order[np.argsort(here, kind="stable")][counts[0] :]
    return Edge(parent, relation, kind == "left", group, starts, np.append(grouped, grouped.dtype.type(-1)))


def _common(above: list[RowNumbers], below: list[RowNumbers]) -> tuple[RowNumbers, RowNumbers]:
    """Keys of several columns as one number, equal where all columns are; −1 where one is NULL."""
    if len(above) == 1:
        return above[0], below[0]
    both = [np.concatenate(pair).astype(np.int64) for pair in zip(above, below, strict=True)]
    is_null = np.logical_or.reduce([column < 0 for column in both])
    joint = both[0]
    for column in both[1:]:
        _, joint = np.unique(joint * (int(column.max(initial=0)) + 1) + column, return_inverse=True)
    joint = np.where(is_null, -1, joint)
    return joint[: len(above[0])], joint[len(above[0]) :]


def _below(edges: Sequence[Edge], sizes: Sequence[int]) -> tuple[Array, ...]:
    """How many joined rows each row makes with the relations below it. As float64, so that no count overflows."""
    below = [np.ones(size + 1) for size in sizes]
    for edge in reversed(edges):
        known = below[edge.relation]
        found = edge.per_group(known)
        if edge.is_outer:
            found = np.where(np.diff(edge.starts) == 0, known[-1], found)
        for piece in pieces(len(edge.group), ROWS_IN_CACHE):
            below[edge.parent][piece] *= found.take(edge.group[piece])
    return tuple(below)


def _in_order(scan: ScanKeys) -> RowNumbers:
    return scan.numbers if scan.place is None else np.argsort(scan.place).astype(scan.numbers.dtype)


class TreeSide(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The joined rows of some rows of the root."""

    join: TreeJoin
    roots: RowNumbers
    ends: RowNumbers  # where each root's joined rows end

    @property
    def rows(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def counts(self) -> list[Counts]:
        """From the root to the leaves: a row's joined rows are shared out among the rows that it finds."""
        join = self.join
        counts: list[Counts] = [np.zeros(size, np.int32 if self.rows < 2**31 else np.int64) for size in join.sizes]
        counts[join.root][self.roots] = np.diff(self.ends, prepend=self.ends.dtype.type(0))
        for edge in join.edges if self.rows else ():
            _share_out(counts[edge.relation], edge, counts[edge.parent], join.below[edge.relation])
        return counts

    def each(self, start: int, stop: int, use: Use) -> None:
        """Joined rows start ≤ j < stop, a slice of the roots at a time, by several threads at once."""
        ends = self.ends
        inner = np.searchsorted(ends, np.arange(start, stop, JOINED_ROWS_PER_PIECE, dtype=ends.dtype), side="right")
        borders = [*inner.tolist(), int(np.searchsorted(ends, ends.dtype.type(stop))) + 1]
        spans = [(a, b) for a, b in itertools.pairwise(borders) if a < b]

        def one(span: tuple[int, int]) -> None:
            first, last = span
            found = self.join.expand(self.roots[first:last])
            begin, end = int(ends[first - 1]) if first else 0, int(ends[last - 1])
            if begin < start or end > stop:
                inside = slice(max(start - begin, 0), min(stop, end) - begin)
                found = {relation: rows[inside] for relation, rows in found.items()}
            use(max(begin, start) - start, found)

        for _ in pool().map(one, spans, len(spans)) if len(spans) > 1 else map(one, spans):
            pass

    def look_up(self, joined: Numbers) -> dict[int, RowNumbers]:
        """The rows of some joined rows, 0 ≤ j < N, in each relation; −1 where a LEFT JOIN found none.

        A number is read digit by digit: the root's row is the one below which the j-th joined row lies. The remainder
        chooses a row of each group that is found, in proportion to the joined rows below it.
        """
        join, ends = self.join, self.ends
        place = np.searchsorted(ends, joined.astype(ends.dtype), side="right")  # of another, NumPy would widen all ends
        left = joined - np.where(place > 0, ends[place - 1], 0)
        found: dict[int, RowNumbers] = {join.root: self.roots[place]}
        size = self._counts[join.root][found[join.root]]  # of the joined rows among which `left` counts
        for edge, running in zip(join.edges, self._running, strict=True):
            group = edge.group[found[edge.parent]]
            first, last = edge.starts[group], edge.starts[group + 1]
            below = running[last] - running[first]
            is_there = below > 0  # a LEFT JOIN finds none elsewhere: there is no choice
            others = size // np.where(is_there, below, 1)
            target = running[first] + left // others
            chosen = np.where(is_there, np.searchsorted(running, target, side="right") - 1, -1)
            here = edge.grouped[chosen]
            found[edge.relation] = here
            left = left - np.where(is_there, (running[chosen] - running[first]) * others, 0)
            size = np.where(is_there, self._counts[edge.relation][here] * others, size)
        return found

    @cached_property
    def _counts(self) -> list[Numbers]:
        """How many joined rows each row of each relation makes with the relations below it."""
        return [below.astype(np.int64) for below in self.join.below]

    @cached_property
    def _running(self) -> list[Numbers]:
        """For each edge: how many joined rows lie below a relation's rows before each."""
        edges = self.join.edges
        return [np.append(0, np.cumsum(self._counts[edge.relation][edge.grouped[:-1]])) for edge in edges]


BranchSide = ListedRows | TreeSide  # some joined rows of a branch, in order
BranchJoin = ListedRows | TreeJoin  # all of them


def _share_out(here: Counts, edge: Edge, above: Counts, below: Array) -> None:
    """Rows of a group share the joined rows that find it, in proportion to the joined rows below each. All quotients
    are whole."""
    groups, step = np.zeros(len(edge.starts) - 1), max(ROWS_IN_CACHE, 4 * len(edge.starts))
    for piece in pieces(len(above), step):  # because NumPy copies its input
        groups += np.bincount(edge.group[piece], above[piece], minlength=len(groups))
    weights = edge.per_group(below)
    each = np.divide(groups, weights, out=np.zeros(len(weights)), where=weights > 0)
    grouped = edge.grouped[:-1]
    here[grouped] = np.repeat(each, np.diff(edge.starts)) * below[grouped]


def draw_numbers(rows: int, count: int, seed: int | Sequence[int]) -> Numbers:
    """Numbers of joined rows, each drawn for itself, all equally likely."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    return generator.integers(0, rows, count)
