"""Where a model stands and how it came there: the two halves of a subspace search.

A linear block's parameters move inside a few directions: a new one each round, the last m of them,
and the constant that one-hot columns can express. They are directions, not the steps made of them. A step can cancel to
rounding; scaled up again, it would part server and client. The client holds directions as parameters (`Trail`), the
server as predictions (`Tracker`). The server chooses coefficients and both halves apply them. So neither sends anything
that the other already knows.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from tablepuppet.algorithms.base import BlockAnswer, Problem, Summable
from tablepuppet.algorithms.numerics.search import (
    Derivatives,
    Found,
    Subspace,
    best_intercept,
    derivatives,
    hessian_step,
    minimise,
    outputs_hessian_step,
    slopes,
)
from tablepuppet.arrays import Array, Following, RowNumbers, pieces
from tablepuppet.models.linear import MOST_CONSTANTS
from tablepuppet.models.metrics import Sums

_NUMBERS = 1 << 22  # of joined rows, outputs and directions that several outputs' Hessian is summed over
_SAMPLE = 1 << 18  # joined rows that one output's is summed over, at the least
_NO_ROW = 1e-11  # the share of a class that no row has
_ROWS = 1 << 10  # but so many joined rows at the least


def kept_directions(memory: int, parameters: int) -> int:
    """How many earlier directions are of use to a block of so many parameters: of one, all are multiples of the new."""
    return memory if parameters > 1 else 0


class Trail(msgspec.Struct, frozen=True):
    """The client's half: θ, the direction under way, constants and earlier directions."""

    theta: Array
    direction: Array
    constants: list[Array]
    earlier: list[Array]

    def move(self, coefficients: Array, memory: int) -> "Trail":
        """θ after a step whose coefficients the server chose."""
        step = np.zeros_like(self.theta)
        for c, v in zip(coefficients, [self.direction, *self.constants, *self.earlier], strict=True):
            step += c * v
        return Trail(self.theta + step, np.zeros_like(step), self.constants, [self.direction, *self.earlier][:memory])

    def towards(self, direction: Array) -> "Trail":
        return msgspec.structs.replace(self, direction=direction)

    def products(self) -> Array:
        """Inner products of θ and all directions; ‖θ‖² comes first."""
        stack = np.stack([v.ravel() for v in (self.theta, self.direction, *self.constants, *self.earlier)])
        return (stack @ stack.T).ravel()


class Tracker:
    """The server's half: predictions of the current model, F's derivatives there, and earlier directions.

    A block's directions have slots: the newest takes the place of the oldest. The Hessian over all slots is kept from
    round to round; only its rows for the newest directions and for the intercept are computed afresh. Older rows then
    belong to an earlier point, which slows the search a little and changes nothing it converges to. A new row is one
    signal, collapsed to every block, and products with that block's directions. So a walk over joined rows moves M + 1
    vectors, however many directions are kept. Of more than half a million joined rows without weights, some at even
    distances are enough: slopes stay exact, and so does the minimum.

    Where several classes are nearly separable, older rows would slow the search a lot, for the curvature falls from
    round to round. With several outputs the whole Hessian is therefore computed afresh, as sums over joined rows: all
    of them, or as many at even distances as `_NUMBERS` allows. The intercept of very many outputs moves along a few
    steps of its own, as blocks do.
    """

    def __init__(self, problem: Problem, memory: Sequence[int]) -> None:
        self.problem = problem
        self.memory = memory  # of each block
        self._varies = problem.loss.outputs == 1 and not problem.loss.is_quadratic
        # collapse_i(∂²ℓ/∂a²), where it is the same everywhere
        self._constant_curvatures: list[Array | Following] | None = None
        self.predictions: list[Array] = []
        self.intercept: Array = np.zeros(problem.loss.outputs)
        self.pending: list[Array | None] = [None] * problem.blocks
        self.at: Derivatives | None = None
        self._slots: list[dict[int, Array]] = []  # of each block: slot → (n_i, outputs)
        self._own: list[int] = []  # how many slots a block's constants take
        self._constants: list[list[int]] = []  # slots of a block's constants; −1 − c: the same as intercept c
        self._earlier: list[list[int]] = [[] for _ in problem.rows]  # slots, newest first
        self._hessian: Array = np.zeros((0, 0))
        self._steps: Array = np.eye(problem.loss.outputs)  # of the intercept
        self._shares: Array = np.zeros(0)  # of very many classes
        # Which blocks every joined row has a row of.
        self._complete = [int(counts.sum()) == problem.joined.rows for counts in problem.multiplicity]
        self._sampled: tuple[Any, list[RowNumbers]] | None = None  # joined rows, and which rows of each block they have

    def begin(self, predictions: list[Array], spans_constant: Sequence[bool]) -> None:
        """The best intercept comes first, or every block would spend its first step on it."""
        problem, outputs = self.problem, self.problem.loss.outputs
        self.predictions = predictions
        for h, spans, is_complete in zip(predictions, spans_constant, self._complete, strict=True):
            own = outputs if spans and not is_complete else 0
            self._own.append(own)
            self._slots.append({c: self._constant(c, len(h)) for c in range(own)})
            self._constants.append(list(range(own)) if own else [-1 - c for c in range(outputs) if spans])
        self._hessian = np.zeros((sum(self._sizes) + 1,) * 2)  # of several outputs, it is made anew
        if outputs > MOST_CONSTANTS:
            labels = problem.joined.by_label()
            heavy = np.ones(labels.rows) if labels.weights is None else labels.weights
            self._shares, self._steps = np.exp(problem.loss.best_constant(labels.labels, heavy)), np.zeros((outputs, 0))
        self.intercept = best_intercept(problem, predictions)
        is_walked = self._varies and not isinstance(problem.joined, Summable)
        if outputs > 1 or (is_walked and problem.joined.weights is None):
            most = _SAMPLE if outputs == 1 else max(_ROWS, _NUMBERS // (outputs * sum(self._sizes)))
            step = problem.joined.rows // most
            self._sampled = problem.joined.take(np.arange(0, problem.joined.rows, step)) if step > 1 else None
        if problem.loss.is_quadratic:
            first = derivatives(problem, predictions, self.intercept, wants_curvature=True)
            self._constant_curvatures, self.at = first.curvatures, replace(first, curvatures=None)
        else:
            self.at = self._evaluate(predictions, self.intercept)

    def search(self, answers: Sequence[BlockAnswer]) -> Found:
        """Moves all blocks at once to the least F in reach."""
        orders, products = [], []  # slots of each block, as its clients count them; inner products of θ_i and those
        for i, answer in enumerate(answers):
            free = self._free_slot(i)
            self._slots[i][free] = answer.values
            orders.append([free, *self._constants[i], *self._earlier[i]])
            self._earlier[i] = [free, *self._earlier[i]][: self.memory[i]]
            size = 1 + len(orders[i])
            own = answer.products_of(size * size) if len(answer.products) else np.zeros(size * size)
            products.append(own.reshape(size, size))
        fresh = [[order[0], *range(own)] for order, own in zip(orders, self._own, strict=True)]
        vectors = [
            [h, *(self._slots[i][s] if s >= 0 else self._constant(-1 - s, len(h)) for s in order)]
            for i, (h, order) in enumerate(zip(self.predictions, orders, strict=True))
        ]
        if self.problem.loss.outputs > MOST_CONSTANTS:
            self._step_intercept()
        along = slopes(vectors, self.derivatives(), self._steps)
        self._give_up_signals()  # before others come that are as large
        if self.problem.loss.outputs > 1:
            self._compute_hessian()
        else:
            self._refresh(fresh)
        found = self._minimise(vectors, orders, products, along)
        self.predictions, self.intercept, self.at = found.predictions, found.intercept, found.at
        self.pending = list(found.coefficients)
        return found

    def take_pending(self) -> list[Array | None]:
        """Coefficients that clients have not received yet."""
        found, self.pending = self.pending, [None] * self.problem.blocks
        return found

    def expect(self) -> None:
        """Blocks are asked for directions: those whose place they take go before they come."""
        for i, slots in enumerate(self._slots):
            slots.pop(self._free_slot(i), None)

    def settle(self) -> list[dict[str, Any] | None]:
        return [None if c is None else {"coefficients": c} for c in self.take_pending()]

    def derivatives(self) -> Derivatives:
        """F's derivatives at the current model; where they were given up, and nothing has moved since, by a walk."""
        if self.at is None or not self.at.signals:
            self.at = self._evaluate(self.predictions, self.intercept)
        return self.at

    def finish(self) -> None:
        """Frees everything that only a further search would need."""
        self._slots = [{} for _ in self._slots]
        self._give_up_signals()
        self.at = None if self.at is None else replace(self.at, curvatures=None)
        self._constant_curvatures = self._sampled = None

    @property
    def model(self) -> tuple[Array, list[Array], Sums | None]:
        """The current intercept and predictions, and the sums for metrics there."""
        return self.intercept, self.predictions, None if self.at is None else self.at.tally

    @property
    def _sizes(self) -> list[int]:
        return [own + kept + 1 for own, kept in zip(self._own, self.memory, strict=True)]

    def _free_slot(self, block: int) -> int:
        own = self._own[block]
        return next(s for s in range(own, own + self.memory[block] + 1) if s not in self._earlier[block])

    def _constant(self, output: int, rows: int) -> Array:
        """Predictions of 1 for one output."""
        unit = np.eye(self.problem.loss.outputs)[output]
        return np.broadcast_to(unit, (rows, len(unit)))

    def _evaluate(self, predictions: Sequence[Array], intercept: Array) -> Derivatives:
        return derivatives(self.problem, predictions, intercept, wants_curvature=self._varies)

    def _pick(self, block: int, values: Array) -> Array:
        """The values of a block's rows that the Hessian is summed over."""
        return values if self._sampled is None else values.take(self._sampled[1][block], axis=0)

    def _compute_hessian(self) -> None:
        """With several outputs: of all slots that there are, and of the intercept."""
        problem, slots = self.problem, [sorted(own) for own in self._slots]
        joined = problem.joined if self._sampled is None else self._sampled[0]
        predictions = [self._pick(i, h) for i, h in enumerate(self.predictions)]
        columns = [
            _beside([self._pick(i, self._slots[i][s]) for s in own], predictions[i]) for i, own in enumerate(slots)
        ]
        given: dict[str, Any] = {"loss": problem.loss, "intercept": self.intercept, "steps": self._steps}
        done = joined.run(outputs_hessian_step, predictions, columns=columns, **given)
        first = np.cumsum([0, *self._sizes])
        place = [a + s for a, own in zip(first, slots, strict=False) for s in own]
        place += range(first[-1], first[-1] + self._steps.shape[1])
        self._hessian = np.zeros((place[-1] + 1, place[-1] + 1))
        self._hessian[np.ix_(place, place)] = done.sums["hessian"] / joined.rows

    def _step_intercept(self) -> None:
        """A new step of very many outputs' intercept, each by its own curvature, before the last ones.

        Classes without a training row stay where they began relative to the others: F would fall for ever.
        """
        slope = self.derivatives().residual / self.problem.joined.rows
        p = np.clip(self._shares + slope, 1e-12, 1.0 - 1e-12)  # on average
        step = np.where(self._shares > _NO_ROW, -slope / (p * (1.0 - p)), 0.0)
        step -= np.where(self._shares > _NO_ROW, self._shares @ step / self._shares.sum(), 0.0)
        self._steps = np.column_stack([step, self._steps[:, : max(self.memory)]])

    def _refresh(self, fresh: Sequence[Sequence[int]]) -> None:
        """The Hessian's rows (and columns) for some slots of each block, and for the intercept."""
        problem = self.problem
        first = np.cumsum([0, *self._sizes])
        last = first[-1] + np.arange(1)
        rows = [a + np.array(slots, np.intp) for a, slots in zip(first, fresh, strict=False)]
        new = np.concatenate(rows)
        predictions = [self._pick(i, h) for i, h in enumerate(self.predictions)]
        columns = [
            _beside([self._pick(i, self._slots[i][s]) for s in slots], predictions[i]) for i, slots in enumerate(fresh)
        ]
        assert self.at is not None
        known = self.at.curvatures or self._constant_curvatures
        joined: Any = problem.joined
        if self._sampled is not None:
            joined, known = self._sampled[0], None
        elif isinstance(joined, Summable) and not problem.loss.is_quadratic:
            joined, known = joined.sample, None
        hessian, scale = self._hessian, 1.0 / joined.rows
        if known is not None:  # a block's own directions and the intercept need no walk
            for a, here, beside, weights, slots in zip(first, rows, columns, known, self._slots, strict=False):
                for there, own in zip((here, last), images(weights, beside, list(slots.values())), strict=True):
                    for slot, bent in zip(slots, scale * own, strict=True):
                        hessian[there, a + slot] = hessian[a + slot, there] = bent
        done: Any
        if isinstance(joined, Summable) and known is not None:
            done = sum_images(joined, columns, known)
        else:
            given: dict[str, Any] = {"loss": problem.loss, "intercept": self.intercept, "is_known": known is not None}
            done = joined.run(hessian_step, predictions, columns=columns, signals=1, **given)
        for i, (a, slots) in enumerate(zip(first, self._slots, strict=False)):
            found = np.array([*new, *last])
            if known is not None:
                found = np.concatenate([new[:0], *rows[:i], *rows[i + 1 :]])
            image, done.signals[0][i] = done.signals[0][i], None  # as large as the table: it goes once it is used
            for slot, vector in slots.items():
                hessian[found, a + slot] = hessian[a + slot, found] = scale * (image.T @ self._pick(i, vector)[:, 0])
        place = np.ix_([*new, *last], last)
        hessian[place] = scale * done.sums["intercept"]
        hessian.T[place] = hessian[place]

    def _minimise(
        self,
        vectors: Sequence[Sequence[Array]],
        orders: Sequence[Sequence[int]],
        products: Sequence[Array],
        along: Array,
    ) -> Found:
        problem = self.problem
        last = len(self._hessian) - self._steps.shape[1]
        first = np.cumsum([0, *self._sizes])
        place = [
            a + slot if slot >= 0 else last - 1 - slot
            for a, order in zip(first, orders, strict=False)
            for slot in order
        ]
        place += range(last, len(self._hessian))
        hessian = self._hessian[np.ix_(place, place)]
        space = Subspace(vectors, products, problem.ridges, self.intercept, self._steps, hessian)
        return minimise(problem, self._evaluate, space, partial(self._give_up, along))

    def _give_up(self, along: Array) -> tuple[Derivatives, Array]:
        """F's derivatives where the model stands, which it is about to leave."""
        at, self.at = self.at, None
        assert at is not None
        return at, along

    def _give_up_signals(self) -> None:
        if self.at is not None:
            self.at = replace(self.at, signals=[])


def images(weights: Array | Following, columns: Array, vectors: Sequence[Array]) -> tuple[Array, Array]:
    """Of each vector v, Σ w u v of every column u, and Σ w v: products with the curvature of a block's rows."""
    own, constant = np.zeros((len(vectors), columns.shape[1])), np.zeros((len(vectors), 1))
    for here in pieces(len(weights)):
        w = weights[here]
        bent = w * columns[here]
        for number, v in enumerate(vectors):
            own[number] += bent.T @ v[here, 0]
            constant[number] += w.T @ v[here, 0]
    return own, constant


class Images(msgspec.Struct, frozen=True, eq=False):
    """Products of the Hessian with directions, from a walk (`hessian_step`)."""

    signals: list[list[Array]]
    sums: dict[str, Array]


def sum_images(joined: Summable, columns: Sequence[Array], known: Sequence[Array | Following]) -> Images:
    """Of squared loss, exactly: every block gets the images of the others' directions; `known`: Σ w per row of each."""
    signals: list[list[Array]] = [[own[:, :0]] for own in columns]
    along = []
    for number, own in enumerate(columns):
        along.append(own.T @ known[number][:])
        for direction in own.T:
            for block, image in enumerate(joined.multiply(number, direction[:, None])):
                if block != number:
                    signals[block].append(image)
    intercept = np.concatenate([*along, [[float(joined.rows)]]])  # weights are 1 on average
    return Images([[np.concatenate(own, axis=1) for own in signals]], {"intercept": intercept})


def _beside(vectors: Sequence[Array], like: Array) -> Array:
    """Some vectors of a block, side by side."""
    if len(vectors) == 1:
        return vectors[0]
    return np.concatenate([like[:, :0], *vectors], axis=1)
