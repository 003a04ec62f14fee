"""The search's Hessian from some of the joined rows: what directions of different blocks have in common.

Products with the intercept, and of two directions of one block, follow from the curvatures collapsed to its rows, which
are known of all joined rows. Products across blocks need a walk; there, some 300,000 joined rows at even distances are
as good as all of them. Directions are taken less their means, which are known, too. The sample errs by a thousandth or
two; a search along directions that differ from each other loses a millionth of what it gains by that, and the rounds
that follow gain it. Directions that say nearly the same are told apart by all joined rows (`are_apart`); so are all of
squared loss, whose search is exact, and all of joins that are smaller than the sample would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Problem
from tablepuppet.algorithms.numerics.linear_systems import eigenvalues
from tablepuppet.arrays import Array, Following, RowNumbers

_SAMPLE = 1 << 18  # joined rows at the least
_APART = 0.2  # the least eigenvalue of the directions' correlations with which a sample will do
Drawn = tuple[Any, list[RowNumbers]]  # joined rows, and which rows of each block they have


def draw_rows(problem: Problem) -> Drawn | None:
    """The joined rows to look at; None: all of them, or they would not tell enough."""
    joined = problem.joined
    step = joined.rows // _SAMPLE
    if step < 2 or problem.blocks < 2 or not any(_complete(problem)):
        return None
    found: Drawn = joined.take(np.arange(0, joined.rows, step))
    return found


def _complete(problem: Problem) -> list[bool]:
    """Which blocks every joined row has a row of."""
    return [int(counts.sum()) == problem.joined.rows for counts in problem.multiplicity]


def are_apart(hessian: Array) -> bool:
    """Whether directions differ so much, beside the intercept (last), that a sample tells them apart well."""
    if not np.isfinite(hessian).all():
        return False
    own = hessian[:-1, :-1] - np.outer(hessian[:-1, -1], hessian[-1, :-1]) / hessian[-1, -1]
    length = np.sqrt(np.maximum(np.diag(own), 0.0))
    there = np.flatnonzero(length > 0)
    own = own[np.ix_(there, there)] / np.outer(length[there], length[there])
    return not len(own) or bool(eigenvalues(own)[0].min() >= _APART)


def summed(weights: Array | Following, vector: Array | None = None) -> float:
    """Σ w, or Σ w v, over a block's rows."""
    if isinstance(weights, Following):
        return sum(float(w.sum() if vector is None else w[:, 0] @ vector[here, 0]) for here, w in weights.pieces())
    return float(weights.sum() if vector is None else weights[:, 0] @ vector[:, 0])


def images(weights: Array | Following, columns: Array, vectors: Sequence[Array]) -> tuple[Array, Array]:
    """Of each vector v, Σ w u v of every column u, and Σ w v: what the curvature of a block's rows makes of them."""
    if isinstance(weights, np.ndarray):
        bent = weights * columns
        return np.array([bent.T @ v[:, 0] for v in vectors]), np.array([weights.T @ v[:, 0] for v in vectors])
    own, constant = np.zeros((len(vectors), columns.shape[1])), np.zeros((len(vectors), 1))
    for here, w in weights.pieces():
        bent = w * columns[here]
        for number, v in enumerate(vectors):
            own[number] += bent.T @ v[here, 0]
            constant[number] += w.T @ v[here, 0]
    return own, constant


@dataclass(frozen=True, slots=True, eq=False)
class HessianSample:
    """A sample where a model stands."""

    joined: Any
    rows: list[RowNumbers]
    curvature: float  # Σ ∂²ℓ/∂a² / N
    means: Array  # of each slot; 0 in blocks that not every joined row has
    rest: Array  # Σ ∂²ℓ/∂a² (u − mean) / N: 0 in blocks that every joined row has

    @classmethod
    def at(
        cls,
        joined: Any,
        rows: list[RowNumbers],
        problem: Problem,
        known: Sequence[Array | Following],
        slots: Sequence[tuple[int, Mapping[int, Array]]],
        size: int,
    ) -> HessianSample | None:
        """`known`: collapse_i(∂²ℓ/∂a²); `slots`: of each block the first one's place, and all directions.

        None: F is flat where the model stands, or no number.
        """
        scale, complete = 1.0 / problem.joined.rows, _complete(problem)
        every = [weights for weights, is_complete in zip(known, complete, strict=True) if is_complete]
        curvature = scale * summed(next((weights for weights in every if isinstance(weights, np.ndarray)), every[0]))
        if not 0.0 < curvature < np.inf:
            return None
        sums, means = np.zeros((2, size))
        for weights, is_complete, (first, own) in zip(known, complete, slots, strict=True):
            for slot, vector in own.items():
                sums[first + slot] = scale * summed(weights, vector)
                means[first + slot] = sums[first + slot] / curvature if is_complete else 0.0
        return cls(joined, rows, curvature, means, sums - means * curvature)

    def of(self, places: Sequence[NDArray[np.intp]]) -> list[Array]:
        """The means of some slots of each block."""
        return [self.means[own] for own in places]

    def run(self, step: Any, predictions: Sequence[Array], columns: Sequence[Array], **given: Any) -> Any:
        """A walk over the sample."""
        here, beside = ([v[own] for v, own in zip(each, self.rows, strict=True)] for each in (predictions, columns))
        return self.joined.run(step, here, columns=beside, signals=1, **given)

    def products(self, block: int, image: Array, vector: Array, here: NDArray[np.intp], other: int) -> Array:
        """Hessian entries of some slots with another block's slot, from what a walk has collapsed to that block."""
        mean, rest = self.means[other], self.rest[other]
        apart = (image.T @ vector[self.rows[block], 0] - mean * image.sum(axis=0)) / self.joined.rows
        means = self.means[here]
        return np.asarray(apart + means * (mean * self.curvature + rest) + mean * self.rest[here])
