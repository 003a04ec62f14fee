"""Subspace search: F minimised over a few directions per block and the intercept.

In: per-row vectors of each block (current scores first, then directions), inner products of the
parameters they come from. Out: one coefficient per direction. A damped Newton iteration whose
gradient and Hessian are sums over joined rows; exact in one step for squared loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Array, Walkable
from tablepuppet.models.losses import Loss

_ITERATIONS = 12
_HALVINGS = 30


@dataclass(frozen=True, slots=True)
class Found:
    """The minimum over the subspace."""

    coefficients: list[Array]
    intercept: Array
    value: float  # F there
    decrement: float  # half the squared Newton decrement of the new directions: the gap's estimate


def subspace_step(
    shard: Any, *, loss: Loss, intercept: Array, coefficients: list[Array], wants_hessian: bool
) -> tuple[Sequence[Array], dict[str, Any]]:
    """Loss, slope and Hessian along the directions at some coefficients."""
    outputs = loss.outputs
    cubes = [e.reshape(len(e), -1, outputs) for e in shard.blocks]
    scores = intercept + sum(
        (cube[:, 0, :] + np.tensordot(cube[:, 1:, :], c, axes=(1, 0)))
        for cube, c in zip(cubes, coefficients, strict=True)
    )
    sums: dict[str, Any] = {"loss": float(loss.value(scores, shard.labels).sum())}
    if wants_hessian:
        rows = len(scores)
        unit = np.broadcast_to(np.eye(outputs), (rows, outputs, outputs))
        directions = np.concatenate([c[:, 1:, :].transpose(0, 2, 1) for c in cubes] + [unit], axis=2)
        residual = loss.gradient(scores, shard.labels)
        sums["slope"] = directions.reshape(rows * outputs, -1).T @ residual.reshape(-1)
        sums["hessian"] = loss.hessian_gram(scores, directions)
    return (), sums


def minimise(
    joined: Walkable,
    loss: Loss,
    l2: float,
    vectors: Sequence[Sequence[Array]],
    products: Sequence[Array],
    intercept: Array,
) -> Found:
    """min over α of F(θ + Σ α s), one α for every direction of every block, and the intercept."""
    per_row = [np.concatenate(block, axis=1) for block in vectors]
    sizes = [len(block) - 1 for block in vectors]
    borders = np.cumsum([0, *sizes])

    def split(point: Array) -> list[Array]:
        return [point[a:b] for a, b in itertools.pairwise(borders)]

    def penalty(point: Array) -> tuple[float, Array, Array]:
        value, slope, hessian = 0.0, np.zeros(len(point)), np.zeros((len(point), len(point)))
        for a, b, gram in zip(borders[:-1], borders[1:], products, strict=True):
            along = np.concatenate([[1.0], point[a:b]])
            value += 0.5 * l2 * float(along @ gram @ along)
            slope[a:b] = l2 * (gram @ along)[1:]
            hessian[a:b, a:b] = l2 * gram[1:, 1:]
        return value, slope, hessian

    def look(point: Array, wants_hessian: bool) -> tuple[float, Array, Array]:
        at: dict[str, Any] = {"intercept": intercept + point[borders[-1] :], "coefficients": split(point)}
        sums = joined.run(subspace_step, per_row, each=True, loss=loss, wants_hessian=wants_hessian, **at).sums
        value, slope, hessian = penalty(point)
        if wants_hessian:
            slope, hessian = slope + sums["slope"] / joined.rows, hessian + sums["hessian"] / joined.rows
        return value + sums["loss"] / joined.rows, slope, hessian

    alive = np.concatenate([*(_alive(gram) for gram in products), np.ones(loss.outputs, np.bool_)])
    point = np.zeros(borders[-1] + loss.outputs)
    value, slope, hessian = look(point, True)
    start = value
    newest = [a for a, size in zip(borders[:-1], sizes, strict=True) if size]
    decrement = 0.5 * (-float(slope[newest].sum()) + _intercept_gap(slope, hessian, borders[-1]))
    for _ in range(_ITERATIONS):
        step = np.zeros(len(point))
        step[alive] = -_pseudo_solve(hessian[np.ix_(alive, alive)], slope[alive])
        expected = -0.5 * float(slope @ step)
        if expected <= 1e-15 * abs(value):
            break
        point, value = _descend(look, point, value, step, expected)
        if loss.is_quadratic or expected <= 1e-3 * (start - value):
            break
        value, slope, hessian = look(point, True)
    return Found(split(point), intercept + point[borders[-1] :], value, decrement)


def _alive(gram: Array) -> NDArray[np.bool_]:
    """Which directions are more than rounding: scaling that up would part server and client."""
    lengths = np.diag(gram)
    return np.asarray(lengths[1:] > 1e-18 * lengths.max(initial=0.0))


def _descend(look: Any, point: Array, value: float, step: Array, expected: float) -> tuple[Array, float]:
    """The full Newton step, halved until F falls."""
    size = 1.0
    for _ in range(_HALVINGS):
        new = point + size * step
        reached = look(new, False)[0]
        if reached <= value - 1e-4 * size * expected or reached <= value + 1e-15 * abs(value):
            return new, reached
        size /= 2
    return point, value


def _intercept_gap(slope: Array, hessian: Array, first: int) -> float:
    """slopeᵀ H⁻¹ slope of the intercept alone."""
    return float(slope[first:] @ _pseudo_solve(hessian[first:, first:], slope[first:]))


def _pseudo_solve(matrix: Array, right: Array) -> Array:
    """matrix⁺ right for a symmetric positive semi-definite matrix, after scaling its diagonal to 1."""
    scale = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    values, vectors = np.linalg.eigh(matrix * inverse * inverse[:, None])
    keep = values > 1e-8 * values.max(initial=0.0)
    along = vectors[:, keep].T @ (inverse * right)
    return np.asarray(inverse * (vectors[:, keep] @ (along / values[keep])))
