"""Features: the statistics of a part's columns, and the encoders that all clients of a block share.

A *part* is one client's share of a block: some feature columns of a scan, for the rows that matter.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.privacy.masks import MaskKey
from tablepuppet.protocol.base import Message, Stage, Telling, Tells


class OpenPart(Message, frozen=True):
    """These columns of a scan are a share of block `part`; these of its rows take part.

    → FeatureStatistics | FeatureNames. Row −1 stands for a row that does not exist (an outer join found none): zeros.
    """

    stage: ClassVar[Stage] = "part"
    tells: ClassVar[Telling] = (Tells("multiplicity", "multiplicities", is_per_row=True, if_empty=True),)
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


class FeatureStatistics(Message, frozen=True):
    tells: ClassVar[Telling] = (Tells("columns", "statistics"),)
    columns: list[NumberStatistics | CategoryStatistics]


class FeatureNames(Message, frozen=True):
    """Where sums are masked: the names of categories, and the lengths of vectors, without any figure."""

    tells: ClassVar[Telling] = (Tells("columns", "category names"),)
    columns: list[NumberStatistics | CategoryStatistics]
    key: MaskKey | None = None  # for masks; None: the client has no secret to vouch for it


class SumStatistics(Message, frozen=True):
    """Counts and sums over the block's categories and numbers, as summands (tables/statistics.py). → Masked"""

    stage: ClassVar[Stage] = "summed statistics"
    tells: ClassVar[Telling] = (Tells("columns", "category names"),)
    job: str
    part: int
    columns: list[NumberStatistics | CategoryStatistics]  # agreed categories and lengths; the second time also means
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


Encoder = NumberEncoder | CategoryEncoder


class EncodeFeatures(Message, frozen=True):
    """Encode the part's features like this, as all clients of the block do. → Encoded"""

    stage: ClassVar[Stage] = "encode"
    tells: ClassVar[Telling] = (Tells("encoders", "encoders"),)
    job: str
    part: int
    encoders: list[Encoder]


class Encoded(Message, frozen=True):
    tells: ClassVar[Telling] = ()
    width: int


class RevealFeatures(Message, frozen=True):
    """Send the encoded features of all rows: the centralised baseline only. → RevealedFeatures"""

    stage: ClassVar[Stage] = "pool"
    tells: ClassVar[Telling] = ()
    job: str
    part: int


class RevealedFeatures(Message, frozen=True):
    tells: ClassVar[Telling] = (
        Tells("train", "features", is_per_row=True),
        Tells("test", "features", is_per_row=True),
    )
    train: Array
    test: Array
