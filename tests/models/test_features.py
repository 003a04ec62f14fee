"""Features multiply like the dense one-hot matrix that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tablepuppet.errors import TrainingError
from tablepuppet.models.linear import GRAM_LIMIT, Features
from tablepuppet.protocol.columns import CategoryEncoder, Encoder, NumberEncoder
from tablepuppet.sources.encoding import encoded_names, encoded_width
from tablepuppet.threads import one_blas_thread


def features_of(seed: int, rows: int, layout: list[int]) -> Features:
    """Random features: 0 in the layout is a number, n > 0 a string with n categories."""
    random = np.random.default_rng(seed)
    starts = np.cumsum([0, *(max(1, size) for size in layout)])
    return Features(
        dense=random.normal(size=(rows, layout.count(0))),
        codes=tuple(random.integers(-1, size, rows).astype(np.int32) for size in layout if size),
        dense_columns=np.array([starts[i] for i, size in enumerate(layout) if not size], np.int64),
        code_columns=tuple(slice(int(starts[i]), int(starts[i + 1])) for i, size in enumerate(layout) if size),
        width=int(starts[-1]),
    )


ALL_FEATURES = st.builds(
    features_of, st.integers(0, 2**32 - 1), st.integers(0, 40), st.lists(st.integers(0, 30), max_size=6)
)
OUTPUTS = st.integers(1, 6)


def random_array(features: Features, *shape: int) -> NDArray[np.float64]:
    return np.random.default_rng(features.width).normal(size=shape)


@given(ALL_FEATURES, OUTPUTS)
def test_dot_and_transpose_dot_equal_those_of_the_dense_matrix(features: Features, outputs: int) -> None:
    X = features.to_dense()
    theta = random_array(features, features.width, outputs)
    signal = random_array(features, features.rows, outputs)
    np.testing.assert_allclose(features.dot(theta), X @ theta, atol=1e-12)
    np.testing.assert_allclose(features.transpose_dot(signal), X.T @ signal, atol=1e-12)


@given(ALL_FEATURES, OUTPUTS)
def test_dot_and_transpose_dot_are_adjoint(features: Features, outputs: int) -> None:
    theta = random_array(features, features.width, outputs)
    signal = random_array(features, features.rows, outputs)
    left = np.vdot(features.dot(theta), signal)
    right = np.vdot(theta, features.transpose_dot(signal))
    np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-10)


@given(ALL_FEATURES, OUTPUTS, st.data())
def test_some_rows_give_what_the_features_of_those_rows_give(
    features: Features, outputs: int, data: st.DataObject
) -> None:
    choice = st.lists(st.integers(0, features.rows - 1), max_size=20) if features.rows else st.just([])
    rows = np.array(data.draw(choice), np.int32)
    taken = features.take(rows)
    theta = random_array(features, features.width, outputs)
    signal = random_array(features, len(rows), outputs)
    np.testing.assert_array_equal(taken.to_dense(), features.to_dense()[rows])
    np.testing.assert_allclose(features.dot(theta, rows), taken.dot(theta), atol=1e-12)
    np.testing.assert_allclose(features.transpose_dot(signal, rows), taken.transpose_dot(signal), atol=1e-12)


@given(ALL_FEATURES, st.booleans())
def test_gram_its_diagonal_and_its_product_equal_those_of_the_dense_matrix(features: Features, signed: bool) -> None:
    X = features.to_dense()
    weights = random_array(features, features.rows)
    weights = weights if signed else np.abs(weights)
    theta = random_array(features, features.width, 2)
    gram = X.T @ (weights[:, None] * X)
    np.testing.assert_allclose(features.gram(weights), gram, atol=1e-11)
    np.testing.assert_allclose(features.grams(np.stack([weights, 2 * weights], axis=1)), [gram, 2 * gram], atol=1e-11)
    np.testing.assert_allclose(features.gram_diagonal(weights), np.diag(gram), atol=1e-11)
    np.testing.assert_allclose(features.gram_product(weights, theta), gram @ theta, atol=1e-11)


@pytest.mark.parametrize("layout", [[0], [0, 0, 0], [0, 5, 0]])
@pytest.mark.parametrize("rows", [(1 << 18) + 1, 300_001])
def test_many_rows_have_the_bits_of_one_product(layout: list[int], rows: int) -> None:
    features = features_of(3, rows, layout)
    theta = random_array(features, features.width, 1)
    with one_blas_thread:
        found, dense = features.dot(theta), features.dense
        expected = (
            dense * theta[features.dense_columns] if dense.shape[1] == 1 else dense @ theta[features.dense_columns]
        )
    for codes, columns in zip(features.codes, features.code_columns, strict=True):
        expected += np.where(codes >= 0, theta[columns].reshape(-1)[codes], 0.0)[:, None]
    assert (found == expected).all()


def test_gram_of_many_rows_is_summed_over_chunks() -> None:
    features = features_of(1, 30_000, [0] * 40 + [3])
    weights = np.random.default_rng(2).random(30_000)
    X = features.to_dense()
    gram = features.gram(weights)
    np.testing.assert_allclose(gram, X.T @ (weights[:, None] * X), rtol=1e-10, atol=1e-8)
    np.testing.assert_array_equal(gram, gram.T)


def test_pairs_of_categories_that_hardly_occur_are_counted_sparsely() -> None:
    features = features_of(3, 50, [400, 300])
    weights = np.arange(50.0)
    X = features.to_dense()
    np.testing.assert_allclose(features.gram(weights), X.T @ (weights[:, None] * X), atol=1e-12)


def test_the_same_sums_twice_give_the_same_bits() -> None:
    features = features_of(5, 20_000, [0, 0, 700, 5])
    signal = np.random.default_rng(6).normal(size=(20_000, 5))
    assert features.transpose_dot(signal).tobytes() == features.transpose_dot(signal).tobytes()
    assert features.gram(signal[:, 0] ** 2).tobytes() == features.gram(signal[:, 0] ** 2).tobytes()


def test_very_many_categories_need_no_wide_matrix() -> None:
    size = 5 * GRAM_LIMIT
    features = features_of(4, 100_000, [0, size])  # n × d would take 80 GB
    theta = np.ones((features.width, 2))
    weights = np.ones(features.rows)
    total = features.gram_product(weights, theta).sum()
    np.testing.assert_allclose(total, np.square(features.dot(theta)).sum(), rtol=1e-9)
    assert features.gram_diagonal(weights).shape == (size + 1,)
    with pytest.raises(TrainingError, match="100,001 encoded columns"):
        features.gram(weights)


def number(size: int, has_missing: bool) -> NumberEncoder:
    zeros = np.zeros(size)
    return NumberEncoder(mean=zeros, scale=zeros, fill=zeros, has_missing=has_missing)


def test_every_encoded_column_has_a_name_that_cannot_be_confused() -> None:
    encoders: list[Encoder] = [
        number(1, False),
        number(1, True),
        number(3, True),
        CategoryEncoder(categories=["IS NULL", "other", "x"], has_missing=True, has_other=True),
        CategoryEncoder(categories=[], has_missing=False, has_other=False),
    ]
    found = encoded_names(["o.a", "o.b", "o.v", "i.s", "i.e"], encoders)
    assert found == [
        "o.a",
        "o.b",
        "o.b IS NULL",
        "o.v[1]",
        "o.v[2]",
        "o.v[3]",
        "o.v IS NULL",
        "i.s=IS NULL",
        "i.s=other",
        "i.s=x",
        "i.s IS NULL",
        "i.s IS OTHER",
    ]
    assert len(found) == len(set(found)) == sum(encoded_width(encoder) for encoder in encoders)
