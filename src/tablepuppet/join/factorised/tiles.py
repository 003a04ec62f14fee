"""A Fourier series summed over all joined rows of a tree, tile after tile of frequencies.

In: the series, scores in the order of a tree's groups. Out: per row of each relation the sums of its terms. Tiles are
shared out in lanes. The series alone decides on lanes, and lanes are added in order, so the number of threads never
changes a bit. A lane holds a message for each group and a phase for each row, never rows × frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.join.factorised import kernels
from tablepuppet.join.factorised.series import TILE, Series
from tablepuppet.join.factorised.tree import Tree
from tablepuppet.threads import pool

_MAX_LANES = 16
_TILES_PER_LANE = 2  # where that makes fewer lanes: each begins with a power of every row's phase


def walk_series(tree: Tree, series: Series, scores: Sequence[Array], weights: Array) -> list[Array]:
    """Σ over each row's joined rows of the series' terms but the constant one: (rows, 2) of φ′ and φ″, of the root's
    rows of φ too. `scores` are in the order of groups, the root's less the series' centre."""
    turns = [np.column_stack([np.cos(series.omega * h), np.sin(series.omega * h)]) for h in scores]
    levels = [kernels.Level(relation.first, relation.starts, relation.finds) for relation in tree.relations]
    tiles = np.arange(series.frequencies // TILE)
    lanes = np.array_split(tiles, min(_MAX_LANES, -(-len(tiles) // _TILES_PER_LANE)))

    def walk(lane: NDArray[np.intp]) -> list[Array]:
        return _Lane(tree, levels, turns, weights).walk(series, lane)

    total: list[Array] = []
    for found in pool().map(walk, lanes):
        total = [a + b for a, b in zip(total, found, strict=True)] if total else found
    return total


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """Some tiles of frequencies, walked one after the other."""

    tree: Tree
    levels: Sequence[kernels.Level]
    turns: Sequence[Array]
    weights: Array

    def walk(self, series: Series, tiles: NDArray[np.intp]) -> list[Array]:
        tree, none = self.tree, np.zeros(0)
        phases = [kernels.Phases(np.empty_like(turn), turn) for turn in self.turns]
        for phase in phases:
            kernels.turn_to(phase.turn, 1 + TILE * int(tiles[0]), phase.now)
        out = [np.zeros((len(turn), 3 if i == tree.root else 2)) for i, turn in enumerate(self.turns)]
        messages = np.empty((tree.groups, 2 * kernels.DOWN))
        for tile in tiles.tolist():
            inside = slice(1 + TILE * tile, 1 + TILE * (tile + 1))
            terms = np.concatenate([series.cosines[:, inside], series.sines[:, inside]], axis=1)
            for i in reversed(tree.order[1:]):
                kernels.pass_up(self.levels[i], phases[i], messages)
            for i in tree.order:
                is_root = i == tree.root
                own = np.ascontiguousarray(terms[: out[i].shape[1]])
                weights = self.weights if is_root else none
                kernels.pass_down(self.levels[i], phases[i], messages, weights, kernels.Sums(own, out[i]))
        return out
