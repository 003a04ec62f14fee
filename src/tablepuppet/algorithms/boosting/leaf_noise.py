"""Noise on the sums of leaves: what a base row can move, and how values come from sums that carry noise.

A joined row adds u = (g_1 … g_K, s·h_1 … s·h_K) to one leaf of each of K trees, clipped to ‖u‖ ≤ C. A base row that has
at most κ joined rows moves all sums of these trees by κC at most, wherever its joined rows fall; splits are drawn, so
nothing else depends on it. Later trees see other rows through noisy values alone.

In: clip, scale and deviation, all of them public. Out: noisy sums. Nothing here reads a row.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.privacy.gaussian import noised

_BITS = 14  # of C in units: sums are whole numbers of them
_SHRINK = 16.0  # λ: a leaf whose Σg is 16 deviations at the most counts for half (docs/decisions/0115)


class LeafNoise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the server does to the sums of every group of trees before anything depends on them."""

    clip: float  # C, of a joined row
    scale: float  # s
    curvature: float  # what h is at the most, usually
    deviation: float  # of Σg; of Σh it is a part of s

    @property
    def unit(self) -> float:
        """Of sums in fixed point, a power of two that no row has shaped."""
        return float(2.0 ** (math.floor(math.log2(self.clip)) - _BITS))

    @property
    def shrinkage(self) -> float:
        """λ besides the user's: leaves whose noise outweighs their rows count for little."""
        return _SHRINK * self.deviation * self.curvature / self.clip

    def clipped(self, g: Array, h: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """g and s·h of some joined rows, (rows, outputs) each, in units: within C, for they are cut towards zero."""
        scaled = self.scale * h
        norms = np.sqrt(np.einsum("jk,jk->j", g, g) + np.einsum("jk,jk->j", scaled, scaled))
        by = np.minimum(1.0, self.clip / np.maximum(norms, 1e-300))[:, None] * ((1.0 - 2.0**-40) / self.unit)
        return np.trunc(g * by).astype(np.int64), np.trunc(scaled * by).astype(np.int64)

    def noisy(self, sums: NDArray[np.int64], generator: np.random.Generator) -> Array:
        """Σg and Σh, (…, 2), with noise, from whole numbers of units of g and of s·h."""
        found = noised(sums.astype(np.float64) * self.unit, self.deviation, generator)
        return np.asarray(found / np.array([1.0, self.scale]))
