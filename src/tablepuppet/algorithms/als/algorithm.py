"""Alternating least squares over tables: a round is the best step of one block, given the others.

    server   z_j = (1, Σ_{l≠i} v_l),  r = ∂ℓ/∂score;  for each row k of block i, over its joined rows j:
             s_k = Σ z r + λ n_k h_i,   M_k = Σ L_j z zᵀ + λ n_k I,   and a ridge c       (normal.py)
    client   P δ = −(Xᵀ s + Θ R),  P = Σ_k (x_k x_kᵀ) ⊗ M_k + I ⊗ R,  R = N β I + diag(c),  Θ ← Θ + δ;  sends h_i = X Θ

For squared loss (L = 1) that is the least-squares solution of block i. For other losses L_j is the curvature of a
parabola that touches the loss at the row's score and lies above it everywhere. So a round never raises the objective.
The intercept begins as the best constant for the labels. Unless the loss is squared, it takes such a step, too, before
each round.

A block with one client solves by itself. Several clients send their shares of the right side and of P's diagonal
blocks, then of products P d. These are summed; the server runs the conjugate gradients and sends δ.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from tablepuppet.algorithms import base
from tablepuppet.algorithms.algorithm import FLOAT, Algorithm, Merit
from tablepuppet.algorithms.als import normal
from tablepuppet.algorithms.als.normal import Conjugate, FixedShrinkage, LearnedShrinkage, packed_width
from tablepuppet.algorithms.base import Answer, BlockAnswer, BlockUpdate, Figures, PartSetup, Problem, Server
from tablepuppet.algorithms.options import AlgorithmOptions, Count, Tolerance
from tablepuppet.algorithms.shape import BlockShape, Exchanges, OuterRound, PartShape, RoundTraffic, RunShape, Shape
from tablepuppet.arrays import Array, Triangles
from tablepuppet.errors import JobError
from tablepuppet.models.heads.base import Head
from tablepuppet.models.linear import Features
from tablepuppet.models.losses import Loss
from tablepuppet.protocol.base import Amount, Combined, Discloses, Partial, Predictions, Update
from tablepuppet.protocol.bounds import require


class Als(AlgorithmOptions, frozen=True, tag="als"):
    """Alternating least squares for factor heads: one table after the other, each exactly, given the others.

    `tolerance`: the relative gain of a sweep over all tables below which it ends. `solver_steps`, `solver_tolerance`:
    when the conjugate gradients of a table with more than one id column end.

    >>> Als(tolerance=1e-4)
    Als(tolerance=0.0001)
    """

    name: ClassVar[str] = "als"
    tolerance: Tolerance = 1e-6
    solver_steps: Count = 50
    solver_tolerance: Annotated[float, Meta(ge=0.0, lt=1.0)] = 1e-2

    @property
    def sends_second_moments(self) -> bool:
        return True


class AlsUpdate(Update, frozen=True):
    """Solve your table from the gradient and curvature of each row, given the others. → Predictions | Partial"""

    signal: Annotated[Array, Discloses("signals", is_per_row=True)]  # (n, K): Σ_j ∂ℓ/∂h
    # (n, K(K+1)/2): Σ_j of the upper triangle of ∂²ℓ/∂h²
    curvature: Annotated[Array, Discloses("curvatures", is_per_row=True)]
    ridge: list[Amount]  # (K): besides l2, on each parameter of an output

    def check(self, outputs: int, clients: int) -> None:
        require(len(self.ridge) == outputs, "ridge", f"is not {outputs} numbers")


class AlsFigures(Figures, frozen=True):
    """How many parts have only one text column; their encoders already disclose this."""

    is_public: ClassVar[bool] = True
    has_one_category: float = 0.0


def join_step(
    shard: Any, *, loss: Loss, intercept: Array, head: Head, block: int
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Σ z r and Σ L z zᵀ of one block's rows, side by side; the others get nothing."""
    h = shard.columns
    scores = head.combine(np.zeros(0), h) + intercept
    slope = loss.gradient(scores, shard.labels) / head.spec.unit
    z = np.ones_like(h[block])
    z[:, 1:] = sum(values[:, 1:] for number, values in enumerate(h) if number != block)
    signals: list[Any] = [()] * len(h)
    bent = loss.parabola(scores, shard.labels)
    signals[block] = (slope * z, Triangles(z, bent))
    bending = float(bent.sum()) if isinstance(bent, np.ndarray) else bent * len(scores)
    return (signals,), {"value": float(loss.value(scores, shard.labels).sum()), "bending": bending}


def intercept_step(shard: Any, *, loss: Loss, intercept: Array) -> tuple[Sequence[Any], dict[str, Any]]:
    """Where the parabolas of all rows together are lowest."""
    scores = shard.scores + intercept
    bent = np.broadcast_to(loss.parabola(scores, shard.labels), scores.shape)
    return (), {"slope": loss.gradient(scores, shard.labels).sum(axis=0), "bending": float(bent.sum())}


class AlsServer(Server):
    """The server's half: whose turn it is, and the conjugate gradients of blocks with several clients."""

    def __init__(self, problem: Problem, options: Als) -> None:
        if problem.loss.outputs > 1 or not isfinite(problem.loss.bound) or problem.head is None:
            found = f"this label has {problem.loss.outputs} classes"
            if problem.loss.outputs == 1:
                found = f"the curvature of the {problem.loss.name} loss has no bound"
            raise JobError(f'{found}, which algorithm="als" does not train; write algorithm="sgd"')
        self.problem, self.options = problem, options
        self.intercept = np.zeros(1)
        self._values: list[Array] = []
        self._figures: Sequence[AlsFigures] = ()
        self._turn = self._rounds = 0
        self._ridge: Array = np.zeros(0)  # of the block in turn
        problem.head.squares = [np.zeros(0)] * problem.blocks
        self._solvers: dict[int, Conjugate] = {}
        spec, loss = problem.head.head.spec, problem.loss
        self._shrinkage: FixedShrinkage | LearnedShrinkage
        if spec.shrinkage is not None:
            self._shrinkage = FixedShrinkage(spec.shrinkage, spec.widths[0])
        else:
            scale = 2.0 / spec.unit**2 if loss.is_in_label_units else 0.0
            sizes = (problem.rows, problem.widths, problem.entries)
            self._shrinkage = LearnedShrinkage(spec.widths[0], *sizes, loss.bound, scale)
        self._appearances: list[Array] = []

    def rounds_per_epoch(self) -> int:
        return self.problem.blocks

    def begin(self, predictions: list[Array], figures: Sequence[AlsFigures]) -> None:
        self.predictions = self._values = list(predictions)
        self._figures = figures
        joined: Any = self.problem.joined
        weights = joined.collapsed_weights()
        counts = self.problem.multiplicity if weights is None else [w[:, 0] for w in weights]
        self._appearances = [np.asarray(n, np.float64) for n in counts]
        if self.problem.has_intercept:
            labels = joined.by_label()
            self.intercept = self.problem.loss.best_constant(labels.labels, labels.weights)

    def join_step(self) -> list[BlockUpdate | None]:
        assert self.problem.head is not None
        loss, block = self.problem.loss, self._turn
        joined: Any = self.problem.joined
        if self._rounds and self.problem.has_intercept and not loss.is_quadratic:
            sums = joined.run(intercept_step, self._values, loss=loss, intercept=self.intercept).sums
            self.intercept = self.intercept - sums["slope"] / max(sums["bending"], 1e-300)
        self._rounds += 1
        done = joined.joined.run(
            join_step,
            [np.zeros((len(values), 1)) for values in self._values],
            columns=self._values,
            signals=1,
            loss=loss,
            intercept=self.intercept,
            head=self.problem.head.head,
            block=block,
        )
        updates: list[BlockUpdate | None] = [None] * self.problem.blocks
        shrinkage, rows = self._shrinkage, joined.rows
        if isinstance(shrinkage, LearnedShrinkage):
            shrinkage.see_loss(done.sums["value"] / rows, done.sums["bending"] / rows, rows)
        self._ridge = shrinkage.ridge(block)
        updates[block] = BlockUpdate(AlsUpdate, self._shrunk(done.signals[0][block]), {"ridge": self._ridge.tolist()})
        return updates

    def _shrunk(self, found: Array) -> dict[str, Array | None]:
        """s and M of the rows of the block in turn, from their sums over joined rows."""
        block, h, appearances = self._turn, self._values[self._turn], self._appearances[self._turn]
        width, shrinkage, head = h.shape[1], self._shrinkage, self.problem.head
        per_joined, per_row = shrinkage.weights(block)
        penalty = appearances[:, None] * per_joined
        signal, matrices = found[:, :width] + penalty * h, found[:, width:]
        if isinstance(shrinkage, LearnedShrinkage):
            assert head is not None
            head.penalties = [(shrinkage.weights(i)[0], shrinkage.ridge(i)) for i in range(self.problem.blocks)]
            shrinkage.see_matrices(block, matrices, penalty + per_row, appearances)
        matrices[:, normal.diagonal(width)] += penalty
        return {"signal": signal, "curvature": matrices}

    def union_step(self, block: int, total: list[Array]) -> list[Array]:
        """A direction to be multiplied (two arrays, the second empty), or the step (one array)."""
        ridge = self.problem.joined.rows * max(self.problem.ridges) + self._ridge
        if block not in self._solvers:
            right, blocks = total
            if self._figures[block].has_one_category >= self.problem.clients[block]:
                return [normal.solved_blocks(blocks, ridge, right)]
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
        assert self.problem.head is not None
        self.problem.head.squares[self._turn] = answers[0].products_of(1 + answers[0].values.shape[1])[1:]
        if isinstance(self._shrinkage, LearnedShrinkage):
            self._shrinkage.see_values(self._turn, answers[0].values)
        self._turn = (self._turn + 1) % self.problem.blocks

    def residuals(self) -> dict[str, float]:
        """The label's noise, as far as it was learned."""
        return {"noise": self._shrinkage.noise} if isinstance(self._shrinkage, LearnedShrinkage) else {}


class AlsState(msgspec.Struct, frozen=True):
    """A part's parameters, and the curvature of its rows and the ridge while its clients agree on a step."""

    theta: Array
    curvature: Array | None = None
    ridge: Array | None = None


def client_start(setup: PartSetup, options: Als) -> tuple[AlsState, AlsFigures]:
    return AlsState(setup.model.initial()), AlsFigures(float(has_one_category(setup.linear.train)))


def has_one_category(features: Features) -> bool:
    """Whether a row has one entry: an id and nothing else."""
    return features.dense.shape[1] == 0 and len(features.codes) == 1


def client_step(
    setup: PartSetup, options: Als, state: AlsState, message: AlsUpdate | Combined
) -> tuple[AlsState, Answer]:
    features = setup.linear.train
    if isinstance(message, AlsUpdate):
        ridge = setup.joined_rows * setup.l2 + np.array(message.ridge)
        right = -features.transpose_dot(message.signal) - ridge / setup.clients * state.theta
        blocks = normal.diagonal_blocks(features, message.curvature)
        if setup.clients > 1:
            return AlsState(state.theta, message.curvature, ridge), Partial(values=[right, blocks])
        if has_one_category(features):
            return _move(setup, state, normal.solved_blocks(blocks, ridge, right))
        solver = Conjugate(blocks, ridge, right, options.solver_tolerance, options.solver_steps)
        while not solver.is_done:
            multiplied = normal.products(features, message.curvature, solver.direction)
            solver.advance(multiplied + ridge * solver.direction)
        return _move(setup, state, solver.step)
    given, is_step = message.values[0], len(message.values) == 1
    if is_step or state.curvature is None or state.ridge is None:
        return _move(setup, state, given)
    multiplied = normal.products(features, state.curvature, given) + state.ridge / setup.clients * given
    return state, Partial(values=[multiplied, np.zeros((0, 0))])


def _move(setup: PartSetup, state: AlsState, step: Array) -> tuple[AlsState, Answer]:
    theta = state.theta + step
    squares = np.array([base.squared_norm(theta), *np.square(theta).sum(axis=0)])
    return AlsState(theta), Predictions(values=setup.model.predict(theta), products=squares)


# CPU seconds of an entry of M: for a joined row; for a row of a table that is an id; in the products of others.
_SUMMED, _SOLVED, _MULTIPLIED = 8e-9, 40e-9, 15e-9
_SOLVER_STEPS = 10  # that conjugate gradients usually take


def _is_id(block: BlockShape) -> bool:
    """Whether a row has one entry, so that no step solves for several."""
    return block.numbers == 0 and block.strings == 1


class AlsAlgorithm(Algorithm[Als]):
    options = Als
    summary = "alternating least squares of factor heads; a round for every table, nothing to tune"
    requests = (AlsUpdate,)
    figures = AlsFigures
    epochs = 12
    requires_linear = "it needs the least-squares solution of each table in closed form"
    requires_curvature = True
    heads = ("factor",)
    has_one_score = True
    takes_turns = True
    learns_shrinkage = True
    stops_when_flat = True
    figures_come = "told"
    no_private_form = "als needs exact second moments in every round, which have no private form here"
    row_seconds = 250e-9
    server, start, step = AlsServer, staticmethod(client_start), staticmethod(client_step)

    @property
    def uses(self) -> Literal["bound"]:
        return "bound"  # of the curvature, whatever the loss

    def chooses_steps(self, options: Als, *, is_linear: bool, features: Any) -> bool:
        return True

    def cpu(self, shape: Shape, options: Als, epoch: int, batches: int = 1) -> float:
        """M of every row is summed over joined rows, then solved and inverted, or multiplied by a few times."""
        seconds = super().cpu(shape, options, epoch, batches)
        for block in shape.blocks:
            width = packed_width(block.outputs)
            own = _SOLVED * block.outputs**2 if _is_id(block) else _MULTIPLIED * width
            seconds += _SUMMED * width * shape.joined + own * block.rows
        return seconds

    def traffic(self, shape: Shape, options: Als, epoch: int, batch_size: int | None) -> list[RoundTraffic]:
        """A round for each block: down s and M of its rows, up h; also the sums of several clients."""

        def inner(block: BlockShape) -> list[tuple[float, float]]:
            triangles = block.width * packed_width(block.outputs)
            steps = 0 if _is_id(block) else _SOLVER_STEPS
            products = [(float(block.parameters), float(block.parameters))] * steps
            return [(block.parameters + triangles, block.parameters), *products]

        outer = OuterRound(
            update=lambda block, part: part.rows * (block.outputs + packed_width(block.outputs)),
            answer=lambda block, part: (part.rows + 1) * block.outputs + 1,
            inner=inner,
        )
        return [rounds for block in shape.blocks for rounds in outer.traffic(replace(shape, blocks=(block,)))]

    def server_memory(self, shape: Shape, options: Als) -> int:
        largest = max(block.rows * packed_width(block.outputs) for block in shape.blocks)
        return 4 * FLOAT * largest + super().server_memory(shape, options)

    def client_memory(self, shape: Shape, options: Als, block: BlockShape, part: PartShape) -> float:
        triangles = (part.rows + block.width) * packed_width(block.outputs)
        return 2 * FLOAT * triangles + super().client_memory(shape, options, block, part)

    def exchanges(self, options: Als, run: RunShape) -> Exchanges:
        """At most so many sums: conjugate gradients may end before."""
        inner = options.solver_steps + 2
        return Exchanges(run.epochs, has_start=True, inner=inner)

    def merit(self, shape: Shape) -> Merit:
        if shape.outputs > 1:
            return Merit(0, "it trains one score a row")
        return Merit(2, "it has nothing to tune and solves each table in turn")


ALGORITHM = AlsAlgorithm()
