"""Tables in memory: what DataFrames and Arrow hold, and what they must not."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
import uuid

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from tablepuppet.errors import SourceError
from tablepuppet.sources.source import open_source

MOMENT = datetime.datetime(2024, 1, 2, 3, 4, 5)
KINDS = [
    ("integer", pa.array([1], pa.int8())),
    ("integer", pa.array([1], pa.uint64())),
    ("float", pa.array([np.float16(1)], pa.float16())),
    ("float", pa.array([1], pa.float32())),
    ("float", pa.array([1], pa.float64())),
    ("decimal", pa.array([decimal.Decimal("1.25")], pa.decimal128(10, 2))),
    ("decimal", pa.array([decimal.Decimal("1.25")], pa.decimal256(30, 2))),
    ("float", pa.array([decimal.Decimal("1.25")], pa.decimal256(60, 2))),
    ("boolean", pa.array([True])),
    ("date", pa.array([MOMENT.date()], pa.date32())),
    ("date", pa.array([MOMENT.date()], pa.date64())),
    ("timestamp", pa.array([MOMENT], pa.timestamp("s"))),
    ("timestamp", pa.array([MOMENT], pa.timestamp("ns", "Europe/Paris"))),
    ("string", pa.array(["x"], pa.string())),
    ("string", pa.array(["x"], pa.large_string())),
    ("string", pa.array(["x"], pa.string_view())),
    ("string", pa.array(["x"]).dictionary_encode()),
    ("integer", pa.array([1]).dictionary_encode()),
    ("uuid", pa.array([uuid.uuid4().bytes], pa.uuid())),
    ("vector", pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))),
    ("vector", pa.array([[1.0, 2.0]], pa.list_(pa.float16(), 2))),
    ("vector", pa.array([[1.0, 2.0]], pa.list_(pa.float64()))),
    ("vector", pa.array([[1.0, 2.0]], pa.large_list(pa.float16()))),
    ("other", pa.array([[1, 2]], pa.list_(pa.int64(), 2))),
    ("other", pa.array([MOMENT.time()], pa.time64("us"))),
    ("other", pa.array([b"x"], pa.binary())),
    ("other", pa.array([{"a": 1}])),
    ("other", pa.array([datetime.timedelta(1)], pa.duration("s"))),
]


@pytest.mark.parametrize(("kind", "array"), KINDS, ids=[f"{array.type}-{kind}" for kind, array in KINDS])
def test_every_arrow_type_has_a_kind_and_can_be_read(kind: str, array: pa.Array) -> None:
    for value in (pa.table({"x": array}), pads.dataset(pa.table({"x": array}))):
        opened = open_source(value, "items")
        [column] = opened.describe()
        assert column.kind == kind
        assert column.size == (2 if kind == "vector" else 0)
        assert opened.read(["x"], None).num_rows == 1
        opened.close()


def test_the_detail_of_a_decimal_has_precision_and_scale_and_that_of_an_enum_no_values() -> None:
    opened = open_source(pa.table({"x": pa.array([decimal.Decimal("1.25")], pa.decimal128(10, 2))}), "items")
    assert opened.describe()[0].detail == "DECIMAL(10,2)"
    assert opened.describe_scan(["CAST('secret' AS ENUM('secret'))"], None)[0].detail == "ENUM"


def test_integers_too_wide_for_arrow_are_still_integers() -> None:
    opened = open_source(pa.table({"x": [1]}), "items")
    assert opened.describe_scan(["CAST(x AS HUGEINT)"], None)[0].kind == "integer"
    assert opened.read(["CAST(x AS HUGEINT)"], None)["c0"].to_pylist() == [1]


def test_a_uuid_is_read_as_text() -> None:
    key = uuid.uuid4()
    opened = open_source(pa.table({"x": pa.array([key.bytes], pa.uuid())}), "items")
    assert opened.read(["x"], None)["c0"].to_pylist() == [str(key)]


def test_hours_of_a_zoned_timestamp_are_those_of_utc() -> None:
    zoned = pa.array([datetime.datetime(2024, 7, 1, 12)], pa.timestamp("us", "America/New_York"))
    opened = open_source(pa.table({"t": zoned}), "items")
    assert opened.read(["hour(t)"], None)["c0"].to_pylist() == [12]


# -- pandas --------------------------------------------------------------------------------


def test_pandas_columns_have_the_kinds_that_people_expect() -> None:
    frame = pd.DataFrame(
        {
            "text": ["a", None],
            "objects": np.array(["a", None], object),
            "category": pd.Categorical(["a", "b"]),
            "nullable": pd.array([1, None], "Int64"),
            "flags": np.array([True, None], object),
            "decimals": [decimal.Decimal("1.5"), None],
            "dates": [MOMENT.date(), None],
            "moments": pd.to_datetime(["2024-01-01", None]),
            "arrays": [np.ones(3, np.float32), None],
            "lists": [[1.0, 2.0], [3.0, 4.0]],
            7: [1, 2],
        }
    )
    described = {column.name: column.kind for column in open_source(frame, "items").describe()}
    assert described == {
        "text": "string",
        "objects": "string",
        "category": "string",
        "nullable": "integer",
        "flags": "boolean",
        "decimals": "decimal",
        "dates": "date",
        "moments": "timestamp",
        "arrays": "vector",
        "lists": "vector",
        "7": "integer",
    }


@pytest.mark.parametrize("values", [["secret", 1], [1, "secret"], [object(), 1], [1 + 2j, 3]])
def test_a_column_of_mixed_objects_is_refused_by_name_without_its_values(values: list[object]) -> None:
    frame = pd.DataFrame({"ok": [1, 2], "mixed": np.array([*values, None], object)[:2]})
    with pytest.raises(SourceError, match=r"column 'mixed' of the DataFrame .* mixes types") as refused:
        open_source(frame, "items")
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_named_index_of_pandas_is_a_column_and_a_plain_one_is_not() -> None:
    frame = pd.DataFrame({"item": [7, 8], "x": [1.0, 2.0]})
    assert [column.name for column in open_source(frame.set_index("item"), "items").describe()] == ["item", "x"]
    assert [column.name for column in open_source(frame, "items").describe()] == ["item", "x"]


def test_an_index_that_bears_the_name_of_a_column_is_refused() -> None:
    with pytest.raises(SourceError, match="'x' and 'x', which SQL does not tell apart"):
        open_source(pd.DataFrame({"x": [1.0]}, index=pd.Index([3], name="x")), "items")


# -- polars --------------------------------------------------------------------------------


def test_polars_columns_have_the_kinds_that_people_expect() -> None:
    frame = pl.DataFrame(
        {
            "text": ["a", None],
            "category": pl.Series(["a", "b"], dtype=pl.Categorical),
            "enum": pl.Series(["a", "b"], dtype=pl.Enum(["a", "b"])),
            "decimal": pl.Series([1, 2]).cast(pl.Decimal(10, 2)),
            "vector": pl.Series([[1.0, 2.0], [3.0, 4.0]], dtype=pl.Array(pl.Float32, 2)),
            "list": [[1.0, 2.0], [3.0, 4.0]],
            "zoned": pl.Series([1, 2]).cast(pl.Datetime("us", "Europe/Paris")),
        }
    )
    described = [column.kind for column in open_source(frame, "items").describe()]
    assert described == ["string", "string", "string", "decimal", "vector", "vector", "timestamp"]


def test_a_lazy_frame_is_refused_with_what_to_call() -> None:
    with pytest.raises(SourceError, match=r"LazyFrame is not a source; call \.collect\(\)"):
        open_source(pl.DataFrame({"a": [1]}).lazy(), "items")


# -- all -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        pa.table([[1], [2]], names=["a", "a"]),
        pa.table([[1], [2]], names=["price", "Price"]),
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        pd.DataFrame([[1, 2]], columns=["1", 1]),
    ],
)
def test_two_columns_that_sql_cannot_tell_apart_are_refused(value: object) -> None:
    with pytest.raises(SourceError, match="SQL does not tell apart"):
        open_source(value, "items")


@pytest.mark.parametrize("value", [pa.table({}), pd.DataFrame(), pl.DataFrame()])
def test_a_table_without_columns_is_refused(value: object) -> None:
    with pytest.raises(SourceError, match="table items has no columns"):
        open_source(value, "items")


@pytest.mark.parametrize("value", [None, 5, [1, 2], {"a": [1]}, object()])
def test_what_is_no_table_is_refused_with_what_would_be(value: object) -> None:
    with pytest.raises(SourceError, match=r"is not a source\. Give a path"):
        open_source(value, "items")


def test_a_type_that_duckdb_does_not_read_is_refused() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1], pa.float16())])
    with pytest.raises(SourceError, match="has an Arrow type that DuckDB does not read, of int64, sparse_union"):
        open_source(pa.table({"a": [1], "u": union}), "items")


def test_an_empty_table_is_a_table() -> None:
    opened = open_source(pa.table({"a": pa.array([], pa.int64())}), "items")
    assert opened.read(["a"], None).num_rows == 0


def test_arrow_tables_open_without_polars() -> None:
    code = (
        "import sys, pyarrow as pa; sys.modules.update(polars=None); "
        "from tablepuppet.sources.source import open_source; "
        "print(open_source(pa.table({'a': [1, 2]}), 't').read(['a'], None).num_rows)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert process.stdout.strip() == "2", process.stderr
