"""Joined rows that were all written down: those of DuckDB's joins, and those that a cap has chosen from.

In: the row number of every joined row in each relation. Out: some of these joined rows, to be counted and read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.mapping.rows.index import count_rows

Marks = NDArray[np.bool_]  # rows of the label's relation
Counts = NDArray[np.signedinteger[Any]]  # joined rows, per row of a relation
SLICE = 1 << 18  # joined rows that are made at a time: they stay in the cache


class BranchSide(Protocol):
    """Some joined rows of a branch, in order."""

    @property
    def rows(self) -> int: ...

    def counts(self) -> list[Counts]:
        """For each relation: how many of these joined rows each of its rows is in."""

    def read(self, start: int, stop: int) -> Iterator[Mapping[int, RowNumbers]]:
        """Row numbers in each relation of joined rows start ≤ j < stop, a slice at a time; −1 where there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class ListedJoin:
    """All joined rows of a branch."""

    sizes: tuple[int, ...]  # rows of each relation
    label: int  # the label's relation
    numbers: Sequence[RowNumbers]  # in each relation

    def count(self) -> int:
        """N."""
        return len(self.numbers[0])

    def side(self, marks: Marks | None) -> ListedSide:
        """The joined rows whose label's row is marked; None: all."""
        if marks is None or bool(marks.all()):
            return ListedSide(self, None)
        return ListedSide(self, _compact(np.flatnonzero(marks[self.numbers[self.label]])))


@dataclass(frozen=True, slots=True, eq=False)
class ListedSide:
    """Some of the joined rows; None: all."""

    join: ListedJoin
    chosen: RowNumbers | None

    @classmethod
    def of(cls, side: BranchSide, sizes: tuple[int, ...]) -> ListedSide:
        """Joined rows, written down."""
        numbers: list[RowNumbers] = [np.empty(side.rows, np.int32 if n < 2**31 else np.int64) for n in sizes]
        written = 0
        for found in side.read(0, side.rows):
            for relation, rows in found.items():
                numbers[relation][written : written + len(rows)] = rows
            written += len(found[0])
        return cls(ListedJoin(sizes, 0, numbers), None)

    @property
    def rows(self) -> int:
        return self.join.count() if self.chosen is None else len(self.chosen)

    def counts(self) -> list[Counts]:
        return [count_rows(self.numbers(relation), size) for relation, size in enumerate(self.join.sizes)]

    def read(self, start: int, stop: int) -> Iterator[Mapping[int, RowNumbers]]:
        for first in range(start, stop, SLICE):
            inside = slice(first, min(first + SLICE, stop))
            these = inside if self.chosen is None else self.chosen[inside]
            yield {relation: rows[these] for relation, rows in enumerate(self.join.numbers)}

    def numbers(self, relation: int) -> RowNumbers:
        """The row of every joined row in one relation."""
        rows = self.join.numbers[relation]
        return rows if self.chosen is None else rows[self.chosen]

    def only(self, kept: NDArray[np.int64]) -> ListedSide:
        """Some of these joined rows, by their numbers here."""
        return ListedSide(self.join, _compact(kept if self.chosen is None else self.chosen[kept]))


def _compact(numbers: RowNumbers) -> RowNumbers:
    return numbers.astype(np.int32) if len(numbers) == 0 or numbers[-1] < 2**31 else numbers
