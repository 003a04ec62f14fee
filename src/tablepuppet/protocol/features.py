"""Features: the statistics of a part's columns, and the encoders that all clients of a block share.

A *part* is one client's share of a block: some feature columns of a scan, for the rows that matter.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tablepuppet.arrays import Array, Codes, RowNumbers
from tablepuppet.privacy.masks import MaskKey
from tablepuppet.protocol.base import FieldDisclosure, FieldDisclosures, Message, Stage


class FindIds(Message, frozen=True):
    """Which of these texts would you take for ids (client/ids.py)? Asked where a block has several parts. → FoundIds"""

    stage: ClassVar[Stage] = "find ids"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    part: int
    scan: int
    columns: list[int]


class FoundIds(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = ()
    places: tuple[int, ...]  # in the columns that were asked about


class OpenPart(Message, frozen=True):
    """These columns of a scan are a share of block `part`; these of its rows take part.

    → FeatureStatistics | FeatureNames. Row −1 stands for a row that does not exist (an outer join found none): zeros.
    """

    stage: ClassVar[Stage] = "part"
    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("multiplicity", "multiplicities", is_per_row=True, if_empty=True),
    )
    job: str
    part: int
    scan: int
    columns: list[int]
    train_rows: RowNumbers | None  # None: all, in order
    test_rows: RowNumbers
    multiplicity: RowNumbers | None  # G of the train rows; None: all one
    wants_moments: bool = True  # False: no mean and no spread of any number
    wants_statistics: bool = True  # False: nothing about any column
    wants_key: bool = False  # whether the block's sums are masked: then names of categories come, and no figure
    ids: tuple[int, ...] = ()  # features, by their place in `columns`, whose texts are ids and stay with their owner
    finds_ids: bool = False  # the owner takes further texts for ids, by its own rule (client/ids.py)
    id_salt: str = (
        ""  # not empty: the block has other parts, and tokens of ids are told, so that all mean the same ones
    )


class NumberStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Join-weighted moments of a number (or of each entry of a vector) over this part's rows."""

    weight: float  # Σ G over rows with a value
    missing: float  # Σ G over rows without one
    mean: Array
    spread: Array  # Σ G (x − mean)²


class CategoryStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Join-weighted counts of each category over this part's rows."""

    categories: list[str]
    weights: Array
    missing: float
    is_cut: bool = False  # whether the owner left names out that few rows hold


class IdStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A text whose values are ids: how many there are. No name leaves, and no count of any of them."""

    count: int
    has_missing: bool
    tokens: RowNumbers | None = None  # where the block has several parts: 64 bits of an HMAC each, ascending
    check: bytes = b""  # equal where clients' keys are


Statistics = NumberStatistics | CategoryStatistics | IdStatistics


class FeatureStatistics(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("columns", "statistics"),)
    columns: list[Statistics]


class FeatureNames(Message, frozen=True):
    """Where sums are masked: the names of categories, and the lengths of vectors, without any figure."""

    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("columns", "category names"),)
    columns: list[Statistics]
    key: MaskKey | None = None  # for masks; None: the client has no secret to vouch for it


class SumStatistics(Message, frozen=True):
    """Counts and sums over the block's categories and numbers, as summands (tables/statistics.py). → Masked"""

    stage: ClassVar[Stage] = "summed statistics"
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("columns", "category names"),)
    job: str
    part: int
    columns: list[Statistics]  # agreed categories and lengths; the second time also means
    peers: list[MaskKey]  # keys of all the block's parts
    is_second: bool = False  # moments about the means


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

    categories: list[str]
    has_missing: bool
    has_other: bool


class IdEncoder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """One 0/1 column per id, then one for NULL where asked; an id that no training row had is all zeros.

    Which column is whose is known to the owner alone, or, where a block has several parts, by tokens.
    """

    count: int
    has_missing: bool
    tokens: RowNumbers | None = None
    salt: str = ""  # of the key that made the tokens
    check: bytes = b""


Encoder = NumberEncoder | CategoryEncoder | IdEncoder


class EncodeFeatures(Message, frozen=True):
    """Encode the part's features like this, as all clients of the block do. → Encoded"""

    stage: ClassVar[Stage] = "encode"
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("encoders", "encoders"),)
    job: str
    part: int
    encoders: list[Encoder]


class Encoded(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = ()
    width: int


class RevealFeatures(Message, frozen=True):
    """Send the encoded features of all rows: the centralised baseline only. → RevealedFeatures"""

    stage: ClassVar[Stage] = "pool"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    part: int
    as_codes: bool = False  # texts as codes of their categories, not as columns of zeros and ones


class RevealedFeatures(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("train", "features", is_per_row=True),
        FieldDisclosure("test", "features", is_per_row=True),
    )
    train: Array
    test: Array
    train_codes: tuple[Codes, ...] = ()
    test_codes: tuple[Codes, ...] = ()
    row_width: int = 0  # columns that a row stands for, where texts come as codes
