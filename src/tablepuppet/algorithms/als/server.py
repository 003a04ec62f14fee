"""Alternating least squares over tables: a round is the best step of one block, given the others.

    server   z_j = (1, Σ_{l≠i} v_l),  r = ∂ℓ/∂score;  for each row k of block i, over its joined rows j:
             s_k = Σ z r + λ Σ h_i,   M_k = L Σ z zᵀ + λ Σ I
    client   the step of Θ_i from these (client.py); sends h_i = (b_i, v_i) of its rows

For squared loss (L = 1) that is the least-squares solution of block i; for logistic loss L = ¼ bounds the curvature,
so that a round never raises the objective. The intercept is the best constant for the labels, and stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from tablepuppet.algorithms.als.messages import AlsFigures, AlsUpdate
from tablepuppet.algorithms.als.normal import Conjugate, solved_blocks
from tablepuppet.algorithms.als.options import Als
from tablepuppet.algorithms.base import BlockAnswer, BlockUpdate, Problem, Server
from tablepuppet.algorithms.numerics.intercept import best_intercept
from tablepuppet.arrays import Array
from tablepuppet.errors import JobError
from tablepuppet.models.heads.base import Head
from tablepuppet.models.losses import Loss


def join_step(
    shard: Any, *, loss: Loss, bound: float, intercept: Array, head: Head, block: int
) -> tuple[Sequence[Any], dict[str, Any]]:
    """s and M of one block's rows, side by side; the others get nothing."""
    h, spec = shard.columns, head.spec
    own = h[block]
    slope = loss.gradient(head.combine(np.zeros(0), h) + intercept, shard.labels) / spec.unit
    z = np.ones_like(own)
    z[:, 1:] = sum(values[:, 1:] for number, values in enumerate(h) if number != block)
    weights = np.ones((len(own), 1)) if shard.weights is None else shard.weights[:, None]
    signal = slope * z + spec.shrinkage * weights * own
    rows, columns = np.triu_indices(own.shape[1])
    curvature = (bound * weights * z)[:, rows]
    curvature *= z[:, columns]
    curvature[:, rows == columns] += spec.shrinkage * weights
    signals: list[Any] = [()] * len(h)
    signals[block] = (signal, curvature)
    return (signals,), {}


class AlsServer(Server):
    """The server's half: whose turn it is, and the conjugate gradients of blocks with several clients."""

    def __init__(self, problem: Problem, options: Als) -> None:
        if problem.loss.outputs > 1 or not isfinite(problem.loss.bound) or problem.head is None:
            raise JobError(
                'algorithm="als" solves for one score a row whose loss has a bounded curvature; train this label with '
                'algorithm="sgd"'
            )
        self.problem, self.options = problem, options
        self._intercept: Array = np.zeros(1)
        self._values: list[Array] = []
        self._figures: Sequence[AlsFigures] = ()
        self._turn = 0
        self._solvers: dict[int, Conjugate] = {}

    @property
    def intercept(self) -> Array:
        return self._intercept

    @property
    def predictions(self) -> list[Array] | None:
        return self._values

    def rounds_per_epoch(self) -> int:
        return self.problem.blocks

    def begin(self, predictions: list[Array], figures: Sequence[AlsFigures]) -> None:
        self._values, self._figures = list(predictions), figures
        if self.problem.has_intercept:
            self._intercept = best_intercept(self.problem, self.problem.zeros())

    def join_step(self) -> list[BlockUpdate | None]:  # type: ignore[override]
        assert self.problem.head is not None
        loss, block = self.problem.loss, self._turn
        joined: Any = self.problem.joined
        done = joined.joined.run(
            join_step,
            [np.zeros((len(values), 1)) for values in self._values],
            columns=self._values,
            signals=1,
            loss=loss,
            bound=loss.bound,
            intercept=self._intercept,
            head=self.problem.head.head,
            block=block,
        )
        width = self._values[block].shape[1]
        found = done.signals[0][block]
        given: dict[str, Array | None] = {"signal": found[:, :width], "curvature": found[:, width:]}
        updates: list[BlockUpdate | None] = [None] * self.problem.blocks
        updates[block] = BlockUpdate(AlsUpdate, given)
        return updates

    def union_step(self, block: int, total: list[Array]) -> list[Array]:
        """A direction to be multiplied (two arrays, the second empty), or the step (one array)."""
        ridge = self.problem.joined.rows * max(self.problem.ridges)
        if block not in self._solvers:
            right, blocks = total
            if self._figures[block].has_one_category >= self.problem.clients[block]:
                return [solved_blocks(blocks, ridge, right)]
            options = self.options
            self._solvers[block] = Conjugate(blocks, ridge, right, options.solver_tolerance, options.solver_steps)
        else:
            self._solvers[block].advance(total[0])
        solver = self._solvers[block]
        if not solver.is_done:
            return [solver.direction, np.zeros((0, 0))]
        del self._solvers[block]
        return [solver.step]

    def absorb(self, answers: Sequence[BlockAnswer]) -> None:
        self._values[self._turn] = answers[0].values
        self._turn = (self._turn + 1) % self.problem.blocks
