"""Messages between server and clients about trees: checks and objections.

    server → client   trees grown from splits that the server knows, with Σ(g, h) of every (row, cell) pair
    client → server   of each node where it has a split that comes first: that split; of new splits a bit per row

A *cell* is a lowest node whose sums the client needs. A *key* is a binary column of a block: x > border, or membership
in a set of categories. Keys are numbered as they become known, at the server and at the client alike.
"""

from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import TransportError

Bits = NDArray[np.uint8]  # packed, eight rows a byte
Codes = NDArray[np.uint8]
Cells = NDArray[np.int16]
Sums = NDArray[np.int64]
NUMBER, ONE_HOT, SORTED, KNOWN_ONE_HOT, SPARSE, RARE = 0, 1, 2, 3, 4, 5  # how the bins of a column may be parted
SETS = (SORTED, SPARSE, RARE)  # sorted categories; the last two are revealed whole
FEW = 4  # categories up to which each is tried against the rest
_WIDTHS = (1, 2, 4, 8)
WHOLE = 0  # the border of a key that stands for a whole column


class NumberBins(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Borders of a number's bins, ascending: code c holds borders[c−2] < x ≤ borders[c−1]."""

    borders: Array

    @property
    def size(self) -> int:
        """Codes, that of a missing number among them."""
        return len(self.borders) + 2

    @property
    def kind(self) -> int:
        return NUMBER

    def codes(self, values: Array) -> Codes:
        places = np.searchsorted(self.borders, values, side="left")
        return np.where(np.isnan(values), 0, places + 1).astype(np.uint8)


class CategoryBins(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Categories in order: code c is categories[c−1]; with `has_other`, the code after the last is any other."""

    categories: list[str]
    has_other: bool = False
    sparsity: Annotated[int, Meta(ge=0, le=2)] = 0  # 1: there are many, with few joined rows each; 2: with very few
    further_of: int = -1  # the column whose other categories these are; −1: the bins lie at their own column's place

    @property
    def size(self) -> int:
        return len(self.categories) + 1 + self.has_other

    @property
    def kind(self) -> int:
        if len(self.categories) + self.has_other <= FEW and self.further_of < 0:
            return ONE_HOT
        return SETS[self.sparsity]


Bins = NumberBins | CategoryBins


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rule of a key: rows with a code above `border` go right; or those whose code is none of `left`."""

    column: int
    border: int = -1  # of numbers; the last code: only missing values go right; WHOLE: all that the column has
    left: tuple[int, ...] = ()  # codes of categories


class Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whole numbers as they travel: the lowest bytes of all of them, then the next ones, compressed by zstd."""

    size: int
    width: int  # bytes of a number
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Packed":
        """
        >>> Packed.of(np.array([5, -3, 900])).numbers(most=3).tolist()
        [5, -3, 900]
        """
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        width = next(w for w in _WIDTHS if -(1 << 8 * w - 1) <= low and high < 1 << 8 * w - 1)
        planes = values.astype(f"<i{width}").view(np.uint8).reshape(len(values), width).T
        data = pa.compress(np.ascontiguousarray(planes).reshape(-1), "zstd", asbytes=True)
        return cls(len(values), width, np.frombuffer(data, np.uint8))

    def numbers(self, most: int) -> NDArray[np.int64]:
        """The numbers, of which there are `most` at the most."""
        if not 0 <= self.size <= most or self.width not in _WIDTHS:
            raise TransportError("packed numbers do not follow the protocol")
        try:
            raw = pa.decompress(self.data.tobytes(), self.size * self.width, "zstd", asbytes=True)
        except (pa.ArrowException, OSError):
            raise TransportError("packed numbers do not follow the protocol") from None
        planes = np.frombuffer(raw, np.uint8).reshape(self.width, self.size)
        return np.ascontiguousarray(planes.T).view(f"<i{self.width}").ravel().astype(np.int64)


class Pairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Σg and Σh of every pair of a row and a cell that occurs, in order of rows, then cells."""

    counts: Packed  # of each row, the one that does not exist among them: its pairs
    cells: Packed
    g: Packed
    h: Packed


class Outline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes of one tree, children after their parents, and the splits that they have so far."""

    unit: tuple[float, float]  # of g and of h
    left: NDArray[np.int32]  # the number of a node's left child; −1: a cell. The right child follows the left one
    asks: NDArray[np.bool_]  # whether a better split is wanted
    gain: NDArray[np.float64]
    block: NDArray[np.int32]  # whose split it is; −1: none
    key: NDArray[np.int32]  # where it is the client's own; else −1
    to_left: NDArray[np.bool_]  # whether missing values go left
    bounds: Array  # (nodes, 2): bounds of a node's values; (0, 2): nothing is bound
    least: Array  # (nodes, 3): Σh that a side must have, that of a sorted category, and of a rare one
    pairs: Pairs | None = None  # sums of the client's rows in cells; cells are numbered as they come


class Union(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A set of categories that the server made of known sets. It has the categories whose membership in the column's
    keys is one of `rows` (a row each, a bit per key of the column, packed)."""

    column: int
    keys: int  # of the column, that clients revealed
    rows: NDArray[np.uint8]


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    columns: NDArray[np.bool_]  # that may be used
    unions: list[Union]  # further keys, made without the client
    trees: list[Outline]


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A key that becomes known: of every row, held-out ones included, whether it goes right."""

    column: int
    is_missing: bool  # the key is "has no value", of a column of numbers
    right: Bits
    keys: ClassVar[int] = 1  # how many become known
    bits_of_a_row: ClassVar[int] = 1


class NewColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A column of which all becomes known: the code of every row, held-out ones included.

    Keys of numbers are numbered by their borders, after the key for missing values, even if none is missing. Keys of
    few categories are numbered by their codes. Sets of sorted categories have no number before they are used.
    """

    column: int
    kind: int
    size: int  # codes; a category that nobody knows has one more, all of whose digits are 1
    has_missing: bool
    digits: Bits  # (bits of a row, rows / 8), the lowest first; code 0 has no value

    @classmethod
    def of(cls, column: int, kind: int, size: int, has_missing: bool, codes: Codes) -> "NewColumn":
        digits = range(digits_of(kind, size))
        return cls(column, kind, size, has_missing, np.stack([np.packbits(codes >> d & 1) for d in digits]))

    @property
    def bits_of_a_row(self) -> int:
        return len(self.digits)

    @property
    def keys(self) -> int:
        """How many become known."""
        return {NUMBER: self.size - 1, ONE_HOT: self.size}.get(self.kind, 0)

    def codes(self, rows: int) -> Codes:
        """The codes of so many rows."""
        found = np.zeros(rows, np.uint8)
        for d, digit in enumerate(self.digits):
            found |= np.unpackbits(digit, count=rows) << np.uint8(d)
        return found


def digits_of(kind: int, size: int) -> int:
    """Bits that distinguish a column's codes, and one more code for an unknown category."""
    return (size - 1 if kind == NUMBER else size).bit_length()


class Objections(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Splits that come before those of an outline."""

    keys: list[NewKey | NewColumn]
    tree: NDArray[np.int32]
    node: NDArray[np.int32]
    gain: NDArray[np.float64]  # 0: the node's split is not one of the client's candidates, and it has none
    key: NDArray[np.int32]
    to_left: NDArray[np.bool_]
    is_void: NDArray[np.bool_]  # the split in the outline is not one of the client's candidates
    complete: list[int] = []  # columns with nothing more to reveal, besides those that were revealed whole

    @property
    def bits_of_a_row(self) -> int:
        return sum(key.bits_of_a_row for key in self.keys)
