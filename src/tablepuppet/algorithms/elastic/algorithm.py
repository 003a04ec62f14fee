"""elastic, declared."""

from tablepuppet.algorithms.algorithm import FLOAT, Algorithm, Merit, moments_seconds
from tablepuppet.algorithms.base import Problem
from tablepuppet.algorithms.elastic.client import Elastic, ElasticUpdate, client_start, client_step
from tablepuppet.algorithms.elastic.server import ElasticServer
from tablepuppet.algorithms.numerics.linear_systems import WIDE
from tablepuppet.algorithms.shape import BlockShape, Exchanges, OuterRound, PartShape, RoundTraffic, RunShape, Shape


class ElasticAlgorithm(Algorithm[Elastic]):
    """Accelerated proximal steps."""

    options = Elastic
    summary = "accelerated proximal steps for `l1` and `signs`; exact zeros, nothing to tune"
    requests = (ElasticUpdate,)
    requires_linear = "a penalty with kinks is exact for linear models alone"
    requires_curvature = True
    forms_second_moments = True
    supports_nonsmooth = True
    takes_start = True
    epochs = 100
    no_private_form = "elastic needs exact second moments, which have no private form here"
    walks = 3.5
    class_seconds = 0.6e-6, 0.08e-6
    server, start, step = ElasticServer, staticmethod(client_start), staticmethod(client_step)

    def can_continue(self, problem: Problem) -> bool:
        """Where a table has several clients, its parameters are the coordinator's, and begin at zero."""
        return all(clients == 1 for clients in problem.clients)

    def traffic(self, shape: Shape, options: Elastic, epoch: int, batch_size: int | None) -> list[RoundTraffic]:
        """Down Y and, where it varies, W; up the proposal's predictions."""
        c, varies = shape.outputs, shape.curvature_varies

        def inner(block: BlockShape) -> list[tuple[float, float]]:
            square = block.width if block.width > WIDE else block.width**2 + block.width
            return [(block.parameters + (varies or epoch == 0) * square, block.parameters)]

        outer = OuterRound(lambda _, part: part.rows * (c + varies), lambda _, part: part.rows * c + 3, inner)
        return outer.traffic(shape)

    def cpu(self, shape: Shape, options: Elastic, epoch: int, batches: int = 1) -> float:
        """Second moments are formed anew where the curvature varies."""
        varying = [block for block in shape.blocks if shape.curvature_varies and block.width <= WIDE]
        return super().cpu(shape, options, epoch, batches) + sum(map(moments_seconds, varying))

    def server_memory(self, shape: Shape, options: Elastic) -> int:
        return 8 * FLOAT * sum(block.rows for block in shape.blocks) * (shape.outputs + shape.curvature_varies)

    def client_memory(self, shape: Shape, options: Elastic, block: BlockShape, part: PartShape) -> float:
        matrix = block.width if block.width > WIDE else block.width**2
        return FLOAT * (3 * matrix + 6 * block.parameters)

    def exchanges(self, options: Elastic, run: RunShape) -> Exchanges:
        return Exchanges(run.epochs)

    def merit(self, shape: Shape) -> Merit:
        return Merit(1, "it takes penalties with kinks, at more rounds than newton")


ALGORITHM = ElasticAlgorithm()
