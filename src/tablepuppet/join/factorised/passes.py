"""Sums of products over a join tree by two passes: from the leaves to the root, and back.

In: an element of a commutative semiring for every row of every relation. A joined row has the product of its rows'
elements. Out: `pass_up` sums over all joined rows below each group and each root row; `pass_down` sums over all joined
rows of every row of every relation. Each pass costs as much as the tables are long, however many joined rows there are.

    up(g)   = Σ_{x in g} e(x) Π_children up(group that x finds)
    down(g) = Σ_{x finds g} down(x's own group) e(x) Π_{other children} up(group that x finds)
    sum(x)  = down(x's own group) e(x) Π_children up(group that x finds)
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.join.factorised.tree import Relation, Segments, Tree

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
        middle = _divide(segments.reduce(np.add, count * mean, 0.0), total)
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


def _divide(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0.0)


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
