"""φ, φ′ and φ″ as Fourier series on the interval where scores lie, and the sums of such series over trees' joined rows.

In: an analytic function, the least and the greatest score. Out: frequencies and coefficients, and the largest error
found on a fine grid: the promise for each joined row. The period is a little longer than the interval. The series is
free in the gap (a Fourier extension). So it converges as fast as the function is smooth, although the function is not
periodic on the interval. Even and odd parts are fitted by least squares at Chebyshev nodes, each for itself.

Least squares take long where scores reach far. There φ″ is a narrow bump. Bumps of alternating sign, over and over, are
a wave. Its integral is a square wave, equal to φ′ near 0, and the next a triangular wave, equal to φ. One Fourier
transform gives all coefficients, and those of even frequencies are 0. If all scores lie far from 0, on one side, φ is
straight there, and the wave is moved towards them.

`SeriesWalk`. In: a series for each branch, scores in the order of its tree's groups. Out: per row of each relation the
sums of the series' terms, tile after tile of frequencies. Tiles are shared out in lanes. The series alone decides on
lanes, and lanes are added in order, so the number of threads, or of a cluster's workers, never changes a bit. A lane
holds a message for each group and a phase for each row, never rows × frequencies.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import ceil, floor, frexp, pi
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import Array, floats, freeze
from tablepuppet.errors import ScoreRangeError
from tablepuppet.join.factorised.tree import Tree
from tablepuppet.models.losses.base import Analytic
from tablepuppet.threads import one_blas_thread, pool

TILE = 8  # frequencies that are walked at a time
TOLERANCE = 1e-10  # of the slope and the curvature of a joined row, and of its loss relative to the largest
MAX_FREQUENCIES = 2048
USUAL_REACH = 12.0  # scores before a model is trained: nobody knows them
_GAP = 4.0 / pi  # of the period, on either side of the interval, in strips: the fewest frequencies (measured)
_PER_STRIP = 2.6 * pi  # frequencies that so long a piece of half the period asks for, about
_MAX_TO_FIT = 56  # frequencies beyond which a wave has fewer
_FADE = 24.0 / pi  # of half a wave's period beyond the scores, in strips: e^−24 is left of the next bump
_WAVES_PER_STRIP, _LEAST_WAVES = 4.0, 28  # frequencies of a wave, about
_NODES = 3  # per frequency, on either side
_GRID = 20
_TRUNCATION = 1e-14  # of the least squares' singular values


class Series(msgspec.Struct, frozen=True, eq=False):
    """f(a) ≈ c_0 + Σ_k c_k cos ω_k(a − centre) + s_k sin ω_k(a − centre), of f = φ′, φ″, φ.

    ω_k = first + (k − 1) step.
    """

    centre: float
    first: float
    step: float
    cosines: Array  # (3, K + 1)
    sines: Array  # (3, K + 1); the first column is 0
    errors: tuple[float, float, float]  # the largest found

    @property
    def frequencies(self) -> int:
        """K, without 0."""
        return int(self.cosines.shape[1]) - 1

    @property
    def promise(self) -> float:
        """The largest error of a joined row's slope and curvature."""
        return max(self.errors[:2])

    def __call__(self, scores: Array) -> Array:
        """All three functions, (3, scores)."""
        angles = np.outer(self.first + self.step * np.arange(self.frequencies), scores - self.centre)
        waves = self.cosines[:, 1:] @ np.cos(angles) + self.sines[:, 1:] @ np.sin(angles)
        return np.asarray(waves + self.cosines[:, :1])


def fit_series(core: Analytic, low: float, high: float, tolerance: float = TOLERANCE) -> Series:
    """The shortest series for scores from low to high; the interval is widened a little, so that the next walk's most
    likely has the same."""
    step = 2.0 ** (frexp(max(high - low, core.strip / 4.0))[1] - 4)
    return _fit_shortest(core, floor(low / step) * step, ceil(high / step) * step, tolerance)


def guess_frequencies(core: Analytic, reach: float) -> int:
    """K of a series by least squares for scores within ± reach, about."""
    return TILE * max(1, round(_PER_STRIP * (reach / core.strip + _GAP) / TILE))


@lru_cache(32)
def _fit_shortest(core: Analytic, low: float, high: float, tolerance: float) -> Series:
    reach = max((high - low) / 2.0, core.strip / 8.0)
    guess = guess_frequencies(core, reach)
    moved = max(low - _FADE * core.strip, 0.0) + min(high + _FADE * core.strip, 0.0)
    far = max(moved - low, high - moved, 0.0)
    least = TILE * round((_WAVES_PER_STRIP * far / core.strip + _LEAST_WAVES) / TILE)
    with one_blas_thread:
        for count in range(guess, _MAX_TO_FIT + 1, TILE):
            found = _fit(core, (low + high) / 2.0, reach, count)
            if not _is_within(found, tolerance):
                continue
            while found.frequencies > TILE:
                shorter = _fit(core, (low + high) / 2.0, reach, found.frequencies - TILE)
                if not _is_within(shorter, tolerance):
                    break
                found = shorter
            return found
    for count in range(least, MAX_FREQUENCIES + 1, TILE):
        found = _make_wave(core, moved, far, count)
        if _is_within(found, tolerance):
            return found
    raise ScoreRangeError(
        f"scores reach from {low:.3g} to {high:.3g}, where no series of {MAX_FREQUENCIES:,} frequencies keeps to "
        f"{tolerance:.0e}; the classes may be separable: raise l2, or look for extreme values in the columns"
    )


def _fit(core: Analytic, centre: float, reach: float, count: int) -> Series:
    from scipy.linalg import lstsq  # here: it takes a tenth of a second to load

    omega = pi / (reach + _GAP * core.strip)
    nodes = reach * np.cos(pi * (np.arange(_NODES * count) + 0.5) / (2 * _NODES * count))
    angles = np.outer(nodes, omega * np.arange(count + 1))
    above, below = _values(core, centre + nodes), _values(core, centre - nodes)

    def solve(matrix: Array, right: Array) -> Array:
        return np.asarray(lstsq(matrix, right, cond=_TRUNCATION, lapack_driver="gelsy")[0].T)

    cosines = solve(np.cos(angles), (above + below) / 2.0)
    sines = np.zeros_like(cosines)
    sines[:, 1:] = solve(np.sin(angles[:, 1:]), (above - below) / 2.0)
    series = Series(centre, omega, omega, cosines, sines, (np.inf, np.inf, np.inf))
    grid = np.linspace(centre - reach, centre + reach, _GRID * count + 1)
    errors = np.abs(series(grid) - _values(core, grid).T).max(axis=1)
    return replace(series, errors=(float(errors[0]), float(errors[1]), float(errors[2])))


def _make_wave(core: Analytic, moved: float, far: float, count: int) -> Series:
    """Of an even φ, for scores within `moved` ± far; a wave that is moved stands for its straight side alone."""
    half = far + _FADE * core.strip
    points = _GRID * 2 * count
    scores = floats(2.0 * half * np.fft.fftfreq(points))
    wave = core.curvature(scores) - core.curvature(half - np.abs(scores))
    odd = np.arange(1, 2 * count, 2)
    bends, omega = 2.0 / points * np.fft.rfft(wave).real[odd], pi / half * odd
    cosines, sines = np.zeros((3, count + 1)), np.zeros((3, count + 1))
    sines[0, 1:], cosines[1, 1:], cosines[2, 1:] = bends / omega, bends, -bends / omega**2
    cosines[2, 0] = core.value(np.zeros(1))[0] - cosines[2, 1:].sum()
    cosines[2, 0] += core.slope(np.array([moved]))[0] * moved  # 0 where nothing is moved
    spectrum = np.zeros((3, points // 2 + 1), complex)
    spectrum[:, 0], spectrum[:, odd] = cosines[:, 0], (cosines[:, 1:] - 1j * sines[:, 1:]) / 2.0
    away = np.abs(np.fft.irfft(spectrum, points, norm="forward") - _values(core, moved + scores).T)
    is_straight = moved * scores >= _FADE * core.strip * abs(moved) * (1.0 - 1e-9)
    errors = away[:, (np.abs(scores) <= far) & is_straight].max(axis=1)
    found = (float(errors[0]), float(errors[1]), float(errors[2]))
    return Series(moved, pi / half, 2.0 * pi / half, cosines, sines, found)


def _values(core: Analytic, scores: Array) -> Array:
    return np.stack([core.slope(scores), core.curvature(scores), core.value(scores)], axis=1)


def _is_within(series: Series, tolerance: float) -> bool:
    largest = max(1.0, float(np.abs(series.cosines[2]).sum() + np.abs(series.sines[2]).sum()))
    return series.promise <= tolerance and series.errors[2] <= tolerance * largest


_MAX_LANES = 16
_TILES_PER_LANE = 2  # where that makes fewer lanes: each begins with a power of every row's phase
TileLane = tuple[int, NDArray[np.intp]]  # the number of a branch, some of its tiles


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
    def of(cls, tree: Tree, series: Series, scores: Sequence[Array], weights: Array) -> "SeriesWalk":
        """`scores` are in the order of groups, the root's less the series' centre."""
        levels = [Level(own.first, freeze(own.starts), freeze(own.finds)) for own in tree.relations]
        turns = [_turn(series.step, h) for h in scores]
        firsts = turns if series.first == series.step else [_turn(series.first, h) for h in scores]
        return cls(series, tree.order, tree.groups, levels, firsts, turns, freeze(weights))

    def share_tiles(self) -> list[NDArray[np.intp]]:
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


def walk_lanes(walks: Sequence[SeriesWalk], lanes: Iterable[TileLane]) -> Iterator[list[Array]]:
    """Sums of each lane, by the threads of this process."""
    return pool().map(lambda lane: walks[lane[0]].walk(lane[1]), lanes)
