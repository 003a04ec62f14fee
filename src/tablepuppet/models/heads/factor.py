"""The factor head: every block gives a score and a vector, h_i = (b_i, v_i), and

    score = Σ_i b_i + Σ_{i<j} ⟨v_i, v_j⟩,    ∂score/∂v_i = Σ_{j≠i} v_j.

With an id as a category of its own table that is matrix factorisation with side features. For several classes each
has its own score and vector: h_i = (b_i of every class, v_i of the first class, v_i of the second, …). A row that an
outer join does not find gives h_i = 0 and adds nothing. The head has no parameters of its own.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.heads.base import HeadSpec, HeadTraits, PullBack

_RANK = 16
_SPREAD = 0.1  # of vectors before training: at zero they would never move


class FactorHead(msgspec.Struct, frozen=True):
    """Σ b_i + Σ_{i<j} ⟨v_i, v_j⟩, per class."""

    spec: HeadSpec

    @property
    def rank(self) -> int:
        return self.spec.widths[0] // self.spec.outputs - 1

    def initial(self) -> Array:
        return np.zeros(0)

    def spread(self, block: int) -> list[float]:
        classes = self.spec.outputs
        return [0.0] * classes + [_SPREAD] * (classes * self.rank)

    def combine(self, own: Array, h: Sequence[Array]) -> Array:
        return np.asarray(self.spec.unit * self._score(h)[0])

    def differentiate(self, own: Array, h: Sequence[Array]) -> tuple[Array, PullBack]:
        score, total = self._score(h)

        def pull_back(residual: Array) -> tuple[list[Array], Array]:
            slope, rows = self.spec.unit * residual, len(residual)
            others = [slope[:, :, None] * (total - self._vectors(values)) for values in h]
            return [np.concatenate([slope, own.reshape(rows, -1)], axis=1) for own in others], np.zeros(0)

        return np.asarray(self.spec.unit * score), pull_back

    def _score(self, h: Sequence[Array]) -> tuple[Array, Array]:
        """In the label's unit; and Σ_i v_i, (rows, classes, k)."""
        classes = self.spec.outputs
        score = h[0][:, :classes].copy()
        total = self._vectors(h[0]).copy()
        for values in h[1:]:
            vectors = self._vectors(values)
            score += values[:, :classes]
            score += np.einsum("jck,jck->jc", total, vectors)
            total += vectors
        return score, total

    def _vectors(self, values: Array) -> Array:
        classes = self.spec.outputs
        return values[:, classes:].reshape(len(values), classes, self.rank)


HEAD = HeadTraits(
    make=lambda spec, seed: FactorHead(spec),
    widths=lambda model, blocks, outputs: (outputs * (1 + (model.rank or _RANK)),) * blocks,
    options=("rank", "shrinkage"),
    l2=1e-8,  # factors are shrunk by how often a row appears; on each parameter, l2 · N would be far too much
    l2_by_rows=1.0,
    shrinkage=0.05,
    learns_shrinkage=True,
    enough_steps=800,  # in ten epochs at least and twenty at most
)
