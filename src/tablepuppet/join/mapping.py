"""TableMapping: which rows of which client meet in which joined row, for training, validation and testing.

MappingSummary: the same in figures, without a row of it. Plans and results keep this and nothing larger: how many rows
each part, block and side has, and how often they occur (G as a histogram). Its size follows from the tables' number and
owners, not from their rows.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.shape import FanOutHistogram
from tablepuppet.arrays import RowNumbers, freeze
from tablepuppet.errors import MappingError
from tablepuppet.job.job import Walk
from tablepuppet.join.groups import MergedGroups
from tablepuppet.join.joined_rows import Joined, JoinedRows
from tablepuppet.join.row_index import IndexFacts, RowIndex
from tablepuppet.privacy.labels import Channel
from tablepuppet.sql.bound import BoundQuery


def rows_here(joined: Joined) -> JoinedRows:
    """Joined rows of this process: all that baselines and benchmarks know."""
    if not isinstance(joined, JoinedRows):
        raise MappingError('these joined rows lie on a cluster; leave engine="ray" out for work that needs them here')
    return joined


class Part(msgspec.Struct, frozen=True, eq=False):
    """One client's share of a block: which of its rows take part, and where they lie in the block."""

    number: int  # unique in the job
    block: int
    client: str
    scan: int
    columns: tuple[int, ...]  # features, as expression numbers of the scan
    only: RowNumbers | None  # the rows of the client's scan that are trained on; None: all, in order
    test_rows: RowNumbers  # held out: for the test, or for validation
    train: slice  # the part's place among the block's train rows
    test: slice

    @property
    def rows(self) -> int:
        return int(self.train.stop - self.train.start)

    @property
    def has_absent(self) -> bool:
        """Whether one of them stands for the row that a LEFT JOIN did not find."""
        return self.only is not None and int(self.only.min(initial=0)) < 0

    @property
    def train_rows(self) -> RowNumbers:
        """Row numbers in the client's scan, −1 for a row that a LEFT JOIN did not find. If all rows are used, the array
        is made on each call; only the steps before training ask for it."""
        if self.only is not None:
            return self.only
        return freeze(np.arange(self.rows, dtype=np.int32 if self.rows < 2**31 else np.int64))


class RelationStats(msgspec.Struct, frozen=True):
    """How one relation of the query met the others: shown by explain."""

    alias: str
    table: str
    clients: int
    rows: int  # after its filter
    matched: int
    max_fan_out: int
    mean_fan_out: float
    is_outer: bool
    is_anti: bool = False  # rows with a match in it are left out, so that no joined row has one of its rows
    is_semi: bool = False  # rows with a match in it are kept, and no joined row has one of its rows

    @property
    def orphans(self) -> int:
        return self.rows - self.matched


Class = str | int | float | bool


class LabelInfo(msgspec.Struct, frozen=True):
    """The label's kind: a number, or one of some classes (class numbers index them)."""

    kind: Literal["number", "class"]
    classes: tuple[Class, ...] = ()
    channel: Channel | None = None  # what their owners did to the labels
    negatives: int = 0  # joined rows that are pairs which did not meet (negatives.py); classes then tell them apart


def in_label_type(classes: Sequence[Class]) -> tuple[Class, ...]:
    """Classes as the label has them: numbers travel as floats, and are integers again where all of them are whole.

    >>> in_label_type([0.0, 1.0]), in_label_type([0.5, 1.0]), in_label_type([False, True])
    ((0, 1), (0.5, 1.0), (False, True))
    """
    if all(isinstance(c, float) and c.is_integer() and abs(c) < 2**53 for c in classes):
        return tuple(int(c) for c in classes)
    return tuple(classes)


class Placement(msgspec.Struct, frozen=True):
    """How joined training rows lie on a cluster."""

    partitions: int
    is_joined_there: bool  # by the workers; or here, for them to write


class SideSizes(msgspec.Struct, frozen=True):
    train: int
    test: int
    validation: int


class LabelRows(msgspec.Struct, frozen=True):
    """The rows that a branch has its labels from, as the split counts them: the first one's number, and how many."""

    offset: int
    rows: dict[str, int]  # of each client, one after the other


class MappingFacts(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Facts that a mapping and its summary share."""

    bound: BoundQuery
    label: LabelInfo
    fits: tuple[RelationStats, ...]
    dropped: int = 0  # joined training rows beyond the cap on multiplicity
    placement: Placement | None = None  # None: all in this process
    label_rows: tuple[LabelRows, ...] = ()  # of each branch
    merged: tuple[MergedGroups | None, ...] = ()  # of each scan: groups of several clients
    cutoffs: Mapping[int, int] = msgspec.field(default_factory=dict)  # of each scan of a history, how many
    walk: Walk = "materialised"  # how joined rows are walked over
    whole: SideSizes | None = None  # all joined rows, where some are drawn


class TableMapping(MappingFacts, frozen=True, eq=False, kw_only=True):
    """The joined table as row numbers, split in training, validation and test rows.

    Validation and test rows share the blocks' numbering of rows that are held out.
    """

    parts: tuple[Part, ...]
    multiplicity: tuple[RowNumbers, ...]  # G_i of the train rows
    train: Joined
    test: Joined
    validation: Joined
    folds: NDArray[np.int16] | None = None  # of cross-validation, per label row of the train rows

    @property
    def joined_rows(self) -> int:
        """All joined rows, training, validation and test."""
        return self.train.rows + self.validation.rows + self.test.rows

    def parts_of(self, block: int) -> tuple[Part, ...]:
        return tuple(p for p in self.parts if p.block == block)


class PartSummary(msgspec.Struct, frozen=True):
    """One client's share of a block."""

    number: int
    block: int
    client: str
    scan: int
    train_rows: int
    test_rows: int  # held out: for the test, or for validation
    fan: FanOutHistogram  # in how many joined training rows its rows occur
    is_in_both: bool  # whether a row of it is both trained with and held out


class BlockSummary(msgspec.Struct, frozen=True):
    """All clients' rows of one block that joined training rows have."""

    rows: int
    joined: int  # training rows with a row in this block
    most: int  # joined training rows that one row is in
    is_identity: bool  # joined row j has row j of the block
    is_outer: bool  # some joined training rows have no row in it


class MappingSummary(MappingFacts, frozen=True, kw_only=True):
    """How the tables of a query meet."""

    parts: tuple[PartSummary, ...]
    blocks: tuple[BlockSummary, ...]
    train_rows: int  # joined rows of each side
    test_rows: int
    validation_rows: int

    @property
    def joined_rows(self) -> int:
        """All joined rows, training, validation and test."""
        return self.train_rows + self.validation_rows + self.test_rows

    @property
    def seen_rows(self) -> int:
        """The same without drawn pairs: the rows whose labels come from owners."""
        return self.joined_rows - self.label.negatives

    def parts_of(self, block: int) -> tuple[PartSummary, ...]:
        return tuple(p for p in self.parts if p.block == block)

    def tables_of(self, block: int) -> list[str]:
        """The tables that a block's rows come from: one for each scan and each row of it that a base row changes."""
        scans = sorted({part.scan for part in self.parts_of(block)})
        return [table for scan in scans for table in self.bound.scans[scan].reached]


def summarise(mapping: TableMapping) -> MappingSummary:
    return MappingSummary(
        **{name: getattr(mapping, name) for name in MappingFacts.__struct_fields__},
        parts=tuple(_of_part(part, mapping) for part in mapping.parts),
        blocks=tuple(_of_block(mapping, number, index) for number, index in enumerate(mapping.train.indices)),
        train_rows=mapping.train.rows,
        test_rows=mapping.test.rows,
        validation_rows=mapping.validation.rows,
    )


def _of_block(mapping: TableMapping, number: int, index: RowIndex | IndexFacts) -> BlockSummary:
    multiplicity = mapping.multiplicity[number]
    joined, most = int(multiplicity.sum()), int(multiplicity.max(initial=0))
    is_outer = index.is_partial or any(part.has_absent for part in mapping.parts_of(number))
    return BlockSummary(index.rows, joined, most, index.is_identity, is_outer)


def _of_part(part: Part, mapping: TableMapping) -> PartSummary:
    multiplicity = mapping.multiplicity[part.block][part.train]
    return PartSummary(
        number=part.number,
        block=part.block,
        client=part.client,
        scan=part.scan,
        train_rows=len(multiplicity),
        test_rows=part.test.stop - part.test.start,
        fan=FanOutHistogram.of(multiplicity),
        is_in_both=len(part.test_rows) > 0 and bool(np.isin(part.test_rows, part.train_rows, assume_unique=True).any()),
    )
