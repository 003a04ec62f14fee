"""A symmetric matrix by its eigenvectors: (c·S + ridge·I)⁻¹ b for any c and ridge, at O(d²) each.

Directions without curvature are left out when there is no ridge, which gives the solution of
minimum norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import TrainingError


@dataclass(frozen=True, slots=True, eq=False)
class Spectrum:
    """S = V diag(values) Vᵀ."""

    values: Array
    vectors: Array

    @classmethod
    def of(cls, matrix: Array) -> Spectrum:
        if not len(matrix):
            return cls(np.zeros(0), np.zeros((0, 0)))
        values, vectors = eigenvalues(matrix)
        return cls(np.maximum(values, 0.0), vectors)

    def solve(self, scale: float, ridge: float, right: Array) -> Array:
        """(scale·S + ridge·I)⁻¹ right; the pseudo-inverse where ridge is 0."""
        curved = self.values > 1e-12 * self.values.max(initial=0.0)
        inverse = np.zeros_like(self.values)
        if ridge > 0:
            inverse = 1.0 / (scale * self.values + ridge)
        else:
            inverse[curved] = 1.0 / (scale * self.values[curved])
        return np.asarray(self.vectors @ (inverse[:, None] * (self.vectors.T @ right)))


def eigenvalues(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of a symmetric matrix; numbers that are none are a run that diverges."""
    try:
        return np.linalg.eigh(matrix)
    except np.linalg.LinAlgError:
        raise TrainingError(
            "training diverged: second moments hold numbers that are not finite; look for extreme values in the columns"
        ) from None
