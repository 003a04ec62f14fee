"""Raw Arrow columns become float64, whatever their type."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.errors import SourceError
from tablepuppet.sources.columns import arrow_of, arrow_texts, column_info, holds_of, numbers, numpy_of, strings

DAY = datetime.date(1970, 1, 11)
NOON = datetime.datetime(1970, 1, 11, 12)
PARIS = datetime.timezone(datetime.timedelta(hours=1))


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (7, pa.int8(), 7.0),
        (200, pa.uint8(), 200.0),
        (-3, pa.int64(), -3.0),
        (2**53 + 1, pa.int64(), 2.0**53),
        (2**64 - 1, pa.uint64(), 2.0**64),
        (True, pa.bool_(), 1.0),
        (np.float16(0.5), pa.float16(), 0.5),
        (0.5, pa.float32(), 0.5),
        (decimal.Decimal("1.25"), pa.decimal128(10, 2), 1.25),
        (decimal.Decimal("-1.25"), pa.decimal256(50, 2), -1.25),
        (DAY, pa.date32(), 10.0),
        (DAY, pa.date64(), 10.0),
        (NOON, pa.timestamp("s"), 10.5),
        (NOON, pa.timestamp("ms"), 10.5),
        (NOON, pa.timestamp("us"), 10.5),
        (NOON, pa.timestamp("ns"), 10.5),
        (NOON.replace(tzinfo=PARIS), pa.timestamp("us", "Europe/Paris"), 10.5 - 1 / 24),
        (datetime.datetime(1969, 12, 31, 18), pa.timestamp("us"), -0.25),
    ],
    ids=str,
)
def test_a_number_boolean_date_or_timestamp_becomes_a_float(value: Any, kind: pa.DataType, expected: float) -> None:
    column = pa.chunked_array([pa.array([value, None], kind), pa.array([value], kind)])
    found = numbers(column, column_info("x", kind))
    assert found.shape == (3, 1)
    np.testing.assert_allclose(found[:, 0], [expected, math.nan, expected], rtol=1e-15)


@pytest.mark.parametrize("item", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("size", [2, -1])
def test_vectors_become_rows_also_of_a_slice(item: pa.DataType, size: int) -> None:
    kind = pa.list_(item, size)
    values = [np.array(v, item.to_pandas_dtype()) if v else None for v in ([9, 9], [1, 2], None, [3, 4], [9, 9])]
    column = pa.chunked_array([pa.array(values, kind)]).slice(1, 3)
    info = column_info("x", kind, size=2)
    np.testing.assert_array_equal(numbers(column, info), [[1, 2], [math.nan, math.nan], [3, 4]])


def test_vectors_of_unequal_length_are_refused() -> None:
    column = pa.chunked_array([[[1.0, 2.0], [3.0]]])
    with pytest.raises(SourceError, match="column x: vectors of 2 entries are expected"):
        numbers(column, column_info("x", column.type, size=2))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_strings_of_all_types_become_codes(kind: pa.DataType) -> None:
    column = pa.chunked_array(
        [pa.array(["b", None], pa.string()).cast(kind), pa.array(["a", "b"], pa.string()).cast(kind)]
    )
    distinct, codes = strings(column)
    assert distinct.to_pylist() == ["b", "a"]
    assert codes.tolist() == [0, -1, 1, 0]
    assert codes.dtype == np.int32


def test_no_strings_become_no_codes() -> None:
    distinct, codes = strings(pa.chunked_array([], pa.string()))
    assert (len(distinct), len(codes)) == (0, 0)
    distinct, codes = strings(pa.chunked_array([pa.nulls(2, pa.string())]))
    assert (len(distinct), codes.tolist()) == (0, [-1, -1])


KINDS = (pa.int8(), pa.int32(), pa.uint64(), pa.float32(), pa.float64())


@given(
    kind=st.sampled_from(KINDS),
    values=st.lists(st.none() | st.integers(0, 100)),
    cut=st.integers(0, 5),
    split=st.booleans(),
)
def test_numbers_go_from_arrow_to_numpy_and_back(
    kind: pa.DataType, values: list[int | None], cut: int, split: bool
) -> None:
    column = pa.array(values, kind)[cut:]
    found = numpy_of(pa.chunked_array([column[:2], column[2:]]) if split else column, missing=7)
    assert found.tolist() == [7 if value is None else value for value in values[cut:]]
    assert found.dtype == kind.to_pandas_dtype()
    assert arrow_of(found[::-1]).equals(column.fill_null(pa.scalar(7, kind))[::-1])


@given(st.lists(st.none() | st.booleans()), st.integers(0, 9))
def test_a_predicate_holds_where_it_is_true(values: list[bool | None], cut: int) -> None:
    assert holds_of(pa.array(values, pa.bool_())[cut:]).tolist() == [value is True for value in values[cut:]]


@given(st.lists(st.text()))
def test_texts_become_arrow(texts: list[str]) -> None:
    assert arrow_texts(texts).equals(pa.array(texts, pa.large_string()))
