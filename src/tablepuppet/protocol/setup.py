"""Before training: what a table looks like, its keys and its labels.

A *scan* is one client's reading of one table under one filter; row numbers are positions in it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.privacy.options import KeyMode, LabelPrivacy
from tablepuppet.protocol.base import FieldDisclosure, FieldDisclosures, Message, Stage

Kind = Literal["integer", "float", "decimal", "boolean", "date", "timestamp", "string", "uuid", "vector", "other"]

Merges = Literal["", "sums", "extremes"]  # nothing; what can be added up; that and each owner's least and greatest


class ColumnInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column's name and its kind; `detail` is the owner's own name for the type."""

    name: str
    kind: Kind
    detail: str = ""
    size: int = 0  # length of a vector
    nullable: bool = True  # as far as its owner's database says


class DescribeTable(Message, frozen=True):
    """Which columns does your table have, or a query over your tables give? → TableSchema"""

    stage: ClassVar[Stage] = "schema"
    discloses: ClassVar[FieldDisclosures] = ()
    table: str
    query: str | None = None  # a SELECT over tables of the client's, whose rows are taken as a table's


class TableSchema(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = ()
    columns: list[ColumnInfo]
    withholds: bool = False  # whether the owner keeps the parameters that are trained on its table
    merges: Merges = ""  # which figures of groups the owner lets be merged with those of other owners
    stamp: bytes = b""  # another one whenever the table may have changed; none: there is no telling


class OpenScan(Message, frozen=True):
    """Prepare to read these expressions of a table, for the rows that pass the filter. → ScanSchema

    Nothing is read yet: the answer gives the type of each expression.
    """

    stage: ClassVar[Stage] = "scan"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    scan: int
    table: str
    columns: list[str]
    filter: str | None = None
    query: str | None = None  # a SELECT over tables of the client's, of which `table` is one, read instead of it


class ScanSchema(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = ()
    columns: list[ColumnInfo]


class CountRows(Message, frozen=True):
    """How many rows does a scan have? → RowCount"""

    stage: ClassVar[Stage] = "count"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    scan: int


class RowCount(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("rows", "row count"),)
    rows: int


class RowOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Number the rows of a scan in an order that only the clients know (tables/row_ids.py)."""

    seed: int
    offset: int  # of the client's first row in the whole table
    is_shared: bool  # whether the table has other clients, so that the server must merge their orders


class SendKeys(Message, frozen=True):
    """Send the key columns of a scan, one row per row number. → Keys

    Unless they are plain, keys come as tokens (tables/tokens.py), a dictionary of 16 bytes each; of `dh` of 32, which
    are compared once all owners of a domain have blinded them. With an order, rows are numbered in it from now on and
    for the whole job.
    """

    stage: ClassVar[Stage] = "keys"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    scan: int
    columns: list[int]
    tokens: KeyMode = "hmac"
    domains: list[str] = msgspec.field(default_factory=list)  # one per column; columns that are compared share theirs
    order: RowOrder | None = None


class Keys(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("columns", "key tokens"),
        FieldDisclosure("order", "row order", is_per_row=True),
    )
    rows: int
    columns: pa.Table
    order: NDArray[np.int64] | None = None  # ascending, where the order is shared
    check: bytes = b""  # of hmac and dh tokens: the same from all clients that share a key


class BlindKeys(Message, frozen=True):
    """Blind keys that another owner of the same domain has blinded, in the order they come in. → BlindedKeys"""

    stage: ClassVar[Stage] = "blind"
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("points", "blinded keys"),)
    job: str
    domain: str
    points: NDArray[np.uint8]  # distinct keys × 32 (tables/tokens.py)


class BlindedKeys(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("points", "key tokens"),)
    points: NDArray[np.uint8]


class DescribeLabels(Message, frozen=True):
    """Which classes, or which kind of number, is the label? → LabelSummary"""

    stage: ClassVar[Stage] = "classes"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    scan: int
    column: int
    wants_classes: bool = True  # the distinct values, where they are numbers


class LabelSummary(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("classes", "label classes", if_empty=True),)
    kind: Literal["number", "boolean", "class"]
    classes: list[str | float] = msgspec.field(
        default_factory=list
    )  # distinct values; numbers only if there are at most 1000
    missing: int = 0


FoldBy = Literal["row", "group", "time"]


class Folds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the label's rows are shared out for cross-validation."""

    count: int
    by: FoldBy = "row"
    column: str | None = None  # of groups that stay together, or of a time: over the label's table


class SendLabels(Message, frozen=True):
    """Send one label per row, as a class number or a number, and each row's side of the split. → Labels"""

    stage: ClassVar[Stage] = "labels"
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("classes", "label classes"),)
    job: str
    scan: int
    column: int
    classes: list[str | float] | None  # None: a number
    offset: int  # this client's first row number in the label table
    seed: int
    test_fraction: float
    validation_fraction: float = 0.0
    test_column: int | None = None  # a predicate of the scan that says which are test rows, instead of a fraction
    validation_column: int | None = None
    privacy: LabelPrivacy | None = None  # what the owner does to its labels before they leave
    folds: int = 0  # that rows are shared out in, for cross-validation; 0: none
    fold_by: FoldBy = "row"
    fold_column: int | None = None  # of groups that stay together, or of a time
    is_alone: bool = False  # nobody else holds rows with labels: groups can be dealt out evenly


class Labels(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("values", "labels", is_per_row=True),
        FieldDisclosure("is_test", "split", is_per_row=True),
        FieldDisclosure("folds", "split", is_per_row=True),
    )
    values: Array  # class numbers or numbers; NaN where the label is missing
    is_test: NDArray[np.bool_]
    is_validation: NDArray[np.bool_] | None = None  # None: no row
    folds: NDArray[np.int16] | None = None  # which each row is in; by time, the first is never held out


class SendSides(Message, frozen=True):
    """Say which side of the split each row is on, as `SendLabels` draws it, and nothing of its label. → Sides"""

    stage: ClassVar[Stage] = "sides"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    scan: int
    offset: int  # this client's first row number in the label table
    seed: int
    test_fraction: float
    validation_fraction: float
    test_column: int | None = None
    validation_column: int | None = None


class Sides(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (
        FieldDisclosure("is_test", "split", is_per_row=True),
        FieldDisclosure("is_validation", "split", is_per_row=True),
    )
    is_test: NDArray[np.bool_]
    is_validation: NDArray[np.bool_] | None  # None: no row


class SendWeights(Message, frozen=True):
    """Send the sample weight of each row of the label table. → Weights"""

    stage: ClassVar[Stage] = "weights"
    discloses: ClassVar[FieldDisclosures] = ()
    job: str
    scan: int
    column: int


class Weights(Message, frozen=True):
    discloses: ClassVar[FieldDisclosures] = (FieldDisclosure("values", "weights", is_per_row=True),)
    values: Array  # NaN where it is missing
