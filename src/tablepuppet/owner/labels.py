"""Labels: their kind, one number and sample weight per row, and the split into training, validation and test rows.

In: the label column of a scan. Out: its description, then class numbers or numbers as float64, NaN where the label is
missing.

The split is a hash of (clients' key, seed, row number in the whole label table), or a predicate over the row. The hash
does not depend on how the table is cut into consecutive slices among clients, and the server cannot compute it.
Folds may keep groups together, or go by time.
"""

import hmac
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers, freeze, pieces
from tablepuppet.errors import JobError, MappingError
from tablepuppet.owner.row_sets import GOLDEN, mix, order_bits
from tablepuppet.privacy.labels import RowIds, privatise, uniform_numbers
from tablepuppet.privacy.options import LabelPrivacy
from tablepuppet.protocol.bounds import LARGEST
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.protocol.contract import FoldBy
from tablepuppet.sources import columns as raw
from tablepuppet.sources.columns import NUMBER_KINDS, STRING_KINDS

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
    """Marks the test rows among the rows offset, offset + 1, …: each with probability `test_fraction`.

    >>> bool((split(10, 0, 7, 0.5)[4:] == split(6, 4, 7, 0.5)).all())
    True
    """
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


MAX_NUMBER_CLASSES = 1000
MAX_STRING_CLASSES = 10_000


class LabelNoise(msgspec.Struct, frozen=True, eq=False):
    """A mechanism and the owner's secret; `name` names the table, and `rows` has the row of each label.

    `label` is the expression: another one is another release, and yet the same draw wherever its value is the same.

    `spend` receives the name of every release before it leaves, and may refuse it.
    """

    privacy: LabelPrivacy
    secret: bytes
    name: str
    rows: RowIds
    spend: Callable[[str], None] = lambda release: None
    label: str = ""
    identity: str = ""  # how rows are known: another way is another release

    def add_to(self, values: Array, classes: Sequence[str | float] | None) -> Array:
        """Noisy labels, of classes in ascending order. The noise belongs to a row and its label: it is the same again
        under any filter, and another for another label. Other classes are another release. The
        number in a release's name is that of the function that draws."""
        how = "LabelPrivacy(epsilon={0.epsilon}, mechanism={0.mechanism!r}, bounds={0.bounds}, bins={0.bins})"
        named = f"{self.name} {None if classes is None else list(classes)} {how.format(self.privacy)}"
        release = f"{self.label} {self.identity} {named}"
        self.spend(hmac.digest(self.secret, b"tablepuppet release 3 " + release.encode(), "sha256").hex())
        count = None if classes is None else len(classes)
        return privatise(values, self.privacy, count, uniform_numbers(self.secret, named, self.rows, values))


class LabelDescription(NamedTuple):
    """A label's kind, its distinct values (numbers only if there are at most 1000), and how many are missing."""

    kind: Literal["number", "boolean", "class"]
    classes: list[str | float]
    missing: int


def describe_labels(column: pa.ChunkedArray, info: ColumnInfo, wants_classes: bool = True) -> LabelDescription:
    """The kind of the label and its distinct values (numbers: only if there are at most 1000)."""
    if info.kind in STRING_KINDS:
        distinct = pc.unique(pc.cast(column, pa.large_string())).drop_null()
        if len(distinct) > MAX_STRING_CLASSES:
            raise MappingError(
                f"label {info.name} has {len(distinct):,} distinct strings, too many for classes; "
                f"at most {MAX_STRING_CLASSES:,} are allowed. Group them with CASE, or choose another label"
            )
        ordered = distinct.take(pc.sort_indices(distinct)).to_pylist()
        return LabelDescription(kind="class", classes=ordered, missing=column.null_count)
    is_whole = pa.types.is_integer(column.type)  # of which few are different, mostly
    values = _label_numbers(pa.chunked_array([pc.unique(column)]) if is_whole else column, info)
    missing = column.null_count if is_whole else int(np.isnan(values).sum())
    if info.kind == "boolean":
        return LabelDescription(kind="boolean", classes=[0.0, 1.0], missing=missing)
    if not wants_classes:
        return LabelDescription(kind="number", classes=[], missing=missing)
    found = np.unique(values[~np.isnan(values)])
    classes: list[str | float] = found.tolist() if len(found) <= MAX_NUMBER_CLASSES else []
    return LabelDescription(kind="number", classes=classes, missing=missing)


def read_labels(
    column: pa.ChunkedArray,
    info: ColumnInfo,
    classes: list[str | float] | None,
    noise: LabelNoise | None = None,
) -> Array:
    """One label per row: its position in `classes`, or (None) the number itself. `noise`: the mechanism that is applied
    to the labels before they leave."""
    asked, is_strict = classes, noise is None  # under noise, a label of no class is drawn as one that is missing
    if noise is not None and classes is not None:  # a class is known by its value, in whatever order it is asked for
        classes = sorted(classes)
    values = _label_numbers(column, info) if classes is None else _class_numbers(column, info, classes, is_strict)
    if noise is not None:
        values = noise.add_to(values, classes)
    if asked is not None and classes is not None and asked != classes:
        places = np.array([*(asked.index(value) for value in classes), np.nan])
        values = places[np.where(np.isnan(values), len(classes), values).astype(np.intp)]
    return freeze(values) if values.flags.owndata else values


def read_weights(column: pa.ChunkedArray, info: ColumnInfo) -> Array:
    if info.kind not in ("integer", "float", "decimal", "boolean"):
        raise MappingError(f"weight {info.name} has type {info.detail or info.kind}; a weight is a number. CAST it")
    values = raw.numbers(column, info)[:, 0]
    if np.isinf(values).any() or (values < 0).any():
        raise MappingError(
            f"weight {info.name} is negative or infinite in some row; weights are numbers from 0 up. Leave such rows "
            "out by WHERE, or use a CASE expression"
        )
    return values


def _label_numbers(column: pa.ChunkedArray, info: ColumnInfo) -> Array:
    if info.kind not in NUMBER_KINDS - {"vector"}:
        raise MappingError(
            f"label {info.name} has type {info.detail or info.kind}; a label is a number, a boolean, a date or "
            "a string. CAST it, or choose another column"
        )
    values = raw.numbers(column, info)[:, 0]
    if np.isinf(values).any():
        raise MappingError(f"label {info.name} contains infinity; filter such rows out, or use NULL")
    if (np.abs(values) > LARGEST).any():
        raise MappingError(f"label {info.name} has numbers too large to square; divide it by a power of ten")
    return values


def _class_numbers(column: pa.ChunkedArray, info: ColumnInfo, classes: list[str | float], is_strict: bool) -> Array:
    """The position of each label among the classes; NaN where it is missing or, unless that is an error, of none."""
    if info.kind in STRING_KINDS:
        distinct, codes = raw.strings(column)
        given, is_missing = raw.arrow_texts([str(value) for value in classes]), np.zeros(len(distinct), np.bool_)
    else:
        encoded = raw.in_one_piece(raw.decode(column).dictionary_encode())
        values = _label_numbers(pa.chunked_array([encoded.dictionary]), info) + 0.0  # −0 is 0
        distinct, codes = raw.arrow_of(values), raw.numpy_of(encoded.indices, missing=-1)
        given, is_missing = raw.arrow_of(np.asarray(classes, np.float64) + 0.0), np.isnan(values)
    found = raw.numpy_of(pc.index_in(distinct, value_set=given), missing=-1)
    if is_strict and (found[~is_missing] < 0).any():
        raise MappingError(
            f"label {info.name} has a value that is not among the classes; either it has more than "
            f"{MAX_NUMBER_CLASSES} distinct numbers (use a linear model), or the table changed after the run began "
            "(start again)"
        )
    return cast("Array", np.append(np.where(found < 0, np.nan, found), np.nan)[codes])  # the last is for −1: NULL
