"""Fourier series summed over all joined rows of trees, tile after tile of frequencies.

In: a series for each branch, scores in the order of its tree's groups. Out: per row of each relation the sums of the
series' terms. Tiles are shared out in lanes. The series alone decides on lanes, and lanes are added in order, so the
number of threads, or of a cluster's workers, never changes a bit. A lane holds a message for each group and a phase for
each row, never rows × frequencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, freeze
from tablepuppet.join.factorised.series import TILE, Series
from tablepuppet.join.factorised.tree import Tree
from tablepuppet.threads import pool

_MAX_LANES = 16
_TILES_PER_LANE = 2  # where that makes fewer lanes: each begins with a power of every row's phase
Lane = tuple[int, NDArray[np.intp]]  # the number of a branch, some of its tiles


class Level(NamedTuple):
    """A relation: its rows, group by group, and the groups that each of them finds in the relations below."""

    first: int  # group
    starts: NDArray[np.int64]  # where each group's rows begin, and the end
    finds: NDArray[np.int32]  # (rows, relations below)


class Phases(NamedTuple):
    """e^{iωh} of a relation's rows at a tile's first frequency, and what turns it to the next; (rows, 2)."""

    now: Array
    turn: Array


class Sums(NamedTuple):
    """The sums of each row, (rows, functions), and a series' coefficients, (functions, 16)."""

    coefficients: Array
    out: Array


class SeriesWalk(msgspec.Struct, frozen=True, eq=False):
    """A branch's series and the phases of its rows. Arrays are frozen: a cluster's workers have them so, and compile
    the same loops."""

    series: Series
    order: tuple[int, ...]  # of relations; the root is the first
    groups: int
    levels: Sequence[Level]
    firsts: Sequence[Array]  # e^{iωh} at the first frequency
    turns: Sequence[Array]  # from each frequency to the next
    weights: Array

    @classmethod
    def of(cls, tree: Tree, series: Series, scores: Sequence[Array], weights: Array) -> SeriesWalk:
        """`scores` are in the order of groups, the root's less the series' centre."""
        levels = [Level(own.first, freeze(own.starts), freeze(own.finds)) for own in tree.relations]
        turns = [_turn(series.step, h) for h in scores]
        firsts = turns if series.first == series.step else [_turn(series.first, h) for h in scores]
        return cls(series, tree.order, tree.groups, levels, firsts, turns, freeze(weights))

    def share_tiles(self) -> list[NDArray[np.intp]]:
        """The tiles of each lane."""
        tiles = np.arange(self.series.frequencies // TILE)
        return np.array_split(tiles, min(_MAX_LANES, -(-len(tiles) // _TILES_PER_LANE)))

    def walk(self, tiles: NDArray[np.intp]) -> list[Array]:
        """Σ over each row's joined rows of some tiles' terms: (rows, 2) of φ′ and φ″, of the root's rows of φ too."""
        from tablepuppet.join.factorised import kernels  # here: it loads the compiler

        series, root = self.series, self.order[0]
        phases = [Phases(first.copy(), turn) for first, turn in zip(self.firsts, self.turns, strict=True)]
        for phase in phases:
            kernels.turn_on(phase, TILE * int(tiles[0]))
        out = [np.zeros((len(turn), 3 if i == root else 2)) for i, turn in enumerate(self.turns)]
        messages = np.empty((self.groups, 2 * kernels.DOWN))
        none = freeze(np.zeros(0))
        for tile in tiles.tolist():
            inside = slice(1 + TILE * tile, 1 + TILE * (tile + 1))
            terms = np.concatenate([series.cosines[:, inside], series.sines[:, inside]], axis=1)
            for i in reversed(self.order[1:]):
                kernels.pass_up(self.levels[i], phases[i], messages)
            for i in self.order:
                own = np.ascontiguousarray(terms[: out[i].shape[1]])
                weights = self.weights if i == root else none
                kernels.pass_down(self.levels[i], phases[i], messages, weights, Sums(own, out[i]))
        return out


def _turn(omega: float, scores: Array) -> Array:
    return freeze(np.column_stack([np.cos(omega * scores), np.sin(omega * scores)]))


def walk_lanes(walks: Sequence[SeriesWalk], lanes: Iterable[Lane]) -> Iterator[list[Array]]:
    """Sums of each lane, by the threads of this process."""
    return pool().map(lambda lane: walks[lane[0]].walk(lane[1]), lanes)
