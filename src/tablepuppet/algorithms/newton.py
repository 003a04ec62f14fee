"""Newton for generalised linear models: one round trip per iteration, nothing to tune.

    server → client   Y_i = collapse_i(∂ℓ/∂a), W_i = collapse_i(∂²ℓ/∂a²), last step's coefficients
    client            g = T_iᵀY_i/N + βθ,  D = T_iᵀdiag(W_i)T_i/N + βI,  d_i = −D⁻¹g;  sends T_i d_i
    server            minimises F over each block's new direction and its last m steps

The search space has at most M(m+1) directions and the intercept; the server already holds all of
them as per-row vectors, and knows the penalty from the clients' inner products. For squared loss
W_i = G_i, for softmax the constant bound ½G_i stands in for W_i, so that only Y_i travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tablepuppet.algorithms.base import Answer, Array, BlockAnswer, BlockUpdate, PartSetup, Problem
from tablepuppet.algorithms.options import Newton
from tablepuppet.algorithms.search import minimise
from tablepuppet.algorithms.spectrum import Spectrum
from tablepuppet.models.linear import LinearModel
from tablepuppet.models.losses import Loss
from tablepuppet.transport.messages import Combined, Done, NewtonMove, NewtonUpdate, Partial, Predictions

# -- server --------------------------------------------------------------------------------


def join_step(
    shard: Any, *, loss: Loss, intercept: Array, wants_curvature: bool
) -> tuple[Sequence[Array], dict[str, Any]]:
    """∂ℓ/∂a, and ∂²ℓ/∂a² where it varies."""
    scores = shard.scores + intercept
    gradient = loss.gradient(scores, shard.labels)
    return ((gradient, loss.curvature(scores)) if wants_curvature else (gradient,)), {}


@dataclass
class NewtonServer:
    """The server's half: per-row vectors of the current scores, directions and last steps."""

    problem: Problem
    options: Newton

    def __post_init__(self) -> None:
        loss = self.problem.loss
        self.intercept: Array = np.zeros(loss.outputs)
        self.penalty = 0.0
        self.predictions: list[Array] | None = None
        self._steps: list[list[Array]] = [[] for _ in self.problem.rows]  # T_i s for the last steps s
        self._pending: list[Array | None] = [None] * self.problem.blocks
        self._unions: list[Spectrum | None] = [None] * self.problem.blocks
        self._decrement = self._value = np.inf
        self._varies = not loss.is_quadratic and loss.outputs == 1

    def rounds_per_epoch(self) -> int:
        return 1

    def begin(self, predictions: list[Array], curvatures: list[float]) -> None:
        self.predictions = predictions

    def join_step(self) -> list[BlockUpdate]:
        assert self.predictions is not None
        problem = self.problem
        done = problem.joined.run(
            join_step,
            self.predictions,
            signals=1 + self._varies,
            loss=problem.loss,
            intercept=self.intercept,
            wants_curvature=self._varies,
        )
        updates = []
        for i in range(problem.blocks):
            curvature = done.signals[1][i] if self._varies else None
            common = {"coefficients": self._pending[i], "bound": problem.loss.bound}
            updates.append(BlockUpdate(NewtonUpdate, {"signal": done.signals[0][i], "curvature": curvature}, common))
        self._pending = [None] * problem.blocks
        return updates

    def union_step(self, block: int, total: list[Array]) -> list[Array]:
        """d = −D⁻¹g of the whole block, from Σ(T_qᵀY_q + Nβθ/Q) and Σ T_qᵀdiag(W_q)T_q."""
        if len(total) > 1:
            self._unions[block] = Spectrum.of(total[1])
        spectrum = self._unions[block]
        assert spectrum is not None
        return [-spectrum.solve(1.0, self.problem.joined.rows * self.problem.l2, total[0])]

    def absorb(self, answers: Sequence[BlockAnswer]) -> None:
        """Searches the subspace and moves all blocks at once."""
        assert self.predictions is not None
        problem = self.problem
        vectors = [
            [h, a.values, *steps] for h, a, steps in zip(self.predictions, answers, self._steps, strict=True)
        ]
        products = [a.products.reshape(len(v), len(v)) for a, v in zip(answers, vectors, strict=True)]
        found = minimise(problem.joined, problem.loss, problem.l2, vectors, products, self.intercept)
        self.intercept = found.intercept
        self._decrement, self._value = found.decrement, found.value
        self.penalty = 0.0
        for i, (block, coefficients) in enumerate(zip(vectors, found.coefficients, strict=True)):
            step = sum(c * v for c, v in zip(coefficients, block[1:], strict=True))
            self.predictions[i] = block[0] + step
            self._steps[i] = [np.asarray(step), *self._steps[i]][: self.options.memory]
            self._pending[i] = coefficients
            along = np.concatenate([[1.0], coefficients])
            self.penalty += float(along @ products[i] @ along)

    def settle(self) -> list[dict[str, Any] | None]:
        moves = [None if c is None else {"coefficients": c} for c in self._pending]
        self._pending = [None] * self.problem.blocks
        return moves

    def is_converged(self) -> bool:
        return self._decrement <= self.options.tolerance * abs(self._value)

    def residuals(self) -> dict[str, float]:
        return {"decrement": self._decrement}


# -- client --------------------------------------------------------------------------------


class NewtonState(msgspec.Struct, frozen=True):
    """A part's parameters, its direction under way and its last steps."""

    theta: Array
    direction: Array
    steps: list[Array]
    values: Array | None = None  # eigenvalues of a curvature that does not change
    vectors: Array | None = None


def client_start(setup: PartSetup, options: Newton) -> NewtonState:
    theta = setup.model.initial()
    return NewtonState(theta, np.zeros_like(theta), [])


def client_step(
    setup: PartSetup, options: Newton, state: NewtonState, message: NewtonUpdate | NewtonMove | Combined
) -> tuple[NewtonState, Answer | Done]:
    """Move by the coefficients chosen last, then find and send the next direction."""
    replace = msgspec.structs.replace
    if isinstance(message, NewtonMove):
        return _moved(state, message.coefficients, options.memory), Done()
    if isinstance(message, Combined):
        return _predicted(setup, replace(state, direction=message.values[0]))
    if message.coefficients is not None:
        state = _moved(state, message.coefficients, options.memory)
    ridge = setup.joined_rows * setup.l2
    gradient = setup.model.gradient(state.theta, message.signal) + ridge / setup.clients * state.theta
    is_constant = message.curvature is None
    is_known = is_constant and state.values is not None
    if setup.clients > 1:
        if is_known:
            return state, Partial(values=[gradient])
        gram = _gram(setup, message)
        return (replace(state, values=np.zeros(0)) if is_constant else state), Partial(values=[gradient, gram])
    if is_known:
        assert state.values is not None and state.vectors is not None
        spectrum = Spectrum(state.values, state.vectors)
    else:
        spectrum = Spectrum.of(_gram(setup, message))
        if is_constant:
            state = replace(state, values=spectrum.values, vectors=spectrum.vectors)
    return _predicted(setup, replace(state, direction=-spectrum.solve(1.0, ridge, gradient)))


def _gram(setup: PartSetup, message: NewtonUpdate) -> Array:
    assert isinstance(setup.model, LinearModel)
    if message.curvature is None:
        return setup.model.gram(message.bound * setup.multiplicity)
    return setup.model.gram(message.curvature[:, 0])


def _moved(state: NewtonState, coefficients: Array, memory: int) -> NewtonState:
    step = np.zeros_like(state.theta)
    for c, v in zip(coefficients, [state.direction, *state.steps], strict=True):
        step += c * v
    return msgspec.structs.replace(state, theta=state.theta + step, steps=[step, *state.steps][:memory])


def _predicted(setup: PartSetup, state: NewtonState) -> tuple[NewtonState, Answer]:
    """T d, and the inner products of θ, d and the last steps, from which the server knows ‖θ‖²."""
    stack = np.stack([v.ravel() for v in (state.theta, state.direction, *state.steps)])
    products = (stack @ stack.T).ravel()
    return state, Predictions(values=setup.model.predict(state.direction), products=products)
