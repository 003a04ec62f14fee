"""als, declared."""

from typing import Any, Literal

from msgspec.structs import replace

from tablepuppet.algorithms.algorithm import FLOAT, Algorithm, Merit
from tablepuppet.algorithms.als.normal import packed_width
from tablepuppet.algorithms.als.rounds import Als, AlsFigures, AlsServer, AlsUpdate, client_start, client_step
from tablepuppet.algorithms.shape import BlockShape, Exchanges, OuterRound, PartShape, RoundTraffic, RunShape, Shape

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
