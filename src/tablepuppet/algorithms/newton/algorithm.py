"""newton, declared."""

from collections.abc import Sequence

from tablepuppet.algorithms.algorithm import FLOAT, Algorithm, Merit, moments_seconds
from tablepuppet.algorithms.base import Problem, Walkable
from tablepuppet.algorithms.newton import client
from tablepuppet.algorithms.newton.client import Newton
from tablepuppet.algorithms.newton.full_curvature import MOST, ROWS_PER_COLUMN, is_full, pairs, summands
from tablepuppet.algorithms.newton.multi_ridge import MultiRidgeServer
from tablepuppet.algorithms.newton.server import NewtonServer
from tablepuppet.algorithms.numerics.linear_systems import WIDE
from tablepuppet.algorithms.numerics.subspace import kept_directions
from tablepuppet.algorithms.shape import BlockShape, Exchanges, OuterRound, PartShape, RoundTraffic, RunShape, Shape
from tablepuppet.models.linear import MOST_CONSTANTS


class NewtonAlgorithm(Algorithm[Newton]):
    """Block-preconditioned Newton with subspace search."""

    options = client.Newton
    summary = "block-preconditioned Newton with subspace search; a round for every iteration, nothing to tune"
    requests = (client.NewtonUpdate, client.BasisUpdate)
    figures = client.NewtonFigures
    requires_linear = "it needs a convex objective with second derivatives in closed form"
    requires_curvature = True
    takes_start = True
    takes_trees = True
    forms_second_moments = True
    epochs = 20
    figures_come = "told"
    no_private_form = "newton needs exact second moments in every round, which have no private form here"
    walks = 2.5
    class_seconds = 0.0, 0.13e-6
    server, start, step = NewtonServer, staticmethod(client.client_start), staticmethod(client.client_step)

    def can_continue(self, problem: Problem) -> bool:
        return True

    def multi_model_server(
        self, problem: Problem, options: Newton, folds: Sequence[Walkable]
    ) -> MultiRidgeServer | None:
        """Squared loss, of tables that are not wide."""
        is_simple = problem.loss.is_quadratic and problem.loss.outputs == 1 and problem.head is None
        if not is_simple or problem.is_private or max(problem.widths, default=0) > WIDE:
            return None
        return MultiRidgeServer(problem, options, folds)

    def traffic(self, shape: Shape, options: Newton, epoch: int, batch_size: int | None) -> list[RoundTraffic]:
        """Down Y and, where it varies, W; up the direction's predictions."""
        c = shape.outputs
        moments = shape.curvature_varies or epoch == 0

        def update(block: BlockShape, part: PartShape) -> float:
            return part.rows * (c + _curvatures(shape, block))  # coefficients have left by then, for the evaluation

        def answer(block: BlockShape, part: PartShape) -> float:
            constants = c if block.strings and c <= MOST_CONSTANTS else 0
            kept = min(epoch, kept_directions(options.memory, block.width * c))
            return part.rows * c + (2 + constants + kept) ** 2

        def inner(block: BlockShape) -> list[tuple[float, float]]:
            if _is_full(shape, block):
                curvature = summands(c, block.width) + block.width * pairs(c)
            elif block.width > WIDE:
                curvature = block.width  # a diagonal, in every round
            else:
                curvature = moments * (summands(1, block.width) + block.width)
            return [(block.parameters + curvature, block.parameters)]

        return OuterRound(update, answer, inner).traffic(shape)

    def cpu(self, shape: Shape, options: Newton, epoch: int, batches: int = 1) -> float:
        """Second moments are formed anew where the curvature varies."""
        seconds = super().cpu(shape, options, epoch, batches)
        for block in shape.blocks:
            if _is_full(shape, block):
                taken = min(1.0, ROWS_PER_COLUMN * block.width / max(1, block.rows)) if len(block.parts) == 1 else 1.0
                seconds += taken * moments_seconds(block, pairs(shape.outputs))
            elif shape.curvature_varies and block.width <= WIDE:
                seconds += moments_seconds(block)
        return seconds

    def server_memory(self, shape: Shape, options: Newton) -> int:
        rows = sum(block.rows for block in shape.blocks)
        curvature = max((_curvatures(shape, block) for block in shape.blocks), default=0)
        shared = [b.width * shape.outputs for b in shape.blocks if len(b.parts) > 1 and _is_full(shape, b)]
        matrix = 3 * max(shared, default=0) ** 2
        kept = sum(b.rows * (5 + kept_directions(options.memory, b.width * shape.outputs)) for b in shape.blocks)
        return FLOAT * (shape.outputs * kept + rows * curvature + matrix)

    def client_memory(self, shape: Shape, options: Newton, block: BlockShape, part: PartShape) -> float:
        """Second moments and their eigenvectors; of wide blocks, directions and the vectors of a solver by products."""
        if _is_full(shape, block) and len(block.parts) > 1:
            return 5 * FLOAT * summands(shape.outputs, block.width)  # in plain, as whole numbers, masks
        if _is_full(shape, block):
            return 3 * FLOAT * min(block.width * shape.outputs, MOST) ** 2
        if block.width <= WIDE:
            return 4 * FLOAT * block.width**2
        return (options.memory + 8) * FLOAT * block.parameters

    def exchanges(self, options: Newton, run: RunShape) -> Exchanges:
        return Exchanges(run.epochs)

    def merit(self, shape: Shape) -> Merit:
        widest = max(shape.blocks, key=lambda block: block.width)
        return Merit(
            2,
            "it has nothing to tune and reaches the optimum" + _by(shape),
            f"newton would send the {summands(1, widest.width):,} second moments of block {widest.name} "
            "from every client in every round",
        )


ALGORITHM = NewtonAlgorithm()


def _is_full(shape: Shape, block: BlockShape) -> bool:
    return is_full(shape.outputs, block.width, len(block.parts))


def _by(shape: Shape) -> str:
    """Which curvature it takes, where there is a choice."""
    if shape.outputs == 1:
        return ""
    full = [block.name for block in shape.blocks if _is_full(shape, block)]
    if len(full) == len(shape.blocks):
        return ", by the curvature over all pairs of classes,"
    return f", by the curvature over all pairs of classes in {', '.join(full) or 'no block'} and a bound elsewhere,"


def _curvatures(shape: Shape, block: BlockShape) -> int:
    """How many numbers about the curvature go down for each row."""
    if _is_full(shape, block):
        return pairs(shape.outputs)
    follows = shape.slopes_tell_curvature and block.is_identity  # from the slopes: each row is in one joined row
    return int(shape.curvature_varies and not follows)
