"""The normal equations of one table: P δ = −s, with P = Σ_k (x_k x_kᵀ) ⊗ M_k + I ⊗ diag(ridge); and their shrinkage.

In: encoded rows x_k, the curvature M_k (K × K) of each, packed as upper triangles. Out: products P δ, the K × K blocks
on P's diagonal (one for each encoded column), and the step that conjugate gradients find with these blocks as
preconditioner. Where a row has one entry (an id and nothing else), P is its diagonal blocks, and one solve is exact.

How strongly als shrinks vectors and scores is learned from the data, unless the user gave a number. Taken as random, a
vector has entries of variance τ² before and the covariance S = σ² M⁻¹ after its rows are seen (σ²:
noise of the label). The others are random too, so z zᵀ has the mean z zᵀ + Σ_l S_l. This is variational Bayes with one
variance for all entries of a table's vectors. The normal matrix of row k, which is in n_k joined rows, is

    M_k = L Σ_j z zᵀ + (λ_i n_k + c_i) I,    λ_i = L Σ_{l≠i} mean_j tr(S_l)/k,    c_i = σ²/τ²

with τ² = mean_k (‖v_k‖² + tr S_k)/k, as the geometric mean over tables, because only products of vectors count. Scores
b have a c_i of their own. σ² = 2 mean(ℓ) / (1 − dof/N) with dof = Σ_k tr(M_k⁻¹ L Σ z zᵀ), and 1 for classes. L is the
mean curvature. The rows of a table with fewer encoded columns than rows do not move freely: ρ = n_i/d_i of them count
as one. A vector that is the sum of m features' has m parameters of variance τ²/m. So c_i becomes a ridge of m c_i on
every parameter, not on rows. A feature of many rows is then not shrunk as much as an id of few rows. In a table with
ids, which carry most of the vector, the ridge is √m c_i.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.numerics.linear_systems import unpack_triangle
from tablepuppet.arrays import MATRICES_IN_CACHE, Array, pieces
from tablepuppet.models.linear import Features


def packed_width(size: int) -> int:
    return size * (size + 1) // 2


def diagonal(size: int) -> NDArray[np.int64]:
    """Where the diagonal lies in a packed triangle.

    >>> diagonal(3).tolist()
    [0, 3, 5]
    """
    return np.cumsum([0, *range(size, 1, -1)])


def products(features: Features, packed: Array, theta: Array) -> Array:
    """Σ_k x_k (M_k h_k)ᵀ with h = X θ: (d, K)."""
    h = features.dot(theta)
    pulled = np.empty_like(h)
    for some in pieces(len(h), MATRICES_IN_CACHE):
        pulled[some] = (unpack_triangle(packed[some], h.shape[1]) @ h[some, :, None])[:, :, 0]
    return features.transpose_dot(pulled)


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
    for some in pieces(len(right), MATRICES_IN_CACHE):
        whole = unpack_triangle(blocks[some], size)
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


Weights = tuple[Array, Array]  # of h² for each output: per joined row, and per row of the table

_FIRST_C, _FIRST_LAMBDA = 3.0, 0.04  # while the first sweep has not seen every table
_SAMPLE = 2048  # rows of a table whose M⁻¹ are computed
_MOST_FITTED = 0.9  # of the joined rows that σ² takes for fitted parameters


class FixedShrinkage(msgspec.Struct, frozen=True):
    """The user's λ per joined row for all outputs of a table."""

    strength: float
    outputs: int

    def weights(self, block: int) -> Weights:
        return np.full(self.outputs, self.strength), np.zeros(self.outputs)

    def ridge(self, block: int) -> Array:
        return np.zeros(self.outputs)


class LearnedShrinkage:
    """The variances of each table's vectors and scores, and the noise, as the rounds show them."""

    def __init__(
        self,
        outputs: int,
        rows: Sequence[int],
        columns: Sequence[int],
        entries: Sequence[int],
        bound: float,
        scale: float,
    ) -> None:
        """`entries`: m of each table; `bound`: L; `scale`: the factor from the mean loss to a variance, 0: σ² is 1."""
        blocks = len(rows)
        # Of m parameters, ids have most to say: a row's variance is not divided evenly among them.
        self._entries = [
            float(m ** (0.5 + 0.5 * min(1.0, m / max(1, d)))) for m, d in zip(entries, columns, strict=True)
        ]
        self._outputs, self._bound, self._scale = outputs, bound, scale
        self._tied = [max(1.0, n / max(1, d)) for n, d in zip(rows, columns, strict=True)]  # ρ
        self._noise = 1.0
        self._vectors = [1.0 / _FIRST_C] * blocks  # τ² of vectors, and of scores
        self._scores = [1.0 / _FIRST_C] * blocks
        self._spread = [_FIRST_LAMBDA / max(1, blocks - 1)] * blocks  # mean tr(S)/k of joined rows
        self._fitted = [0.0] * blocks  # dof
        self._posterior = np.zeros(outputs)  # diag(S), the mean over rows of the block in turn
        self._turns = 0

    @property
    def noise(self) -> float:
        """σ, in the label's unit."""
        return float(np.sqrt(self._noise))

    def weights(self, block: int) -> Weights:
        others = sum(s for number, s in enumerate(self._spread) if number != block)
        prior = float(np.exp(np.mean(np.log(self._vectors))))
        per_joined, per_row = np.full(self._outputs, self._bound * others), np.full(self._outputs, self._noise / prior)
        per_joined[0], per_row[0] = 0.0, self._noise / self._scores[block]
        return per_joined, per_row / self._tied[block]

    def ridge(self, block: int) -> Array:
        """m c of each output, less where a row has few of the columns: on the table's parameters."""
        return self._entries[block] * self._tied[block] * self.weights(block)[1]

    def see_loss(self, mean: float, curvature: float, rows: float) -> None:
        """The mean loss and curvature of so many joined rows, before a round."""
        self._bound = curvature
        if self._scale:
            free = 1.0 - min(sum(self._fitted) / rows, _MOST_FITTED)
            self._noise = max(self._scale * mean / free, 1e-12)

    def see_matrices(self, block: int, matrices: Array, penalty: Array, appearances: Array) -> None:
        """Takes in L Σ z zᵀ of a block's rows, packed, and the shrinkage added to it, (n, K)."""
        self._turns += 1
        if not len(matrices):  # a LEFT JOIN found nobody
            self._fitted[block], self._posterior = 0.0, np.zeros(self._outputs)
            return
        sample = np.unique(np.linspace(0, len(matrices) - 1, min(len(matrices), _SAMPLE)).astype(np.int64))
        whole = unpack_triangle(matrices[sample], self._outputs)
        whole[:, np.arange(self._outputs), np.arange(self._outputs)] += penalty[sample]
        inverse = np.linalg.inv(whole)
        own = np.einsum("naa->na", inverse) / self._tied[block]
        fitted = self._outputs / self._tied[block] - np.einsum("na,na->n", penalty[sample], own)
        self._fitted[block] = float(fitted.mean()) * len(matrices)
        self._posterior = self._noise * own.mean(axis=0)
        if self._turns > len(self._tied):
            weights = appearances[sample]
            self._spread[block] = self._noise * float(weights @ own[:, 1:].mean(axis=1) / weights.sum())

    def see_values(self, block: int, h: Array) -> None:
        """Takes in the block's new predictions."""
        if self._turns > len(self._tied):
            variances = np.einsum("na,na->a", h, h) / max(1, len(h)) + self._posterior
            self._vectors[block] = max(float(variances[1:].mean()), 1e-12)
            self._scores[block] = max(float(variances[0]), 1e-12)
