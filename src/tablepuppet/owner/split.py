"""The split of a label's rows into training, validation and test rows, and into folds.

It is a hash of (clients' key, seed, row number in the whole label table), or a predicate over the row. The hash does
not depend on how the table is cut into consecutive slices among clients, and the server cannot compute it. Folds may
keep groups together, or go by time.
"""

import hmac
from hashlib import blake2b

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers, pieces
from tablepuppet.errors import JobError, MappingError
from tablepuppet.owner.row_sets import GOLDEN, mix, order_bits
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.protocol.contract import FoldBy
from tablepuppet.sources import columns as raw
from tablepuppet.sources.columns import NUMBER_KINDS

_FOLDS = 0xF01D  # added to the seed: folds are drawn apart from the test rows


class Split(msgspec.Struct, frozen=True, eq=False):
    """How rows are shared out: by fractions of all rows, or by predicates where there are any."""

    offset: int  # the first row's number in the whole label table
    seed: int
    test_fraction: float
    validation_fraction: float = 0.0
    test_where: pa.ChunkedArray | None = None
    validation_where: pa.ChunkedArray | None = None
    key: bytes = b""  # of the clients: without it nobody knows which rows are on which side; none: everybody may
    known_rows: int | None = None  # rows that there were when sides were drawn: later ones are on the test side

    def test(self, rows: int, order: RowNumbers | None) -> NDArray[np.bool_]:
        if self.test_where is not None:
            return raw.holds_of(self.test_where)
        is_test = split(rows, self.offset, self.seed, self.test_fraction, self.key)
        if self.known_rows is not None:
            is_test[self.known_rows :] = True
        return is_test if order is None else is_test[order]

    def validation(self, rows: int, order: RowNumbers | None, is_test: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """The validation rows among the others, as a mask; None: no row."""
        if self.validation_where is not None:
            return raw.holds_of(self.validation_where) & ~is_test
        if not self.validation_fraction:
            return None
        # Just above the hashes of test rows: with or without validation, the test rows are the same.
        until = self.test_fraction * (self.test_where is None) + self.validation_fraction
        is_either = split(rows, self.offset, self.seed, min(until, 1.0), self.key)
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
    """The fold of each row: drawn by row, the same for all rows of a group, or in the order of a time.

    By time there is one more fold, before all others. Groups are drawn by a hash of their value, which owners of
    one group share. An owner of all rows (`is_alone`) deals them out, the largest first.
    """
    if column is None:
        drawn = _uniform(rows, sides.offset, sides.seed + _FOLDS, sides.key)
        return (folds * (drawn if order is None else drawn[order])).astype(np.int16)
    values, info = column
    if by == "time":
        if info.kind not in NUMBER_KINDS - {"vector"}:
            raise MappingError(
                f"{info.name} has type {info.detail or info.kind}, and a time is a number or a date; cast it, as in "
                'time="CAST(day AS TIMESTAMP)"'
            )
        places = np.empty(rows, np.int64)
        places[np.argsort(raw.numbers(values, info)[:, 0], kind="stable")] = np.arange(rows)  # missing ones come last
        return (places * (folds + 1) // max(1, rows)).astype(np.int16)
    distinct, codes = raw.strings(pc.cast(values, pa.large_string()))
    key = (sides.seed % 2**64).to_bytes(8, "little")
    key = hmac.digest(sides.key, key, "sha256") if sides.key else key
    named = [str(value).encode() for value in distinct.to_pylist()]
    hashes = [blake2b(name, digest_size=8, key=key).digest() for name in [*named, b""]]  # the last is for −1: NULL
    drawn = np.array([int.from_bytes(h, "little") for h in hashes], np.uint64)
    if is_alone:
        rows_of = np.bincount(np.where(codes < 0, len(distinct), codes), minlength=len(drawn))
        drawn[np.lexsort((drawn, -rows_of))] = np.arange(len(drawn), dtype=np.uint64)
    return (drawn % np.uint64(folds)).astype(np.int16)[codes]


def split(rows: int, offset: int, seed: int, test_fraction: float, key: bytes = b"") -> NDArray[np.bool_]:
    """Marks the test rows among the rows offset, offset + 1, …: each with probability `test_fraction`."""
    if not 0 <= test_fraction <= 1:
        raise JobError(f"test_fraction is {test_fraction}; it must lie between 0 and 1")
    if test_fraction == 0:
        return np.zeros(rows, np.bool_)
    found = np.empty(rows, np.bool_)
    for some in pieces(rows):
        found[some] = _uniform(some.stop - some.start, offset + some.start, seed, key) < test_fraction
    return found


def _uniform(rows: int, offset: int, seed: int, key: bytes) -> Array:
    """A number in [0, 1) for each of the rows offset, offset + 1, …: a pseudo-random function of the clients' key.
    Without a key it is splitmix64, whose seeds start far apart on one sequence; `mix` then scrambles it."""
    if key:
        hashed = order_bits(key, "split", seed, offset, rows)
    else:
        start = mix(np.array([seed % 2**64], np.uint64) + GOLDEN)
        hashed = mix(start + np.arange(offset, offset + rows, dtype=np.uint64) * GOLDEN)
    return np.asarray((hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53)
