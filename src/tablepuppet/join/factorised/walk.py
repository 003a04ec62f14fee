"""A loss and its derivatives summed over all joined rows of a tree, without one of them.

In: scores h of every relation's rows. For each row of the root (the label's table) also its weight and its label's
loss, u·φ(a − s) + v·a + c. Out: for every row of every relation Σ ∂ℓ/∂a and Σ ∂²ℓ/∂a² over its joined rows, and the
total of ℓ. Squares and exponentials take one walk; an analytic φ takes one for every eight frequencies of its series
(series.py).
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import msgspec
import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.join.cluster.cluster import Cluster
from tablepuppet.join.factorised.series import TOLERANCE, Series, SeriesWalk, TileLane, fit_series, walk_lanes
from tablepuppet.join.factorised.tree import Counts, Element, Exponentials, Moments, Ranges, Tree, pass_down, pass_up
from tablepuppet.models.losses.base import Analytic, Exponential, Separable, Square


class Derivatives(msgspec.Struct, frozen=True, eq=False):
    """Sums over joined rows; per row of each relation, and last of the row that a LEFT JOIN did not find."""

    loss: float
    slopes: list[Array]
    curvatures: list[Array]


class TreeLoss(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A loss over a tree's joined rows; weights and the loss's numbers are per row of the root's table."""

    tree: Tree
    loss: Separable
    weights: Array
    tolerance: float = TOLERANCE

    def differentiate(self, scores: Sequence[Array]) -> Derivatives:
        """At scores h of each relation's rows, the last for the row that a LEFT JOIN did not find."""
        return differentiate_branches([self], [scores])[0]

    def count(self) -> list[Array]:
        """Σ w per row of each relation."""
        return self._sum(self._root(self.weights))

    @cached_property
    def _scaled_weights(self) -> Array:
        """w·u of the root's rows, in their order here."""
        return self._root(self.weights if self.loss.scale is None else self.weights * self.loss.scale)

    @cached_property
    def _scaled_counts(self) -> list[Array]:
        return self._sum(self._scaled_weights)

    @cached_property
    def _linear_counts(self) -> list[Array] | None:
        """Σ w·v per row of each relation."""
        return None if self.loss.linear is None else self._sum(self._root(self.weights * self.loss.linear))

    def _root(self, per_row: Array) -> Array:
        return per_row[self.tree.relations[self.tree.root].rows]

    def _shift(self, ordered: Sequence[Array], centre: float) -> list[Array]:
        """Scores of which the sum is a − s − centre."""
        shifted = list(ordered)
        if self.loss.shift is not None:
            shifted[self.tree.root] = shifted[self.tree.root] - self._root(self.loss.shift)
        if centre:
            shifted[self.tree.root] = shifted[self.tree.root] - centre
        return shifted

    def _sum(self, weights: Array) -> list[Array]:
        rows: list[Element] = [(np.ones(len(relation.rows)),) for relation in self.tree.relations]
        up = pass_up(self.tree, Counts(), rows)
        return self._spread([element[0] for element in pass_down(self.tree, Counts(), rows, up, (weights,))])

    def _spread(self, ordered: Sequence[Array]) -> list[Array]:
        return [relation.spread(own) for relation, own in zip(self.tree.relations, ordered, strict=True)]

    def _square(self, scores: Sequence[Array]) -> Derivatives:
        rows: list[Element] = [(np.ones_like(h), h, np.zeros_like(h)) for h in scores]
        up = pass_up(self.tree, Moments(), rows)
        none = np.zeros_like(self._scaled_weights)
        sums = pass_down(self.tree, Moments(), rows, up, (self._scaled_weights, none, none))
        count, mean, spread = sums[self.tree.root]
        loss = 0.5 * float((spread + count * mean * mean).sum())
        return Derivatives(loss, self._spread([s[0] * s[1] for s in sums]), self._spread([s[0] for s in sums]))

    def _exponential(self, scores: Sequence[Array], rate: float) -> Derivatives:
        rows: list[Element] = [(rate * h, np.ones_like(h)) for h in scores]
        up = pass_up(self.tree, Exponentials(), rows)
        given = np.zeros_like(self._scaled_weights), self._scaled_weights
        sums = pass_down(self.tree, Exponentials(), rows, up, given)
        with np.errstate(over="ignore"):  # infinite where it overflows, which a line search steps back from
            total = self._spread([np.where(v != 0.0, v * np.exp(m), 0.0) for m, v in sums])
        loss = float(total[self.tree.root].sum())
        return Derivatives(loss, [rate * t for t in total], [rate * rate * t for t in total])

    def find_range(self, ordered: Sequence[Array]) -> tuple[float, float]:
        """The least and the greatest a − s of all joined rows that count."""
        low, high = pass_up(self.tree, Ranges(), [(h, h) for h in self._shift(ordered, 0.0)])[self.tree.root]
        counted = self._scaled_weights != 0.0
        return float(low[counted].min(initial=np.inf)), float(high[counted].max(initial=-np.inf))

    def start_walk(self, ordered: Sequence[Array]) -> SeriesWalk | None:
        """The walk over frequencies; None: the core has none, or no joined row counts."""
        if not isinstance(self.loss.core, Analytic):
            return None
        low, high = self.find_range(ordered)
        if low > high:
            return None
        series = fit_series(self.loss.core, low, high, self.tolerance)
        return SeriesWalk.of(self.tree, series, self._shift(ordered, series.centre), self._scaled_weights)

    def finish_walk(self, ordered: Sequence[Array], walk: SeriesWalk | None, sums: Sequence[Array]) -> Derivatives:
        """`sums`: those of the walk over frequencies."""
        core = self.loss.core
        if isinstance(core, Square):
            found = self._square(self._shift(ordered, 0.0))
        elif isinstance(core, Exponential):
            found = self._exponential(self._shift(ordered, 0.0), core.rate)
        elif walk is None:
            none = [np.zeros(relation.size + 1) for relation in self.tree.relations]
            found = Derivatives(0.0, none, [n.copy() for n in none])
        else:
            found = self._analytic(walk.series, sums)
        return self._add_linear(found, ordered)

    def _analytic(self, series: Series, sums: Sequence[Array]) -> Derivatives:
        constant = series.cosines[2, 0] * self._scaled_counts[self.tree.root].sum()
        loss = float(sums[self.tree.root][:, 2].sum() + constant)
        spread = self._spread(sums)
        slopes, curvatures = (
            [own[:, f] + series.cosines[f, 0] * n for own, n in zip(spread, self._scaled_counts, strict=True)]
            for f in (0, 1)
        )
        bent = [np.maximum(own, 0.0) for own in curvatures]  # of a convex loss: below 0 is rounding
        return Derivatives(loss, slopes, bent)

    def _add_linear(self, found: Derivatives, ordered: Sequence[Array]) -> Derivatives:
        """With v·a + c of each joined row."""
        loss, slopes = found.loss, found.slopes
        if self._linear_counts is None and self.loss.constant is None:
            return found
        rows: list[Element] = [(np.ones_like(h), h, np.zeros_like(h)) for h in ordered]
        count, mean, _ = pass_up(self.tree, Moments(), rows)[self.tree.root]
        weights = self._root(self.weights) * count
        if self.loss.linear is not None and self._linear_counts is not None:
            loss += float((weights * self._root(self.loss.linear)) @ mean)
            slopes = [own + n for own, n in zip(slopes, self._linear_counts, strict=True)]
        if self.loss.constant is not None:
            loss += float(weights @ self._root(self.loss.constant))
        return Derivatives(loss, slopes, found.curvatures)


def differentiate_branches(
    losses: Sequence[TreeLoss], scores: Sequence[Sequence[Array]], cluster: Cluster | None = None
) -> list[Derivatives]:
    """The derivatives over each branch's tree; all frequencies of all branches at once, on the cluster if there is
    one."""
    ordered = [loss.tree.order_rows(own) for loss, own in zip(losses, scores, strict=True)]
    walks = [loss.start_walk(own) for loss, own in zip(losses, ordered, strict=True)]
    sums = iter(_walk_series([walk for walk in walks if walk is not None], cluster))
    return [
        loss.finish_walk(own, walk, next(sums) if walk is not None else ())
        for loss, own, walk in zip(losses, ordered, walks, strict=True)
    ]


def _walk_series(walks: Sequence[SeriesWalk], cluster: Cluster | None) -> list[list[Array]]:
    """For each branch Σ of the series' terms but the constant one, as `SeriesWalk.walk`; tiles of all branches are
    walked at once."""
    lanes: list[TileLane] = [(branch, tiles) for branch, walk in enumerate(walks) for tiles in walk.share_tiles()]
    if cluster is None or not lanes:
        found = walk_lanes(walks, lanes)
    else:
        parts = np.array_split(np.arange(len(lanes)), min(cluster.size, len(lanes)))
        given = [cluster.put(walk) for walk in walks]
        calls = [([lanes[i] for i in part], *given) for part in parts]
        found = chain.from_iterable(cluster.ask("walk_series", calls))
    totals: list[list[Array]] = [[] for _ in walks]
    for (branch, _), own in zip(lanes, found, strict=True):
        known = totals[branch]
        totals[branch] = [a + b for a, b in zip(known, own, strict=True)] if known else own
    return totals
