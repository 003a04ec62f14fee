"""Derivatives of the loss in fixed point: g and h of every joined row as whole numbers.

    s_g = 2^⌊log2(2^(b−2) / max|g|)⌋,  gi = ⌊g·s_g + ½⌋,  hi = max(1, ⌊h·s_h + ½⌋)

Scales are powers of two, so that rounding happens once; sums of whole numbers have no order. Where h is one for every
row, hi is one too. With 8 or 4 bits ½ becomes a number in [0, 1) that follows from the seed, the tree and the row: so
few bits round coarsely, but sums over many rows are right on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import TrainingError
from tablepuppet.models.losses import Logistic, Loss, Squared
from tablepuppet.models.losses.weighted import Weighted
from tablepuppet.privacy.leaves import LeafNoise

Array = NDArray[np.float64]
Integers = NDArray[np.signedinteger[Any]]
_SHARD = 1 << 15
_ODD = np.uint64(0x9E3779B97F4A7C15)


def uniform(seed: int, tree: int, numbers: NDArray[np.uint64]) -> Array:
    """Numbers in [0, 1) that follow from their arguments (splitmix64)."""
    with np.errstate(over="ignore"):
        start = np.array([seed], np.uint64) * _ODD + np.uint64(tree) + np.uint64(1)
        x = _mixed(start) + numbers * _ODD
        return np.asarray((_mixed(x) >> np.uint64(11)).astype(np.float64) / 2.0**53)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """The label and the weight of every joined row, by the row of the label table that it comes from."""

    values: Array
    index: Integers | None
    weights: Array | None = None

    def numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """Rows of the label table."""
        return np.arange(start, stop) if self.index is None else np.asarray(self.index[start:stop])


@dataclass(frozen=True, slots=True, eq=False)
class Derivatives:
    """g and h of every joined row for one output, and what one unit of them is worth.

    They lie side by side, as the upper and the lower half of one number: who sums them up reads one place, not two.
    """

    both: Integers  # of 32 bits, or of 64 where a derivative has more than 16
    unit: tuple[float, float]

    @property
    def g(self) -> Integers:
        return self.parted(0, len(self.both))[0]

    @property
    def h(self) -> Integers:
        return self.parted(0, len(self.both))[1]

    def parted(self, start: int, stop: int) -> tuple[Integers, Integers]:
        """g and h of some joined rows."""
        own, half = self.both[start:stop], 4 * self.both.itemsize
        return own >> half, own & ((1 << half) - 1)


def derivatives(
    loss: Loss,
    scores: Array,
    labels: Labels,
    bits: int,
    draw: tuple[int, int] = (0, 0),
    last: Sequence[Derivatives] = (),
) -> list[Derivatives]:
    """In fixed point, for each output. `scores` is (joined rows, outputs), `draw` the seed and the tree. `last` are
    those of the tree before: their memory is used again, and their scales are tried first, for most often they stay."""
    dtype: type[np.signedinteger[Any]] = np.int32 if bits <= 16 else np.int64
    both = [own.both for own in last] or [np.empty(len(scores), dtype) for _ in range(loss.outputs)]
    scales = [(1 / g, 1 / h) for g, h in (own.unit for own in last)] or [(1.0, 1.0)] * loss.outputs
    is_constant = loss.is_quadratic and labels.weights is None
    while True:
        with np.errstate(over="ignore", invalid="ignore"):  # by scales that are not theirs
            extents = _written(loss, scores, labels, bits, draw, scales, both)
        wanted = [_scales(extent, bits, is_constant) for extent in extents.tolist()]
        if wanted == scales:
            return [Derivatives(own, (1 / by_g, 1 / by_h)) for own, (by_g, by_h) in zip(both, scales, strict=True)]
        scales = wanted


def _written(
    loss: Loss,
    scores: Array,
    labels: Labels,
    bits: int,
    draw: tuple[int, int],
    scales: Sequence[tuple[float, float]],
    both: Sequence[Integers],
) -> Array:
    """Writes g and h by these scales; the largest |g| and h of each output."""
    from tablepuppet.algorithms.boosting import kernels  # here: it loads the compiler

    extents = np.zeros((loss.outputs, 2))
    is_constant = loss.is_quadratic and labels.weights is None
    is_plain, (by_g, by_h) = labels.weights is None and bits >= 16, scales[0]
    index = kernels.fixed_type(np.zeros(0, np.int32) if labels.index is None else labels.index)
    values = kernels.fixed_type(labels.values)
    if isinstance(loss, Squared) and is_plain:
        extents[0] = kernels.residuals(scores[:, 0], values, index, by_g, both[0]), 1.0
        return extents
    half = 4 * both[0].itemsize
    for start in range(0, len(scores), _SHARD):
        stop = min(start + _SHARD, len(scores))
        if isinstance(loss, Logistic) and is_plain:
            own = (index[start:stop], values) if len(index) else (index, values[start:stop])
            kernels.class_slopes(np.exp(-scores[start:stop, 0]), *own, by_g, by_h, both[0][start:stop], extents[0])
            continue
        g, h = _exact(loss, scores, labels, start, stop)
        most_g = np.maximum(g.max(axis=0), -g.min(axis=0))
        extents = np.maximum(extents, np.stack([most_g, h.max(axis=0)], axis=1))
        for k, (out, (by_g, by_h)) in enumerate(zip(both, scales, strict=True)):
            u, v = (0.5, 0.5) if bits >= 16 else _drawn(draw, 2 * k, start, stop)
            fixed = _rounded(g[:, k], by_g, u).astype(out.dtype)
            fixed <<= half
            fixed += np.maximum(_rounded(h[:, k], by_h, 0.5 if is_constant else v), 1.0).astype(out.dtype)
            out[start:stop] = fixed
    return extents


def clipped_derivatives(loss: Loss, scores: Array, labels: Labels, noise: LeafNoise) -> list[Derivatives]:
    """The same for sums that carry noise: each joined row within its clip, in units that no row has shaped."""
    out = [Derivatives(np.empty(len(scores), np.int32), (noise.unit, noise.unit / noise.scale)) for _ in scores.T]
    for start in range(0, len(scores), _SHARD):
        stop = min(start + _SHARD, len(scores))
        g, h = noise.clipped(*_exact(loss, scores, labels, start, stop))
        for k, own in enumerate(out):
            own.both[start:stop] = (g[:, k] << 16) + h[:, k]
    return out


def _drawn(draw: tuple[int, int], which: int, start: int, stop: int) -> tuple[Array, Array]:
    """Two numbers in [0, 1) for each of some joined rows."""
    seed, tree = draw
    rows = np.arange(start, stop, dtype=np.uint64)
    return uniform(seed + 2 + which, tree, rows), uniform(seed + 3 + which, tree, rows)


def _exact(loss: Loss, scores: Array, labels: Labels, start: int, stop: int) -> tuple[Array, Array]:
    """g and h of some joined rows, (rows, outputs) each."""
    own = slice(start, stop) if labels.index is None else labels.index[start:stop]
    y, weights = labels.values[own], None if labels.weights is None else labels.weights[own]
    if isinstance(loss, Squared | Logistic):  # as most are: without the value of the loss, which costs a logarithm
        a = scores[start:stop]
        if isinstance(loss, Squared):
            g, h = a - y[:, None], np.ones_like(a)
        else:
            p = np.exp(-a)
            p += 1.0
            np.divide(1.0, p, out=p)
            g, h = p - y[:, None], p - p * p
        return (g, h) if weights is None else (g * weights[:, None], h * weights[:, None])
    weighted = loss if weights is None else Weighted(loss, weights)
    _, g, curvature = weighted.derivatives(scores[start:stop], y, wants_curvature=True)
    assert curvature is not None
    return g, curvature if loss.caution == 1 else curvature * loss.caution


def _rounded(values: Array, scale: float, up: float | Array) -> Array:
    """⌊v·scale + up⌋"""
    out = values * scale
    out += up
    return np.floor(out, out=out)


def _scales(extent: Sequence[float], bits: int, is_constant: bool) -> tuple[float, float]:
    most_g, most_h = extent
    if not (math.isfinite(most_g) and math.isfinite(most_h)):
        raise TrainingError("training diverged: a derivative of the loss is not finite; use a smaller learning_rate")
    return _scale(most_g, bits), 1.0 if is_constant else _scale(most_h, bits)


def _scale(most: float, bits: int) -> float:
    """The power of two that takes `most` to no more than 2^(bits − 2)."""
    if most <= 0.0:
        return 1.0
    return float(2.0 ** min(1000, math.floor(math.log2(2.0 ** (bits - 2) / most))))
