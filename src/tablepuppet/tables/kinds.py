"""Kinds: what an Arrow type means to a federation.

In: the type of a column as its owner's system gives it. Out: ColumnInfo (messages/), whose
kind is the same whichever system the column lives in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from tablepuppet.protocol import ColumnInfo, Kind

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
