"""Squared error, with the z-step and dual step of ADMM (algorithms/admm/server.py) in one pass over joined rows.

In: a view, whose state u is the last round's, and b, b⁻, ρ and the relaxation. Out: the sums by which ADMM judges
itself; u becomes u⁺, and c = λ⁺ + ρ(a − z⁺), z⁺ = u⁺ − b, is collapsed to the blocks' rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.models.compiler import LaneView
from tablepuppet.models.jit import CHUNK, collapse, expand, kernel, summing
from tablepuppet.models.losses.squared import Squared

State = NDArray[np.floating[Any]]
NORMS = 5  # ‖a − z‖², ‖u⁺ − u + b⁻ − b‖², ‖a‖², ‖z‖², ‖λ⁺‖²


@dataclass(frozen=True, slots=True)
class CompiledSquared(Squared):
    """½(a − y)²: NumPy is fast enough but for ADMM's step."""

    def dual_step(self, view: LaneView, intercept: float, before: float, rho: float, relax: float) -> Array:
        return squared_dual(view, intercept, before, rho, relax)


def squared_dual(view: LaneView, b: float, before: float, rho: float, relax: float) -> Array:
    """The step of ½(a − y)²: the five norms."""
    norms = np.zeros(NORMS)
    given = (view.rows, view.source, view.target, view.state["u"])
    _squared(*given, b, before, rho, relax, norms)
    return norms


@kernel
def _squared(
    rows: int,
    source: tuple[Any, ...],
    target: tuple[Any, ...],
    u: State,
    b: float,
    before: float,
    rho: float,
    relax: float,
    norms: Array,
) -> None:
    blocks, room = np.empty((len(source[0]), CHUNK)), np.empty((3, CHUNK))
    for first in range(0, rows, CHUNK):
        kept = u[first : min(first + CHUNK, rows)]
        a, y, signal = room[0, : len(kept)], room[1, : len(kept)], room[2, : len(kept)]
        expand(first, source, blocks, a, y)
        _squared_step(a, y, kept, signal, b, before, rho, relax, norms)
        collapse(first, target, blocks, signal)


@summing
def _squared_step(
    a: Array, y: Array, u: State, signal: Array, b: float, before: float, rho: float, relax: float, norms: Array
) -> None:
    shift, inverse, down = b - (1.0 - relax) * before, 1.0 / rho, 1.0 / (1.0 + rho)
    primal, moved, of_scores, of_z, of_dual = 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(len(u)):
        last = np.float64(u[j])
        centre = (last - y[j]) * inverse + relax * a[j] + (1.0 - relax) * last + shift
        new = (y[j] + rho * centre) * down
        u[j] = new
        dual, z = new - y[j], new - b
        gap, step = a[j] - z, new - last + before - b
        signal[j] = dual + rho * gap
        primal += gap * gap
        moved += step * step
        of_scores += a[j] * a[j]
        of_z += z * z
        of_dual += dual * dual
    norms += np.array([primal, moved, of_scores, of_z, of_dual])
