"""Where a linear model begins: the constant that fits the labels best, and F's derivatives there.

Blocks predict nothing yet, so that rows with the same label are alike. The different labels, each as heavy as the
joined rows that have it, say what the constant is without a walk over joined rows; of two classes, a walk that counts
the rows of one of them says what the derivatives are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tablepuppet.algorithms.base import Problem
from tablepuppet.algorithms.numerics.search import Derivatives, Objective, Subspace, derivatives, hessian_step, minimise
from tablepuppet.arrays import Array, Following, RowNumbers, freeze
from tablepuppet.models.losses.logistic import curvature_of_slopes
from tablepuppet.sizes import ROWS_IN_CACHE
from tablepuppet.threads import parallel_for


def best_intercept(problem: Problem, predictions: Sequence[Array]) -> Array:
    """argmin_b Σ ℓ(a + b; y)."""
    loss, start = problem.loss, np.zeros(problem.loss.outputs)
    is_alone = not any(h.any() for h in predictions)
    if is_alone or not loss.is_smooth:
        labels = problem.joined.by_label()
        heavy = np.ones(labels.rows) if labels.weights is None else labels.weights
        if not loss.searches_constant:
            return loss.best_constant(labels.labels, heavy)
        problem = replace(problem, joined=labels)
        predictions = [np.zeros((problem.joined.rows, loss.outputs))]
    joined = problem.joined
    evaluate = partial(derivatives, problem, wants_curvature=False)

    def begin() -> tuple[Derivatives, Array]:
        found = evaluate(predictions, start)
        return found, found.residual  # nothing but the intercept moves

    bent = joined.run(hessian_step, predictions, loss=loss, intercept=start, is_known=False).sums["intercept"]
    blocks = len(predictions)
    objective = Objective(evaluate, [0.0] * blocks, joined.rows, loss.is_quadratic)
    space = Subspace([[h] for h in predictions], [np.zeros((1, 1))] * blocks, start, bent / joined.rows)
    return minimise(objective, space, begin).intercept


def counted_derivatives(problem: Problem, predictions: Sequence[Array], intercept: Array) -> Derivatives | None:
    """F's derivatives before anything is predicted, from how many joined rows of each class a block's rows have.

    None where that does not say all: rows have weights, labels carry noise, or only one class occurs.
    """
    joined, loss, labels = problem.joined, problem.loss, problem.joined.by_label()
    if not problem.slopes_tell_curvature or labels.weights is None or any(h.any() for h in predictions):
        return None
    scores, classes, counts = np.full((2, 1), intercept[0]), labels.labels, labels.weights
    if classes.tolist() != [0.0, 1.0]:
        return None
    _, slope, curvature = loss.derivatives(scores, classes, wants_curvature=True)
    assert curvature is not None
    positive = joined.run(label_step, predictions, signals=1).signals[0]
    rows = list(zip(joined.indices, problem.multiplicity, positive, strict=True))
    curved = [
        None if index.is_identity else _added_up(every, own, curvature, np.empty_like(own))
        for index, every, own in rows
    ]
    signals = [_added_up(every, own, slope, own) for _, every, own in rows]
    curvatures: list[Array | Following] = [
        Following(signal, curvature_of_slopes) if own is None else own
        for signal, own in zip(signals, curved, strict=True)
    ]
    one, other = (loss.tally(scores[:1], classes[k : k + 1], None) for k in (0, 1))
    sums = {name: counts[0] * one[name] + counts[1] * other[name] for name in one}
    return Derivatives(sums["loss"] / joined.rows, signals, curvatures, counts @ slope, sums)


def _added_up(every: RowNumbers, positive: Array, of_class: Array, out: Array) -> Array:
    """What a joined row of either class has, added up. In: how many joined rows each row has, and positive ones."""

    def some(here: slice) -> None:
        found = (every[here, None] - positive[here]) * of_class[0]
        found += positive[here] * of_class[1]
        out[here] = found

    parallel_for(some, len(out), ROWS_IN_CACHE)
    return freeze(out)


def label_step(shard: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """The labels, to be collapsed."""
    return (shard.labels[:, None],), {}
