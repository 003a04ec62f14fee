"""Labels: their kind, and one number and sample weight per row.

In: the label column of a scan. Out: its description, then class numbers or numbers as float64, NaN where the label is
missing.
"""

import hmac
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablepuppet.arrays import Array, freeze
from tablepuppet.errors import MappingError
from tablepuppet.privacy.labels import RowIds, privatise, uniform_numbers
from tablepuppet.privacy.options import LabelPrivacy
from tablepuppet.protocol.bounds import LARGEST
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources import columns as raw
from tablepuppet.sources.columns import NUMBER_KINDS, STRING_KINDS

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
    column: pa.ChunkedArray, info: ColumnInfo, classes: list[str | float] | None, noise: LabelNoise | None = None
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
