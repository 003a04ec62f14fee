"""Columns of any system: the kind of an Arrow type, and a raw column as NumPy.

In: a column as its source gave it. Out: its ColumnInfo, whose kind does not depend on the system. Numbers become an
(n, k) array of float64 with NaN for missing (k is 1, or the size of a vector). Strings become the distinct ones and one
code per row.

Long columns are built from batches as they are read. A database reclaims a batch's memory when the last of its columns
is released. Columns of a long table are therefore copied into memory of their own, a million rows at a time. Texts that
repeat become codes on the way, so that nobody hashes them again.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Codes, RowNumbers
from tablepuppet.errors import SourceError
from tablepuppet.protocol.columns import ColumnInfo, Kind

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
    if is_vector(kind) and not is_float_list(kind):
        return ColumnInfo(name, "vector", shown, kind.list_size)
    return ColumnInfo(name, _BY_NAME.get(shown) or _scalar_kind(kind), shown)


def is_float_list(kind: pa.DataType) -> bool:
    """A list of floats of no fixed size: a vector if all its rows turn out to have one length."""
    return any(is_list(kind) for is_list in _LISTS) and bool(pa.types.is_floating(kind.value_type))


def is_vector(kind: pa.DataType) -> bool:
    """Floats in a list, of a fixed size or of none."""
    return is_float_list(kind) or (pa.types.is_fixed_size_list(kind) and bool(pa.types.is_floating(kind.value_type)))


def _scalar_kind(kind: pa.DataType) -> Kind:
    if pa.types.is_dictionary(kind):
        return _scalar_kind(kind.value_type)
    return next((name for is_kind, name in _SCALARS if is_kind(kind)), "other")


NUMBER_KINDS: Final[frozenset[Kind]] = frozenset(
    {"integer", "float", "decimal", "boolean", "date", "timestamp", "vector"}
)
STRING_KINDS: Final[frozenset[Kind]] = frozenset({"string", "uuid"})
MIN_LONG_ROWS: Final = 1 << 20  # that are copied at once; fewer stay as they come
_REPEATS: Final = 8  # times, from which codes are the shorter way
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
        return arrow_texts([]), np.empty(0, np.int32)
    if pa.types.is_dictionary(column.type):
        return _coded_strings(in_one_piece(column))
    encoded = in_one_piece(pc.cast(column, pa.large_string()).dictionary_encode())
    codes = numpy_of(encoded.indices, missing=-1)
    return encoded.dictionary, codes.astype(np.int32, copy=False)


def numbers_and_absent(column: pa.ChunkedArray, info: ColumnInfo) -> Array:
    """The numbers, followed by the value of a row that a LEFT JOIN did not find, if any: index −1 finds it."""
    found = numbers(column, info)
    if info.absent is None:
        return found
    absent = np.full(found.shape[1], np.nan) if info.absent is True else np.array(info.absent, np.float64)
    return np.concatenate([found, absent.reshape(1, -1)])


def strings_and_absent(column: pa.ChunkedArray, info: ColumnInfo) -> tuple[pa.Array, Codes]:
    """The same of strings: the code behind those of all rows is that of a row that was not found."""
    distinct, codes = strings(column)
    if info.absent is None:
        return distinct, codes
    if info.absent is True:
        return distinct, np.append(codes, np.int32(-1))
    text = arrow_texts([str(info.absent)])
    place = pc.index(distinct, text[0]).as_py()
    if place < 0:
        distinct, place = pa.concat_arrays([distinct, text]), len(distinct)
    return distinct, np.append(codes, np.int32(place))


def absent_value(column: pa.ChunkedArray, info: ColumnInfo) -> float | str | list[float] | None:
    """The value of an expression over NULLs, from a column with that one row; None: NULL."""
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
    used = encoded.indices.dictionary_encode()
    names = pc.cast(encoded.dictionary, pa.large_string()).take(used.dictionary).dictionary_encode()
    place = np.append(numpy_of(names.indices, missing=-1), -1).astype(np.int32)
    return names.dictionary, place[numpy_of(used.indices, missing=-1)]


def decode(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A compactly stored column as others expect it: texts instead of codes, and decimals of 128 bits, the only ones
    that Arrow counts and compares."""
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


def in_one_piece(column: pa.ChunkedArray) -> Any:
    """A column as one array: the chunk, where there is but one, which Arrow would copy."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def numpy_of(column: pa.Array | pa.ChunkedArray, missing: float = 0) -> NDArray[Any]:
    """A column of numbers as NumPy, `missing` where it is NULL; read-only where nothing had to be copied.

    Arrow's own ways between Arrow, NumPy and lists load pandas: a third of a second and 40 MB that nothing here needs.
    """
    array = in_one_piece(column) if isinstance(column, pa.ChunkedArray) else column
    kind = np.dtype(array.type.to_pandas_dtype())
    held = np.frombuffer(array.buffers()[1] or b"", kind, array.offset + len(array))[array.offset :]
    if not array.null_count:
        return held
    values = held.copy()
    values[np.flatnonzero(holds_of(array.is_null()))] = missing
    return values


def arrow_of(values: NDArray[Any]) -> pa.Array:
    """Numbers as an Arrow array, without a copy and without pandas."""
    held = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(held.dtype), len(held), [None, pa.py_buffer(held)])


def arrow_texts(values: Sequence[str]) -> pa.Array:
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return pa.LargeStringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def missing_rows(values: Array) -> NDArray[np.bool_]:
    """Which rows (n, k) have a NaN; of one column at once, for NumPy goes over rows of one number slowly."""
    found: NDArray[np.bool_] = np.isnan(values)
    return np.asarray(found[:, 0] if values.shape[1] == 1 else found.any(axis=1))


def holds_of(predicate: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Where a predicate is true; NULL is not."""
    return numpy_of(pc.cast(pc.cast(predicate, pa.bool_()), pa.uint8())).view(np.bool_)


def _floats(column: pa.ChunkedArray) -> Array:
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
    present = holds_of(pc.is_valid(column))
    flat = pc.cast(pc.list_flatten(column), pa.float64())
    out[present] = numpy_of(flat, missing=np.nan).reshape(-1, info.size)
    out[np.isnan(out).any(axis=1)] = np.nan
    return out


def put_together(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The rows of all batches; many rows are copied into memory of their own."""
    whole, waiting, rows = list[list[pa.ChunkedArray]](), list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        if rows >= MIN_LONG_ROWS:
            whole.append(_own_columns(waiting, schema))
            waiting, rows = [], 0
    if not whole:
        return pa.Table.from_batches(waiting, schema)
    whole += [_own_columns(waiting, schema)] if rows else []
    return pa.table([_join(list(pieces)) for pieces in zip(*whole, strict=True)], schema.names)


def _own_columns(batches: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.ChunkedArray]:
    columns = pa.Table.from_batches(batches, schema).combine_chunks().columns
    for number, texts in enumerate(columns):
        if pa.types.is_string(texts.type) and pc.count_distinct(texts).as_py() * _REPEATS <= len(texts):
            columns[number] = texts.dictionary_encode()
    return list(columns)


def _join(pieces: list[pa.ChunkedArray]) -> pa.ChunkedArray:
    kinds = {piece.type for piece in pieces}
    if len(kinds) > 1:
        pieces = [decode(piece) for piece in pieces]
    chunks = [chunk for piece in pieces for chunk in piece.chunks]
    column = pa.chunked_array(chunks)
    return column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column


def in_another_order(columns: list[pa.ChunkedArray], order: RowNumbers) -> Iterator[pa.ChunkedArray]:
    """Each column with its rows in this order; the list gives them up one by one."""
    rows = arrow_of(order)
    while columns:
        yield columns.pop(0).take(rows)
