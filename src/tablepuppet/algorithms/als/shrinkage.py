"""How strongly als shrinks vectors and scores: learned from the data, unless the user gave a number.

Taken as random, a vector has entries of variance τ² before and the covariance S = σ² M⁻¹ after its rows are seen (σ²:
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

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tablepuppet.algorithms.als.normal import unpack_triangles
from tablepuppet.arrays import Array

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
        whole = unpack_triangles(matrices[sample], self._outputs)
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
