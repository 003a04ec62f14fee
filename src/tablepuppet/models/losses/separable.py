"""A loss whose sums over a join need no joined row: ℓ(a; y) = u·φ(a − s) + v·a + c, where u, s, v, c follow from y.

The score is a sum over tables, a = h₁ + … + h_M. A square, an exponential and the terms of a Fourier series turn that
sum into products, which are summed up along the join's tree (join/factorised/). A loss says by `separate` which
core φ it has. Losses with kinks have none, nor have losses of several outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tablepuppet.arrays import Array

Function = Callable[[Array], Array]


class Square(msgspec.Struct, frozen=True):
    """φ(a) = ½ a²."""


class Exponential(msgspec.Struct, frozen=True):
    """φ(a) = e^{rate·a}."""

    rate: float = 1.0


class Analytic(msgspec.Struct, frozen=True):
    """φ is even, φ″ fades away from 0, and φ is analytic near the real line: the sum of a short Fourier series."""

    value: Function
    slope: Function
    curvature: Function
    strip: float  # how far from the real line the nearest pole lies: π of the logistic function


Core = Square | Exponential | Analytic


class Separable(msgspec.Struct, frozen=True, eq=False):
    """u·φ(a − s) + v·a + c: a number for each row of the label table; None: u = 1, and s, v or c = 0."""

    core: Core
    scale: Array | None = None  # u, at least 0
    shift: Array | None = None  # s
    linear: Array | None = None  # v
    constant: Array | None = None  # c
