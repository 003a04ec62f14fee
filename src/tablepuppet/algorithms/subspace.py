"""Where a model stands and how it came there: the two halves of a subspace search.

A linear block's parameters move inside a few directions: a new one each round, the last m of them,
and the constant that one-hot columns can express. (Directions, not the steps made of them: a step
can cancel to rounding, and scaled up again it would part server and client.) The client holds them
as parameters (`Trail`), the server as predictions (`Tracker`); the server chooses coefficients,
both halves apply them, and so neither sends what the other already knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tablepuppet.algorithms.base import Array, Problem
from tablepuppet.algorithms.search import Found, minimise


class Trail(msgspec.Struct, frozen=True):
    """The client's half: θ, the direction under way, constants and earlier directions."""

    theta: Array
    direction: Array
    constants: list[Array]
    earlier: list[Array]

    def moved(self, coefficients: Array, memory: int) -> Trail:
        """θ after a step whose coefficients the server chose."""
        step = np.zeros_like(self.theta)
        for c, v in zip(coefficients, [self.direction, *self.constants, *self.earlier], strict=True):
            step += c * v
        return Trail(self.theta + step, np.zeros_like(step), self.constants, [self.direction, *self.earlier][:memory])

    def towards(self, direction: Array) -> Trail:
        return msgspec.structs.replace(self, direction=direction)

    def products(self) -> Array:
        """Inner products of θ and all directions; ‖θ‖² comes first."""
        stack = np.stack([v.ravel() for v in (self.theta, self.direction, *self.constants, *self.earlier)])
        return (stack @ stack.T).ravel()


class Tracker:
    """The server's half: predictions of the current model, of constants and of earlier directions."""

    def __init__(self, problem: Problem, memory: int) -> None:
        self.problem = problem
        self.memory = memory
        self.predictions: list[Array] = []
        self.intercept: Array = np.zeros(problem.loss.outputs)
        self.pending: list[Array | None] = [None] * problem.blocks
        self._constants: list[list[Array]] = [[] for _ in problem.rows]
        self._earlier: list[list[Array]] = [[] for _ in problem.rows]

    def begin(self, predictions: list[Array], spans_constant: Sequence[bool]) -> None:
        """The best intercept comes first, or every block would spend its first step on it."""
        self.predictions = predictions
        outputs = self.problem.loss.outputs
        for i, (h, spans) in enumerate(zip(predictions, spans_constant, strict=True)):
            if spans:
                self._constants[i] = [np.repeat(np.eye(outputs)[[c]], len(h), axis=0) for c in range(outputs)]
        nothing = [np.zeros((1, 1))] * self.problem.blocks
        self.intercept = self._minimise([[h] for h in predictions], nothing).intercept

    def search(self, directions: Sequence[Array], products: Sequence[Array]) -> Found:
        """Moves all blocks at once to the least F in reach."""
        vectors = [
            [h, d, *constants, *earlier]
            for h, d, constants, earlier in zip(
                self.predictions, directions, self._constants, self._earlier, strict=True
            )
        ]
        grams = [
            p.reshape(len(v), len(v)) if len(p) else np.zeros((len(v), len(v)))
            for p, v in zip(products, vectors, strict=True)
        ]
        found = self._minimise(vectors, grams)
        self.intercept = found.intercept
        for i, (block, coefficients) in enumerate(zip(vectors, found.coefficients, strict=True)):
            step = np.zeros_like(block[0])
            for c, v in zip(coefficients, block[1:], strict=True):
                step += c * v
            self.predictions[i] = block[0] + step
            self._earlier[i] = [block[1], *self._earlier[i]][: self.memory]
            self.pending[i] = coefficients
        return found

    def take_pending(self) -> list[Array | None]:
        """Coefficients that clients have not been told yet."""
        pending, self.pending = self.pending, [None] * self.problem.blocks
        return pending

    def settle(self) -> list[dict[str, Any] | None]:
        return [None if c is None else {"coefficients": c} for c in self.take_pending()]

    def _minimise(self, vectors: Sequence[Sequence[Array]], products: Sequence[Array]) -> Found:
        problem = self.problem
        return minimise(problem.joined, problem.loss, problem.l2, vectors, products, self.intercept)
