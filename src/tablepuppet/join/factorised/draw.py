"""Joined rows of a tree by their numbers, and drawn at random: each is made when it is wanted, from the tree alone.

In: numbers of joined rows, 0 ≤ j < N, in the order in which a tree's joined rows are made (tree_join.py). Out: their
rows in each relation. The number is read digit by digit. The root's row is the one below which the j-th joined row
lies. The remainder of j chooses a row of each group that is found, in proportion to the joined rows below it. So every
j from 0 to N − 1, drawn uniformly, gives a uniform joined row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.join.tree_join import TreeSide

Numbers = NDArray[np.int64]


class RowLookup(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The joined rows of a side, none of which is held."""

    side: TreeSide

    @property
    def rows(self) -> int:
        return self.side.rows

    def look_up(self, joined: Numbers) -> dict[int, RowNumbers]:
        """The rows of some joined rows in each relation; −1 where a LEFT JOIN found none."""
        join, ends = self.side.join, self.side.ends
        place = np.searchsorted(ends, joined.astype(ends.dtype), side="right")  # of another, NumPy would widen all ends
        left = joined - np.where(place > 0, ends[place - 1], 0)
        found: dict[int, RowNumbers] = {join.root: self.side.roots[place]}
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
        return [below.astype(np.int64) for below in self.side.join.below]

    @cached_property
    def _running(self) -> list[Numbers]:
        """For each edge: how many joined rows lie below a relation's rows before each."""
        edges = self.side.join.edges
        return [np.append(0, np.cumsum(self._counts[edge.relation][edge.grouped[:-1]])) for edge in edges]


def draw_numbers(rows: int, count: int, seed: int | Sequence[int]) -> Numbers:
    """Numbers of joined rows, each drawn for itself, all equally likely."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    return generator.integers(0, rows, count)
