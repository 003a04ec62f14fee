"""Which types go together."""

from __future__ import annotations

import pytest

from tablepuppet.protocol.columns import ColumnInfo, Kind
from tablepuppet.sql.bound import key_type, merged_column, union_column


def column(kind: Kind, detail: str = "", size: int = 0) -> ColumnInfo:
    return ColumnInfo("x", kind, detail, size)


@pytest.mark.parametrize(
    ("kind", "detail", "expected"),
    [
        ("integer", "int32", "integer"),
        ("decimal", "DECIMAL(18,0)", "integer"),
        ("decimal", "decimal128(38, 0)", "integer"),
        ("decimal", "numeric(10)", "integer"),
        ("decimal", "numeric(10, 2)", "decimal of scale 2"),
        ("decimal", "numeric", None),  # any scale: it cannot be told
        ("string", "VARCHAR", "string"),
        ("uuid", "UUID", "uuid"),
        ("date", "date32[day]", "date"),
        ("timestamp", "timestamp[us]", "timestamp"),
        ("timestamp", "timestamp[us, tz=UTC]", "timestamp with time zone"),
        ("timestamp", "TIMESTAMP WITH TIME ZONE", "timestamp with time zone"),
        ("timestamp", "timestamptz", "timestamp with time zone"),
        ("boolean", "bool", "boolean"),
        ("float", "double", None),
        ("vector", "FLOAT[3]", None),
        ("other", "BLOB", None),
    ],
)
def test_keys_are_equal_only_within_one_key_type(kind: Kind, detail: str, expected: str | None) -> None:
    assert key_type(column(kind, detail)) == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (column("integer"), column("float"), "float"),
        (column("decimal"), column("boolean"), "float"),
        (column("date"), column("timestamp"), "timestamp"),
        (column("string"), column("uuid"), "string"),
        (column("vector", size=3), column("vector", size=3), "vector"),
        (column("vector", size=3), column("vector", size=4), None),
        (column("string"), column("integer"), None),
        (column("date"), column("integer"), None),
        (column("vector", size=3), column("float"), None),
    ],
)
def test_positions_of_a_union_go_together_if_they_are_encoded_alike(
    first: ColumnInfo, second: ColumnInfo, expected: Kind | None
) -> None:
    for pair in ([first, second], [second, first]):
        merged = union_column("x", pair)
        assert (None if merged is None else merged.kind) == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (column("integer", "int32"), column("integer", "int64"), "integer"),
        (column("integer", "int32"), column("decimal", "decimal128(9, 0)"), "integer"),
        (column("integer", "int32"), column("decimal", "decimal128(9, 2)"), "float"),
        (column("float"), column("integer"), "float"),
        (column("boolean"), column("integer"), None),
        (column("string"), column("uuid"), None),
        (column("timestamp", "timestamp[us]"), column("timestamp", "timestamp[us, tz=UTC]"), None),
        (column("vector", size=3), column("vector", size=4), None),
    ],
)
def test_the_clients_of_a_table_agree_on_a_type(first: ColumnInfo, second: ColumnInfo, expected: Kind | None) -> None:
    for pair in ({"a": first, "b": second}, {"a": second, "b": first}):
        merged = merged_column("x", pair)
        assert (None if merged is None else merged.kind) == expected
