"""The intercept that a model begins with: the constant that fits the labels best.

In: the problem, and what blocks predict before the first round. Out: the intercept. Linear blocks predict nothing yet;
the different labels, each as heavy as the joined rows that have it, then say all, without a walk over joined rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tablepuppet.algorithms.base import Problem
from tablepuppet.algorithms.numerics.search import derivatives, hessian_step, minimise
from tablepuppet.arrays import Array


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
    bent = joined.run(hessian_step, predictions, loss=loss, intercept=start, is_known=False).sums["intercept"]
    return minimise(
        evaluate,
        [[h] for h in predictions],
        [np.zeros((1, 1))] * len(predictions),
        start,
        partial(evaluate, predictions, start),
        bent / joined.rows,
        [0.0] * len(predictions),  # nothing but the intercept moves
        joined.rows,
        is_quadratic=loss.is_quadratic,
    ).intercept
