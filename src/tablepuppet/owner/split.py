"""The split: which rows are for training, validation or the test, and in which fold of a cross-validation each is.

It is a hash of (seed, row number in the whole label table), so it does not depend on how the table is cut into
consecutive slices among clients; or a predicate over the row. Folds may keep groups together, or go by time.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import JobError, MappingError
from tablepuppet.owner.row_ids import GOLDEN, mix
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.protocol.contract import FoldBy
from tablepuppet.sources.columns import (
    NUMBER_KINDS,
    holds_of,
    numbers,
    strings,
)

_FOLDS = 0xF01D  # added to the seed: folds are drawn apart from the test rows


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """How rows are shared out: by fractions of all rows, or by predicates where there are any."""

    offset: int  # the first row's number in the whole label table
    seed: int
    test_fraction: float
    validation_fraction: float = 0.0
    test_where: pa.ChunkedArray | None = None
    validation_where: pa.ChunkedArray | None = None
    known_rows: int | None = None  # rows that there were when sides were drawn: later ones are on the test side

    def test(self, rows: int, order: RowNumbers | None) -> NDArray[np.bool_]:
        """Which rows are kept for the test."""
        if self.test_where is not None:
            return holds_of(self.test_where)
        is_test = split(rows, self.offset, self.seed, self.test_fraction)
        if self.known_rows is not None:
            is_test[self.known_rows :] = True
        return is_test if order is None else is_test[order]

    def validation(self, rows: int, order: RowNumbers | None, is_test: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Which of the others are for validation; None: no row."""
        if self.validation_where is not None:
            return holds_of(self.validation_where) & ~is_test
        if not self.validation_fraction:
            return None
        # Just above the hashes of test rows: with or without validation, the test rows are the same.
        until = self.test_fraction * (self.test_where is None) + self.validation_fraction
        is_either = split(rows, self.offset, self.seed, min(until, 1.0))
        return (is_either if order is None else is_either[order]) & ~is_test


def fold_numbers(
    rows: int,
    sides: Split,
    folds: int,
    by: FoldBy,
    column: tuple[pa.ChunkedArray, ColumnInfo] | None,
    order: NDArray[np.int64] | None,
    is_alone: bool = False,
) -> NDArray[np.int16]:
    """The fold that each row is in: drawn by row, the same for all rows of a group, or in the order of a time.

    By time there is one fold more: the first, which the others come after. Groups are drawn by a hash of their value,
    which owners of one group share; who has all rows (`is_alone`) deals them out, the largest first.
    """
    if column is None:
        drawn = _uniform(rows, sides.offset, sides.seed + _FOLDS)
        return (folds * (drawn if order is None else drawn[order])).astype(np.int16)
    values, info = column
    if by == "time":
        if info.kind not in NUMBER_KINDS - {"vector"}:
            raise MappingError(
                f"{info.name} has type {info.detail or info.kind}, and a time is a number or a date; cast it, as in "
                'time="CAST(day AS TIMESTAMP)"'
            )
        places = np.empty(rows, np.int64)
        places[np.argsort(numbers(values, info)[:, 0], kind="stable")] = np.arange(rows)  # missing ones come last
        return (places * (folds + 1) // max(1, rows)).astype(np.int16)
    distinct, codes = strings(pc.cast(values, pa.large_string()))
    key = (sides.seed % 2**64).to_bytes(8, "little")
    named = [str(value).encode() for value in distinct.to_pylist()]
    hashes = [blake2b(name, digest_size=8, key=key).digest() for name in [*named, b""]]  # the last is for −1: NULL
    drawn = np.array([int.from_bytes(h, "little") for h in hashes], np.uint64)
    if is_alone:
        rows_of = np.bincount(np.where(codes < 0, len(distinct), codes), minlength=len(drawn))
        drawn[np.lexsort((drawn, -rows_of))] = np.arange(len(drawn), dtype=np.uint64)
    return (drawn % np.uint64(folds)).astype(np.int16)[codes]


def split(rows: int, offset: int, seed: int, test_fraction: float) -> NDArray[np.bool_]:
    """Which of the rows offset, offset + 1, … are test rows: each with probability `test_fraction`.

    >>> bool((split(10, 0, 7, 0.5)[4:] == split(6, 4, 7, 0.5)).all())
    True
    """
    if not 0 <= test_fraction <= 1:
        raise JobError(f"test_fraction is {test_fraction}; it must lie between 0 and 1")
    if test_fraction == 0:
        return np.zeros(rows, np.bool_)
    return _uniform(rows, offset, seed) < test_fraction


def _uniform(rows: int, offset: int, seed: int) -> Array:
    """A number in [0, 1) for each of the rows offset, offset + 1, …: splitmix64, whose seeds start far apart on one
    sequence, which `mix` then scrambles."""
    start = mix(np.array([seed % 2**64], np.uint64) + GOLDEN)
    position = np.arange(offset, offset + rows, dtype=np.uint64)
    hashed = mix(start + position * GOLDEN)
    return np.asarray((hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53)
