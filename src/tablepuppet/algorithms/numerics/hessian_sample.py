"""The search's Hessian from a sample of joined rows: products between directions of different blocks.

Products with the intercept, and of two directions of one block, follow from the curvatures collapsed to its rows, which
cover all joined rows. Products across blocks need a walk. There, some 300,000 joined rows at even distances are as good
as all of them. Directions are taken less their means, which are known, too. The sample errs by a thousandth or two. A
search along clearly different directions loses a millionth of its gain by that, and later rounds recover it. All joined
rows are used if directions are nearly equal (`are_apart`) or the join is smaller than the sample. So are they for
squared loss, whose search is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Problem, Summable
from tablepuppet.algorithms.numerics.linear_systems import eigenvalues
from tablepuppet.arrays import Array, Following, RowNumbers, pieces

_SAMPLE = 1 << 18  # joined rows at the least
_APART = 0.2  # the least eigenvalue of the directions' correlations with which a sample will do
Places = NDArray[np.intp]  # of slots in the Hessian
Drawn = tuple[Any, list[RowNumbers]]  # joined rows, and which rows of each block they have


def draw_rows(is_complete: Sequence[bool], problem: Problem) -> Drawn | None:
    """The sampled joined rows; None: a sample would not suffice, so all are used."""
    joined = problem.joined
    step = joined.rows // _SAMPLE
    if step < 2 or problem.blocks < 2 or not any(is_complete):
        return None
    found: Drawn = joined.take(np.arange(0, joined.rows, step))
    return found


def complete_blocks(problem: Problem) -> list[bool]:
    """Which blocks every joined row has a row of."""
    return [int(counts.sum()) == problem.joined.rows for counts in problem.multiplicity]


def are_apart(hessian: Array) -> bool:
    """Whether directions, less the intercept (last), differ so much that a sample separates them well."""
    if not np.isfinite(hessian).all():
        return False
    own = hessian[:-1, :-1] - np.outer(hessian[:-1, -1], hessian[-1, :-1]) / hessian[-1, -1]
    length = np.sqrt(np.maximum(np.diag(own), 0.0))
    there = np.flatnonzero(length > 0)
    own = own[np.ix_(there, there)] / np.outer(length[there], length[there])
    return not len(own) or bool(eigenvalues(own)[0].min() >= _APART)


def images(weights: Array | Following, columns: Array, vectors: Sequence[Array]) -> tuple[Array, Array]:
    """Of each vector v, Σ w u v of every column u, and Σ w v: products with the curvature of a block's rows."""
    own, constant = np.zeros((len(vectors), columns.shape[1])), np.zeros((len(vectors), 1))
    for here in pieces(len(weights)):
        w = weights[here]
        bent = w * columns[here]
        for number, v in enumerate(vectors):
            own[number] += bent.T @ v[here, 0]
            constant[number] += w.T @ v[here, 0]
    return own, constant


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Products of the Hessian with directions, from a walk (`hessian_step`)."""

    signals: list[list[Array]]
    sums: dict[str, Array]


def sum_images(joined: Summable, columns: Sequence[Array], known: Sequence[Array | Following]) -> Images:
    """Of squared loss, exactly: every block gets the images of the others' directions; `known`: Σ w per row of each."""
    signals: list[list[Array]] = [[own[:, :0]] for own in columns]
    along = []
    for number, own in enumerate(columns):
        along.append(own.T @ known[number][:])
        for direction in own.T:
            for block, image in enumerate(joined.multiply(number, direction[:, None])):
                if block != number:
                    signals[block].append(image)
    intercept = np.concatenate([*along, [[float(joined.rows)]]])  # weights are 1 on average
    return Images([[np.concatenate(own, axis=1) for own in signals]], {"intercept": intercept})


def _sum_weights(weights: Array | Following) -> float:
    return sum(float(weights[here].sum()) for here in pieces(len(weights)))


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
        known: Sequence[Array | Following],
        is_complete: Sequence[bool],
        sizes: Sequence[int],
        along: Array,
        all_rows: int,
    ) -> HessianSample | None:
        """`known`: collapse_i(∂²ℓ/∂a²); `sizes`: slots of each block; `along`: of each slot u, Σ ∂²ℓ/∂a² u / N;
        `all_rows`: N.

        None: F is flat where the model stands, or no number.
        """
        every = [weights for weights, is_here in zip(known, is_complete, strict=True) if is_here]
        curvature = _sum_weights(min(every, key=len)) / all_rows
        if not 0.0 < curvature < np.inf:
            return None
        means = np.where(np.repeat(is_complete, sizes), along / curvature, 0.0)
        return cls(joined, rows, curvature, means, along - means * curvature)

    def apart(self, block: int, vectors: Array, places: Places | list[int]) -> Array:
        """Some slots of a block, less their means, at the rows that the sample has."""
        found = vectors.take(self.rows[block], axis=0)
        found -= self.means[places]
        return found

    def run(self, step: Any, predictions: Sequence[Array], columns: Sequence[Array], **given: Any) -> Any:
        """A walk over the sample, with columns that it has the rows of."""
        here = [h.take(own, axis=0) for h, own in zip(predictions, self.rows, strict=True)]
        return self.joined.run(step, here, columns=columns, signals=1, **given)

    def products(self, image: Array, column: Array, here: Places, other: int) -> Array:
        """Hessian entries of some slots with another block's slot, whose column this is, from that block's signals."""
        mean, rest, means = self.means[other], self.rest[other], self.means[here]
        found = image.T @ column / self.joined.rows
        return np.asarray(found + means * (mean * self.curvature + rest) + mean * self.rest[here])
