"""Derivatives of the loss in fixed point: g and h of every joined row as whole numbers.

    s_g = 2^⌊log2(2^(b−2) / max|g|)⌋,  gi = ⌊g·s_g + ½⌋,  hi = max(1, ⌊h·s_h + ½⌋)

Scales are powers of two, so that rounding happens once; sums of whole numbers have no order. Where h is one for every
row, hi is one too.

Sums of leaves may carry noise. A joined row adds u = (g_1 … g_K, s·h_1 … s·h_K) to one leaf of each of K trees, clipped
to ‖u‖ ≤ C. A base row with at most κ joined rows moves all sums of these trees by at most κC, wherever its joined rows
fall. Splits are drawn, so nothing else depends on it. Later trees see other rows through noisy values alone.
"""

import math
from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import ROWS_PER_LOOKUP, Array, RowNumbers, pieces
from tablepuppet.errors import TrainingError
from tablepuppet.models.losses import Loss, Weighted
from tablepuppet.privacy.gaussian import noised
from tablepuppet.privacy.labels import Channel

_ODD = np.uint64(0x9E3779B97F4A7C15)
_BITS = 14  # of C in units: sums are whole numbers of them
_MIN_ROWS = 100.0  # rows without noise, of which a tree learns little
_SHRINK = 16.0  # λ: a leaf whose Σg is 16 deviations at the most counts for half (docs/decisions/0115)


def uniform(seed: int, tree: int, numbers: NDArray[np.uint64]) -> Array:
    """Numbers in [0, 1) that follow from their arguments (splitmix64)."""
    with np.errstate(over="ignore"):
        start = np.array([seed], np.uint64) * _ODD + np.uint64(tree) + np.uint64(1)
        x = _mix(start) + numbers * _ODD
        return np.asarray((_mix(x) >> np.uint64(11)).astype(np.float64) / 2.0**53)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class LabelNoise(msgspec.Struct, frozen=True, eq=False):
    """Labels without the bias of their noise average, in a leaf of few rows, to what no labels can, and its score would
    grow with every tree. So the labels of a leaf sum up to what labels can, and more rows make one."""

    outputs: Array  # of each label, or of each class that is seen: its unbiased value for every output
    is_class: bool
    bounds: tuple[float, float]
    excess: float  # rows that say as much as one without noise

    @classmethod
    def of(cls, loss: Loss, channel: Channel | None, values: Array, bounds: tuple[float, float] | None) -> Self | None:
        """`bounds`: public, of a number."""
        if channel is None:
            return None
        targets: Array | None = getattr(loss, "targets", None)
        if bounds is None:
            outputs = values[:, None] if targets is None else targets
            return cls(outputs, targets is not None, (0.0, 1.0), (channel.truth - channel.other) ** -2)
        spread = (bounds[1] - bounds[0]) / 4
        return cls(values[:, None], False, bounds, max(1.0, float(np.var(values)) / spread**2))

    def describe(self, rows: int) -> list[str]:
        """A note on training rows that say little."""
        worth = rows / self.excess
        why = f"noise on labels leaves {rows:,} training rows the worth of {worth:,.0f}: the model may be worse than a "
        return [] if worth >= _MIN_ROWS else [why + "constant; take more rows, or a larger privacy.label.epsilon"]

    def limit(self, total: float, rows: int) -> float:
        """The sum of so many labels; of classes, half a row at least is of another one."""
        low, high = self.bounds
        margin = min(0.5, rows / 2) if self.bounds == (0.0, 1.0) else 0.0
        return min(max(total, rows * low + margin), rows * high - margin)


class Labels(msgspec.Struct, frozen=True, eq=False):
    """The label and the weight of every joined row, by the row of the label table that it comes from."""

    values: Array
    index: RowNumbers | None
    weights: Array | None = None
    noise: LabelNoise | None = None  # that owners added

    def rows(self, some: slice) -> slice | RowNumbers:
        """Rows of the label table."""
        return some if self.index is None else self.index[some]

    def excess(self, output: int, rows: RowNumbers) -> float:
        """How far some joined rows' noisy labels sum up to more than labels can."""
        if self.noise is None:
            return 0.0
        own = rows if self.index is None else self.index[rows]
        places = self.values[own].astype(np.intp) if self.noise.is_class else own
        total = float(self.noise.outputs[places, output].sum())
        return total - self.noise.limit(total, len(rows))


class Derivatives(msgspec.Struct, frozen=True, eq=False):
    """g and h of every joined row for one output, and what one unit of them is worth.

    They lie side by side, as the upper and the lower 32 bits of one number: who sums them up reads one place, not two.
    """

    both: NDArray[np.int64]
    unit: tuple[float, float]


def derivatives(
    loss: Loss, scores: Array, labels: Labels, bits: int, last: Sequence[Derivatives] = ()
) -> list[Derivatives]:
    """In fixed point, for each output. `scores` is (joined rows, outputs). `last` are those of the tree before. Their
    memory is reused, and their scales are tried first, as they rarely change."""
    both = [own.both for own in last] or [np.empty(len(scores), np.int64) for _ in range(loss.outputs)]
    scales = [(1 / g, 1 / h) for g, h in (own.unit for own in last)] or [(1.0, 1.0)] * loss.outputs
    is_constant = loss.is_quadratic and labels.weights is None
    while True:
        with np.errstate(over="ignore", invalid="ignore"):  # by scales that are not theirs
            extents = _write(loss, scores, labels, scales, both)
        wanted = [_scales(extent, bits, is_constant) for extent in extents.tolist()]
        if wanted == scales:
            units = [(1 / by_g, 1 / by_h) for by_g, by_h in scales]
            return [Derivatives(own, unit) for own, unit in zip(both, units, strict=True)]
        scales = wanted


def _write(
    loss: Loss, scores: Array, labels: Labels, scales: Sequence[tuple[float, float]], both: Sequence[NDArray[np.int64]]
) -> Array:
    """Writes g and h by these scales; the largest |g| and h of each output."""
    extents, has_units = np.zeros((loss.outputs, 2)), loss.is_quadratic and labels.weights is None
    for some in pieces(len(scores), ROWS_PER_LOOKUP):
        g, h = _exact(loss, scores, labels, some)
        most_g = np.maximum(g.max(axis=0), -g.min(axis=0))
        extents = np.maximum(extents, np.stack([most_g, h.max(axis=0)], axis=1))
        for k, (out, (by_g, by_h)) in enumerate(zip(both, scales, strict=True)):
            fixed = _to_fixed(g[:, k], by_g).astype(np.int64)
            fixed <<= 32
            fixed += 1 if has_units else np.maximum(_to_fixed(h[:, k], by_h), 1.0).astype(np.int64)
            out[some] = fixed
    return extents


class LeafNoise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The server's clip and noise for the sums of every group of trees, applied before anything depends on them."""

    clip: float  # C, of a joined row
    scale: float  # s
    curvature: float  # the usual maximum of h
    deviation: float  # of Σg; of Σh it is a part of s

    @property
    def unit(self) -> float:
        """Of sums in fixed point, a power of two that no row has shaped."""
        return float(2.0 ** (math.floor(math.log2(self.clip)) - _BITS))

    @property
    def shrinkage(self) -> float:
        """λ besides the user's: leaves whose noise outweighs their rows count for little."""
        return _SHRINK * self.deviation * self.curvature / self.clip

    def clip_rows(self, g: Array, h: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """g and s·h of some joined rows, (rows, outputs) each, in units: within C, for they are cut towards zero."""
        scaled = self.scale * h
        norms = np.sqrt(np.einsum("jk,jk->j", g, g) + np.einsum("jk,jk->j", scaled, scaled))
        by = np.minimum(1.0, self.clip / np.maximum(norms, 1e-300))[:, None] * ((1.0 - 2.0**-40) / self.unit)
        return np.trunc(g * by).astype(np.int64), np.trunc(scaled * by).astype(np.int64)

    def noisy(self, sums: NDArray[np.int64], generator: np.random.Generator) -> Array:
        """Σg and Σh, (…, 2), with noise, from whole numbers of units of g and of s·h."""
        found = noised(sums.astype(np.float64) * self.unit, self.deviation, generator)
        return np.asarray(found / np.array([1.0, self.scale]))


def clipped_derivatives(loss: Loss, scores: Array, labels: Labels, noise: LeafNoise) -> list[Derivatives]:
    """The same for sums that carry noise: each joined row within its clip, in units that no row has shaped."""
    out = [Derivatives(np.empty(len(scores), np.int64), (noise.unit, noise.unit / noise.scale)) for _ in scores.T]
    for some in pieces(len(scores), ROWS_PER_LOOKUP):
        g, h = noise.clip_rows(*_exact(loss, scores, labels, some))
        for k, own in enumerate(out):
            own.both[some] = (g[:, k] << 32) + h[:, k]
    return out


def _exact(loss: Loss, scores: Array, labels: Labels, some: slice) -> tuple[Array, Array]:
    """g and h of some joined rows, (rows, outputs) each."""
    own = labels.rows(some)
    y, weights = labels.values[own], None if labels.weights is None else labels.weights[own]
    weighted = loss if weights is None else Weighted(loss, weights)
    g, h = weighted.gradient(scores[some], y), weighted.curvature(scores[some], y)
    return g, h if loss.caution == 1 else h * loss.caution


def _to_fixed(values: Array, scale: float) -> Array:
    """⌊v·scale + ½⌋"""
    out = values * scale
    out += 0.5
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
