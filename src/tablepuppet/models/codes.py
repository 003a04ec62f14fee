"""Linear algebra with one-hot matrices that are kept as codes.

In: `codes` (n,), each row's one column that is 1, or −1 for a row of zeros. Out: what the
n × size matrix of zeros and ones would give, without it. Sums run in row order, so the same
input gives the same bits.
"""

from __future__ import annotations

import numpy as np
import scipy

from tablepuppet.arrays import Array, Codes

_CHUNK = 1 << 15  # rows picked at a time: they stay in the cache
# Up to this many columns, one bincount for each is faster than a sparse product for all.
_FEW = 3


def add_picked(out: Array, theta: Array, codes: Codes) -> None:
    """Adds X θ to `out` (n, k): the row of θ (size, k) that each code names."""
    padded = np.concatenate([theta, np.zeros((1, theta.shape[1]))])
    for start in range(0, len(codes), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        # "wrap" takes code −1 to the last row, the zeros; it is also faster than checking the bounds.
        out[chunk] += np.take(padded, codes[chunk], axis=0, mode="wrap")


def sum_by_code(codes: Codes, signal: Array, size: int, weights: Array | None = None) -> Array:
    """Xᵀ diag(w) s: the sum of the rows of s (n, k) that share a code: (size, k)."""
    columns = signal.shape[1]
    if columns > _FEW:
        return np.asarray(one_hot(codes, size, weights).T @ signal)
    out = np.empty((size, columns))
    shifted = codes.astype(np.intp) + 1
    for column in range(columns):
        weighted = signal[:, column] if weights is None else signal[:, column] * weights
        out[:, column] = np.bincount(shifted, weighted, minlength=size + 1)[1:]
    return out


def count_by_code(codes: Codes, weights: Array, size: int) -> Array:
    """The diagonal of Xᵀ diag(w) X: Σ w over the rows with each code."""
    return sum_by_code(codes, weights[:, None], size)[:, 0]


def count_by_pair(left: Codes, right: Codes, weights: Array, left_size: int, right_size: int) -> Array:
    """X_leftᵀ diag(w) X_right: Σ w over the rows with each pair of codes, (left_size, right_size)."""
    if (left_size + 1) * (right_size + 1) > 8 * len(left):  # most pairs occur nowhere: do not count them in order
        return np.asarray((one_hot(left, left_size, weights).T @ one_hot(right, right_size)).toarray())
    pair = (left.astype(np.intp) + 1) * (right_size + 1) + (right + 1)
    counts = np.bincount(pair, weights, minlength=(left_size + 1) * (right_size + 1))
    return np.asarray(counts.reshape(left_size + 1, right_size + 1)[1:, 1:], np.float64)


def one_hot(codes: Codes, size: int, weights: Array | None = None) -> scipy.sparse.csr_array:
    """diag(w) X as a sparse matrix, (n, size)."""
    present = codes >= 0
    starts = np.zeros(len(codes) + 1, np.int64)
    np.cumsum(present, out=starts[1:])
    columns = codes[present]
    values = np.ones(len(columns)) if weights is None else weights[present]
    return scipy.sparse.csr_array((values, columns, starts), shape=(len(codes), size))
