"""Encoding a part equals what scikit-learn makes of the materialised join."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tablepuppet.errors import JobError, SourceError, TransportError
from tablepuppet.protocol.columns import (
    CategoryEncoder,
    CategoryStatistics,
    ColumnInfo,
    Encoder,
    NumberEncoder,
    NumberStatistics,
)
from tablepuppet.sources.encoding import encode, encoder, start_theta
from tablepuppet.sources.statistics import merge, statistics

NUMBER = ColumnInfo("price", "float")
TEXT = ColumnInfo("category", "string")


def encoders_of(table: pa.Table, infos: list[ColumnInfo], rows: NDArray[Any] | None = None) -> list[Encoder]:
    columns = zip(table.columns, infos, strict=True)
    return [encoder(merge([statistics(column, info, rows, None)])) for column, info in columns]


# Multiples of 1/8: no column varies so little that scikit-learn and we could call it constant or not.
FLOATS = st.none() | st.integers(-8000, 8000).map(lambda i: i / 8)
WORDS = st.none() | st.sampled_from(["a", "b", "c", "é"])


@given(st.lists(st.tuples(FLOATS, WORDS), min_size=1, max_size=20), st.data())
def test_encoding_equals_scikit_learn_on_the_materialised_join(
    table_rows: list[tuple[float | None, str | None]], data: st.DataObject
) -> None:
    mapping = np.array(data.draw(st.lists(st.integers(0, len(table_rows) - 1), min_size=1, max_size=50)))
    table = pa.table(
        {
            "price": pa.array([r[0] for r in table_rows], pa.float64()),
            "category": pa.array([r[1] for r in table_rows], pa.string()),
        }
    )
    infos = [NUMBER, TEXT]
    rows, multiplicity = np.unique(mapping, return_counts=True)
    encoders = [
        encoder(statistics(column, info, rows, multiplicity)) for column, info in zip(table.columns, infos, strict=True)
    ]
    encoded = encode(table.columns, infos, rows, encoders).to_dense()[np.searchsorted(rows, mapping)]

    joined = table.take(mapping)
    price = joined["price"].to_numpy().reshape(-1, 1)
    expected: list[NDArray[Any]] = []
    if np.isnan(price).all():
        expected.append(np.zeros_like(price))
    else:
        expected.append(StandardScaler().fit_transform(SimpleImputer().fit_transform(price)))
    if np.isnan(price).any():
        expected.append(np.isnan(price))
    words = joined["category"].to_pylist()
    known = sorted({w for w in words if w is not None})
    has_null = None in words
    texts = np.array([[w if w is not None else "\U0010ffff"] for w in words], dtype=object)
    categories = [*known, "\U0010ffff"] if has_null else known
    expected.append(OneHotEncoder(categories=[categories], sparse_output=False).fit_transform(texts))
    np.testing.assert_allclose(encoded, np.hstack(expected), rtol=1e-9, atol=1e-9)


def test_a_row_that_does_not_exist_is_all_zeros_even_its_indicators() -> None:
    table = pa.table({"price": [1.0, None, 3.0], "category": ["a", None, "b"]})
    infos = [NUMBER, TEXT]
    encoders = encoders_of(table, infos)
    dense = encode(table.columns, infos, np.array([1, -1, 0]), encoders).to_dense()
    assert dense[0].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]
    assert dense[1].tolist() == [0.0] * 5
    assert dense[2, 0] < 0


def test_a_missing_number_is_the_mean_and_sets_an_indicator_that_is_not_scaled() -> None:
    table = pa.table({"price": pa.array([1.0, 3.0, None, math.nan])})
    dense = encode(table.columns, [NUMBER], None, encoders_of(table, [NUMBER])).to_dense()
    # Over all four rows, after filling with 2: variance (1 + 1) / 4.
    np.testing.assert_allclose(dense, np.array([[-math.sqrt(2), 0], [math.sqrt(2), 0], [0, 1], [0, 1]]))


def test_without_standardisation_numbers_stay_and_missing_ones_are_the_mean() -> None:
    column = pa.chunked_array([[1.0, 5.0, None]])
    plain = encoder(statistics(column, NUMBER, None, None), standardize=False)
    assert encode([column], [NUMBER], None, [plain]).to_dense().tolist() == [[1, 0], [5, 0], [3, 1]]


def test_a_number_that_is_missing_only_at_prediction_is_the_mean_without_an_indicator() -> None:
    train = pa.table({"price": [1.0, 3.0]})
    encoders = encoders_of(train, [NUMBER])
    dense = encode([pa.chunked_array([[None, 3.0]], pa.float64())], [NUMBER], None, encoders).to_dense()
    assert dense.tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize("constant", [0.0, 0.1, -3.0, 1e-9, 1e9 + 0.1, 12345.678, 2.0**53])
@pytest.mark.parametrize("clients", [1, 7])
def test_a_constant_column_is_encoded_as_zero_whatever_its_size(constant: float, clients: int) -> None:
    weights = np.random.default_rng(0).integers(1, 100, 10_001)
    parts = [
        statistics(pa.chunked_array([np.full(len(g), constant)]), NUMBER, None, g)
        for g in np.array_split(weights, clients)
    ]
    found = encoder(merge(parts))
    assert isinstance(found, NumberEncoder)
    assert found.scale.tolist() == [0.0]
    assert not encode([pa.chunked_array([[constant, constant + 1]])], [NUMBER], None, [found]).to_dense().any()


@pytest.mark.parametrize("unit", [1e-30, 1e-9, 1.0, 1e30])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_a_column_that_varies_is_kept_whatever_its_unit(unit: float, offset: float) -> None:
    values = (offset + np.array([0.0, 1.0, 2.0, 3.0])) * unit
    table = pa.table({"price": values})
    dense = encode(table.columns, [NUMBER], None, encoders_of(table, [NUMBER])).to_dense()
    np.testing.assert_allclose(dense[:, 0], (np.arange(4) - 1.5) / math.sqrt(1.25), rtol=1e-6)


def test_the_heaviest_categories_are_kept_and_ties_go_by_name() -> None:
    counts = CategoryStatistics(categories=["a", "b", "c", "d"], weights=np.array([1.0, 5.0, 1.0, 5.0]), missing=2.0)
    assert encoder(counts, max_categories=3) == CategoryEncoder(
        categories=["a", "b", "d"], has_missing=True, has_other=True
    )
    assert encoder(counts, max_categories=4) == CategoryEncoder(
        categories=["a", "b", "c", "d"], has_missing=True, has_other=False
    )
    with pytest.raises(JobError, match="max_categories is 0"):
        encoder(counts, max_categories=0)


@pytest.mark.parametrize(
    ("has_missing", "has_other", "null", "unseen"),
    [(False, False, -1, -1), (True, False, 2, -1), (False, True, -1, 2), (True, True, 2, 3)],
)
def test_what_is_null_or_was_never_seen_goes_where_the_encoder_says(
    has_missing: bool, has_other: bool, null: int, unseen: int
) -> None:
    feature = CategoryEncoder(categories=["a", "b"], has_missing=has_missing, has_other=has_other)
    features = encode([pa.chunked_array([["b", None, "new", "a"]])], [TEXT], np.array([0, 1, 2, 3, -1]), [feature])
    assert features.codes[0].tolist() == [1, null, unseen, 0, -1]
    assert features.width == 2 + has_missing + has_other


def test_theta_rows_follow_the_order_of_the_features() -> None:
    table = pa.table(
        {
            "category": ["a", "b"],
            "price": [1.0, None],
            "embedding": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
            "town": [None, "x"],
        }
    )
    infos = [TEXT, NUMBER, ColumnInfo("embedding", "vector", size=2), ColumnInfo("town", "string")]
    features = encode(table.columns, infos, None, encoders_of(table, infos))
    assert features.dense_columns.tolist() == [2, 3, 4, 5, 6]
    assert features.code_columns == (slice(0, 2), slice(7, 9))
    assert features.width == 9
    assert features.dense.flags.c_contiguous


@pytest.mark.parametrize("rows", [None, np.empty(0, np.int64), np.array([-1, -1])])
def test_a_part_without_rows_works(rows: NDArray[np.int64] | None) -> None:
    table = pa.schema(
        [("price", pa.float64()), ("category", pa.string()), ("e", pa.list_(pa.float32(), 2))]
    ).empty_table()
    infos = [NUMBER, TEXT, ColumnInfo("e", "vector", size=2)]
    others: list[Encoder] = [
        encoder(NumberStatistics(weight=2.0, missing=1.0, mean=np.ones(1), spread=np.ones(1))),
        CategoryEncoder(categories=["a"], has_missing=False, has_other=False),
        encoder(NumberStatistics(weight=2.0, missing=0.0, mean=np.ones(2), spread=np.ones(2))),
    ]
    for encoders in (encoders_of(table, infos, rows), others):
        features = encode(table.columns, infos, rows, encoders)
        count = 0 if rows is None else len(rows)
        assert features.to_dense().shape == (count, features.width)
        assert not features.to_dense().any()
        assert features.gram(np.ones(count)).shape == (features.width, features.width)
        assert features.transpose_dot(np.ones((count, 2))).shape == (features.width, 2)
    assert features.width == 5


def test_a_part_without_features_works() -> None:
    features = encode([], [], np.arange(3), [])
    assert (features.rows, features.width) == (3, 0)
    assert features.dot(np.empty((0, 2))).tolist() == [[0.0, 0.0]] * 3


def test_an_owner_of_empty_vectors_encodes_at_the_length_that_others_have() -> None:
    column = pa.chunked_array([[None, None]], pa.list_(pa.float32()))
    feature = encoder(NumberStatistics(weight=2.0, missing=2.0, mean=np.ones(3), spread=np.ones(3)))
    features = encode([column], [ColumnInfo("e", "vector", size=0)], None, [feature])
    assert features.to_dense().tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]


def test_infinity_at_prediction_is_refused_by_name() -> None:
    feature = encoders_of(pa.table({"price": [1.0, 2.0]}), [NUMBER])
    with pytest.raises(SourceError, match="column price contains infinity"):
        encode([pa.chunked_array([[math.inf]])], [NUMBER], None, feature)


def test_vectors_of_another_length_are_refused() -> None:
    feature = encoder(NumberStatistics(weight=2.0, missing=0.0, mean=np.ones(3), spread=np.ones(3)))
    column = pa.chunked_array([[[1.0, 2.0]]], pa.list_(pa.float32(), 2))
    with pytest.raises(SourceError, match="vectors of 3 entries are expected"):
        encode([column], [ColumnInfo("e", "vector", size=2)], None, [feature])


@pytest.mark.parametrize(
    ("info", "feature"),
    [
        (TEXT, NumberEncoder(mean=np.zeros(1), scale=np.ones(1), fill=np.zeros(1), has_missing=False)),
        (NUMBER, NumberEncoder(mean=np.zeros(2), scale=np.ones(2), fill=np.zeros(2), has_missing=False)),
        (NUMBER, CategoryEncoder(categories=[], has_missing=False, has_other=False)),
    ],
)
def test_an_encoder_that_does_not_fit_the_column_is_refused(info: ColumnInfo, feature: Encoder) -> None:
    with pytest.raises(TransportError, match="does not fit"):
        encode([pa.chunked_array([pa.nulls(1)])], [info], None, [feature])


def test_weights_to_begin_with_are_found_by_their_names() -> None:
    colour = CategoryEncoder(categories=["blue", "red"], has_missing=False, has_other=False)
    assert start_theta([{"=red": [0.5], "=green": [2.0]}], [colour], 1).tolist() == [[0.0], [0.5]]
