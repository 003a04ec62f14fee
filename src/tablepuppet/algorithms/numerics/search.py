"""Subspace search: F minimised over a few directions per block and the intercept.

In: predictions and directions of each block as per-row vectors, F and its derivatives there, inner products of the
parameters they come from. Out: one coefficient per direction, and F and its derivatives at the minimum, where the next
round begins. The search is a damped Newton iteration. Gradients are exact, from collapsed derivatives. The Hessian is
computed once a round, and only its rows for new directions (subspace.py). Every step updates it by the change of the
slope (BFGS). The search is exact in one step for squared loss.

Before the first round blocks predict nothing, and rows with the same label are alike. So the different labels, weighted
by their joined rows, give the best intercept without a walk (`best_intercept`).
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Problem, Summable
from tablepuppet.algorithms.numerics.linear_systems import eigenvalues
from tablepuppet.arrays import NUMBERS_IN_CACHE, ROWS_IN_CACHE, Array, Following, freeze, pieces
from tablepuppet.errors import ScoreRangeError
from tablepuppet.models.linear import MOST_CONSTANTS
from tablepuppet.models.losses import Loss, Weighted
from tablepuppet.models.losses.classes import curvature_of_slopes
from tablepuppet.models.metrics import Sums
from tablepuppet.privacy.labels import Channel
from tablepuppet.threads import parallel_for

_ITERATIONS = 12
_HALVINGS = 30
_NO_LABELS = np.zeros(0)
_ENOUGH = 0.05  # of a round's gain so far: smaller gains are left to the next round, which brings a new Hessian
_ENOUGH_ALONE = 1e-3  # the same where no round follows


class Derivatives(msgspec.Struct, frozen=True, eq=False):
    """The mean loss at some predictions, its derivatives collapsed to rows, and their sums."""

    loss: float
    signals: list[Array]  # collapse_i(∂ℓ/∂a); none, once they were given up for the slopes along directions
    curvatures: list[Array | Following] | None  # collapse_i(∂²ℓ/∂a²), where it was asked for
    residual: Array  # Σ ∂ℓ/∂a over joined rows
    bend: Array  # Σ ∂²ℓ/∂a², where curvatures were asked for
    tally: Sums  # the sums for metrics


def slopes(vectors: Sequence[Sequence[Array]], at: Derivatives, steps: Array) -> Array:
    """Σ ∂ℓ along all directions, and along the intercept's steps; `vectors[i]` holds h_i and its directions."""
    along = [_along(block[1:], y) for block, y in zip(vectors, at.signals, strict=True)]
    return np.concatenate([*along, steps.T @ at.residual])


def _along(vectors: Sequence[Array], y: Array) -> Array:
    """Inner products with y; constants, which are one row over and over, are not written out."""
    total = np.ones(len(y)) @ y
    return np.array([np.vdot(v, y) if v.strides[0] else v[:1].sum(axis=0) @ total for v in vectors])


class Found(msgspec.Struct, frozen=True, eq=False):
    """The minimum over the subspace."""

    coefficients: list[Array]
    intercept: Array
    predictions: list[Array]  # h there
    at: Derivatives  # without signals, where nothing has moved
    value: float  # F there
    decrement: float  # half the squared Newton decrement of the new directions: the gap's estimate


def derivative_step(
    shard: Any,
    *,
    loss: Loss,
    intercept: Array,
    channel: Channel | None,
    wants_curvature: bool,
    apart: Sequence[bool],
    follows: bool,
) -> tuple[Sequence[Any], dict[str, Any]]:
    """∂ℓ/∂a, and ∂²ℓ/∂a² if it is asked for; and the sums for metrics, while the scores are at hand.

    Blocks get both side by side, because a distant row is then fetched only once. Blocks marked `apart` get them one by
    one, or the first alone if the second `follows` from it.
    """
    scores = np.add(shard.scores, intercept, out=shard.scores)
    total, gradient, curvature = loss.derivatives(scores, shard.labels, wants_curvature=wants_curvature)
    sums = loss.tally(scores, shard.labels, channel, total) | {"residual": gradient.sum(axis=0)}
    if curvature is None:
        return (gradient,), sums
    sums["bend"] = curvature.sum(axis=0)
    both, second = (gradient, curvature), () if follows else curvature
    return [[gradient if alone else both for alone in apart], [second if alone else () for alone in apart]], sums


def derivatives(
    problem: Problem, predictions: Sequence[Array], intercept: Array, *, wants_curvature: bool
) -> Derivatives:
    """One walk over all joined rows."""
    joined, loss = problem.joined, problem.loss
    if isinstance(joined, Summable):
        sums = joined.differentiate(loss, predictions, float(intercept[0]))
        curved: list[Array | Following] | None = [*map(freeze, sums.curvatures)] if wants_curvature else None
        residual, bend = np.array([[sums.residual], [sums.bend]])
        return Derivatives(sums.loss / joined.rows, sums.slopes, curved, residual, bend, {"exact": sums.loss})
    given: dict[str, Any] = {"loss": loss, "channel": problem.channel, "wants_curvature": wants_curvature}
    apart = [index.is_identity for index in joined.indices]  # as large as the joined table: nothing is to be copied
    follows = problem.slopes_tell_curvature
    given |= {"apart": apart, "follows": follows}
    done = joined.run(derivative_step, predictions, signals=1 + wants_curvature, intercept=intercept, **given)
    signals, curvatures = done.signals[0], done.signals[1] if wants_curvature else None
    for i, alone in enumerate(apart):
        if alone:
            for found in done.signals:
                freeze(found[i])
            if curvatures is not None and follows:
                curvatures[i] = Following(signals[i], curvature_of_slopes)
        elif curvatures is not None:
            both = freeze(np.ascontiguousarray(freeze(signals[i]).T))  # which messages carry as they are
            signals[i], curvatures[i] = both.reshape(2, -1, loss.outputs)
    sums = done.sums
    total = sums["weighted"] if "weighted" in sums else sums["loss"]
    residual, bend = sums.pop("residual"), sums.pop("bend", np.zeros(0))
    return Derivatives(total / joined.rows, signals, curvatures, residual, bend, sums)


def hessian_step(shard: Any, *, loss: Loss, intercept: Array, is_known: bool) -> tuple[Sequence[Any], dict[str, Any]]:
    """(∂²ℓ/∂a²) u of each new direction u, to be collapsed: its product with a row's vector is then a sum over rows.

    Of a loss of one output. All of them are side by side in one signal, the intercept's last; where collapse_i(∂²ℓ/∂a²)
    is known, a block only gets those of the others' directions. The sums are products with the intercept.
    """
    scores = np.add(shard.scores, intercept, out=shard.scores)
    curvature = loss.curvature(scores, _labels(shard, loss))
    curved = [block * curvature for block in shard.columns]
    sums = {"intercept": np.concatenate([c.sum(axis=0) for c in (*curved, curvature)])[:, None]}
    if is_known:
        return ([(*curved[:i], *curved[i + 1 :]) for i in range(len(curved))],), sums
    return ((*curved, curvature),), sums


def outputs_hessian_step(
    shard: Any, *, loss: Loss, intercept: Array, steps: Array
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Σ uᵀ (∂²ℓ/∂a²) v of all directions u, v of a loss of several outputs, the intercept's steps last: no signal."""
    scores, labels = np.add(shard.scores, intercept, out=shard.scores), _labels(shard, loss)
    rows, outputs = scores.shape
    count = sum(block.shape[1] for block in shard.columns) // outputs
    found = np.zeros((count + steps.shape[1], count + steps.shape[1]))
    found[count:, count:] = loss.summed_hessian(scores, labels, steps)
    if not count:
        return (), {"hessian": found}
    for here in pieces(rows, max(1, NUMBERS_IN_CACHE // (count * outputs))):
        vectors = np.concatenate([b[here].reshape(-1, b.shape[1] // outputs, outputs) for b in shard.columns], axis=1)
        own = loss.of_rows(here) if isinstance(loss, Weighted) else loss
        products, summed = own.summed_products(scores[here], labels[here] if len(labels) else labels, vectors)
        found[:count, :count] += products
        found[:count, count:] += summed @ steps
    found[count:, :count] = found[:count, count:].T
    return (), {"hessian": found}


def _labels(shard: Any, loss: Loss) -> Array:
    """The labels, where the curvature depends on them: looking them up takes time."""
    return np.asarray(shard.labels) if loss.curvature_needs_labels else _NO_LABELS


Evaluate = Callable[[Sequence[Array], Array], Derivatives]  # of predictions and an intercept


class Subspace(msgspec.Struct, frozen=True, eq=False):
    """Where F is minimised: from the model, along some directions of each block, and over the intercept."""

    vectors: Sequence[Sequence[Array]]  # of each block h and its directions, newest first
    products: Sequence[Array]  # of each block the inner products of the parameters that they come from
    ridges: Sequence[float]  # of each block
    intercept: Array
    steps: Array  # (outputs, steps) of the intercept: one for each output, or some that are good
    hessian: Array  # of the mean loss


def minimise(
    problem: Problem,
    evaluate: Evaluate,
    space: Subspace,
    start: Callable[[], tuple[Derivatives, Array]],
    enough: float = _ENOUGH,
) -> Found:
    """min over α of F(θ + Σ α s), one α for every direction of every block, and the intercept.

    `start` gives up the derivatives at h and their slopes, so that they go as soon as others are known.
    """
    vectors, (here, along) = space.vectors, start()
    sizes = [len(block) - 1 for block in vectors]
    borders = np.cumsum([0, *sizes]).tolist()
    places, free = [slice(a, b) for a, b in itertools.pairwise(borders)], slice(borders[-1], None)  # the intercept's
    total, bent = _objective(space, places, problem.joined.rows)
    hessian = space.hessian + bent
    alive = np.concatenate([*(_alive(gram) for gram in space.products), np.ones(space.steps.shape[1], np.bool_)])
    point = np.zeros(len(hessian))
    moved: list[Array] = []  # h at the point, once it is known
    value, slope = total(point, here.loss, along)
    at: Derivatives | None = here
    del here
    first = value
    newest = [a for a, size in zip(borders[:-1], sizes, strict=True) if size]
    gap = float(slope[free] @ pseudo_solve(hessian[free, free], slope[free]))
    decrement = 0.5 * (-float(slope[newest].sum()) + gap)
    for _ in range(_ITERATIONS):
        step = np.zeros(len(point))
        step[alive] = -_solve(hessian[np.ix_(alive, alive)], slope[alive], space.steps.shape[1])
        expected = -0.5 * float(slope @ step)
        if expected <= max(enough * (first - value), 1e-15 * abs(value)):
            break
        for halving in range(_HALVINGS):  # the full Newton step, halved until F falls
            new = point + step / 2**halving
            at, moved = None, []  # as large as the tables, and rarely wanted again
            moved = [_move(block, new[own]) for block, own in zip(vectors, places, strict=True)]
            there = space.intercept + space.steps @ new[free]
            try:
                at = evaluate(moved, there)
            except ScoreRangeError:  # a step too far, as one to an infinite F
                continue
            reached, new_slope = total(new, at.loss, slopes(vectors, at, space.steps))
            if reached <= max(value - 1e-4 * expected / 2**halving, value + 1e-15 * abs(value)):
                break
        else:
            at, moved = None, []
            break
        hessian = _update_hessian(hessian, new - point, new_slope - slope)
        point, value, slope = new, reached, new_slope
        if problem.loss.is_quadratic:
            break
    chosen, found = space.intercept + space.steps @ point[free], [point[own] for own in places]
    if not moved:
        moved = [_move(block, c) if c.any() else block[0] for block, c in zip(vectors, found, strict=True)]
    return Found(found, chosen, moved, at or evaluate(moved, chosen), value, decrement)


def _objective(
    space: Subspace, places: Sequence[slice], rows: int
) -> tuple[Callable[[Array, float, Array], tuple[float, Array]], Array]:
    """What gives F and its slope along all directions, and the second derivatives of the penalty."""
    base, tilt, bent = 0.0, np.zeros(len(space.hessian)), np.zeros_like(space.hessian)
    for own, gram, l2 in zip(places, space.products, space.ridges, strict=True):
        base, tilt[own], bent[own, own] = base + 0.5 * l2 * float(gram[0, 0]), l2 * gram[1:, 0], l2 * gram[1:, 1:]

    def total(point: Array, loss: float, along: Array) -> tuple[float, Array]:
        image = bent @ point
        return loss + base + float(point @ (tilt + 0.5 * image)), along / rows + tilt + image

    return total, bent


def _move(vectors: Sequence[Array], coefficients: Array) -> Array:
    """h of a block after a step along its directions, h + Σ c d: the newest, all constants in one row, earlier ones."""
    h, *directions = vectors
    if not directions:
        return h
    (first, newest), *others = zip(coefficients, directions, strict=True)
    constant = sum(
        (c * direction[:1].sum(axis=0) for c, direction in others if not direction.strides[0]), np.zeros(h.shape[1])
    )
    earlier = [(c, direction) for c, direction in others if direction.strides[0]]
    out, rows = np.empty_like(h), max(1, ROWS_IN_CACHE // h.shape[1])  # whose sums stay in the cache

    def write(here: slice) -> None:
        for start in range(here.start, here.stop, rows):
            some = slice(start, min(start + rows, here.stop))
            step = newest[some] * first
            step += constant
            for c, direction in earlier:
                step += c * direction[some]
            np.add(step, h[some], out=out[some])

    parallel_for(write, len(out), 4 * ROWS_IN_CACHE)
    return out


def _update_hessian(hessian: Array, step: Array, change: Array) -> Array:
    """The Hessian after a step, from how the slope has changed along it (BFGS): no walk, and exact along the step."""
    image = hessian @ step
    curved, measured = float(step @ image), float(step @ change)
    if curved <= 0.0 or measured <= 1e-10 * curved:  # nothing but rounding
        return hessian
    return np.asarray(hessian + np.outer(change, change) / measured - np.outer(image, image) / curved)


def _alive(gram: Array) -> NDArray[np.bool_]:
    """Which directions are more than rounding: scaling that up would part server and client."""
    lengths = np.diag(gram)
    return np.asarray(lengths[1:] > 1e-18 * lengths.max(initial=0.0))


def _solve(matrix: Array, right: Array, last: int) -> Array:
    """matrix⁺ right, the `last` ones being the intercept's, which go first: a direction may predict nearly the same for
    all rows, as a column of years does that is not standardised."""
    directions, steps = slice(None, len(matrix) - last), slice(len(matrix) - last, None)
    beside = np.stack([pseudo_solve(matrix[steps, steps], row) for row in (*matrix[directions, steps], right[steps])])
    left = matrix[directions, directions] - beside[:-1] @ matrix[steps, directions]
    is_constant = left.diagonal() <= 1e-13 * matrix.diagonal()[directions]
    left[is_constant] = left[:, is_constant] = 0.0
    found = pseudo_solve(left, right[directions] - matrix[directions, steps] @ beside[-1])
    return np.concatenate([found, beside[-1] - found @ beside[:-1]])


def pseudo_solve(matrix: Array, right: Array, flat: float = 1e-8) -> Array:
    """matrix⁺ right for a symmetric positive semi-definite matrix, after scaling its diagonal to 1; eigenvalues below
    `flat` times the largest count as no curvature."""
    scale = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    values, vectors = eigenvalues(matrix * inverse * inverse[:, None])
    keep = values > flat * values.max(initial=0.0)
    along = vectors[:, keep].T @ (inverse * right)
    return np.asarray(inverse * (vectors[:, keep] @ (along / values[keep])))


def best_intercept(problem: Problem, predictions: Sequence[Array]) -> Array:
    """argmin_b Σ ℓ(a + b; y)."""
    loss, start = problem.loss, np.zeros(problem.loss.outputs)
    is_alone = not any(h.any() for h in predictions)
    if is_alone or not loss.is_smooth:
        labels = problem.joined.by_label()
        heavy = np.ones(labels.rows) if labels.weights is None else labels.weights
        if not loss.searches_constant or loss.outputs > MOST_CONSTANTS:
            found = loss.best_constant(labels.labels, heavy)
            return found if loss.outputs == 1 else np.maximum(found, np.log(0.5 / heavy.sum()))  # of a class not seen
        problem = replace(problem, joined=labels)
        predictions = [np.zeros((problem.joined.rows, loss.outputs))]
    joined = problem.joined
    evaluate = partial(derivatives, problem, wants_curvature=False)

    def begin() -> tuple[Derivatives, Array]:
        found = evaluate(predictions, start)
        return found, found.residual  # nothing but the intercept moves

    steps = np.eye(loss.outputs)
    if isinstance(joined, Summable):
        bent = np.array([[joined.differentiate(loss, predictions, 0.0).bend]])
    elif loss.outputs > 1:
        bent = joined.run(outputs_hessian_step, predictions, loss=loss, intercept=start, steps=steps).sums["hessian"]
    else:
        bent = joined.run(hessian_step, predictions, loss=loss, intercept=start, is_known=False).sums["intercept"]
    blocks = len(predictions)
    nothing = [np.zeros((1, 1))] * blocks
    space = Subspace([[h] for h in predictions], nothing, [0.0] * blocks, start, steps, bent / joined.rows)
    return minimise(problem, evaluate, space, begin, enough=_ENOUGH_ALONE).intercept
