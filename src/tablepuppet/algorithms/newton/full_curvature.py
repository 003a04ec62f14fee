"""The curvature of a loss over all pairs of its outputs: with it softmax converges as Newton's method does.

    server   W_i = collapse_i(∂²ℓ/∂a_a∂a_b) for a ≤ b: K(K + 1)/2 numbers for each row of a block
    client   D[(j, a), (l, b)] = Σ_k W_ab,k T_kj T_kl,  d = −(D/N + βI)⁻¹ g over all dK parameters at once

The share of D that a move of the intercept would remove is subtracted before (`intercept_share`).

For softmax ∂²ℓ/∂a_a∂a_b = P_a(δ_ab − P_b). The constant bound ½ in its place needs nothing but Y, and takes several
times the rounds where classes are nearly separable. A matrix comes from some of the rows where
there are many for each column: the search makes up for an inexact direction. A block of more than MOST parameters is
solved by products instead of a matrix. Clients that share a block send a triangle for each pair of outputs; the server
makes the matrix of their sum. If that is too much to send, as with very many classes, the bound replaces it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Problem
from tablepuppet.algorithms.numerics.linear_systems import (
    Products,
    Spectrum,
    eigenvalues,
    pack_triangle,
    unpack_triangle,
)
from tablepuppet.arrays import Array, pieces
from tablepuppet.models.linear import Features, LinearModel, add_picked, count_by_code
from tablepuppet.models.losses import Loss

MOST = 2_000  # parameters of a block whose curvature is a matrix
SHARED = 3_000_000  # numbers that a client sends in a round where several sum them
CLASSES = 16  # outputs beyond which the pairs of them are more to send than they save
ROWS_PER_COLUMN = 200  # that a matrix is made of, about
_OWN_ROW_SHARE = 4.0  # times a mean row's share of the columns' curvature: a row with more stands for itself alone
_FAR_FROM_ZERO = 0.01  # variance / mean square below which a column is centred
_RESIDUAL = 1e-4  # residual of a direction that is found by products


def is_full(outputs: int, width: int, clients: int) -> bool:
    """Whether a block gets the curvature over all pairs of outputs."""
    return 1 < outputs <= CLASSES and (clients == 1 or summands(outputs, width) <= SHARED)


def summands(outputs: int, width: int) -> int:
    """How many numbers of a block's curvature a client sends where several share it.

    >>> summands(5, 384)
    1108800
    """
    return pairs(outputs) * (width * (width + 1) // 2)


def pairs(outputs: int) -> int:
    """How many numbers that is for each row."""
    return outputs * (outputs + 1) // 2


def curvature_step(shard: Any, *, loss: Loss, intercept: Array) -> tuple[Sequence[Any], dict[str, Any]]:
    """∂²ℓ/∂a_a∂a_b of each joined row, for a ≤ b."""
    scores = np.add(shard.scores, intercept, out=shard.scores)
    return (loss.pairs(scores, shard.labels),), {}


def collapsed_curvature(problem: Problem, predictions: Sequence[Array], intercept: Array) -> list[Array]:
    """W of every block, at some predictions: one walk over joined rows."""
    done = problem.joined.run(curvature_step, predictions, signals=1, loss=problem.loss, intercept=intercept)
    found: list[Array] = done.signals[0]
    return found


def curvature_matrix(model: LinearModel, curvature: Array, outputs: int) -> Array:
    """D, with the parameters in the order of θ: by columns, then outputs."""
    return _of_pairs(model.train.grams(curvature), model.width, outputs)


def sampled_matrix(model: LinearModel, curvature: Array, outputs: int, *, is_whole: bool = False) -> Array:
    """D without the intercept's share, from some of the rows if there are many for each column.

    `is_whole`: from all of them, because a pseudo-inverse never moves along a direction that no sampled row has.
    """
    step = model.train.rows // (ROWS_PER_COLUMN * max(1, model.width))
    if step > 1 and not is_whole:
        diagonal = curvature[:, _places(outputs).diagonal()]
        rows, weights = _draw_rows(_shares(model.train, diagonal.sum(axis=1)), step)
        model, curvature = replace(model, train=model.train.take(rows)), weights[:, None] * curvature[rows]
    taken = intercept_share(beside_intercept(model, curvature), curvature.sum(axis=0), outputs)
    return curvature_matrix(model, curvature, outputs) - taken @ taken.T


def _shares(features: Features, curvature: Array) -> Array:
    """What each row adds to the curvature of each column about its mean, as a share of it; summed over columns."""
    dense, mean = features.dense, curvature @ features.dense / max(float(curvature.sum()), 1e-300)
    found, squares = np.zeros(len(dense)), np.zeros(len(mean))
    for piece in pieces(len(dense)):
        squares += curvature[piece] @ np.square(dense[piece] - mean)
    inverse = np.divide(1.0, squares, out=np.zeros_like(squares), where=squares > 0)
    for piece in pieces(len(dense)):
        found[piece] = np.square(dense[piece] - mean) @ inverse
    for codes, columns in zip(features.codes, features.code_columns, strict=True):
        counts = count_by_code(codes, curvature, columns.stop - columns.start)
        inverse = np.divide(1.0, counts, out=np.zeros_like(counts), where=counts > 0)
        add_picked(found[:, None], inverse[:, None], codes)
    return found * curvature


def _draw_rows(shares: Array, step: int) -> tuple[NDArray[np.intp], Array]:
    """Every s-th row, which stands for s, and those with a large share: of rare names, extreme values, much weight."""
    is_own = shares > _OWN_ROW_SHARE * shares.mean()
    own, others = np.flatnonzero(is_own), np.flatnonzero(~is_own)
    drawn = others[::step]
    heavy = np.full(len(drawn), len(others) / max(1, len(drawn)))
    return np.concatenate([own, drawn]), np.concatenate([np.ones(len(own)), heavy])


def curvature_triangles(model: LinearModel, curvature: Array) -> Array:
    """The same as it travels: for each pair of outputs, the upper triangle of its matrix."""
    return np.stack([pack_triangle(gram) for gram in model.train.grams(curvature)])


def summed_matrix(triangles: Array, width: int, outputs: int) -> Array:
    """D of a whole block, from the sum of its clients' triangles."""
    return _of_pairs((unpack_triangle(triangle, width) for triangle in triangles), width, outputs)


def _of_pairs(grams: Iterable[Array], width: int, outputs: int) -> Array:
    matrix = np.zeros((width, outputs, width, outputs))
    for a, b, gram in zip(*np.triu_indices(outputs), grams, strict=True):
        matrix[:, a, :, b] = matrix[:, b, :, a] = gram
    return matrix.reshape(width * outputs, width * outputs)


def beside_intercept(model: LinearModel, curvature: Array) -> Array:
    """Tᵀ W 1, for each pair of outputs."""
    return model.gradient(model.initial(), curvature)


def intercept_share(beside: Array, totals: Array, outputs: int) -> Array:
    """L with LLᵀ = B C⁺ Bᵀ, where B = Tᵀ W 1 and C = 1ᵀ W 1: the curvature that a move of the intercept takes off D.

    Between classes that are nearly separable, columns weighted by the curvature are far from centred, and a direction
    that holds the intercept still is no good. The intercept itself is the search's to move.
    """
    places = _places(outputs)
    values, vectors = eigenvalues(totals[places])
    kept = values > 1e-10 * values.max(initial=0.0)
    return np.asarray(beside[:, places].reshape(-1, outputs) @ (vectors[:, kept] / np.sqrt(values[kept])))


def without_intercept(gram: Array, beside: Array, total: float) -> Array:
    """D of one output, with its columns far from zero centred: years lie near 2,000 and differ by one. The others stay:
    in few rounds they come further with the intercept's share. `beside`: Tᵀ W 1."""
    diagonal, share = gram.diagonal(), beside[:, 0] / max(total, 1e-300)
    centred = diagonal - beside[:, 0] * share
    is_far = centred < _FAR_FROM_ZERO * diagonal
    left = gram - np.where(is_far[:, None] | is_far, share[:, None] * beside[:, 0], 0.0)
    is_constant = centred <= 1e-12 * diagonal
    left[is_constant] = left[:, is_constant] = 0.0
    return np.asarray(left)


def _places(outputs: int) -> NDArray[np.intp]:
    """Where each pair of outputs lies among those a ≤ b."""
    first, second = np.triu_indices(outputs)
    found: NDArray[np.intp] = np.zeros((outputs, outputs), np.intp)
    found[first, second] = found[second, first] = np.arange(len(first))
    return found


def solve(matrix: Array, ridge: float, right: Array) -> Array:
    """(D + ridge·I)⁻¹ right; the pseudo-inverse where ridge is 0."""
    flat = right.reshape(-1, 1)
    if ridge > 0:
        found = np.linalg.solve(matrix + ridge * np.eye(len(matrix)), flat)
    else:
        found = Spectrum.of(matrix).solve(1.0, ridge, flat)
    return np.asarray(found.reshape(right.shape))


def solve_by_products(model: LinearModel, curvature: Array, ridge: float, right: Array) -> Array:
    """The same without the matrix; an inexact direction suffices for the search."""
    width, outputs = right.shape
    whole = _places(outputs)
    taken = intercept_share(beside_intercept(model, curvature), curvature.sum(axis=0), outputs)

    def multiply(flat: Array) -> Array:
        scores = model.predict(flat.reshape(width, outputs))
        curved = np.stack([(curvature[:, whole[a]] * scores).sum(axis=1) for a in range(outputs)], axis=1)
        return np.asarray(model.gradient(scores, curved).reshape(-1, 1) - taken @ (taken.T @ flat))

    diagonal = np.stack([model.train.gram_diagonal(curvature[:, whole[a, a]]) for a in range(outputs)], axis=1).ravel()
    diagonal = np.maximum(diagonal - (taken * taken).sum(axis=1), 1e-6 * diagonal)
    found = Products(multiply, diagonal).solve(1.0, ridge, right.reshape(-1, 1), to=_RESIDUAL)
    return np.asarray(found.reshape(right.shape))
