"""Newton for generalised linear models: one round trip per iteration, nothing to tune.

    server → client   Y_i = collapse_i(∂ℓ/∂a), W_i = collapse_i(∂²ℓ/∂a²), last step's coefficients
    client            g = T_iᵀY_i/N + βθ,  D = T_iᵀdiag(W_i)T_i/N + βI,  d_i = −D⁻¹g;  sends T_i d_i
    server            minimises F over each block's new direction and its last m

One-hot columns of different blocks can trade a constant among them at the price of the penalty alone. So each block
with such columns adds the constant to the search space. This is free: the server knows its predictions. The search
space has at most M(m+2) directions and the intercept. The server already holds all of them as per-row vectors, and
knows the penalty from the clients' inner products. For squared loss W_i = G_i, and only Y_i travels. For softmax W_i is
the curvature over all pairs of classes, or a constant bound of it (full_curvature.py). Here is the server's half; the
client's is in client.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tablepuppet.algorithms.base import BlockAnswer, BlockUpdate, Problem, Server
from tablepuppet.algorithms.newton.client import Newton, NewtonFigures, NewtonUpdate
from tablepuppet.algorithms.newton.full_curvature import (
    collapsed_curvature,
    intercept_share,
    is_full,
    solve,
    summed_matrix,
    without_intercept,
)
from tablepuppet.algorithms.numerics.linear_systems import Spectrum, unpack_triangle
from tablepuppet.algorithms.numerics.subspace import Tracker, kept_directions
from tablepuppet.arrays import Array, Following


@dataclass
class NewtonServer(Server):
    """The server's half: collapsed derivatives out, directions in, a search over the subspace."""

    problem: Problem
    options: Newton

    def __post_init__(self) -> None:
        problem, loss = self.problem, self.problem.loss
        self._unions: list[Spectrum | None] = [None] * problem.blocks
        self._decrement = self._before = self._value = math.inf
        self._rounds = 0
        memory = [kept_directions(self.options.memory, width * loss.outputs) for width in problem.widths]
        self._tracker = Tracker(problem, memory)
        sizes = zip(problem.widths, problem.clients, strict=True)
        self._is_full = [is_full(loss.outputs, width, clients) for width, clients in sizes]
        self._curvatures: list[Array] | None = None  # over all pairs of outputs, where a block gets them

    def begin(self, predictions: list[Array], figures: Sequence[NewtonFigures]) -> None:
        self._tracker.begin(predictions, [bool(f.spans_constant) for f in figures])
        self.intercept, self.predictions, self.tally = self._tracker.model

    def join_step(self) -> list[BlockUpdate]:
        """The derivatives where the last search ended: no walk over joined rows is needed for them."""
        if any(self._is_full):  # one more walk
            self._curvatures = collapsed_curvature(self.problem, self._tracker.predictions, self.intercept)
        self._tracker.expect()
        at, updates = self._tracker.derivatives(), []
        varies = at.curvatures is not None and self.problem.loss.outputs == 1
        self._bend = float(at.bend[0]) if varies else self.problem.loss.bound * self.problem.joined.rows
        for block, coefficients in enumerate(self._tracker.take_pending()):
            known: Sequence[Array | Following] | None = self._curvatures if self._is_full[block] else at.curvatures
            curvature = None if known is None else known[block]
            follows = isinstance(curvature, Following)
            per_row = {
                "signal": at.signals[block],
                "curvature": None if isinstance(curvature, Following) else curvature,
            }
            common = {"coefficients": coefficients, "bound": self.problem.loss.bound, "follows": follows}
            updates.append(BlockUpdate(NewtonUpdate, per_row, common))
        return updates

    def union_step(self, block: int, total: list[Array]) -> list[Array]:
        """d = −D⁻¹g of the whole block, from Σ(T_qᵀY_q + Nβθ/Q) and Σ T_qᵀdiag(W_q)T_q."""
        ridge = self.problem.joined.rows * self.problem.ridges[block]
        if self._is_full[block] and len(total) > 2:  # over all pairs of outputs
            assert self._curvatures is not None
            taken = intercept_share(total[2], self._curvatures[block].sum(axis=0), self.problem.loss.outputs)
            return [-solve(summed_matrix(total[1], *total[0].shape) - taken @ taken.T, ridge, total[0])]
        if len(total) > 1 and total[1].shape[1] == 1 < len(total[1]):  # a wide block's diagonal
            diagonal = total[1] + ridge
            return [-np.divide(total[0], diagonal, out=np.zeros_like(total[0]), where=diagonal > 0)]
        if len(total) > 2:
            gram = unpack_triangle(total[1][0], len(total[0]))
            self._unions[block] = Spectrum.of(without_intercept(gram, total[2], self._bend))
        spectrum = self._unions[block]
        assert spectrum is not None
        return [-spectrum.solve(1.0, ridge, total[0])]

    def absorb(self, answers: Sequence[BlockAnswer]) -> None:
        found = self._tracker.search(answers)
        self.intercept, self.predictions, self.tally = self._tracker.model
        gained = self._value - found.value if self._rounds else 0.0
        self._value = found.value
        self._before = self._decrement if self._rounds > 1 else math.inf  # the first step tells nothing of later ones
        self._decrement = max(abs(found.decrement), gained)
        self._rounds += 1

    def finish(self) -> None:
        self._tracker.finish()
        self._curvatures = None

    def settle(self) -> list[dict[str, Any] | None]:
        return self._tracker.settle()

    def is_converged(self) -> bool:
        """The decrement, or what was gained where tables correlate, estimates the gap before a round's step. Its step
        leaves as little of it as the last one did; the square root is to be on the safe side."""
        falls = self._decrement / self._before if 0 < self._before < math.inf else 1.0
        tolerance = self.options.tolerance_of(self.problem.loss.outputs)
        return self._decrement * math.sqrt(min(falls, 1.0)) <= tolerance * abs(self._value)

    def residuals(self) -> dict[str, float]:
        return {"decrement": self._decrement}
