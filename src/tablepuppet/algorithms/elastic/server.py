"""Accelerated proximal steps: F = f + g, f smooth, g with kinks but a sum over columns (l1, signs).

    server → client   Y_i = collapse_i(∂ℓ/∂a) and W_i = collapse_i(∂²ℓ/∂a²) at y = θ + m (θ − θ before), c
    client            θ⁺ = argmin gᵀθ + ½ c (θ − y)ᵀ D_i (θ − y) + g(θ);  sends T_i θ⁺
    server            f(θ⁺) ≤ f(y) + gᵀ(θ⁺ − y) + ½ c ‖θ⁺ − y‖²?  then θ⁺ is the model, else c grows

The intercept has no penalty: f is minimised over it, and D_i is f's curvature within block i. Blocks that say the same
need c up to their number; c is found, and for squared loss never falls. The momentum is that of FISTA, begun anew where
it no longer leads downhill (O'Donoghue and Candès, 2015). Every θ⁺ has exact zeros.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tablepuppet.algorithms.base import BlockAnswer, BlockUpdate, Problem, Server
from tablepuppet.algorithms.elastic.client import Elastic, ElasticState, ElasticUpdate, centre_moments, propose
from tablepuppet.algorithms.numerics.search import (
    Derivatives,
    best_intercept,
    derivatives,
    outputs_hessian_step,
    pseudo_solve,
)
from tablepuppet.arrays import Array

_STEPS = 20  # of Newton for the intercept
_FLAT = 1e-13  # of the mean slope in it, relative to the curvature


class Point(msgspec.Struct, frozen=True, eq=False):
    """f at some predictions and their best intercept, with its derivatives."""

    predictions: list[Array]
    intercept: Array
    at: Derivatives
    bend: Array  # Σ ∂²ℓ/∂a² over joined rows

    @property
    def curvatures(self) -> list[Array] | None:
        return None if self.at.curvatures is None else [np.asarray(own) for own in self.at.curvatures]


@dataclass
class ElasticServer(Server):
    problem: Problem
    options: Elastic

    def __post_init__(self) -> None:
        loss = self.problem.loss
        self._varies = loss.outputs == 1 and not loss.is_quadratic
        self._bend: Array | None = None  # where the curvature does not change
        self._scale, self._age, self._momentum = 1.0, 1.0, 0.0  # c, FISTA's t, m
        self._model: Point
        self._last: Point  # the model before
        self._at: Point  # y
        self._penalty = 0.0
        self._unions: dict[int, ElasticState] = {}  # of blocks of several clients, whose steps are taken here
        self._lengths: dict[int, float] = {}  # of those steps
        self._pending: Array | None = None
        self._length = self._previous = math.inf

    def _report(self) -> None:
        model = self._model
        self.intercept, self.predictions, self.tally = model.intercept, model.predictions, model.at.tally

    def begin(self, predictions: list[Array], figures: Sequence[Any]) -> None:
        problem = self.problem
        start = best_intercept(problem, predictions)
        if not self._varies:
            # One look at the curvature, which does not change; of several outputs, the bound of every joined row's.
            first = derivatives(problem, predictions, start, wants_curvature=True)
            self._bend = first.bend
            if problem.loss.outputs > 1:
                total = problem.loss.bound * float(first.tally.get("weight", problem.joined.rows))
                self._bend = np.full(problem.loss.outputs, total)
        self._model = self._last = self._at = self._evaluate(predictions, start)
        self._report()

    def _evaluate(self, predictions: list[Array], intercept: Array) -> Point:
        """f there: the intercept goes to its best value first, from a guess. Where it does not, a slope is left in it,
        along which a block of one-hot columns moves without limit."""
        problem, move, least = self.problem, np.zeros(len(intercept)), math.inf
        given: dict[str, Any] = {"loss": problem.loss, "steps": np.eye(len(intercept))}
        for step in range(_STEPS):
            at = derivatives(problem, predictions, intercept, wants_curvature=self._varies)
            bend = at.bend if self._bend is None else self._bend
            if step < _STEPS - 1 and at.loss > least + 1e-9 * abs(least):  # a step of several outputs was too long
                intercept, move = intercept + 0.5 * move, 0.5 * move
                continue
            least = at.loss
            if len(intercept) > 1:
                found = problem.joined.run(outputs_hessian_step, predictions, intercept=intercept, **given)
                move = pseudo_solve(found.sums["hessian"], at.residual)
            else:
                move = at.residual / np.maximum(bend, 1e-300)
            if step == _STEPS - 1 or float(np.abs(move).max()) <= _FLAT * (1.0 + float(np.abs(intercept).max())):
                break
            intercept = intercept - move
        return Point(predictions, intercept, at, bend)

    def join_step(self) -> list[BlockUpdate]:
        at, updates = self._at, []
        curvatures: Sequence[Array | None] = at.curvatures or [None] * self.problem.blocks
        for signal, curvature in zip(at.at.signals, curvatures, strict=True):
            per_row = {"signal": signal, "curvature": curvature}
            common = {
                "bound": self.problem.loss.bound,
                "total": float(at.bend.max()),
                "scale": self._scale,
                "momentum": self._momentum,
                "coefficients": self._pending,
            }
            updates.append(BlockUpdate(ElasticUpdate, per_row, common))
        self._pending = None
        return updates

    def union_step(self, block: int, total: list[Array]) -> list[Array]:
        """The whole block's proposal, from Σ T_qᵀY_q and Σ T_qᵀdiag(W_q)T_q."""
        zero = np.zeros_like(total[0])
        known = self._unions.get(block, ElasticState(zero, zero, zero))
        moments, rows = total[1:], self.problem.joined.rows
        matrix = centre_moments(moments, float(self._at.bend.max()) / rows) if moments else known.matrix
        assert matrix is not None
        given = (total[0], matrix, self._scale, self._momentum, self.problem.penalty(block))
        proposed, self._lengths[block] = propose(known.theta, known.before, *given)
        self._unions[block] = ElasticState(known.theta, known.before, proposed, matrix)
        return [proposed]

    def absorb(self, answers: Sequence[BlockAnswer]) -> None:
        at, rows = self._at, self.problem.joined.rows
        penalty = sum(float(answer.products[1]) for answer in answers)
        length = sum(self._lengths.get(i, float(answer.products[2])) for i, answer in enumerate(answers))
        there = self._evaluate([answer.values for answer in answers], at.intercept)
        moves = [new - old for new, old in zip(there.predictions, at.predictions, strict=True)]
        linear = sum(float(np.vdot(y, move)) for y, move in zip(at.at.signals, moves, strict=True)) / rows
        above = there.at.loss - at.at.loss - linear
        if above > 0.5 * self._scale * length + 1e-13 * abs(at.at.loss):
            self._pending = np.zeros(1)
            needed = 2.0 * above / max(length, 1e-300)
            self._scale = min(max(1.05 * needed, 1.2 * self._scale), 1e6)
            return
        model = self._model
        rises = there.at.loss + penalty > model.at.loss + self._penalty
        curvatures: Sequence[Any] = at.curvatures or [1.0] * len(moves)
        steps = zip(moves, curvatures, there.predictions, model.predictions, strict=True)
        turns = sum(float(np.vdot(move * bend, new - old)) for move, bend, new, old in steps)
        self._length, self._previous = 0.5 * self._scale * length, self._length
        self._pending = np.ones(1)
        for block, own in self._unions.items():
            self._unions[block] = ElasticState(own.proposed, own.theta, own.proposed, own.matrix)
        self._last, self._model, self._penalty = model, there, penalty
        self._report()
        age = 1.0 if rises or turns < 0 else self._age
        self._age = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * age * age))
        self._momentum = (age - 1.0) / self._age
        self._at = self._ahead()
        if self._varies:
            self._scale = max(1.0, 0.95 * self._scale)

    def _ahead(self) -> Point:
        """y."""
        model, last, m = self._model, self._last, self._momentum
        if m == 0.0:
            return model
        pairs = zip(model.predictions, last.predictions, strict=True)
        predictions = [new + m * (new - old) for new, old in pairs]
        return self._evaluate(predictions, model.intercept + m * (model.intercept - last.intercept))

    def settle(self) -> list[dict[str, Any] | None]:
        pending, self._pending = self._pending, None
        return [None if pending is None else {"coefficients": pending} for _ in self.problem.rows]

    def is_converged(self) -> bool:
        value = self._model.at.loss + self._penalty
        return max(self._length, self._previous) <= self.options.tolerance * abs(value)

    def residuals(self) -> dict[str, float]:
        return {"step": self._length, "scale": self._scale}
