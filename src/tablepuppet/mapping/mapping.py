"""TableMapping: which rows of which client meet in which joined row, for training, validation and testing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import RowNumbers
from tablepuppet.catalog.bound import BoundQuery
from tablepuppet.errors import MappingError
from tablepuppet.mapping.cluster.rows import ClusterRows
from tablepuppet.mapping.rows.joined import JoinedRows
from tablepuppet.privacy.labels import Channel

Joined = JoinedRows | ClusterRows


def rows_here(joined: Joined) -> JoinedRows:
    """Joined rows of this process: all that baselines and benchmarks know."""
    if isinstance(joined, ClusterRows):
        raise MappingError('these joined rows lie on a cluster; leave engine="ray" out for work that needs them here')
    return joined


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One client's share of a block: which of its rows take part, and where they lie in the block."""

    number: int  # unique in the job
    block: int
    client: str
    scan: int
    columns: tuple[int, ...]  # features, as expression numbers of the scan
    train_rows: RowNumbers  # row numbers in the client's scan
    test_rows: RowNumbers  # held out: for the test, or for validation
    train: slice  # the part's place among the block's train rows
    test: slice


@dataclass(frozen=True, slots=True)
class RelationStats:
    """How one relation of the query met the others: shown by explain."""

    alias: str
    table: str
    clients: int
    rows: int  # after its filter
    matched: int
    max_fan_out: int
    mean_fan_out: float
    is_outer: bool

    @property
    def orphans(self) -> int:
        return self.rows - self.matched


Class = str | int | float | bool


@dataclass(frozen=True, slots=True)
class LabelInfo:
    """What the label is: a number, or one of some classes (class numbers index them)."""

    kind: Literal["number", "class"]
    classes: tuple[Class, ...] = ()
    channel: Channel | None = None  # what their owners did to the labels


def in_label_type(classes: Sequence[Class]) -> tuple[Class, ...]:
    """Classes as the label has them: numbers travel as floats, and are integers again where all of them are whole.

    >>> in_label_type([0.0, 1.0]), in_label_type([0.5, 1.0]), in_label_type([False, True])
    ((0, 1), (0.5, 1.0), (False, True))
    """
    if all(isinstance(c, float) and c.is_integer() and abs(c) < 2**53 for c in classes):
        return tuple(int(c) for c in classes)
    return tuple(classes)


@dataclass(frozen=True, slots=True)
class Placement:
    """How joined training rows lie on a cluster."""

    partitions: int
    is_joined_there: bool  # by the workers; or here, and cut into partitions


@dataclass(frozen=True, slots=True, eq=False)
class TableMapping:
    """The joined table as row numbers, split in training, validation and test rows.

    Validation and test rows share the blocks' numbering of rows that are held out.
    """

    bound: BoundQuery
    label: LabelInfo
    fits: tuple[RelationStats, ...]
    parts: tuple[Part, ...]
    multiplicity: tuple[RowNumbers, ...]  # G_i of the train rows
    train: Joined
    test: Joined
    validation: Joined
    dropped: int = 0  # joined training rows beyond the cap on multiplicity
    placement: Placement | None = None  # None: all in this process
    folds: NDArray[np.int16] | None = None  # of cross-validation, per label row of the train rows

    @property
    def joined_rows(self) -> int:
        """All joined rows, training, validation and test."""
        return self.train.rows + self.validation.rows + self.test.rows

    def parts_of(self, block: int) -> tuple[Part, ...]:
        return tuple(p for p in self.parts if p.block == block)
