"""Columns of any system: the kind of an Arrow type, and a raw column as NumPy.

In: a column as its source gave it. Out: its ColumnInfo, whose kind is the same whichever system the column lives in;
numbers as an (n, k) array of float64 with NaN for missing (k is 1, or the size of a vector); strings as the distinct
ones and one code per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Codes, RowNumbers, floats
from tablepuppet.errors import SourceError
from tablepuppet.protocol.columns import ColumnInfo, Kind
from tablepuppet.threads import over_rows

T = TypeVar("T", bound=np.generic)

_SCALARS: Final[tuple[tuple[Callable[[pa.DataType], bool], Kind], ...]] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "integer"),
    (pa.types.is_floating, "float"),
    (pa.types.is_decimal, "decimal"),
    (pa.types.is_date, "date"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_string_view, "string"),
    (lambda kind: isinstance(kind, pa.UuidType), "uuid"),
)
# Types that reach Arrow as something less: text, and decimals of 38 digits.
_BY_NAME: Final[dict[str, Kind]] = {"UUID": "uuid", "HUGEINT": "integer", "UHUGEINT": "integer"}
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view, pa.types.is_large_list_view)


def column_info(name: str, kind: pa.DataType, detail: str | None = None, size: int | None = None) -> ColumnInfo:
    """A column's name and kind.

    `detail` is the owner's own name for the type; `size` the common length of a list of
    floats, where its owner found one.

    >>> column_info("price", pa.decimal128(10, 2), "DECIMAL(10,2)").kind
    'decimal'
    """
    shown = str(kind) if detail is None else detail
    if is_float_list(kind) and size is not None:
        return ColumnInfo(name, "vector", shown, size)
    if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
        return ColumnInfo(name, "vector", shown, kind.list_size)
    return ColumnInfo(name, _BY_NAME.get(shown) or _scalar_kind(kind), shown)


def is_float_list(kind: pa.DataType) -> bool:
    """A list of floats of no fixed size: a vector if all its rows turn out to have one length."""
    return any(is_list(kind) for is_list in _LISTS) and bool(pa.types.is_floating(kind.value_type))


def _scalar_kind(kind: pa.DataType) -> Kind:
    if pa.types.is_dictionary(kind):
        return _scalar_kind(kind.value_type)
    return next((name for is_kind, name in _SCALARS if is_kind(kind)), "other")


NUMBER_KINDS: Final[frozenset[Kind]] = frozenset(
    {"integer", "float", "decimal", "boolean", "date", "timestamp", "vector"}
)
STRING_KINDS: Final[frozenset[Kind]] = frozenset({"string", "uuid"})
_DTYPES: Final = {
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
}
_PIECE: Final = 1 << 16  # row numbers that are looked at together
_SHARE: Final = 4 * _PIECE  # of a thread, at a time
_MANY: Final = 1 << 16  # numbers that are worth a table of all numbers among them
_CLOSE: Final = 8  # numbers in such a table for each that is there, at the most
_PER_DAY: Final = {"s": 86_400.0, "ms": 86_400e3, "us": 86_400e6, "ns": 86_400e9}


def numbers(column: pa.ChunkedArray, info: ColumnInfo) -> Array:
    """Numbers, booleans (0, 1), dates and timestamps (days since 1970-01-01, UTC), vectors: (n, k) float64.

    Read-only where nothing had to be copied.
    """
    kind = column.type
    if info.kind == "vector":
        return _vectors(column, info)
    if pa.types.is_timestamp(kind):
        return _floats(pc.cast(column, pa.int64())) / _PER_DAY[kind.unit]
    if pa.types.is_date64(kind):
        return _floats(pc.cast(column, pa.int64())) / _PER_DAY["ms"]
    if pa.types.is_date32(kind):
        return _floats(pc.cast(column, pa.int32()))
    return _floats(column)


def strings(column: pa.ChunkedArray) -> tuple[pa.Array, Codes]:
    """The distinct strings of a column, and the position of each row's among them (−1: NULL)."""
    if not len(column):
        return pa.array([], pa.large_string()), np.empty(0, np.int32)
    if pa.types.is_dictionary(column.type):
        return _coded_strings(in_one_piece(column))
    encoded = in_one_piece(pc.cast(column, pa.large_string()).dictionary_encode())
    codes = numpy_of(encoded.indices, missing=-1)
    return encoded.dictionary, codes.astype(np.int32, copy=False)


def numbers_and_absent(column: pa.ChunkedArray, info: ColumnInfo) -> Array:
    """The numbers, and behind them, where row −1 finds it, what a row is that a LEFT JOIN did not find, if anything."""
    found = numbers(column, info)
    return found if info.absent is None else np.concatenate([found, np.array(info.absent, np.float64).reshape(1, -1)])


def strings_and_absent(column: pa.ChunkedArray, info: ColumnInfo) -> tuple[pa.Array, Codes]:
    """The same of strings: the code behind those of all rows is that of a row that was not found."""
    distinct, codes = strings(column)
    if info.absent is None:
        return distinct, codes
    text = pa.array([info.absent], pa.large_string())
    place = pc.index(distinct, text[0]).as_py()
    if place < 0:
        distinct, place = pa.concat_arrays([distinct, text]), len(distinct)
    return distinct, np.append(codes, np.int32(place))


def absent_value(column: pa.ChunkedArray, info: ColumnInfo) -> float | str | list[float] | None:
    """What an expression over NULLs gives, of a column with that one row; None: NULL."""
    if info.kind in STRING_KINDS:
        return next(iter(strings(column)[0].to_pylist()), None)
    if info.kind not in NUMBER_KINDS:
        return None
    [found] = numbers(column, info).tolist()
    if any(map(math.isinf, found)):
        raise SourceError(f"column {info.name} is infinite where LEFT JOIN finds no row; give it another value there")
    if any(map(math.isnan, found)):
        return None
    return list(found) if info.kind == "vector" else float(found[0])


def _coded_strings(encoded: pa.DictionaryArray) -> tuple[pa.Array, Codes]:
    """The same of texts that are codes already; a dictionary may hold names that no row has, or one name twice."""
    distinct = in_one_piece(pc.cast(pa.chunked_array([encoded.dictionary]), pa.large_string()).dictionary_encode())
    names, place = distinct.dictionary, np.append(numpy_of(distinct.indices, missing=-1), -1).astype(np.int32)
    codes = numpy_of(encoded.indices, missing=-1)
    out = np.empty(len(codes), np.int32)
    occurs = np.zeros(len(names) + 1, np.bool_)  # the last is for NULL
    for i in range(0, len(codes), _PIECE):
        here = np.take(place, codes[i : i + _PIECE], out=out[i : i + _PIECE], mode="wrap")
        occurs[here] = True
    if occurs[:-1].all():
        return names, out
    number = np.append(np.cumsum(occurs[:-1]) - 1, -1).astype(np.int32)
    return names.take(arrow(np.flatnonzero(occurs[:-1]))), number[out]


@dataclass(frozen=True, slots=True, eq=False)
class CloseNumbers:
    """Many whole numbers that lie close together, as ids and classes do: tables of all numbers among them are made and
    looked up in a fraction of the time that hashing takes."""

    values: NDArray[np.integer[Any]]
    lowest: int
    size: int  # of a table of all numbers from the lowest to the highest

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> CloseNumbers | None:
        """None: they are few, others, far apart, or some are missing."""
        if len(column) < _MANY or column.null_count or not pa.types.is_integer(column.type):
            return None
        bounds = pc.min_max(column)
        lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
        if highest >= 2**63 or highest - lowest >= _CLOSE * len(column):
            return None
        return cls(numpy_of(column), lowest, highest - lowest + 1)

    def different(self) -> NDArray[np.int64]:
        """Which of them occur, ascending, less the lowest."""
        occurs = np.zeros(self.size, np.bool_)

        def mark(rows: slice) -> None:
            for places in self._places(rows):
                occurs[places] = True

        over_rows(mark, len(self.values), _SHARE)
        return np.flatnonzero(occurs)

    def look_up(self, table: NDArray[T]) -> NDArray[T]:
        """What a table of all numbers from the lowest on says of each."""
        out = np.empty(len(self.values), table.dtype)

        def find(rows: slice) -> None:
            start = rows.start
            for places in self._places(rows):
                np.take(table, places, out=out[start : start + len(places)], mode="clip")
                start += len(places)

        over_rows(find, len(self.values), _SHARE)
        return out

    def _places(self, rows: slice) -> Iterator[NDArray[np.int64]]:
        for start in range(rows.start, rows.stop, _PIECE):
            here = self.values[start : min(start + _PIECE, rows.stop)].astype(np.int64)
            here -= self.lowest
            yield here


def decode(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column that was kept in less room as others expect it: texts instead of codes, decimals of 128 bits, the only
    ones that Arrow counts and compares."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return pc.cast(column, kind.value_type)
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return pc.cast(column, pa.decimal128(kind.precision, kind.scale))
    return column


def as_read(table: pa.Table, columns: Sequence[int]) -> pa.Table:
    """Some columns of a scan, for others than their owner."""
    names = [f"c{c}" for c in columns]
    return pa.table([decode(table.column(name)) for name in names], names)


def all_in_order(rows: RowNumbers | None, size: int) -> bool:
    """Whether row numbers (None: just that) name each of `size` rows once, in order."""
    if rows is None:
        return True
    if len(rows) != size:
        return False
    pieces = range(0, size, _PIECE)
    return all(bool((rows[i : i + _PIECE] == np.arange(i, min(i + _PIECE, size))).all()) for i in pieces)


def arrow(values: NDArray[Any]) -> pa.Array:
    """A NumPy array of numbers as Arrow, without a copy (and without pandas, which `pa.array` would load).

    >>> arrow(np.arange(9) % 2 == 0).to_pylist()[-3:]
    [True, False, True]
    """
    held = np.ascontiguousarray(values)
    kept = np.packbits(held, bitorder="little") if held.dtype == np.bool_ else held  # Arrow keeps eight in a byte
    return pa.Array.from_buffers(pa.from_numpy_dtype(held.dtype), len(held), [None, pa.py_buffer(kept)])


def in_one_piece(column: pa.ChunkedArray) -> Any:
    """A column as one array: the chunk, where there is but one, which Arrow would copy."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def numpy_of(column: pa.Array | pa.ChunkedArray, missing: float = 0) -> NDArray[Any]:
    """A column of numbers as NumPy, `missing` where it is NULL; read-only where nothing had to be copied.

    `to_numpy` would load pandas, a third of a second and 40 MB, for nothing that is used here.
    """
    array = in_one_piece(column) if isinstance(column, pa.ChunkedArray) else column
    return _filled(array, _held(array).copy(), missing) if array.null_count else _held(array)


def _held(array: pa.Array) -> NDArray[Any]:
    """The numbers of an array, whatever lies where it is NULL."""
    kind = _DTYPES[str(array.type)]
    held = array.buffers()[1] if len(array) else None
    return np.zeros(len(array), kind) if held is None else np.frombuffer(held, kind)[array.offset :][: len(array)]


def _filled(array: pa.Array, values: NDArray[T], missing: float) -> NDArray[T]:
    """By places: several times faster than by a mask without a pattern."""
    values[np.flatnonzero(is_valid(array) == 0)] = missing
    return values


def is_valid(array: pa.Array) -> NDArray[np.uint8]:
    """Which values are there: 1, and 0 where they are NULL."""
    bits = array.buffers()[0]
    if bits is None:
        return np.ones(len(array), np.uint8)
    first, inside = divmod(array.offset, 8)
    found = np.unpackbits(np.frombuffer(bits, np.uint8)[first:], count=inside + len(array), bitorder="little")
    return found[inside:]


def missing_rows(values: Array) -> NDArray[np.bool_]:
    """Which rows (n, k) have a NaN; of one column at once, for NumPy goes over rows of one number slowly."""
    found: NDArray[np.bool_] = np.isnan(values)
    return np.asarray(found[:, 0] if values.shape[1] == 1 else found.any(axis=1))


def holds_of(predicate: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Where a predicate is true; NULL is not."""
    return np.asarray(pc.fill_null(pc.cast(predicate, pa.bool_()), False).to_numpy(), np.bool_)


def arrow_texts(values: Sequence[str]) -> pa.Array:
    """Strings as Arrow; without pandas, too."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return pa.LargeStringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def _floats(column: pa.ChunkedArray) -> Array:
    if str(column.type) in _DTYPES:  # without Arrow's memory, which it asks for anew
        array = in_one_piece(column)
        has_gaps, values = bool(column.null_count), _held(array)
        return (_filled(array, values.astype(np.float64), np.nan) if has_gaps else floats(values)).reshape(-1, 1)
    # safe=False: an integer past 2⁵³ becomes the nearest float64.
    cast = pc.cast(column, pa.float64(), safe=False)
    return numpy_of(cast, missing=np.nan).reshape(-1, 1)


def _vectors(column: pa.ChunkedArray, info: ColumnInfo) -> Array:
    """One row per vector. A vector that is NULL, or has an entry that is NULL or NaN, is missing as a whole."""
    if not pc.all(pc.equal(pc.list_value_length(column), info.size), min_count=0).as_py():  # NULLs are skipped
        raise SourceError(
            f"column {info.name}: vectors of {info.size} entries are expected, and some row has another length; "
            "give every row a vector of that length, or NULL"
        )
    out = np.full((len(column), max(1, info.size)), np.nan)
    if info.size == 0 or column.null_count == len(column):  # without a single vector, nobody knows their size
        return out
    present = np.asarray(pc.is_valid(column).to_numpy(), np.bool_)
    flat = pc.cast(pc.list_flatten(column), pa.float64())
    out[present] = np.asarray(flat.to_numpy(), np.float64).reshape(-1, info.size)
    out[np.isnan(out).any(axis=1)] = np.nan
    return out
