"""Newton for generalised linear models: one round trip per iteration, nothing to tune.

    server → client   Y_i = collapse_i(∂ℓ/∂a), W_i = collapse_i(∂²ℓ/∂a²), last step's coefficients
    client            g = T_iᵀY_i/N + βθ,  D = T_iᵀdiag(W_i)T_i/N + βI,  d_i = −D⁻¹g;  sends T_i d_i
    server            minimises F over each block's new direction and its last m

One-hot columns of different blocks can trade a constant among them at the price of the penalty
alone; each block that has such columns therefore adds the constant to the search space, for free:
the server knows what it predicts. The search space has at most M(m+2) directions and the intercept;
the server already holds all of them as per-row vectors, and knows the penalty from the clients'
inner products. For squared loss W_i = G_i, and only Y_i travels; for softmax W_i is the curvature over
all pairs of classes, or a constant bound of it (full_curvature.py). In the first epoch small blocks
may take a second step (`small_blocks`). Here is the server's half; the client's is in client.py.

Light blocks take a second step in the first epoch. In the first round no block knows of the others,
and what two of them can both explain is counted twice. A block that is asked again mends that for its own part; if it
holds next to none of the rows, this costs a latency and no bytes to speak of, and a full round is saved.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
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
)
from tablepuppet.algorithms.numerics.linear_systems import Spectrum, unpack_triangle
from tablepuppet.algorithms.numerics.subspace import Tracker, kept_directions
from tablepuppet.arrays import Array, Following
from tablepuppet.models.metrics import Sums

HEAVY = 1_000_000  # values of a full round: what US-UK (0.9 million) and US-US (1.2 million) carry within a latency
SHARE = 1 / 32  # of all rows: what light blocks hold together


def small_blocks(
    rows: Sequence[int], widths: Sequence[int], epochs: int, outputs: int, *, has_curvature: bool
) -> frozenset[int]:
    """The smallest blocks, while they hold few of the rows; none where a full round is quick anyway.

    >>> sorted(small_blocks([850_000, 6_200, 6_000], [6, 19, 30], 10, 1, has_curvature=False))
    [1, 2]
    """
    total = sum(rows)
    if total * (2 * outputs + has_curvature) < HEAVY:
        return frozenset()
    found, held = set(), 0
    for block in sorted(range(len(rows)), key=rows.__getitem__):
        held += rows[block]
        if held > SHARE * total:
            break
        if rows[block] and _discloses_no_more(widths[block], epochs, outputs):
            found.add(block)
    return frozenset(found)


def _discloses_no_more(width: int, epochs: int, outputs: int) -> bool:
    """Whether one more prediction of a row leaves it as well hidden, or as little, as the planned ones do.

    Counted without the predictions that evaluate each epoch and the end, as plans do, and with them, as owners do.
    """
    planned = (outputs * epochs, outputs * (2 * epochs + 1))
    return all((shown >= width) == (shown + outputs >= width) for shown in planned)


@dataclass
class NewtonServer(Server):
    """The server's half: collapsed derivatives out, directions in, a search over the subspace."""

    problem: Problem
    options: Newton

    def __post_init__(self) -> None:
        loss = self.problem.loss
        self._unions: list[Spectrum | None] = [None] * self.problem.blocks
        self._decrement = self._before = self._value = math.inf
        varies = not loss.is_quadratic and loss.outputs == 1
        problem = self.problem
        given = (problem.rows, problem.widths, problem.epochs, loss.outputs)
        self._again = small_blocks(*given, has_curvature=varies)  # who takes a second step in the first epoch
        self._asked: Collection[int] = range(problem.blocks)
        memory = [kept_directions(self.options.memory, width * loss.outputs) for width in problem.widths]
        self._tracker = Tracker(problem, memory, in_place=True)
        sizes = zip(problem.widths, problem.clients, strict=True)
        self._is_full = [is_full(loss.outputs, width, clients) for width, clients in sizes]
        self._curvatures: list[Array] | None = None  # over all pairs of outputs, where a block gets them

    @property
    def intercept(self) -> Array:
        return self._tracker.intercept

    @property
    def predictions(self) -> list[Array]:
        return self._tracker.predictions

    @property
    def tally(self) -> Sums | None:
        return self._tracker.tally

    def begin(self, predictions: list[Array], figures: Sequence[NewtonFigures]) -> None:
        self._tracker.begin(predictions, [bool(f.spans_constant) for f in figures])

    def join_step(self) -> list[BlockUpdate]:
        """The derivatives where the last search ended: no walk over joined rows is needed for them."""
        self._asked = range(self.problem.blocks)
        self._look_around()
        self._tracker.expect(self._asked)
        return [self._update(i, c) for i, c in enumerate(self._tracker.take_pending())]

    def _look_around(self) -> None:
        """The curvature over all pairs of outputs where the model stands, if a block wants it: one more walk."""
        if any(self._is_full):
            self._curvatures = collapsed_curvature(self.problem, self.predictions, self.intercept)

    def second_step(self) -> list[BlockUpdate | None] | None:
        """Once the first round has shown the blocks to each other, the light ones mend what they explained twice."""
        if not self._again:
            return None
        self._asked, self._again = sorted(self._again), frozenset()
        pending = self._tracker.take_pending(self._asked)
        self._look_around()
        self._tracker.expect(self._asked)
        return [self._update(i, c) if i in self._asked else None for i, c in enumerate(pending)]

    def _update(self, block: int, coefficients: Array | None) -> BlockUpdate:
        at = self._tracker.derivatives()
        known: Sequence[Array | Following] | None = self._curvatures if self._is_full[block] else at.curvatures
        curvature = None if known is None else known[block]
        follows = isinstance(curvature, Following)
        common = {"coefficients": coefficients, "bound": self.problem.loss.bound, "follows": follows}
        curvature = None if isinstance(curvature, Following) else curvature
        return BlockUpdate(NewtonUpdate, {"signal": at.signals[block], "curvature": curvature}, common)

    def union_step(self, block: int, total: list[Array]) -> list[Array]:
        """d = −D⁻¹g of the whole block, from Σ(T_qᵀY_q + Nβθ/Q) and Σ T_qᵀdiag(W_q)T_q."""
        ridge = self.problem.joined.rows * self.problem.ridges[block]
        if len(total) > 2:  # over all pairs of outputs
            assert self._curvatures is not None
            taken = intercept_share(total[2], self._curvatures[block].sum(axis=0), self.problem.loss.outputs)
            return [-solve(summed_matrix(total[1], *total[0].shape) - taken @ taken.T, ridge, total[0])]
        if len(total) > 1 and total[1].shape[1] == 1 < len(total[1]):  # a wide block's diagonal
            return [-_divide_by_diagonal(total[1] + ridge, total[0])]
        if len(total) > 1:
            self._unions[block] = Spectrum.of(unpack_triangle(total[1][0], len(total[0])))
        spectrum = self._unions[block]
        assert spectrum is not None
        return [-spectrum.solve(1.0, ridge, total[0])]

    def absorb(self, answers: Sequence[BlockAnswer]) -> None:
        tells_gap = len(self._asked) == self.problem.blocks  # some blocks alone cannot

        def is_last(decrement: float, value: float) -> bool:
            return tells_gap and self._is_over(self._decrement, decrement, value)

        found = self._tracker.search(dict(zip(self._asked, answers, strict=True)), is_last)
        self._value = found.value
        if tells_gap:
            self._before, self._decrement = self._decrement, abs(found.decrement)

    def finish(self) -> None:
        self._tracker.finish()
        self._curvatures = None

    def settle(self) -> list[dict[str, Any] | None]:
        return self._tracker.settle()

    def is_converged(self) -> bool:
        """The decrement estimates the gap before a round's step. Its step leaves as little of it as the last one did;
        the square root is to be on the safe side."""
        return self._is_over(self._before, self._decrement, self._value)

    def _is_over(self, before: float, decrement: float, value: float) -> bool:
        falls = decrement / before if 0 < before < math.inf else 1.0
        return decrement * math.sqrt(min(falls, 1.0)) <= self.options.tolerance_of(self.problem.loss.outputs) * abs(
            value
        )

    def residuals(self) -> dict[str, float]:
        return {"decrement": self._decrement}


def _divide_by_diagonal(diagonal: Array, right: Array) -> Array:
    """diag⁻¹ right; 0 where the diagonal is."""
    return np.divide(right, diagonal, out=np.zeros_like(right), where=diagonal > 0)
