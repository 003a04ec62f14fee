"""The curvature of a loss of several outputs, over all pairs of them: what softmax needs to converge as Newton does.

    server   W_i = collapse_i(∂²ℓ/∂a_a∂a_b) for a ≤ b: K(K + 1)/2 numbers for each row of a block
    client   D[(j, a), (l, b)] = Σ_k W_ab,k T_kj T_kl,  d = −(D/N + βI)⁻¹ g over all dK parameters at once

For softmax ∂²ℓ/∂a_a∂a_b = P_a(δ_ab − P_b). The constant bound ½ in its place needs nothing but Y, and takes several
times the rounds where classes are nearly separable (docs/decisions/0035). A block of more than MOST parameters is
solved by products instead of a matrix; one that several clients share is summed as a matrix while that is small, and
otherwise, as with very many classes, the bound stands in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Problem
from tablepuppet.algorithms.numerics.linear_systems import Products, Spectrum
from tablepuppet.arrays import Array
from tablepuppet.models.linear import LinearModel
from tablepuppet.models.losses import Loss

MOST = 2_000  # parameters of a block whose curvature is a matrix
SHARED = 500  # likewise, where several clients send it to be summed
CLASSES = 8  # outputs beyond which the pairs of them are more to send than they save
_CLOSE = 1e-4  # residual of a direction that is found by products


def is_full(outputs: int, width: int, clients: int) -> bool:
    """Whether a block gets the curvature over all pairs of outputs."""
    return 1 < outputs <= CLASSES and (clients == 1 or width * outputs <= SHARED)


def pairs(outputs: int) -> int:
    """How many numbers that is for each row."""
    return outputs * (outputs + 1) // 2


def curvature_step(shard: Any, *, loss: Loss, intercept: Array) -> tuple[Sequence[Any], dict[str, Any]]:
    """∂²ℓ/∂a_a∂a_b of each joined row, for a ≤ b."""
    scores = np.add(shard.scores, intercept, out=shard.scores)
    rows, outputs = scores.shape
    unit = np.broadcast_to(np.eye(outputs), (rows, outputs, outputs))
    first, second = np.triu_indices(outputs)
    return (loss.hessian_product(scores, shard.labels, unit)[:, first, second],), {}


def collapsed_curvature(problem: Problem, predictions: Sequence[Array], intercept: Array) -> list[Array]:
    """W of every block, at some predictions: one walk over joined rows."""
    done = problem.joined.run(curvature_step, predictions, signals=1, loss=problem.loss, intercept=intercept)
    found: list[Array] = done.signals[0]
    return found


def curvature_matrix(model: LinearModel, curvature: Array, outputs: int) -> Array:
    """D, with the parameters in the order of θ: by columns, then outputs."""
    width = model.width
    matrix = np.zeros((width, outputs, width, outputs))
    for column, (a, b) in enumerate(zip(*np.triu_indices(outputs), strict=True)):
        matrix[:, a, :, b] = matrix[:, b, :, a] = model.gram(np.ascontiguousarray(curvature[:, column]))
    return matrix.reshape(width * outputs, width * outputs)


def solve(matrix: Array, ridge: float, right: Array) -> Array:
    """(D + ridge·I)⁻¹ right; the pseudo-inverse where ridge is 0."""
    flat = right.reshape(-1, 1)
    if ridge > 0:
        found = np.linalg.solve(matrix + ridge * np.eye(len(matrix)), flat)
    else:
        found = Spectrum.of(matrix).solve(1.0, ridge, flat)
    return np.asarray(found.reshape(right.shape))


def solve_by_products(model: LinearModel, curvature: Array, ridge: float, right: Array) -> Array:
    """The same without the matrix; the direction need not be exact, for the search takes what is good in it."""
    width, outputs = right.shape
    first, second = np.triu_indices(outputs)
    whole: NDArray[np.intp] = np.zeros((outputs, outputs), np.intp)
    whole[first, second] = whole[second, first] = np.arange(len(first))

    def multiply(flat: Array) -> Array:
        scores = model.predict(flat.reshape(width, outputs))
        curved = np.stack([(curvature[:, whole[a]] * scores).sum(axis=1) for a in range(outputs)], axis=1)
        return np.asarray(model.gradient(scores, curved).reshape(-1, 1))

    diagonal = np.stack([model.gram_diagonal(curvature[:, whole[a, a]]) for a in range(outputs)], axis=1).ravel()
    found = Products(multiply, diagonal).solve(1.0, ridge, right.reshape(-1, 1), to=_CLOSE)
    return np.asarray(found.reshape(right.shape))
