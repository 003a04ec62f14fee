"""Tables in memory: Arrow tables, batches and datasets, pandas and polars DataFrames.

In: one of those. Out: a Source over the same memory, wherever Arrow can share it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tablepuppet.errors import SourceError
from tablepuppet.sources import duckdb_source
from tablepuppet.sources.source import Source

_EXACT = 2**53  # floats below it are exact integers


def open_memory(value: Any, name: str) -> Source:
    """Opens an Arrow table, batch or dataset, or a DataFrame."""
    datasets = sys.modules.get("pyarrow.dataset")  # of which there is none before it is imported
    if datasets is not None and isinstance(value, datasets.Dataset):
        check_names(value.schema.names, name)
        if all(_duckdb_type(field.type) == field.type for field in value.schema):
            return duckdb_source.from_arrow(name, value)
        value = value.to_table()
    table = _to_arrow(value, name)
    check_names(table.column_names, name)
    for i, field in enumerate(table.schema):  # types that DuckDB does not take from Arrow, as the nearest that it does
        kind = _duckdb_type(field.type)
        if kind != field.type:
            table = table.set_column(i, field.name, table.column(i).cast(kind))
    return duckdb_source.from_arrow(name, table)


def _to_arrow(value: object, name: str) -> pa.Table:
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return _from_pandas(value, name)
    if hasattr(value, "__arrow_c_stream__"):  # polars, and any other library that speaks Arrow
        with suppress(pa.ArrowInvalid):  # of a column, which is no table
            return pa.table(value)
    hint = "; call .collect() on it first" if hasattr(value, "collect") else ""
    hint = "; call .to_frame() on it first" if hasattr(value, "to_frame") else hint
    module, kind = type(value).__module__, type(value).__name__
    found = f"a value of type {kind}" if module == "builtins" else f"a {module}.{kind}"
    raise SourceError(
        f"table {name}: {found} is not a source{hint}. Give a path, "
        "a pyarrow.Table, a pandas or polars DataFrame, or tp.source(url, table=…)"
    )


def check_names(names: Sequence[str], name: str) -> None:
    """Refuses a table without columns, or with two that SQL cannot distinguish."""
    if not names:
        raise SourceError(f"table {name} has no columns; give a table with at least one")
    seen: dict[str, str] = {}
    for column in names:
        if not isinstance(column, str) or not column:
            raise SourceError(f"table {name} has a column without a name; rename it")
        if column.lower() in seen:
            raise SourceError(
                f"table {name} has columns {seen[column.lower()]!r} and {column!r}, which SQL does not tell apart; "
                "rename one"
            )
        seen[column.lower()] = column


def _from_pandas(frame: Any, name: str) -> pa.Table:
    """The columns of a DataFrame; a named index is a column too, as in `DataFrame.to_sql`."""
    index = [level for level in frame.index.names if level is not None]
    check_names([str(column) for column in [*index, *frame.columns]], name)
    frame = frame.reset_index(level=index) if index else frame
    arrays = []
    for column in frame.columns:
        try:
            array = pa.array(frame[column], from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # Arrow's own message quotes the value that it stumbled over.
            raise SourceError(
                f"table {name}: column {column!r} of the DataFrame mixes types or holds objects that are not "
                "numbers, strings, dates or arrays; convert it with .astype(...) first"
            ) from None
        arrays.append(_integers(array))
    return pa.table(arrays, names=[str(column) for column in frame.columns])


def _integers(array: pa.Array) -> pa.Array:
    """Whole numbers that pandas keeps as floats, because some are missing, as integers: they may be keys."""
    if not pa.types.is_float64(array.type) or not 0 < array.null_count < len(array):
        return array
    whole = array.cast(pa.int64(), safe=False)
    bounds = pc.min_max(pc.abs(array))["max"].as_py()
    is_whole = bounds < _EXACT and pc.all(pc.equal(whole.cast(pa.float64()), array)).as_py()
    return whole if is_whole else array


def _duckdb_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal256(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else pa.float64()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_duckdb_type(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        value = _duckdb_type(kind.value_type)
        return kind if value == kind.value_type else pa.large_list(value)
    return kind
