"""Bounds of messages in both directions: sizes, ranges and shapes of fields, and earlier answers of one client.

In: a field's value and its name. Out: nothing, or a `WrongError` that names the field. Plain limits of numbers, texts
and lists are declared with the field (`msgspec.Meta`). This module relates fields to each other, to an array's
shape, or to earlier answers (`Known`).
"""

from collections import Counter
from collections.abc import Collection, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.protocol.contract import Contract

MOST_CLASSES = 10_000
LARGEST_COUNT = 2.0**62
LARGEST = 1e140  # of labels, weights, predictions and means
TOO_LARGE = "hold a number too large to be squared"
_NUMBER_KINDS = ("integer", "float", "decimal", "boolean", "date", "timestamp", "vector")


class WrongError(ValueError):
    """A field of an answer, and its fault."""

    def __init__(self, field: str, what: str, *, diverged: bool = False) -> None:
        self.field, self.what, self.diverged = field, what, diverged
        super().__init__(f"{field}: {what}")


@dataclass
class KnownScan:
    """A client's earlier answers about one scan."""

    columns: list[ColumnInfo] = field(default_factory=list)
    rows: int | None = None
    missing: dict[int, int] = field(default_factory=dict)  # labels, by column
    words: tuple[int, int] = (0, 0)  # of a group's sums and extremes, where groups are merged


@dataclass
class KnownPart:
    """The known sizes of one part: its rows, columns and parameters."""

    train: int | None = None
    test: int | None = None
    columns: list[ColumnInfo] = field(default_factory=list)  # of its features, where the scan described them
    width: int | None = None
    outputs: int = 1
    theta: int | None = None
    is_linear: bool = True
    wanted: int | None = None  # rows whose predictions the update under way asked for
    figures: dict[str, float] = field(default_factory=dict)  # of its start
    has_trail: bool = False  # whether its steps combine earlier ones
    vectors: int | None = None  # whose inner products come with predictions
    products: int | None = None  # how many numbers came with the first predictions of a part without a trail
    norm: float | None = None  # ‖θ‖² at the last evaluation
    summed: str = ""  # the sum under way
    shapes: list[tuple[int | None, ...]] | None = None  # of its arrays; None: a sum of the algorithm
    scales: dict[str, list[int]] = field(default_factory=dict)  # of masked sums, by the kind of sum
    kinds: Any = None  # of columns in bins
    bins: int | None = None  # of all columns, where the server chose them
    keys: list[int] = field(default_factory=list)  # of trees: the column of each
    splits: Counter[int] = field(default_factory=Counter)  # keys of each column
    has_missing: set[int] = field(default_factory=set)  # columns with a key for missing values

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of its parameters, once they are known."""
        if self.theta is None:
            return None
        return (self.theta, self.outputs) if self.is_linear else (self.theta,)


@dataclass
class Known:
    """One client's commitments within a job."""

    most_rows: int
    scans: dict[tuple[str, int], KnownScan] = field(default_factory=dict)
    parts: dict[tuple[str, int], KnownPart] = field(default_factory=dict)
    contracts: dict[str, Contract] = field(default_factory=dict)  # by job

    def scan(self, request: Any) -> KnownScan:
        return self.scans.setdefault((request.job, request.scan), KnownScan())

    def part(self, request: Any) -> KnownPart:
        return self.parts.setdefault((request.job, request.part), KnownPart())

    def close(self, job: str) -> None:
        self.scans = {key: scan for key, scan in self.scans.items() if key[0] != job}
        self.parts = {key: part for key, part in self.parts.items() if key[0] != job}
        self.contracts.pop(job, None)


def require(is_so: bool, name: str, what: str) -> None:
    if not is_so:
        raise WrongError(name, what)


def check_length(given: Sized, name: str, due: int) -> None:
    require(len(given) == due, name, f"are {len(given):,} where {due:,} are due")


def check_distinct(given: Collection[Any], name: str, what: str) -> None:
    require(len(set(given)) == len(given), name, f"name one {what} twice")


def check_ascending(values: Any, name: str) -> None:
    require(bool((values[1:] > values[:-1]).all()), name, "are not ascending")


def check_count(number: float, name: str, most: float = LARGEST_COUNT) -> None:
    """A count, or a sum of them: finite, not negative, not more than there can be."""
    require(bool(np.isfinite(number)) and number >= 0, name, "is not a count: it is negative or not finite")
    require(number <= most, name, f"is {number:,.0f}, more than there can be ({most:,.0f})")


def check_array(values: Any, name: str, shape: tuple[int | None, ...], *, kinds: str = "fiub") -> None:
    """An array of this shape (None: any length) and of numbers; `kinds`: NumPy's letters for their types."""
    if values.dtype.kind not in kinds:
        raise WrongError(name, f"has elements of type {values.dtype}")
    found = values.shape
    if found == shape or (len(found) == len(shape) and all(w in (None, f) for f, w in zip(found, shape, strict=True))):
        return
    wanted = " × ".join("any" if want is None else f"{want:,}" for want in shape)
    raise WrongError(name, f"has shape {'×'.join(map(str, values.shape)) or 'of a number'} where {wanted} is due")


def check_finite(values: Any, name: str, *, diverged: bool = False) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise WrongError(name, "holds numbers that are not finite", diverged=diverged)


def check_amounts(values: Any, name: str, shape: tuple[int | None, ...]) -> None:
    """An array of this shape, of finite numbers from 0 up."""
    check_array(values, name, shape)
    check_finite(values, name)
    require(not (values < 0).any(), name, "holds a negative number")


def is_number(info: ColumnInfo) -> bool:
    return info.kind in _NUMBER_KINDS


def check_range(number: float, name: str, least: float, most: float) -> None:
    if not least <= number <= most:
        raise WrongError(name, f"is {number:,}, outside {least:,} to {most:,}")


def check_row_numbers(rows: Any, name: str, count: int, *, least: int = -1) -> None:
    check_array(rows, name, (None,), kinds="i")
    if len(rows) and not (int(rows.min()) >= least and int(rows.max()) < count):
        raise WrongError(name, f"hold a row that there is not; there are {count:,}")
