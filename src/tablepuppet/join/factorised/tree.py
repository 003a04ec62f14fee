"""Tree: a join in its factorised form, in which no joined row exists.

In: TreeJoin. Out: for every relation its rows, group by group, and for each of them the groups that it finds in the
relations below. A group holds the rows of one key. Groups are numbered by their first rows: keys are other random
numbers in every run, and runs must agree bit for bit. A row after a table's last stands for the row that a LEFT JOIN
did not find. The last group of a relation is for rows that find nothing. It holds that row in a LEFT join, and none in
an INNER join. So sums over it are right for both, and walks have no case for it.

Sums of products over it take two passes. In: an element of a commutative semiring for every row of every relation. A
joined row has the product of its rows' elements. Out: `pass_up` sums over all joined rows below each group and each
root row; `pass_down` sums over all joined rows of every row of every relation. A pass costs as much as the tables are
long, however many joined rows there are.

    up(g)   = Σ_{x in g} e(x) Π_children up(group that x finds)
    down(g) = Σ_{x finds g} down(x's own group) e(x) Π_{other children} up(group that x finds)
    sum(x)  = down(x's own group) e(x) Π_children up(group that x finds)
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, reduce
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.join.tree_join import Edge, TreeJoin


class Segments(msgspec.Struct, frozen=True, eq=False):
    """Where the groups of some ordered rows begin; groups without rows are left out."""

    groups: int
    filled: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, starts: NDArray[np.int64]) -> "Segments":
        filled = np.flatnonzero(starts[1:] > starts[:-1])
        return cls(len(starts) - 1, filled, starts[filled], np.diff(starts)[filled])

    def repeat(self, per_group: Array) -> Array:
        return np.repeat(per_group[self.filled], self.lengths)

    def reduce(self, function: np.ufunc, values: Array, empty: float) -> Array:
        """Reduces each group's values by the function."""
        out = np.full(self.groups, empty)
        if len(self.filled):
            out[self.filled] = function.reduceat(values, self.starts)
        return out


class Relation(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A relation's rows in the order of their groups."""

    size: int  # rows of its table; row `size` stands for the row that a LEFT JOIN did not find
    first: int  # number of its first group among those of all relations
    rows: RowNumbers  # those that are in a group
    starts: NDArray[np.int64]  # where each group begins, and the end
    finds: NDArray[np.int32]  # (rows, children): groups, by their numbers among all
    children: tuple[int, ...]

    @cached_property
    def segments(self) -> Segments:
        return Segments.of(self.starts)

    @cached_property
    def group_of(self) -> NDArray[np.intp]:
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def spread(self, values: Array) -> Array:
        """Values of the rows here in the order of the table, and of the row after its last."""
        out = np.zeros((self.size + 1, *values.shape[1:]))
        out[self.rows] = values
        return out


class Tree(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Relations, and the order from the root to the leaves."""

    relations: tuple[Relation, ...]
    root: int
    order: tuple[int, ...]  # parents first
    groups: int  # of all relations

    @classmethod
    def of(cls, join: TreeJoin) -> "Tree":
        order = (join.root, *(edge.relation for edge in join.edges))
        links = {edge.relation: _link(edge, join.sizes[edge.relation]) for edge in join.edges}
        below: dict[int, list[int]] = {relation: [] for relation in order}
        firsts, groups = {}, 0
        for edge in join.edges:
            below[edge.parent].append(edge.relation)
            firsts[edge.relation] = groups
            groups += links[edge.relation].groups
        found: dict[int, Relation] = {}
        for relation in order:
            rows = np.arange(join.sizes[relation] + 1, dtype=join.order.dtype)
            own = links[relation].own if relation in links else np.zeros(len(rows), np.int64)
            if relation == join.root:
                own[-1] = -1
            finds = np.empty((len(rows), len(below[relation])), np.int32)
            for place, child in enumerate(below[relation]):
                np.add(links[child].found, firsts[child], out=finds[:, place], casting="unsafe")
            wide = max(range(len(below[relation])), key=lambda k: links[below[relation][k]].groups, default=None)
            keys = (own,) if wide is None else (finds[:, wide], own)
            some = np.lexsort(keys)[np.count_nonzero(own < 0) :]
            count = links[relation].groups if relation in links else 1
            starts = np.searchsorted(own[some], np.arange(count + 1))
            found[relation] = Relation(
                join.sizes[relation],
                firsts.get(relation, groups),
                rows[some],
                starts,
                finds[some],
                tuple(below[relation]),
            )
        return cls(tuple(found[i] for i in range(len(order))), join.root, order, groups)

    @cached_property
    def finders(self) -> dict[int, tuple[NDArray[np.intp], Segments]]:
        """For each relation but the root: its parent's rows in the order of the groups that they find."""
        found = {}
        for relation in self.relations:
            for place, child in enumerate(relation.children):
                below = self.relations[child]
                groups = relation.finds[:, place] - below.first
                order = np.argsort(groups, kind="stable")
                counts = np.bincount(groups, minlength=len(below.starts) - 1)
                found[child] = order, Segments.of(np.concatenate([[0], np.cumsum(counts)]))
        return found

    def order_rows(self, per_row: Sequence[Array]) -> list[Array]:
        return [values[relation.rows] for relation, values in zip(self.relations, per_row, strict=True)]


class _Link(msgspec.Struct, frozen=True, eq=False):
    """An edge by groups: which one each row of the relation is in (−1: none), and which each row above finds."""

    own: NDArray[np.int64]
    found: NDArray[np.int64]
    groups: int


def _link(edge: Edge, size: int) -> _Link:
    own, counts = np.full(size + 1, -1, np.int64), np.diff(edge.starts)
    filled = np.flatnonzero(counts)
    nothing = len(filled)
    number = np.full(len(counts), nothing)
    number[filled[np.argsort(edge.grouped[edge.starts[filled]])]] = np.arange(nothing)
    own[edge.grouped[:-1]] = np.repeat(number, counts)
    if edge.is_outer:
        own[-1] = nothing
    return _Link(own, number[edge.group], nothing + 1)


Element = tuple[Array, ...]  # an array for each number that an element has


class Semiring(ABC):
    """How elements are multiplied, and added up within groups; a group without rows gets zero."""

    @abstractmethod
    def multiply(self, a: Element, b: Element) -> Element: ...

    @abstractmethod
    def add(self, element: Element, segments: Segments) -> Element: ...


class Counts(Semiring):
    """Real numbers: how many joined rows there are, and sums of weights. Whole numbers are exact below 2⁵³."""

    def multiply(self, a: Element, b: Element) -> Element:
        return (a[0] * b[0],)

    def add(self, element: Element, segments: Segments) -> Element:
        return (segments.reduce(np.add, element[0], 0.0),)


class Moments(Semiring):
    """(count, mean of a, Σ (a − mean)²) of a sum a over relations: no digit is lost where large scores cancel."""

    def multiply(self, a: Element, b: Element) -> Element:
        return a[0] * b[0], a[1] + b[1], a[2] * b[0] + a[0] * b[2]

    def add(self, element: Element, segments: Segments) -> Element:
        count, mean, spread = element
        total = segments.reduce(np.add, count, 0.0)
        summed = segments.reduce(np.add, count * mean, 0.0)
        middle = np.divide(summed, total, out=np.zeros_like(summed), where=total != 0.0)
        away = mean - segments.repeat(middle)
        return total, middle, segments.reduce(np.add, spread + count * away * away, 0.0)


class Exponentials(Semiring):
    """(m, v) for v·eᵐ: products of e^h, which neither overflow nor vanish, however large scores are."""

    def multiply(self, a: Element, b: Element) -> Element:
        return a[0] + b[0], a[1] * b[1]

    def add(self, element: Element, segments: Segments) -> Element:
        top = segments.reduce(np.maximum, np.where(element[1] != 0.0, element[0], -np.inf), -np.inf)
        top[np.isneginf(top)] = 0.0
        small = np.where(element[1] != 0.0, element[0] - segments.repeat(top), 0.0)
        return top, segments.reduce(np.add, element[1] * np.exp(small), 0.0)


class Ranges(Semiring):
    """The least and the greatest sum; zero is (∞, −∞)."""

    def multiply(self, a: Element, b: Element) -> Element:
        return a[0] + b[0], a[1] + b[1]

    def add(self, element: Element, segments: Segments) -> Element:
        low = segments.reduce(np.minimum, element[0], np.inf)
        return low, segments.reduce(np.maximum, element[1], -np.inf)


def pass_up(tree: Tree, ring: Semiring, rows: Sequence[Element]) -> list[Element]:
    """For every relation the sum over everything below each group's rows; of the root, per row."""
    found: list[Element] = list(rows)
    for number in reversed(tree.order):
        relation = tree.relations[number]
        element = reduce(ring.multiply, _find(tree, relation, found), rows[number])
        found[number] = element if number == tree.root else ring.add(element, relation.segments)
    return found


def pass_down(
    tree: Tree, ring: Semiring, rows: Sequence[Element], up: Sequence[Element], weights: Element
) -> list[Element]:
    """For every relation the sum per row over all joined rows that it is in; `weights`: of the root's rows."""
    found: list[Element] = list(rows)
    above: dict[int, Element] = {tree.root: weights}
    for number in tree.order:
        relation = tree.relations[number]
        ahead = ring.multiply(above.pop(number), rows[number])
        below = _find(tree, relation, up)
        behind = list(accumulate(reversed(below), ring.multiply))[:-1]  # the products of those after each, last first
        for child, element in zip(relation.children, below, strict=True):
            beside = ring.multiply(ahead, behind.pop()) if behind else ahead
            order, segments = tree.finders[child]
            groups = ring.add(_take(beside, order), segments)
            above[child] = _take(groups, tree.relations[child].group_of)
            ahead = ring.multiply(ahead, element)
        found[number] = ahead
    return found


def _find(tree: Tree, relation: Relation, groups: Sequence[Element]) -> list[Element]:
    """For each relation below, the group's value that each row finds there."""
    found = []
    for place, child in enumerate(relation.children):
        found.append(_take(groups[child], relation.finds[:, place] - tree.relations[child].first))
    return found


def _take(element: Element, places: np.ndarray[tuple[int], np.dtype[np.signedinteger]]) -> Element:
    return tuple(values.take(places) for values in element)
