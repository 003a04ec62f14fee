"""MappingSummary: a table mapping in figures, without a row of it. Plans and results keep this and nothing larger.

In: a TableMapping. Out: how many rows each part, block and side has, and how often they occur (G as a histogram). Its
size follows from the tables' number and owners, not from their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tablepuppet.algorithms.shape import Fan
from tablepuppet.arrays import RowNumbers
from tablepuppet.catalog.bound import BoundQuery
from tablepuppet.mapping.cluster.partitions import IndexFacts
from tablepuppet.mapping.mapping import LabelInfo, Part, Placement, RelationStats, TableMapping
from tablepuppet.mapping.rows.index import RowIndex


@dataclass(frozen=True, slots=True)
class PartSummary:
    """One client's share of a block."""

    number: int
    block: int
    client: str
    scan: int
    train_rows: int
    test_rows: int  # held out: for the test, or for validation
    fan: Fan  # in how many joined training rows its rows occur
    is_in_both: bool  # whether a row of it is both trained with and held out


@dataclass(frozen=True, slots=True)
class BlockSummary:
    """All clients' rows of one block that joined training rows have."""

    rows: int
    joined: int  # training rows with a row in this block
    most: int  # joined training rows that one row is in
    is_identity: bool  # joined row j has row j of the block
    is_outer: bool  # some joined training rows have no row in it


@dataclass(frozen=True, slots=True)
class MappingSummary:
    """How the tables of a query meet."""

    bound: BoundQuery
    label: LabelInfo
    fits: tuple[RelationStats, ...]
    parts: tuple[PartSummary, ...]
    blocks: tuple[BlockSummary, ...]
    train_rows: int  # joined rows of each side
    test_rows: int
    validation_rows: int
    dropped: int  # joined training rows beyond the cap on multiplicity
    placement: Placement | None

    @property
    def joined_rows(self) -> int:
        """All joined rows, training, validation and test."""
        return self.train_rows + self.validation_rows + self.test_rows

    def parts_of(self, block: int) -> tuple[PartSummary, ...]:
        return tuple(p for p in self.parts if p.block == block)


def summarise(mapping: TableMapping) -> MappingSummary:
    """The figures of a mapping."""
    indices: Sequence[RowIndex | IndexFacts] = mapping.train.indices
    return MappingSummary(
        bound=mapping.bound,
        label=mapping.label,
        fits=mapping.fits,
        parts=tuple(_of_part(part, mapping) for part in mapping.parts),
        blocks=tuple(_of_block(p, g) for p, g in zip(indices, mapping.multiplicity, strict=True)),
        train_rows=mapping.train.rows,
        test_rows=mapping.test.rows,
        validation_rows=mapping.validation.rows,
        dropped=mapping.dropped,
        placement=mapping.placement,
    )


def _of_block(index: RowIndex | IndexFacts, multiplicity: RowNumbers) -> BlockSummary:
    joined, most = int(multiplicity.sum()), int(multiplicity.max(initial=0))
    return BlockSummary(index.rows, joined, most, index.is_identity, index.is_partial)


def _of_part(part: Part, mapping: TableMapping) -> PartSummary:
    multiplicity = mapping.multiplicity[part.block][part.train]
    return PartSummary(
        number=part.number,
        block=part.block,
        client=part.client,
        scan=part.scan,
        train_rows=len(multiplicity),
        test_rows=part.test.stop - part.test.start,
        fan=Fan.of(multiplicity),
        is_in_both=bool(np.isin(part.test_rows, part.train_rows, assume_unique=True).any()),
    )
