"""How strongly factors are shrunk by gradient descent where the user leaves it open: away from what noise would fit.

With ½ λ (‖v_i‖² + ‖v_k‖²) per joined row, vectors of two tables leave zero only where the matrix of mean residuals
between the tables' parameters has a singular value above λ, and then have the length of what is above. Residuals of
pure noise, σ strong, have singular values up to

    E = σ (√d_i + √d_k) / √N        (d: parameters of a table's output, here of the two widest tables; N: label rows)

so λ = E where nothing was found, and √(s² + E²) − s where vectors have a length product s: the shrinkage of singular
values that leaves the least error under noise (Gavish and Donoho, for d_i = d_k). What is found is shrunk little. σ and
s follow the last batches, each entry of the vectors by itself. Classes, whose vectors grow the surer a model is, have
λ = E throughout. Scores b are no vectors; l2 is all that shrinks them.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from tablepuppet.algorithms.base import Problem
from tablepuppet.arrays import Array
from tablepuppet.models.heads.base import HeadSpec

_BATCHES = 40  # whose residuals and vectors count
_IDS = 0.6  # of E, where a row has one entry of many: measured


def noise_edge(problem: Problem) -> NoiseEdge | None:
    """What shrinks a problem's factors; None: nothing, or as the user says."""
    head = problem.head
    return None if head is None or head.head.spec.shrinkage is not None else NoiseEdge(head.head.spec, problem)


class NoiseEdge:
    """λ of every output, as batches show their residuals."""

    def __init__(self, spec: HeadSpec, problem: Problem) -> None:
        self._spec = spec
        each = zip(problem.rows, problem.widths, problem.entries, strict=True)
        widest = sorted((min(n, d), _IDS + (1.0 - _IDS) * min(1.0, m / max(1, d))) for n, d, m in each)[-2:]
        self._edge = sum(share * sqrt(d) for d, share in widest) / sqrt(max(1, problem.label_rows))
        self._is_quadratic = problem.loss.is_quadratic
        self._square, self._seen = 0.0, 0
        self._lengths = np.zeros((len(spec.widths), spec.widths[0]))
        self.weights: list[Array] = [np.zeros(width) for width in spec.widths]

    def see(self, square: float, lengths: Array) -> None:
        """Of a batch: the mean squares of ∂ℓ/∂score and of each output of each block."""
        self._seen += 1
        share = 1.0 / min(self._seen, _BATCHES)
        self._square += share * (square / self._spec.unit**2 - self._square)
        self._lengths += share * (lengths - self._lengths)
        edge = sqrt(self._square) * self._edge
        found = np.sqrt(np.prod(np.sort(self._lengths, axis=0)[-2:], axis=0))
        one = np.hypot(found, edge) - found if self._is_quadratic else np.full(len(found), edge)
        one[: self._spec.outputs] = 0.0
        self.weights = [one] * len(self._spec.widths)
