"""Derivatives of the loss in fixed point: g and h of every joined row as whole numbers.

    s_g = 2^⌊log2(2^(b−2) / max|g|)⌋,  gi = ⌊g·s_g + ½⌋,  hi = max(1, ⌊h·s_h + ½⌋)

Scales are powers of two, so that rounding happens once; sums of whole numbers have no order. Where h is one for every
row, hi is one too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.boosting import kernels
from tablepuppet.errors import TrainingError
from tablepuppet.models.losses import Logistic, Loss, Squared
from tablepuppet.models.losses.weighted import Weighted

Array = NDArray[np.float64]
Integers = NDArray[np.signedinteger[Any]]
_SHARD = 1 << 15
_NONE = np.zeros(0)


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
    """g and h of every joined row for one output, and what one unit of them is worth."""

    g: Integers
    h: Integers
    unit: tuple[float, float]


def derivatives(loss: Loss, scores: Array, labels: Labels, bits: int) -> list[Derivatives]:
    """In fixed point, for each output. `scores` is (joined rows, outputs)."""
    dtype: type[np.signedinteger[Any]] = np.int16 if bits == 16 else np.int32
    is_constant = loss.is_quadratic and labels.weights is None
    if loss.outputs == 1 and isinstance(loss, Squared | Logistic):
        return [_compiled(loss, scores[:, 0], labels, bits, dtype, is_constant)]
    extents = np.zeros((loss.outputs, 2))
    shards = [(a, min(a + _SHARD, len(scores))) for a in range(0, len(scores), _SHARD)]
    for start, stop in shards:
        g, h = _plain(loss, scores, labels, start, stop)
        extents = np.maximum(extents, np.stack([np.abs(g).max(axis=0), h.max(axis=0)], axis=1))
    scales = [_scales(extent, bits, is_constant) for extent in extents.tolist()]
    out = [Derivatives(np.empty(len(scores), dtype), np.empty(len(scores), dtype), (1 / a, 1 / b)) for a, b in scales]
    for start, stop in shards:
        g, h = _plain(loss, scores, labels, start, stop)
        for k, (own, (by_g, by_h)) in enumerate(zip(out, scales, strict=True)):
            kernels.fixed_point(np.ascontiguousarray(g[:, k]), by_g, np.iinfo(dtype).min, own.g[start:stop])
            kernels.fixed_point(np.ascontiguousarray(h[:, k]), by_h, 1, own.h[start:stop])
    return out


def _compiled(
    loss: Loss, scores: Array, labels: Labels, bits: int, dtype: type[np.signedinteger[Any]], is_constant: bool
) -> Derivatives:
    """The same for the two losses that most runs have, without arrays of floating-point derivatives."""
    is_squared = isinstance(loss, Squared)
    extent = kernels.squared_extent if is_squared else kernels.logistic_extent
    fixed = kernels.squared_fixed if is_squared else kernels.logistic_fixed
    index = kernels.fixed_type(np.zeros(0, np.int32) if labels.index is None else labels.index)
    weights = kernels.fixed_type(_NONE if labels.weights is None else labels.weights)
    values, held = kernels.fixed_type(labels.values), np.ascontiguousarray(scores)
    scales = _scales(extent(held, values, index, 0, weights), bits, is_constant)
    g: Integers = np.empty(len(held), dtype)
    h: Integers = np.empty(len(held), dtype)
    fixed(held, values, index, 0, weights, np.array(scales), g, h)
    return Derivatives(g, h, (1 / scales[0], 1 / scales[1]))


def _plain(loss: Loss, scores: Array, labels: Labels, start: int, stop: int) -> tuple[Array, Array]:
    rows = labels.numbers(start, stop)
    own = loss if labels.weights is None else Weighted(loss, labels.weights[rows])
    _, g, h = own.derivatives(scores[start:stop], labels.values[rows], wants_curvature=True)
    assert h is not None
    return g, h


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
