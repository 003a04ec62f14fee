"""Features: the encoded rows of a part, kept as numbers and category codes, never one-hot.

In: numbers (n, p) and one code per row and string column. Out: exact linear algebra in
float64 with the n × d matrix X that they stand for: Xθ, Xᵀs, Xᵀdiag(w)X. Time is
O(n · k) for k columns of θ however many categories there are, and no n × d array exists.

θ has one row per encoded column, in feature order, each feature contiguous:
a number is 1 column, a vector of size k is k, each followed by a 0/1 column for "missing"
if a training row lacked one; a string is one 0/1 column per category, then NULL, then
"any other", where its encoder asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import TrainingError
from tablepuppet.transport.messages import Encoder, NumberEncoder

Array = NDArray[np.float64]
Rows = NDArray[np.int32] | NDArray[np.int64]

GRAM_LIMIT = 20_000  # columns: a dense d × d matrix of 3.2 GB
_CHUNK = 1 << 16  # rows of weighted copies made at a time


@dataclass(frozen=True, slots=True)
class Features:
    """The encoded feature matrix X of a part."""

    dense: Array  # (n, p), C-contiguous
    codes: tuple[NDArray[np.int32], ...]  # per string column (n,); −1: all zeros
    dense_columns: NDArray[np.int64]  # (p,): the θ row of each dense column
    code_columns: tuple[slice, ...]  # the θ rows of each string column
    width: int  # d

    @property
    def rows(self) -> int:
        return len(self.dense)

    def dot(self, theta: Array, rows: Rows | None = None) -> Array:
        """X θ: (d, k) → (n, k); with `rows`, of these rows only, in their order."""
        dense = self.dense if rows is None else self.dense[rows]
        out = dense @ theta[self.dense_columns]
        for codes, columns in zip(self.codes, self.code_columns, strict=True):
            # The appended row of zeros is the last one, which is what code −1 picks.
            padded = np.concatenate([theta[columns], np.zeros((1, theta.shape[1]))])
            out += padded[codes if rows is None else codes[rows]]
        return out

    def transpose_dot(self, signal: Array, rows: Rows | None = None) -> Array:
        """Xᵀ s: (n, k) → (d, k); with `rows`, s has one row for each of them."""
        out = np.zeros((self.width, signal.shape[1]))
        dense = self.dense if rows is None else self.dense[rows]
        out[self.dense_columns] = dense.T @ signal
        for codes, columns in zip(self.codes, self.code_columns, strict=True):
            taken = codes if rows is None else codes[rows]
            out[columns] = _sum_by_code(taken, signal, columns.stop - columns.start)
        return out

    def gram(self, weights: Array) -> Array:
        """Xᵀ diag(w) X as a dense (d, d) matrix, for d up to GRAM_LIMIT."""
        if self.width > GRAM_LIMIT:
            raise TrainingError(
                f"a block has {self.width:,} encoded columns; a dense matrix of second moments is kept up to "
                f"{GRAM_LIMIT:,}. Set max_categories, leave out the string column with most values, "
                'or use algorithm="sgd"'
            )
        out = np.zeros((self.width, self.width))
        out[np.ix_(self.dense_columns, self.dense_columns)] = _dense_gram(self.dense, weights)
        for i, (codes, columns) in enumerate(zip(self.codes, self.code_columns, strict=True)):
            size = columns.stop - columns.start
            position = np.arange(columns.start, columns.stop)
            out[position, position] = _sum_by_code(codes, weights[:, None], size)[:, 0]
            for j, column in enumerate(self.dense_columns):
                out[columns, column] = _sum_by_code(codes, (weights * self.dense[:, j])[:, None], size)[:, 0]
                out[column, columns] = out[columns, column]
            for other, other_columns in zip(self.codes[:i], self.code_columns[:i], strict=True):
                cross = _cross_counts(codes, other, weights, size, other_columns.stop - other_columns.start)
                out[columns, other_columns] = cross
                out[other_columns, columns] = cross.T
        return out

    def gram_product(self, weights: Array, theta: Array) -> Array:
        """Xᵀ diag(w) X θ for any width: (d, k) → (d, k)."""
        return self.transpose_dot(weights[:, None] * self.dot(theta))

    def gram_diagonal(self, weights: Array) -> Array:
        """The diagonal of Xᵀ diag(w) X: (d,)."""
        out = np.zeros(self.width)
        squares = np.zeros(self.dense.shape[1])
        for chunk in _chunks(self.rows):
            squares += weights[chunk] @ np.square(self.dense[chunk])
        out[self.dense_columns] = squares
        for codes, columns in zip(self.codes, self.code_columns, strict=True):
            out[columns] = _sum_by_code(codes, weights[:, None], columns.stop - columns.start)[:, 0]
        return out

    def take(self, rows: Rows | slice) -> Features:
        """These rows only, in their order."""
        return Features(
            dense=np.ascontiguousarray(self.dense[rows]),
            codes=tuple(np.ascontiguousarray(codes[rows]) for codes in self.codes),
            dense_columns=self.dense_columns,
            code_columns=self.code_columns,
            width=self.width,
        )

    def to_dense(self) -> Array:
        """X itself, n × d: for the centralised baseline and tests."""
        out = np.zeros((self.rows, self.width))
        out[:, self.dense_columns] = self.dense
        for codes, columns in zip(self.codes, self.code_columns, strict=True):
            present = np.flatnonzero(codes >= 0)
            out[present, columns.start + codes[present]] = 1.0
        return out


def encoded_width(encoder: Encoder) -> int:
    """How many rows of θ a feature takes."""
    if isinstance(encoder, NumberEncoder):
        return encoder.mean.size + encoder.has_missing
    return len(encoder.categories) + encoder.has_missing + encoder.has_other


def names(feature_names: Sequence[str], encoders: Sequence[Encoder]) -> list[str]:
    """The name of each row of θ, as SQL would say it (entries of a vector count from 1).

    >>> from tablepuppet.transport.messages import CategoryEncoder
    >>> names(["i.category"], [CategoryEncoder(categories=["toys"], has_missing=True, has_other=True)])
    ['i.category=toys', 'i.category IS NULL', 'i.category IS OTHER']
    """
    out: list[str] = []
    for name, encoder in zip(feature_names, encoders, strict=True):
        if isinstance(encoder, NumberEncoder):
            size = encoder.mean.size
            out += [name] if size == 1 else [f"{name}[{i + 1}]" for i in range(size)]
        else:
            out += [f"{name}={category}" for category in encoder.categories]
        out += [f"{name} IS NULL"] * encoder.has_missing
        if not isinstance(encoder, NumberEncoder):
            out += [f"{name} IS OTHER"] * encoder.has_other
    return out


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(start, min(start + _CHUNK, rows)) for start in range(0, rows, _CHUNK))


def _sum_by_code(codes: NDArray[Any], signal: Array, size: int) -> Array:
    """Σ of the rows of `signal` (n, k) with each code: (size, k). Code −1 is left out."""
    shifted = codes.astype(np.intp) + 1
    out = np.empty((size, signal.shape[1]))
    for column in range(signal.shape[1]):
        out[:, column] = np.bincount(shifted, signal[:, column], minlength=size + 1)[1:]
    return out


def _dense_gram(dense: Array, weights: Array) -> Array:
    out = np.zeros((dense.shape[1], dense.shape[1]))
    for chunk in _chunks(dense.shape[0]):
        part = dense[chunk]
        out += part.T @ (weights[chunk, None] * part)
    return (out + out.T) / 2  # exactly symmetric, as a Cholesky factorisation likes it


def _cross_counts(left: NDArray[Any], right: NDArray[Any], weights: Array, left_size: int, right_size: int) -> Array:
    """Σ w over the rows with each pair of codes: (left_size, right_size)."""
    pair = (left.astype(np.intp) + 1) * (right_size + 1) + (right + 1)
    counts: Array = np.bincount(pair, weights, minlength=(left_size + 1) * (right_size + 1)).astype(np.float64, copy=False)
    return counts.reshape(left_size + 1, right_size + 1)[1:, 1:]
