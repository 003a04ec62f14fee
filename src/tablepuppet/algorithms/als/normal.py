"""The normal equations of one table: P δ = −s, with P = Σ_k (x_k x_kᵀ) ⊗ M_k + I ⊗ diag(ridge).

In: encoded rows x_k, the curvature M_k (K × K) of each, packed as upper triangles. Out: products P δ, the K × K blocks
on P's diagonal (one for each encoded column), and the step that conjugate gradients find with these blocks as
preconditioner. Where a row has one entry (an id and nothing else), P is its diagonal blocks, and one solve is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import MATRICES_IN_CACHE, Array
from tablepuppet.models.features import Features


def packed_width(size: int) -> int:
    return size * (size + 1) // 2


def diagonal(size: int) -> NDArray[np.int64]:
    """Where the diagonal lies in a packed triangle.

    >>> diagonal(3).tolist()
    [0, 3, 5]
    """
    return np.cumsum([0, *range(size, 1, -1)])


def unpack_triangles(packed: Array, size: int) -> Array:
    """(n, K(K+1)/2) → (n, K, K), symmetric."""
    rows, columns = np.triu_indices(size)
    whole = np.empty((len(packed), size, size))
    whole[:, rows, columns] = packed
    whole[:, columns, rows] = packed
    return whole


def products(features: Features, packed: Array, theta: Array) -> Array:
    """Σ_k x_k (M_k h_k)ᵀ with h = X θ: (d, K)."""
    h = features.dot(theta)
    pulled = np.empty_like(h)
    for start in range(0, len(h), MATRICES_IN_CACHE):
        some = slice(start, start + MATRICES_IN_CACHE)
        pulled[some] = multiply_triangles(packed[some], h[some])
    return features.transpose_dot(pulled)


def multiply_triangles(packed: Array, h: Array) -> Array:
    """M_k h_k of each row, from upper triangles: (n, K)."""
    size, first = h.shape[1], 0
    columns, out = np.ascontiguousarray(packed.T), np.zeros((size, len(h)))
    across = np.ascontiguousarray(h.T)
    for row in range(size):
        triangle = columns[first : first + size - row]
        out[row] += np.einsum("an,an->n", triangle, across[row:])
        out[row + 1 :] += triangle[1:] * across[row]
        first += size - row
    return np.ascontiguousarray(out.T)


def diagonal_blocks(features: Features, packed: Array) -> Array:
    """Σ_k x_kc² M_k for each encoded column c, packed: (d, K(K+1)/2)."""
    out = np.zeros((features.width, packed.shape[1]))
    if features.dense.shape[1]:
        out[features.dense_columns] = np.square(features.dense).T @ packed
    for codes, columns in zip(features.codes, features.code_columns, strict=True):
        one = Features(features.dense[:, :0], (codes,), np.zeros(0, np.int64), (columns,), features.width)
        out[columns] = one.transpose_dot(packed)[columns]
    return out


def solved_blocks(blocks: Array, ridge: Array, right: Array) -> Array:
    """B_c⁻¹ r_c for each encoded column c, with B_c its diagonal block and the ridge."""
    size = right.shape[1]
    out = np.empty_like(right)
    for start in range(0, len(right), MATRICES_IN_CACHE):
        some = slice(start, start + MATRICES_IN_CACHE)
        whole = unpack_triangles(blocks[some], size)
        # A column that no row has, without a ridge: nothing is known of it, and it stays.
        scale = np.maximum(np.trace(whole, axis1=1, axis2=2) / size, 1.0)
        whole[:, np.arange(size), np.arange(size)] += ridge + 1e-14 * scale[:, None]
        out[some] = np.linalg.solve(whole, right[some, :, None])[:, :, 0]
    return out


@dataclass
class Conjugate:
    """Conjugate gradients on P δ = r, one product at a time: whoever can multiply by P keeps it going."""

    blocks: Array  # packed, of P's diagonal, without the ridge
    ridge: Array  # (K)
    residual: Array
    tolerance: float
    steps: int

    def __post_init__(self) -> None:
        self.step = np.zeros_like(self.residual)  # δ
        self._taken = 0
        solved = solved_blocks(self.blocks, self.ridge, self.residual)
        self.direction = solved
        self._product = float(np.vdot(self.residual, solved))
        self._goal = self.tolerance**2 * self._product

    @property
    def is_done(self) -> bool:
        return self._taken >= self.steps or not self._product > self._goal

    def advance(self, product: Array) -> None:
        """One step, given P times the direction (the ridge included)."""
        along = float(np.vdot(self.direction, product))
        self._taken += 1
        if not along > 0:
            self._taken = self.steps
            return
        length = self._product / along
        self.step = self.step + length * self.direction
        self.residual = self.residual - length * product
        solved = solved_blocks(self.blocks, self.ridge, self.residual)
        before, self._product = self._product, float(np.vdot(self.residual, solved))
        self.direction = solved + self._product / before * self.direction
