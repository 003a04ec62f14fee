"""Labels as numbers, and a split that depends on nothing but the seed and the row number."""

from __future__ import annotations

import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.errors import JobError, MappingError
from tablepuppet.owner.labels import LabelDescription, describe_labels, read_labels
from tablepuppet.owner.split import Split, split
from tablepuppet.protocol.columns import ColumnInfo
from tablepuppet.sources.columns import column_info


def labels(values: list[Any], kind: pa.DataType) -> tuple[pa.ChunkedArray, ColumnInfo]:
    return pa.chunked_array([pa.array(values, kind)]), column_info("y", kind)


def values_of(column: tuple[pa.ChunkedArray, ColumnInfo], classes: list[Any] | None) -> list[float]:
    found = read_labels(*column, classes)
    assert found.dtype == np.float64
    return [v if v == v else -9.0 for v in found.tolist()]


def test_strings_are_classes_sorted_by_code_point() -> None:
    column = labels(["no", None, "yes", "no", "Yes"], pa.string())
    assert describe_labels(*column) == LabelDescription(kind="class", classes=["Yes", "no", "yes"], missing=1)
    assert values_of(column, ["Yes", "no", "yes"]) == [1, -9, 2, 1, 0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_label_too_large_to_be_squared_is_refused_and_any_other_number_is_read(sign: float) -> None:
    assert values_of(labels([0.5, sign * 1e140], pa.float64()), None) == [0.5, sign * 1e140]
    for number, why in ((1.1e140, "too large to square"), (math.inf, "contains infinity")):
        with pytest.raises(MappingError, match=why):
            values_of(labels([0.5, sign * number], pa.float64()), None)


def test_booleans_are_the_classes_zero_and_one() -> None:
    column = labels([True, False, None], pa.bool_())
    assert describe_labels(*column) == LabelDescription(kind="boolean", classes=[0.0, 1.0], missing=1)
    assert values_of(column, [0.0, 1.0]) == [1, 0, -9]
    assert values_of(column, None) == [1, 0, -9]


@pytest.mark.parametrize("kind", [pa.int16(), pa.float32(), pa.float64(), pa.decimal64(11, 1), pa.decimal128(5, 1)])
def test_few_distinct_numbers_can_be_classes_or_numbers(kind: pa.DataType) -> None:
    as_kind = decimal.Decimal if pa.types.is_decimal(kind) else lambda v: v
    column = labels([as_kind(v) if v else None for v in (5, 1, None, 3, 5)], kind)
    assert describe_labels(*column) == LabelDescription(kind="number", classes=[1.0, 3.0, 5.0], missing=1)
    assert values_of(column, [1.0, 3.0, 5.0]) == [2, 0, -9, 1, 2]
    assert values_of(column, [5.0, 1.0, 3.0]) == [0, 1, -9, 2, 0]
    assert values_of(column, None) == [5, 1, -9, 3, 5]


def test_whole_numbers_among_missing_ones_are_looked_up() -> None:
    column = labels([7, None, 5, 7, 7, 9, 5, None], pa.int16())
    assert values_of(column, [5.0, 7.0, 9.0]) == [1, -9, 0, 1, 1, 2, 0, -9]
    with pytest.raises(MappingError):
        values_of(column, [5.0, 7.0])


def test_whole_numbers_of_many_rows_are_looked_up_and_those_of_no_class_are_found() -> None:
    drawn = np.random.default_rng(0).choice([-3, 0, 5], 1 << 17)
    column = labels(drawn.tolist(), pa.int16())
    assert describe_labels(*column) == LabelDescription(kind="number", classes=[-3.0, 0.0, 5.0], missing=0)
    assert values_of(column, [0.0, 5.0, -3.0]) == np.array([2, -1, -1, 0, -1, -1, -1, -1, 1])[drawn + 3].tolist()
    with pytest.raises(MappingError, match="not among the classes"):
        values_of(column, [0.0, 5.0])


def test_nan_is_a_missing_label() -> None:
    column = labels([1.5, math.nan, None], pa.float64())
    assert describe_labels(*column) == LabelDescription(kind="number", classes=[1.5], missing=2)
    assert values_of(column, [1.5]) == [0, -9, -9]


def test_more_than_a_thousand_numbers_are_not_listed() -> None:
    assert len(describe_labels(*labels(list(range(1000)), pa.int64())).classes) == 1000
    assert describe_labels(*labels(list(range(1001)), pa.int64())).classes == []


def test_dates_are_days() -> None:
    assert values_of(labels([0, 10], pa.date32()), None) == [0, 10]


def test_an_empty_table_has_no_labels() -> None:
    for kind in (pa.string(), pa.float64(), pa.bool_()):
        assert values_of(labels([], kind), []) == []
        assert describe_labels(*labels([], kind)).missing == 0
    assert values_of(labels([None], pa.float64()), []) == [-9]


@pytest.mark.parametrize(
    ("column", "classes"),
    [
        (labels(["secret"], pa.string()), ["a"]),
        (labels([42.5], pa.float64()), [1.0, 99.0]),
        (labels([42.5], pa.float64()), []),
    ],
)
def test_a_value_outside_the_classes_is_refused_without_showing_it(
    column: tuple[pa.ChunkedArray, ColumnInfo], classes: list[Any]
) -> None:
    with pytest.raises(MappingError, match="label y has a value that is not among the classes") as refused:
        values_of(column, classes)
    assert "secret" not in str(refused.value)
    assert "42.5" not in str(refused.value)


def test_unusable_labels_are_refused() -> None:
    with pytest.raises(MappingError, match="label y has type time64"):
        describe_labels(*labels([1], pa.time64("us")))
    with pytest.raises(MappingError, match="label y has type string"):
        values_of(labels(["a"], pa.string()), None)
    with pytest.raises(MappingError, match="label y contains infinity"):
        describe_labels(*labels([math.inf], pa.float64()))
    with pytest.raises(MappingError, match="10,001 distinct strings"):
        describe_labels(*labels([str(i) for i in range(10_001)], pa.string()))


@given(st.integers(0, 200), st.integers(0, 2**40), st.integers(-(2**70), 2**70), st.floats(0, 1), st.integers(0, 200))
def test_consecutive_slices_split_like_the_whole_table(
    rows: int, offset: int, seed: int, fraction: float, cut: int
) -> None:
    cut = min(cut, rows)
    whole = split(rows, offset, seed, fraction)
    slices = [split(cut, offset, seed, fraction), split(rows - cut, offset + cut, seed, fraction)]
    assert np.concatenate(slices).tolist() == whole.tolist()


@pytest.mark.parametrize("fraction", [0.01, 0.15, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_the_fraction_of_test_rows_is_what_chance_gives(fraction: float, seed: int) -> None:
    rows = 400_000
    is_test = split(rows, 0, seed, fraction)
    deviation = math.sqrt(fraction * (1 - fraction) / rows)
    assert abs(is_test.mean() - fraction) < 4 * deviation
    # Neighbours and rows a power of two apart are independent.
    for step in (1, 2, 64, 4096):
        both = (is_test[:-step] & is_test[step:]).mean()
        assert abs(both - fraction**2) < 5 * math.sqrt(fraction**2 / rows)


@pytest.mark.parametrize("has_condition", [False, True])
@pytest.mark.parametrize("test_fraction", [0.0, 0.15, 0.5])
def test_validation_rows_are_as_many_as_asked_for_whatever_decides_on_test_rows(
    test_fraction: float, has_condition: bool
) -> None:
    where = pa.chunked_array([[row % 4 == 0 for row in range(4000)]]) if has_condition else None
    sides = Split(0, 7, test_fraction, 0.2, test_where=where)
    is_test = sides.test(4000, None)
    is_validation = sides.validation(4000, None, is_test)
    assert is_validation is not None
    assert not (is_validation & is_test).any()
    from_all = split(4000, 0, 7, 0.2) & ~is_test if has_condition else split(4000, 0, 7, test_fraction + 0.2) & ~is_test
    assert is_validation.tolist() == from_all.tolist()
    assert abs(is_validation.mean() - (0.15 if has_condition else 0.2)) < 0.03


def test_different_seeds_give_independent_splits() -> None:
    rows, fraction = 400_000, 0.15
    splits = [split(rows, 0, seed, fraction) for seed in (0, 1, 2, 1 << 32, -1)]
    for i, left in enumerate(splits):
        for right in splits[:i]:
            assert abs((left & right).mean() - fraction**2) < 5 * math.sqrt(fraction**2 / rows)


def test_a_larger_fraction_keeps_the_test_rows_of_a_smaller_one() -> None:
    assert not (split(1000, 0, 3, 0.1) & ~split(1000, 0, 3, 0.3)).any()


def test_the_split_is_the_same_on_every_machine() -> None:
    assert np.flatnonzero(split(40, 0, 0, 0.15)).tolist() == [6, 12, 13, 20, 27, 39]
    assert np.flatnonzero(split(40, 10**12, 7, 0.15)).tolist() == [3, 4, 33]


def test_fraction_zero_gives_no_test_rows_and_fraction_one_nothing_else() -> None:
    assert not split(1000, 0, 0, 0.0).any()
    assert split(1000, 0, 0, 1.0).all()


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_a_fraction_outside_zero_and_one_is_refused(fraction: float) -> None:
    with pytest.raises(JobError, match="test_fraction"):
        split(10, 0, 0, fraction)
