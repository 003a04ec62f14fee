"""e^{iωa} summed over the joined rows of every row, eight frequencies at a time, compiled (numba).

In: a relation's rows in the order of their groups, e^{iωh} of each by its first frequency and the turn to the next.
Out: two messages for each group. `pass_up` sums over everything below a group's rows, `pass_down` over everything above
and next to them. The product of both, times a series' coefficients, is added to every row's sums. A message is 16
numbers: eight real parts, then eight imaginary ones. A group's two lie side by side, (groups, 32), because rows that
find the group need both. Nothing is larger than rows or groups, and sums keep their order.
"""

from functools import partial

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.join.factorised.series import TILE, Level, Phases, Sums
from tablepuppet.threads import compile_loop, compile_sums

DOWN = 2 * TILE  # where messages down lie behind those up
_compile_inline = partial(compile_loop, inline="always")


@_compile_inline
def _fill(e: Array, phases: Phases, row: int) -> tuple[float, float]:
    """e^{iωh} at a tile's frequencies; returned: the turn to the next tile."""
    zr, zi = phases.turn[row, 0], phases.turn[row, 1]
    e[0], e[TILE] = phases.now[row, 0], phases.now[row, 1]
    step = 1
    for _ in range(3):
        for b in range(step):
            r, i = e[b], e[TILE + b]
            e[step + b], e[TILE + step + b] = r * zr - i * zi, r * zi + i * zr
        zr, zi = zr * zr - zi * zi, 2.0 * zr * zi
        step *= 2
    return zr, zi


@_compile_inline
def _multiply(e: Array, messages: Array, group: int, first: int) -> None:
    """e times a message, the one up (at 0) or down."""
    for b in range(TILE):
        r, i = e[b], e[TILE + b]
        s, j = messages[group, first + b], messages[group, first + TILE + b]
        e[b], e[TILE + b] = r * s - i * j, r * j + i * s


@compile_sums
def turn_on(phases: Phases, steps: int) -> None:
    """Turns e^{iωh} to a later frequency, by powers of the turn to the next."""
    for x in range(len(phases.now)):
        zr, zi = phases.turn[x, 0], phases.turn[x, 1]
        r, i = phases.now[x, 0], phases.now[x, 1]
        left = steps
        while left:
            if left & 1:
                r, i = r * zr - i * zi, r * zi + i * zr
            zr, zi = zr * zr - zi * zi, 2.0 * zr * zi
            left >>= 1
        phases.now[x, 0], phases.now[x, 1] = r, i


@compile_sums
def pass_up(level: Level, phases: Phases, messages: Array) -> None:
    """The message of each of the relation's groups to those above."""
    e, total = np.empty(2 * TILE), np.empty(2 * TILE)
    for g in range(len(level.starts) - 1):
        total[:] = 0.0
        for x in range(level.starts[g], level.starts[g + 1]):
            _fill(e, phases, x)
            for k in range(level.finds.shape[1]):
                _multiply(e, messages, level.finds[x, k], 0)
            for b in range(2 * TILE):
                total[b] += e[b]
        for b in range(2 * TILE):
            messages[level.first + g, b] = total[b]
            messages[level.first + g, DOWN + b] = 0.0


@compile_sums
def pass_down(level: Level, phases: Phases, messages: Array, weights: Array, sums: Sums) -> None:
    """Adds to each row's sums and to the messages of the groups that it finds; `weights`: of the root's rows."""
    below = level.finds.shape[1]
    e, part = np.empty(2 * TILE), np.empty(TILE)
    ahead = np.empty((below + 1, 2 * TILE))  # the product of all but the relations below from some one on
    for g in range(len(level.starts) - 1):
        for x in range(level.starts[g], level.starts[g + 1]):
            zr, zi = _fill(e, phases, x)
            r, i = phases.now[x, 0], phases.now[x, 1]
            phases.now[x, 0], phases.now[x, 1] = r * zr - i * zi, r * zi + i * zr
            if len(weights):
                for b in range(2 * TILE):
                    e[b] *= weights[x]
            else:
                _multiply(e, messages, level.first + g, DOWN)
            for k in range(below):
                for b in range(2 * TILE):
                    ahead[k, b] = e[b]
                _multiply(e, messages, level.finds[x, k], 0)
            for f in range(sums.out.shape[1]):
                for b in range(TILE):
                    part[b] = e[b] * sums.coefficients[f, b] + e[TILE + b] * sums.coefficients[f, TILE + b]
                for b in range(4):
                    part[b] += part[4 + b]
                sums.out[x, f] += (part[0] + part[2]) + (part[1] + part[3])
            if below == 0:
                continue
            last = level.finds[x, below - 1]
            for b in range(2 * TILE):
                messages[last, DOWN + b] += ahead[below - 1, b]
            if below > 1:
                for b in range(2 * TILE):
                    e[b] = messages[last, b]
            for k in range(below - 2, -1, -1):
                group = level.finds[x, k]
                for b in range(TILE):
                    r, i = ahead[k, b], ahead[k, TILE + b]
                    s, j = e[b], e[TILE + b]
                    messages[group, DOWN + b] += r * s - i * j
                    messages[group, DOWN + TILE + b] += r * j + i * s
                if k:
                    _multiply(e, messages, group, 0)
