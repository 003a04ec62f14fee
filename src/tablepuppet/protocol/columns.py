"""Columns as both ends speak of them: their kinds, statistics over a part's rows, and the encoders made from those."""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.protocol.base import MOST_CATEGORIES, Amount, Text

Kind = Literal["integer", "float", "decimal", "boolean", "date", "timestamp", "string", "uuid", "vector", "other"]
# The moments until which a history is read: DuckDB's name of their type; "": there are none.
CutoffType = Literal["", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"]
Merges = Literal["", "sums", "extremes"]  # nothing; counts and sums; these and each owner's least and greatest
Categories = Annotated[list[Text], Meta(max_length=MOST_CATEGORIES)]
IdCount = Annotated[int, Meta(ge=0, le=MOST_CATEGORIES)]


# The value of a column where a join finds no row. None: no row, which adds nothing; True: a value that is missing.
Absent = float | str | list[float] | bool | None


class ColumnInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column's name and its kind; `detail` is the owner's own name for the type."""

    name: Text
    kind: Kind
    detail: Text = ""
    size: Annotated[int, Meta(ge=0, le=2**24)] = 0  # length of a vector
    nullable: bool = True  # as far as its owner's database knows
    absent: Absent = None  # its value where a LEFT JOIN finds no row


def decimal_scale(detail: str) -> int | None:
    """The scale that a decimal type's name gives: decimal(18, 2), numeric(10), decimal128(38, 0)."""
    found = re.search(r"\(\s*\d+\s*(?:,\s*(-?\d+)\s*)?\)", detail)
    return None if found is None else int(found.group(1) or 0)


class NumberStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Join-weighted moments of a number (or of each entry of a vector) over this part's rows."""

    weight: Amount  # Σ G over rows with a value
    missing: Amount  # Σ G over rows without one
    mean: Array
    spread: Array  # Σ G (x − mean)²


class CategoryStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Join-weighted counts of each category over this part's rows."""

    categories: Categories
    weights: Array
    missing: Amount
    is_cut: bool = False  # whether the owner left names out that few rows hold


class IdStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A text whose values are ids: how many there are. No name leaves, and no count of any of them."""

    count: IdCount
    has_missing: bool
    tokens: RowNumbers | None = None  # where the block has several parts: 64 bits of an HMAC each, ascending
    check: Annotated[bytes, Meta(max_length=16)] = b""  # equal where clients' keys are


Statistics = NumberStatistics | CategoryStatistics | IdStatistics


class NumberEncoder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """(x − mean) / scale; a scale of 0 makes the column 0. One indicator column if any is missing.

    A missing number is `fill`, the mean over those present, before it is scaled.
    """

    mean: Array
    scale: Array
    fill: Array
    has_missing: bool


class CategoryEncoder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """One 0/1 column per category, then one for NULL and one for all others where asked."""

    categories: Categories
    has_missing: bool
    has_other: bool


class IdEncoder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """One 0/1 column per id, then one for NULL where asked; an id that no training row had is all zeros.

    Only the owner knows the column of each id; where a block has several parts, tokens identify them.
    """

    count: IdCount
    has_missing: bool
    tokens: RowNumbers | None = None
    salt: str = ""  # of the key that made the tokens
    check: bytes = b""


Encoder = NumberEncoder | CategoryEncoder | IdEncoder
