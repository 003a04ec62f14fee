"""centralized: F minimised on the materialised join, the baseline that all others are measured against.

In: the joined feature matrix, N × d, which exists nowhere else. Out: θ and the intercept. Newton with Cholesky for one
output, L-BFGS for softmax; run to convergence, so that other algorithms' gaps can be measured. Networks and heads,
whose objective is not convex, take the steps of sgd, with every table in one place.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tablepuppet.algorithms.algorithm import FLOAT, Algorithm
from tablepuppet.algorithms.base import BlockAnswer, BlockUpdate, Fitted, PartSetup, Problem
from tablepuppet.algorithms.options import AlgorithmOptions, Positive, Tolerance
from tablepuppet.algorithms.sgd.algorithm import SgdAlgorithm
from tablepuppet.algorithms.sgd.rounds import Sgd, SgdFigures, SgdServer, SgdUpdate, client_start, client_step
from tablepuppet.algorithms.shape import BlockShape, Exchanges, OuterRound, PartShape, RoundTraffic, RunShape, Shape
from tablepuppet.arrays import Array, floats
from tablepuppet.models.losses import Loss
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.options import FeaturePrivacy
from tablepuppet.protocol.base import Predictions


class Centralized(AlgorithmOptions, frozen=True, tag="centralized"):
    """The baseline: pool all rows, materialise the join, minimise F on it. For comparison, if pooling is allowed.

    - `tolerance`: the relative gain at which it ends; `learning_rate`: of networks and heads.

    >>> Centralized(tolerance=1e-6)
    Centralized(tolerance=1e-06)
    """

    name: ClassVar[str] = "centralized"
    tolerance: Tolerance = 1e-10
    learning_rate: Positive | None = None  # of networks and heads; None: what federated training takes


_ITERATIONS = 100

# CPU seconds (docs/performance.md). Of an encoded number of a table, which is read, encoded and pooled; of a joined row
# and of each of its columns. Of a row in an iteration; of an entry of the Hessian; or of each of several outputs.
_POOLED, _JOINED, _COLUMN, _ITERATED, _SQUARED, _OUTPUT = 80e-9, 60e-9, 10e-9, 80e-9, 0.3e-9, 30e-9
_START = 5e-3
_NEWTON_STEPS, _LBFGS_STEPS = 5, 30  # looks at F, most often


def minimise(features: Array, labels: Array, loss: Loss, l2: float, tolerance: float) -> Fitted:
    """The minimum of F over θ and an unpenalised intercept."""
    if loss.outputs > 1:
        return _lbfgs(features, labels, loss, l2, tolerance)
    rows, width = features.shape
    design = np.concatenate([features, np.ones((rows, 1))], axis=1)
    ridge = np.append(np.full(width, l2), 0.0)
    point = np.zeros(width + 1)

    def value_at(x: Array) -> float:
        return float(loss.value((design @ x)[:, None], labels).mean()) + 0.5 * float(ridge @ (x * x))

    value = value_at(point)
    iterations = 0
    while iterations < _ITERATIONS:
        iterations += 1
        scores = (design @ point)[:, None]
        slope = design.T @ loss.gradient(scores, labels)[:, 0] / rows + ridge * point
        hessian = design.T @ (design * loss.curvature(scores, labels)) / rows + np.diag(ridge)
        step = -_solve(hessian, slope, l2)
        decrement = -0.5 * float(slope @ step)
        if decrement <= 0.01 * tolerance * abs(value):
            break
        size = 1.0
        while value_at(point + size * step) > value and size > 1e-10:
            size /= 2
        point = point + size * step
        value = value_at(point)
        if loss.is_quadratic:
            break
    return Fitted([point[:-1, None]], point[-1:], iterations, value)


def _solve(hessian: Array, slope: Array, l2: float) -> Array:
    """H⁻¹ g; the pseudo-inverse where nothing is penalised and features may be collinear."""
    from scipy import linalg  # here: it takes a tenth of a second to load

    if l2 > 0:
        return np.asarray(linalg.cho_solve(linalg.cho_factor(hessian), slope))
    return np.asarray(linalg.pinvh(hessian) @ slope)


def _lbfgs(features: Array, labels: Array, loss: Loss, l2: float, tolerance: float) -> Fitted:
    from scipy.optimize import minimize  # here: it takes a tenth of a second to load

    rows, width = features.shape
    shape = (width + 1, loss.outputs)

    def value_and_slope(flat: Array) -> tuple[float, Array]:
        x = flat.reshape(shape)
        scores = features @ x[:-1] + x[-1]
        residual = loss.gradient(scores, labels) / rows
        value = float(loss.value(scores, labels).mean()) + 0.5 * l2 * float(np.vdot(x[:-1], x[:-1]))
        slope = np.concatenate([features.T @ residual + l2 * x[:-1], residual.sum(axis=0, keepdims=True)])
        return value, slope.ravel()

    found = minimize(
        value_and_slope,
        np.zeros(shape[0] * shape[1]),
        jac=True,
        method="L-BFGS-B",
        options={"maxcor": 30, "maxiter": 2000, "maxfun": 4000, "ftol": 1e-4 * tolerance, "gtol": 1e-9},
    )
    x = found.x.reshape(shape)
    return Fitted([x[:-1]], x[-1] - x[-1].mean(), int(found.nit), float(found.fun))


def descend(problem: Problem, setups: Sequence[PartSetup], learning_rate: float | None) -> Fitted:
    """A network or a head: Adam under a cosine schedule; a setup for each block, which has one client."""
    options = Sgd(optimizer="adam", schedule="cosine", learning_rate=learning_rate)
    server, states = SgdServer(problem, options), [client_start(setup, options)[0] for setup in setups]

    def take_step(updates: Sequence[BlockUpdate]) -> None:
        answers = []
        for i, (setup, update) in enumerate(zip(setups, updates, strict=True)):
            given: dict[str, Any] = {**update.per_row, **update.common, "next_rows": update.next_rows}
            states[i], answer = client_step(setup, options, states[i], SgdUpdate(job="", part=i, **given))
            assert isinstance(answer, Predictions)
            answers.append(BlockAnswer(floats(answer.values), answer.products))
        server.absorb(answers)

    first = [floats(setup.model.predict(state.theta, None, 0)) for setup, state in zip(setups, states, strict=True)]
    server.begin(first, [SgdFigures()] * len(setups))
    opening, steps = server.opening(), problem.epochs * server.rounds_per_epoch()
    if opening is not None:
        take_step(opening)
    for _ in range(steps):
        take_step(server.join_step())
    return Fitted([state.theta for state in states], server.intercept, steps)


class CentralizedAlgorithm(Algorithm[Centralized]):
    """F minimised on the materialised join, to convergence; training/pooled.py runs it, without halves."""

    is_pooled = True
    epochs = 1
    options = Centralized
    summary = "the baseline: features are pooled in one process, and F is minimised on the materialised join"
    requires_curvature = True
    heads = ("sum", "factor", "mlp", "module")
    network_epochs = 30
    head_epochs = 20
    no_private_form = "the centralised baseline pools all features; it has no private form"

    def refusal(self, options: Centralized, spec: ModelSpec) -> str | None:
        if spec.kind != "module":
            return None
        return 'the centralised baseline builds networks itself; use model="mlp", and train your own modules federated'

    def chooses_steps(self, options: Centralized, *, is_linear: bool, features: FeaturePrivacy | None) -> bool:
        return not is_linear and options.learning_rate is None

    def fit(self, features: Array, labels: Array, loss: Loss, l2: float, options: Centralized) -> Fitted:
        """The minimum of F on the joined feature matrix, where it is convex."""
        return minimise(features, labels, loss, l2, options.tolerance)

    def train(self, problem: Problem, setups: Sequence[PartSetup], options: Centralized) -> Fitted:
        """A network or a head on the joined rows."""
        return descend(problem, setups, options.learning_rate)

    def cpu(self, shape: Shape, options: Centralized, epoch: int, batches: int = 1) -> float:
        """All of it, where F is convex; else an epoch of sgd's, and the first pools."""
        width = 1 + sum(block.width for block in shape.blocks)
        cells = sum((part.rows + part.test_rows) * block.entries for block, part in shape.parts)
        pooled = _START + _POOLED * cells + shape.joined * _JOINED
        if not shape.is_linear or not shape.is_sum:
            return SgdAlgorithm().cpu(shape, Sgd(), epoch, batches) + (pooled if epoch == 0 else 0.0)
        steps = _LBFGS_STEPS if shape.outputs > 1 else _NEWTON_STEPS if shape.curvature_varies else 1
        iterated = _OUTPUT * shape.outputs if shape.outputs > 1 else _ITERATED + _SQUARED * width**2
        return pooled + shape.joined * (_COLUMN * width + steps * iterated)

    def traffic(self, shape: Shape, options: Centralized, epoch: int, batch_size: int | None) -> list[RoundTraffic]:
        """Every encoded feature of every row, once."""
        pooled = OuterRound(lambda _b, _p: 0, lambda b, part: (part.rows + part.test_rows) * b.width, lambda _b: [])
        return pooled.traffic(shape)

    def server_memory(self, shape: Shape, options: Centralized) -> int:
        return 3 * FLOAT * shape.joined * sum(block.width for block in shape.blocks)

    def client_memory(self, shape: Shape, options: Centralized, block: BlockShape, part: PartShape) -> float:
        pooled = 2 * FLOAT * (part.rows + part.test_rows) * block.width
        return super().client_memory(shape, options, block, part) + pooled

    def exchanges(self, options: Centralized, run: RunShape) -> Exchanges:
        return Exchanges(run.epochs, is_pooled=True)


ALGORITHM = CentralizedAlgorithm()
