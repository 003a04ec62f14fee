"""A toy: gradient descent in which a table's clients step on their own rows and their parameters are averaged.

The folder that docs/extending.md walks through; a test copies it into the package and adds its line to the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from tablepuppet.algorithms.algorithm import Algorithm
from tablepuppet.algorithms.base import (
    Answer,
    BlockAnswer,
    BlockUpdate,
    Figures,
    PartSetup,
    Problem,
    Server,
    squared_norm,
)
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.arrays import Array
from tablepuppet.models.losses import Loss
from tablepuppet.protocol.base import Combined, Discloses, Partial, Predictions, Update


class Averaging(AlgorithmOptions, frozen=True, tag="averaging"):
    """What a user can choose."""

    name: ClassVar[str] = "averaging"
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        self._check(self.learning_rate > 0, "learning_rate must be above 0")


class AveragingUpdate(Update, frozen=True):
    """Y of all train rows. → Predictions | Partial | Masked"""

    signal: Annotated[Array, Discloses("signals", is_per_row=True)]


class AveragingState(msgspec.Struct, frozen=True):
    """A part's parameters."""

    theta: Array


def join_step(shard: Any, *, loss: Loss, intercept: Array) -> tuple[Sequence[Array], dict[str, Any]]:
    """∂ℓ/∂a of each joined row; its collapsed sums are the blocks' signals, its total moves the intercept."""
    slope = loss.gradient(shard.scores + intercept, shard.labels)
    return (slope,), {"slope": slope.sum(axis=0)}


class AveragingServer(Server):
    """The server's half."""

    def __init__(self, problem: Problem, options: Averaging) -> None:
        self.problem, self.options = problem, options
        self.intercept = np.zeros(problem.loss.outputs)

    def begin(self, predictions: list[Array], figures: Sequence[Any]) -> None:
        self.predictions = self._values = predictions

    def join_step(self) -> list[BlockUpdate]:
        problem = self.problem
        done = problem.joined.run(join_step, self._values, signals=1, loss=problem.loss, intercept=self.intercept)
        self.intercept = self.intercept - self.options.learning_rate * done.sums["slope"] / problem.joined.rows
        return [BlockUpdate(AveragingUpdate, {"signal": signal}) for signal in done.signals[0]]

    def union_step(self, block: int, total: list[Array]) -> list[Array]:
        return [total[0] / self.problem.clients[block]]

    def absorb(self, answers: Sequence[BlockAnswer]) -> None:
        self.predictions = self._values = [answer.values for answer in answers]


class AveragingAlgorithm(Algorithm[Averaging]):
    """The declaration."""

    options = Averaging
    summary = "gradient steps on each client's own rows, and the mean of their parameters"
    sums = "the parameters"
    requests = (AveragingUpdate,)
    remedy = "use a smaller learning_rate"

    def server(self, problem: Problem, options: Averaging) -> AveragingServer:
        return AveragingServer(problem, options)

    def start(self, setup: PartSetup, options: Averaging) -> tuple[AveragingState, Figures]:
        return AveragingState(setup.model.initial()), Figures()

    def step(
        self, setup: PartSetup, options: Averaging, state: AveragingState, message: AveragingUpdate | Combined
    ) -> tuple[AveragingState, Answer]:
        if isinstance(message, Combined):
            return self._predicted(setup, message.values[0])
        # A client's own rows stand for all: their share of the gradient, times the number of clients.
        gradient = setup.clients * setup.model.gradient(state.theta, message.signal) / setup.joined_rows
        theta = state.theta - options.learning_rate * (gradient + setup.l2 * state.theta)
        return (state, Partial(values=[theta])) if setup.clients > 1 else self._predicted(setup, theta)

    def _predicted(self, setup: PartSetup, theta: Array) -> tuple[AveragingState, Answer]:
        products = np.array([squared_norm(theta)])
        return AveragingState(theta), Predictions(values=setup.model.predict(theta), products=products)


ALGORITHM = AveragingAlgorithm()
