"""Several ridge regressions at once: settings of l2 on folds of the same joined rows, in one small space.

    server → client   Y_i of every model (one column each), where each model stands in the space
    client            a direction d = −D⁻¹g for each, of which it keeps what is new, orthonormal; sends T_i of that
    server            second moments of all directions, the label and 1, for each fold apart

With squared loss these second moments say everything about every model within the space: any l2, any fold that is left
out. A model is solved for without a walk over joined rows, and directions that one model asked for serve all others. A
round is over all models of a fold. The next fold begins with the space of the folds before, which often suffices. A
block whose directions span all of its columns is not asked again.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tablepuppet.algorithms.base import BlockAnswer, BlockUpdate, MultiModelServer, Problem, Walkable
from tablepuppet.algorithms.newton.client import BasisUpdate, Newton, NewtonFigures
from tablepuppet.algorithms.newton.full_curvature import without_intercept
from tablepuppet.algorithms.numerics.linear_systems import Spectrum, unpack_triangle
from tablepuppet.algorithms.numerics.search import pseudo_solve
from tablepuppet.arrays import Array
from tablepuppet.models.losses import Loss

_MOST_DIRECTIONS = 32  # of a block, beyond which the next fold begins with an empty space: they are as long as tables
_FLAT = 1e-13  # of the largest eigenvalue: smaller ones count as no curvature


def gram_step(
    shard: Any, *, loss: Loss, centre: float, new: Sequence[int], first: bool
) -> tuple[Sequence[Array], dict[str, Any]]:
    """Products of all directions, the label and 1 with each block's last ones (and the last two): (all, new)."""
    beside = np.stack([shard.labels - centre, np.ones(len(shard.scores))], axis=1)
    some = [columns[:, columns.shape[1] - count :] for columns, count in zip(shard.columns, new, strict=True)]
    fresh = np.concatenate([*some, *([beside] if first else [])], axis=1)
    if shard.weights is not None:
        fresh = shard.weights[:, None] * fresh
    return (), {"gram": np.concatenate([columns.T @ fresh for columns in (*shard.columns, beside)])}


def slope_step(shard: Any, *, loss: Loss, intercept: Array) -> tuple[Sequence[Array], dict[str, Any]]:
    """∂ℓ/∂a of every model."""
    return (loss.gradient(np.add(shard.scores, intercept, out=shard.scores), shard.labels),), {}


class MultiRidgeServer(MultiModelServer):
    """The server's half. Columns of a Gram matrix: the blocks' directions, then the label and 1."""

    def __init__(self, problem: Problem, options: Newton, folds: Sequence[Walkable]) -> None:
        self.problem, self.options, self.folds = problem, options, folds
        self._ridges: Array = np.zeros((0, 0))  # (models, blocks)
        self.intercept = np.zeros(0)
        self._kept: Sequence[int] = ()
        self._clear()

    def _clear(self) -> None:
        self._columns = [np.zeros((n, 0)) for n in self.problem.rows]  # of each block: what its directions predict
        self._norms: list[Array] = [np.zeros(0) for _ in self.problem.rows]  # ‖v‖² of them; they are orthogonal
        self._waiting = [np.zeros((n, 0)) for n in self.problem.rows]  # of further ones, which nothing has needed yet
        self._grams = [np.zeros((2, 2)) for _ in self.folds]
        self._is_begun = False

    @property
    def continues(self) -> bool:
        """Whether the clients' directions are still of use."""
        return self._is_begun

    def turn(self, problems: Sequence[Problem], kept: Sequence[int]) -> None:
        """The next models: a problem for each, all over the same folds."""
        self.problem, self._kept = problems[0], kept
        self._ridges = np.array([problem.ridges for problem in problems])
        self._gap, self._before = np.zeros((2, len(problems)))
        if max(len(norms) for norms in self._norms) > _MOST_DIRECTIONS:
            self._clear()

    def begin(self, predictions: list[Array], figures: Sequence[NewtonFigures]) -> None:
        self._spectra: list[Spectrum | None] = [None] * self.problem.blocks
        if not self._is_begun:
            self._is_begun = True
            train = self.problem.joined
            shown = train.by_label()
            heavy = np.ones(len(shown.labels)) if shown.weights is None else shown.weights
            self._centre = float(heavy @ shown.labels / max(float(heavy.sum()), 1e-300))
            spans = [bool(f.spans_constant) for f in figures]
            ones = [np.ones((n, int(has))) for n, has in zip(self.problem.rows, spans, strict=True)]
            self._waiting = ones
            self._grow(first=True)
        self._solve()

    def join_step(self) -> list[BlockUpdate | None]:
        problem, bound = self.problem, self.problem.loss.bound
        self._before, self._gap = self._gap, np.zeros(len(self._ridges))
        sizes = [len(norms) + new.shape[1] for norms, new in zip(self._norms, self._waiting, strict=True)]
        asked = [len(norms) < width for norms, width in zip(self._norms, problem.widths, strict=True)]
        self._asked = [i for i, is_asked in enumerate(asked) if is_asked]
        if not self._asked:
            return [None] * problem.blocks
        points = self._points()
        scores = [columns @ own for columns, own in zip(self._columns, points, strict=True)]
        done = problem.joined.run(slope_step, scores, signals=1, loss=problem.loss, intercept=self.intercept)
        return [
            BlockUpdate(
                BasisUpdate,
                {"signal": done.signals[0][i]},
                {
                    "points": np.concatenate([points[i], np.zeros((sizes[i] - len(points[i]), len(self._ridges)))]),
                    "ridges": self._ridges[:, i].tolist(),
                    "bound": bound,
                },
            )
            if asked[i]
            else None
            for i in range(problem.blocks)
        ]

    def union_step(self, block: int, total: list[Array]) -> list[Array]:
        """A direction for each model, from sums over the block's clients."""
        if len(total) > 2:
            gram, bend = unpack_triangle(total[1][0], len(total[0])), self.problem.loss.bound * self.problem.joined.rows
            self._spectra[block] = Spectrum.of(without_intercept(gram, total[2], bend))
        spectrum = self._spectra[block]
        assert spectrum is not None
        found = -spectrum.solve(1.0, self.problem.joined.rows * self._ridges[:, block], total[0])
        self._gap -= 0.5 * np.einsum("ds,ds->s", total[0], found)
        return [found]

    def absorb(self, answers: Sequence[BlockAnswer]) -> None:
        """A round that expects to gain nothing to speak of is the last one, and its directions wait."""
        models = len(self._ridges)
        for block, answer in zip(self._asked, answers, strict=True):
            first, is_new, gaps = np.split(answer.products_of(1 + 2 * models), [1, 1 + models])
            if len(self._norms[block]):
                self._norms[block][0] = first[0]
            self._gap += gaps
            self._waiting[block] = np.concatenate([self._waiting[block], answer.values[:, is_new > 0]], axis=1)
        self._gap /= self.problem.joined.rows
        if not self.is_converged():
            self._grow()
            self._solve()

    def is_converged(self) -> bool:
        """As newton judges one model, for all of them: by half the squared decrement, and how it falls."""
        falls = np.divide(self._gap, self._before, out=np.ones_like(self._gap), where=self._before > 0)
        gap = self._gap * np.sqrt(np.minimum(falls, 1.0))
        return bool((gap <= self.options.tolerance_of(1) * np.abs(self._values)).all())

    def model(self, number: int) -> tuple[list[Array], Array]:
        """h of all rows by one of the models, and its intercept."""
        pairs = zip(self._columns, self._points(), strict=True)
        return [columns @ own[:, [number]] for columns, own in pairs], self.intercept[[number]]

    def _points(self) -> list[Array]:
        """Where the models stand: of each block (directions, models)."""
        return np.split(self._solutions[:-1], np.cumsum([len(norms) for norms in self._norms])[:-1])

    def _grow(self, *, first: bool = False) -> None:
        """Directions that wait take part: their second moments in every fold."""
        counts = [new.shape[1] for new in self._waiting]
        place: list[int] = []  # where the old entries of Gram matrices go
        start = 0
        for i, (columns, new) in enumerate(zip(self._columns, self._waiting, strict=True)):
            place += range(start, start + columns.shape[1])
            start += columns.shape[1] + new.shape[1]
            if new.shape[1]:
                self._columns[i] = np.concatenate([columns, new], axis=1)
                self._norms[i] = np.concatenate([self._norms[i], np.ones(new.shape[1])])
                self._waiting[i] = new[:, :0].copy()
        place += [start, start + 1]
        fresh = sorted(set(range(start + 2)) - set(place)) + ([start, start + 1] if first else [])
        given: dict[str, Any] = {"loss": self.problem.loss, "centre": self._centre, "new": counts, "first": first}
        for number, rows in enumerate(self.folds):
            nothing = [np.zeros((n, 1)) for n in self.problem.rows]
            found = rows.run(gram_step, nothing, columns=self._columns, **given).sums["gram"]
            whole = np.zeros((start + 2, start + 2))
            whole[np.ix_(place, place)] = self._grams[number]
            whole[:, fresh] = found
            whole[fresh, :] = found.T
            self._grams[number] = whole

    def _solve(self) -> None:
        """Every model's minimum in the space: coefficients of directions and the intercept, and F there."""
        gram = sum(self._grams[number] for number in self._kept)
        assert isinstance(gram, np.ndarray)
        rows = float(gram[-1, -1])
        label = len(gram) - 2
        others = np.delete(np.arange(len(gram)), label)
        curvature, slope, square = gram[np.ix_(others, others)], gram[others, label], gram[label, label]
        found, values = [], []
        for ridges in self._ridges:
            penalty = np.concatenate([*(b * n for b, n in zip(ridges, self._norms, strict=True)), [0.0]])
            matrix = curvature / rows + np.diag(penalty)
            x = pseudo_solve(matrix, slope / rows, _FLAT)
            found.append(x)
            values.append(0.5 * (square / rows - 2 * float(x @ slope) / rows + float(x @ matrix @ x)))
        self._solutions = np.stack(found, axis=1)
        self._values = np.array(values)
        self.intercept = self._solutions[-1] + self._centre
