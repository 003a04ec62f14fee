"""The residual of the sum of tables: would an interaction of two tables explain it?

In: a trained sum, of which the server knows every table's score h_i and every joined row's residual. Out: the pair of
tables that would explain most of it, and how much. No party is asked, and at most 200,000 joined rows are examined. For
every pair, on some of them,

    cells    the mean residual where h_i and h_k fall into the same of up to 24 × 24 bins, shrunk towards none
    vectors  a number for each row of both tables whose product fits the residual best: factors of rank 1

and on others: the share of the residual's variance that this explains. Both share no row of any table, so that noise
explains nothing, however often a row is joined. Vectors are numbers of rows, and share those of the two tables alone.

What either table explains by itself is no interaction, such as a curve where the sum has a line. So both first get a
number for each of their bins, or rows, that is added to the score.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Problem
from tablepuppet.algorithms.boosting.plan import trees_cost
from tablepuppet.algorithms.numerics.search import best_intercept
from tablepuppet.algorithms.registry import BY_NAME
from tablepuppet.arrays import Array
from tablepuppet.formatting import size
from tablepuppet.job.make import usual_algorithm
from tablepuppet.models.heads.base import HeadedRows, HeadKind, HeadSpec
from tablepuppet.models.losses import Loss
from tablepuppet.models.metrics import Moment
from tablepuppet.plan.costs import Cost
from tablepuppet.plan.plan import Gain, Plan
from tablepuppet.threads import pool
from tablepuppet.training.metrics import Criterion, measure

_FEWEST, _MOST = 2_000, 200_000  # joined rows
_PAIRS = 10
_BINS, _SHRUNK = 24, 10.0
_RANKED = 1 << 14  # rows of a table by which its bins are chosen
_SWEEPS, _RIDGE = 6, 25.0
_SEEN = 4  # joined rows of a table's row, so that its own mean is known
_LEAST_SHARE = 0.03  # of the residual's variance: less is not worth another model
_STANDARD_ERRORS = 3.0  # standard errors that a share must be above nothing
_ROWS_PER_CELL = 20
_WORSE = 0.01  # of the mean loss: less may be chance
Rows = NDArray[np.integer[Any]]
Pair = tuple[Rows, Rows]


class Interaction(msgspec.Struct, frozen=True):
    """Two blocks, and the share of the sum's residual that they explain on rows held back."""

    blocks: tuple[int, int]
    cells: float  # by bins of both scores
    vectors: float  # by a number for each row of both: factors

    @property
    def share(self) -> float:
        return max(self.cells, self.vectors)


def probe(joined: Any, h: Sequence[Array], intercept: Array, loss: Loss, seed: int) -> Interaction | None:
    """The pair of blocks that explains most; None: none explains much, or there are too few rows."""
    found = explain_pairs(joined, h, intercept, loss, seed)
    best = max(found, key=lambda one: one.share, default=None)
    return best if best is not None and best.share >= _LEAST_SHARE else None


def explain_pairs(joined: Any, h: Sequence[Array], intercept: Array, loss: Loss, seed: int) -> list[Interaction]:
    """The interactions of pairs of blocks; none if there are too few rows, several classes, or kinks."""
    if joined.rows < _FEWEST or len(h) < 2 or loss.outputs > 1 or not loss.is_smooth:
        return []
    borders = np.linspace(0, joined.rows, min(joined.rows, _MOST) + 1).astype(np.int64)
    inside = np.random.default_rng((seed, 1)).random(len(borders) - 1) * np.diff(borders)
    chosen = borders[:-1] + inside.astype(np.int64)  # one out of each of many pieces as long as each other
    batch, own = joined.take(chosen)
    rows = [index.numbers(batch.rows) for index in batch.indices]
    values = [np.append(each[:, 0] if some is None else each[some, 0], 0.0) for each, some in zip(h, own, strict=True)]
    score = sum((v[r] for v, r in zip(values, rows, strict=True)), start=np.full(batch.rows, intercept[0]))
    label_rows = joined.label_index.take(chosen)
    scored = _Scored(loss, score, batch.joined_labels(), label_rows)
    spread = float(scored.residual(slice(None), 0.0).std())
    if not 0 < spread < np.inf:
        return []
    scored = replace(scored, unit=spread)
    halves = _Halves.draw([*rows, label_rows], seed)

    def find(pair: tuple[int, int]) -> Interaction:
        of_pair = rows[pair[0]], rows[pair[1]]
        vectors, sides = 0.0, halves.learnt_and_judged(pair)
        if 5 * sum(len(values[b]) for b in pair) < len(score):
            fit = _vectors(*of_pair, len(values[pair[0]]), len(values[pair[1]]), seed)
            vectors = _explain(fit, scored, of_pair, of_pair, sides)
        sides = halves.learnt_and_judged(pair, shares_none=True)
        bins = int(np.clip(np.sqrt(len(sides[0]) / _ROWS_PER_CELL), 2, _BINS))
        left, right = (_bins(values[b][:-1], bins)[rows[b]] if len(values[b]) > 1 else rows[b] for b in pair)
        cells = _explain(_cells(left, right, bins), scored, (left, right), of_pair, sides)
        return Interaction(pair, cells, vectors)

    pairs = itertools.islice(itertools.combinations(range(len(h)), 2), _PAIRS)
    return list(pool().map(find, pairs))


class _Halves(msgspec.Struct, frozen=True, eq=False):
    """Two halves of every table's rows; the last table is the label's."""

    rows: Sequence[Rows]  # of each table: the row that each joined row has, or −1
    is_first: Sequence[NDArray[np.bool_]]

    @classmethod
    def draw(cls, rows: Sequence[Rows], seed: int) -> "_Halves":
        rng = np.random.default_rng((seed, 2))
        coins = [rng.random(int(own.max(initial=0)) + 1) < 0.5 for own in rows]
        return cls(rows, [coin[own] for coin, own in zip(coins, rows, strict=True)])

    def learnt_and_judged(self, pair: tuple[int, int], *, shares_none: bool = False) -> Pair:
        """Joined rows whose rows are all of one half, and those whose rows are all of the other. The pair's rows may be
        of either half, unless none are to be shared."""
        both = (self.rows[pair[0]] >= 0) & (self.rows[pair[1]] >= 0)
        sides = [both, both.copy()]
        for table, (own, is_first) in enumerate(zip(self.rows, self.is_first, strict=True)):
            if shares_none or table not in pair:
                sides[0] = sides[0] & (is_first | (own < 0))
                sides[1] = sides[1] & (~is_first | (own < 0))
        return np.flatnonzero(sides[0]), np.flatnonzero(sides[1])


def compare_with_sum(
    problem: Problem, sides: Mapping[str, tuple[Any, float]], held_out: Sequence[Array], seen: Sequence[Array]
) -> list[str]:
    """A note where the plain sum predicts held-out rows better than the sum and a perceptron do.

    `sides`: their joined rows and the model's mean loss there. `held_out`: the blocks' contributions to them.
    `seen`: those to the training rows, on which the sum finds an intercept of its own.
    """
    spec = HeadSpec() if problem.head is None else problem.head.head.spec
    side = next((name for name in ("validation", "test") if name in sides and sides[name][0].rows), None)
    if not spec.sum_weight or not problem.loss.is_smooth or side is None:
        return []
    scale, (rows, both) = spec.unit * spec.sum_weight, sides[side]
    summed, alone = ([scale * values[:, : spec.outputs] for values in h] for h in (seen, held_out))
    plain = replace(problem, joined=cast(HeadedRows, problem.joined).joined, head=None)
    intercept = best_intercept(plain, summed)
    criterion = Criterion(problem.loss, Moment.HELD_OUT, problem.channel)
    found = measure(rows, alone, intercept, criterion).loss
    if not found < (1.0 - _WORSE) * both:
        return []
    return [
        f"a plain sum of tables predicts {side} rows better than it does with the network; leave head out, and compare"
    ]


def advise_head(plan: Plan, found: Interaction) -> str:
    """A note: which tables interact, and the cost of learning it."""
    cost = headed_cost(plan, "factor")
    names = " and ".join(plan.mapping.bound.blocks[block].name for block in found.blocks)
    return (
        f"{names} interact: pairs of their rows explain about {found.share:.0%} of the residual of the sum of tables; "
        f'head="factor" would take about {cost.rounds:,.0f} rounds and {size(cost.bytes)}, and '
        'head="mlp" or model="boosted" learn it too (docs/heads.md)'
    )


# Rows to learn from with their residuals, and rows to judge → the expected residuals of those.
Fit = Callable[[Rows, Array, Rows], Array]


class _Scored(msgspec.Struct, frozen=True, eq=False):
    """Joined rows with their scores, labels and rows of the label's table."""

    loss: Loss
    scores: Array
    labels: Array
    label_rows: Rows
    unit: float = 1.0  # of residuals

    def residual(self, rows: Any, shift: Array | float) -> Array:
        return np.asarray(-self.loss.gradient(self._at(rows, shift), self.labels[rows])[:, 0] / self.unit)

    def shift(self, tables: Pair, learnt: Rows) -> Array:
        """What both tables by themselves add to the scores of all rows: a number for each bin or row, shrunk."""
        labels, found = self.labels[learnt], np.zeros(len(self.scores))
        for own in tables * _SWEEPS:
            here, before = own.take(learnt), found.take(learnt)
            curvature = self.loss.curvature(self._at(learnt, before), labels)[:, 0]
            steep = np.bincount(here, self.residual(learnt, before) * self.unit, int(own.max()) + 1)
            step = steep / (np.bincount(here, curvature, len(steep)) + _RIDGE * max(float(curvature.mean()), 1e-300))
            least = self.loss.total(self._at(learnt, before), labels)
            for tried in (step, step / 2, step / 8, step / 64):
                if self.loss.total(self._at(learnt, before + tried.take(here)), labels) <= least:
                    found += tried.take(own)
                    break
        return found

    def _at(self, rows: Any, shift: Array | float) -> Array:
        return np.asarray(self.scores[rows] + shift)[:, None]


def _explain(fit: Fit, scored: _Scored, places: Pair, rows: Pair, sides: Pair) -> float:
    """The share of the variance of judged rows that is explained; 0 where it may be chance.

    `places`: the bins, or rows, of both tables that the fit goes by. Joined rows with the same label row are one
    witness.
    """
    learnt, judged = sides
    if not len(learnt) or not len(judged):
        return 0.0
    shift = scored.shift(places, learnt)
    expected = fit(learnt, scored.residual(learnt, shift.take(learnt)), judged)
    there = scored.residual(judged, shift.take(judged))
    before = float(np.square(scored.residual(judged, 0.0)).sum())
    whole = max(before, len(judged))  # of all rows on average: outliers are elsewhere
    repeated = [own.take(judged) for own in rows if len(np.unique(own.take(judged))) * _SEEN <= len(judged)]
    there, expected = (_within(values, repeated) for values in (there, expected))
    gained = np.square(there) - np.square(there - expected)
    share = float(gained.sum()) / whole
    witnesses = np.bincount(scored.label_rows.take(judged), gained - gained.mean())
    error = float(np.sqrt(np.square(witnesses).sum())) / whole
    return share if share > _STANDARD_ERRORS * error else min(share, 0.0)


def _within(values: Array, tables: list[Rows]) -> Array:
    """Values less the mean of each row of the tables: it may be an effect of that row alone."""
    for own in tables * _SWEEPS:
        values = values - (np.bincount(own, values) / np.maximum(np.bincount(own), 1)).take(own)
    return values


def _bins(values: Array, count: int) -> Rows:
    """A bin for each row of a table: equal values share a bin, and bins hold about as many rows."""
    some = np.sort(values[:: max(1, len(values) // _RANKED)])
    borders = some[np.arange(1, count) * (len(some) - 1) // count]
    return np.searchsorted(borders, values, side="right")


def _cells(left: Rows, right: Rows, bins: int) -> Fit:
    def fit(learnt: Rows, residual: Array, judged: Rows) -> Array:
        cell = left * bins + right
        known = cell.take(learnt)
        counts = np.bincount(known, minlength=bins * bins)
        sums = np.bincount(known, residual, bins * bins)
        return np.asarray((sums / (counts + _SHRUNK)).take(cell.take(judged)))

    return fit


def _vectors(left: Rows, right: Rows, n: int, m: int, seed: int) -> Fit:
    def fit(learnt: Rows, residual: Array, judged: Rows) -> Array:
        i, k = (rows.take(learnt).astype(np.intp) for rows in (left, right))
        b = np.random.default_rng((seed, 3)).standard_normal(m)
        for _ in range(_SWEEPS):
            a = _solve(i, residual, b.take(k), n)
            a -= a.take(i).mean()  # what is the same for all partners is no interaction
            a /= np.sqrt(np.square(a.take(i)).mean()) or 1.0
            b = _solve(k, residual, a.take(i), m)
            b -= b.take(k).mean()
        return np.asarray(a.take(left.take(judged)) * b.take(right.take(judged)))

    return fit


def _solve(rows: Rows, residual: Array, other: Array, count: int) -> Array:
    """The number of each row that best explains its residuals, given the other table's numbers; shrunk."""
    return np.asarray(
        np.bincount(rows, residual * other, count) / (np.bincount(rows, np.square(other), count) + _RIDGE)
    )


def gains_of(plan: Plan, pairs: Sequence[Interaction]) -> tuple[Gain, ...]:
    """A line for each model, the sum first."""
    sum_of_tables = headed_cost(plan, "sum")
    found = [Gain("sum of tables", 0.0, (), sum_of_tables.rounds, sum_of_tables.bytes)]
    by_rows = max(pairs, key=lambda one: one.share)
    by_cells = max(pairs, key=lambda one: one.cells)
    for model, pair, share, cost in (
        ('head="factor"', by_rows, by_rows.share, headed_cost(plan, "factor")),
        ('head="mlp"', by_cells, by_cells.cells, headed_cost(plan, "mlp")),
        ('model="boosted"', by_cells, by_cells.cells, trees_cost(plan.shape)),
    ):
        rounded = max(0.0, round(share, 2))
        names = tuple(plan.mapping.bound.blocks[block].name for block in pair.blocks) if rounded else ()
        found.append(Gain(model, rounded, names, cost.rounds, cost.bytes))
    return tuple(found)


def headed_cost(plan: Plan, head: HeadKind) -> Cost:
    """The cost of the job under another head, by the algorithm that usually trains it."""
    several = plan.loss.outputs > 1
    algorithm = BY_NAME[usual_algorithm(head, "softmax" if several else "auto")]
    job = plan.job.replace(
        model="auto", head=head, algorithm=algorithm.name, options=algorithm.options(), l2_by_rows=0.0
    )
    return replace(plan, job=job).cost(algorithm.name, algorithm.head_epochs or algorithm.epochs)
