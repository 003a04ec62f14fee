"""The proximal step of softmax (classes.py), compiled (numba): a chunk of rows never leaves the first-level cache.

A chunk lies transposed, classes by rows, so that every inner loop runs over rows. Compiled code is kept next to the
source, or in the user's cache if that folder is read-only. A machine compiles it once, at its first use.
"""

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.threads import compile_sums

_CHUNK_ROWS = 256
_NEWTON_STEPS = 60
_CLOSE = 1e-6  # a Newton step this small leaves an error of its square


@compile_sums
def _exponentials(x: Array, p: Array, top: Array, total: Array) -> None:
    """p = eˣ / Σ eˣ per column, and max x and Σ e^(x − max x)."""
    classes, rows = x.shape
    for j in range(rows):
        top[j] = x[0, j]
    for c in range(1, classes):
        for j in range(rows):
            top[j] = max(top[j], x[c, j])
    total[:] = 0.0
    for c in range(classes):
        for j in range(rows):
            p[c, j] = np.exp(x[c, j] - top[j])
        for j in range(rows):
            total[j] += p[c, j]
    for c in range(classes):
        for j in range(rows):
            p[c, j] /= total[j]


@compile_sums
def proximal(centre: Array, rho: Array, labels: Array, targets: Array, u: Array) -> None:
    """Newton with the Hessian ρI + diag(p) − ppᵀ, inverted by Sherman–Morrison; ρ is one number per row.

    A step overshoots if the slope at its end points back by more than a tenth of the slope at its start. It is then
    taken again at half its size.
    """
    classes = u.shape[1]
    wide, narrow = np.zeros((7, classes, _CHUNK_ROWS)), np.ones((8, _CHUNK_ROWS))
    x, v, t, p, slope, step, base = wide[0], wide[1], wide[2], wide[3], wide[4], wide[5], wide[6]
    top, total, descent, size = narrow[0], narrow[1], narrow[2], narrow[3]
    along, scale, largest, penalty = narrow[4], narrow[5], narrow[6], narrow[7]
    for first in range(0, len(u), _CHUNK_ROWS):
        rows = min(_CHUNK_ROWS, len(u) - first)
        for j in range(rows):
            penalty[j] = rho[first + j]
            row = targets[int(labels[first + j])]
            for c in range(classes):
                x[c, j], v[c, j], t[c, j] = u[first + j, c], centre[first + j, c], row[c]
        step[...] = 0.0
        base[...] = x
        descent[:] = np.inf
        for _ in range(_NEWTON_STEPS):
            _exponentials(x, p, top, total)
            largest[:] = 0.0
            for c in range(classes):
                for j in range(_CHUNK_ROWS):
                    slope[c, j] = p[c, j] - t[c, j] + penalty[j] * (x[c, j] - v[c, j])
                for j in range(_CHUNK_ROWS):
                    largest[j] -= step[c, j] * slope[c, j]
            for j in range(_CHUNK_ROWS):
                size[j] = 0.5 * size[j] if largest[j] > 0.1 * descent[j] else 1.0
            along[:] = 0.0
            scale[:] = 1.0
            for c in range(classes):
                for j in range(_CHUNK_ROWS):
                    ratio = p[c, j] / (p[c, j] + penalty[j])
                    along[j] += ratio * slope[c, j]
                    scale[j] -= ratio * p[c, j]
            for j in range(_CHUNK_ROWS):
                along[j] /= scale[j]
            _take_newton_step((x, base, step), (p, slope), along, size, descent, penalty)
            largest[:] = 0.0
            for c in range(classes):
                for j in range(_CHUNK_ROWS):
                    largest[j] = max(largest[j], abs(step[c, j]))
            far = 0
            for j in range(rows):
                far += largest[j] > _CLOSE
            if far == 0:
                break
        for j in range(rows):
            for c in range(classes):
                u[first + j, c] = x[c, j]


@compile_sums
def _take_newton_step(
    moved: tuple[Array, Array, Array],
    at: tuple[Array, Array],
    along: Array,
    size: Array,
    descent: Array,
    penalty: Array,
) -> None:
    """The next Newton step from x where the last one was good (size 1); half of the last one elsewhere."""
    x, base, step = moved
    p, slope = at
    for j in range(_CHUNK_ROWS):
        descent[j] = 0.0 if size[j] == 1.0 else descent[j]
    for c in range(len(x)):
        for j in range(_CHUNK_ROWS):
            new = (slope[c, j] + p[c, j] * along[j]) / (p[c, j] + penalty[j])
            step[c, j] = new if size[j] == 1.0 else step[c, j]
        for j in range(_CHUNK_ROWS):
            base[c, j] = x[c, j] if size[j] == 1.0 else base[c, j]
        for j in range(_CHUNK_ROWS):
            descent[j] += step[c, j] * slope[c, j] if size[j] == 1.0 else 0.0
        for j in range(_CHUNK_ROWS):
            x[c, j] = base[c, j] - size[j] * step[c, j]
