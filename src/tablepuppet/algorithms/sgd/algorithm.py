"""sgd, declared."""

import math

from tablepuppet.algorithms import algorithm
from tablepuppet.algorithms import shape as shapes
from tablepuppet.algorithms.algorithm import Algorithm, FiguresBy, Merit, PrivateForm
from tablepuppet.algorithms.sgd import rounds
from tablepuppet.algorithms.sgd.rounds import Sgd, SgdFigures
from tablepuppet.algorithms.shape import Exchanges, OuterRound, PartShape, RoundTraffic, RunShape, Shape
from tablepuppet.models.heads.kinds import KINDS
from tablepuppet.privacy.options import FeaturePrivacy

# CPU seconds: to move one parameter; of a row in a batch, to find it, and for each of its outputs.
_STEPPED, _FOUND, _GIVEN = 25e-9, 40e-9, 20e-9
_HEAD_STEPS = 5  # times as long as a table's, but for rows


class SgdAlgorithm(Algorithm[Sgd]):
    """Mini-batch gradient descent."""

    options = Sgd
    summary = "mini-batch gradient descent; a round for every batch"
    requests = (rounds.SgdUpdate,)
    figures = SgdFigures
    remedy = "use a smaller learning_rate, or leave it out for a safe one"
    untuned = "leave learning_rate out"
    network_epochs = 30
    head_epochs = 20
    takes_many_rounds = True
    heads = tuple(KINDS)
    uses_batches = True
    can_omit_intercept = True
    stops_when_flat = True
    row_seconds = 150e-9  # to draw it
    server, start, step = rounds.SgdServer, staticmethod(rounds.client_start), staticmethod(rounds.client_step)

    def chooses_steps(self, options: Sgd, *, is_linear: bool, features: FeaturePrivacy | None) -> bool:
        return options.learning_rate is None

    def steps(self, options: Sgd, batches: str, unit: float) -> str:
        units = f", in units of {unit:g} of the label" if unit != 1.0 and options.optimizer != "sgd" else ""
        return f"{batches} by {options.optimizer}{units}"

    def figures_by(self, options: Sgd, *, is_linear: bool) -> FiguresBy:
        if not is_linear:
            return "summed"
        return "power iteration" if options.optimizer == "sgd" and options.learning_rate is None else "none"

    def public_figures(self, features: int) -> SgdFigures:
        return SgdFigures(float(features))

    def cpu(self, shape: Shape, options: Sgd, epoch: int, batches: int = 1) -> float:
        """Every batch moves all parameters: those of many ids take longer than its rows. A row goes through its network
        once in each batch that it is in, and every joined row through the head's."""
        stepped = batches * sum(block.parameters for block in shape.blocks)
        seconds = super().cpu(shape, options, epoch, batches) + _STEPPED * stepped
        if shape.head_parameters:
            seconds += algorithm.network_seconds(shape.joined, shape.head_parameters, _HEAD_STEPS * batches)
        for block, part in shape.parts:
            rows = part.rows if batches == 1 else batches * part.fan.expected_rows(1 / batches)
            seconds += rows * (_FOUND + _GIVEN * block.outputs)
            if not shape.is_linear:
                there_and_back = 1.5 * rows  # predicted, then stepped on
                seconds += algorithm.network_seconds(there_and_back, block.parameters, batches)
        return seconds

    def traffic(self, shape: Shape, options: Sgd, epoch: int, batch_size: int | None) -> list[RoundTraffic]:
        """Down Y of a batch and the row numbers of the next, up their predictions; one more answer to begin with."""
        precision = shape.model_bytes / shape.value_bytes
        size = shape.joined if batch_size is None else min(batch_size, shape.joined)
        is_full = size == shape.joined
        number = 0 if is_full else shapes.ROW_NUMBER_BYTES / shape.value_bytes
        batches = math.ceil(shape.joined / size)
        size = math.ceil(shape.joined / batches)  # the last batch is smaller; only the mean counts

        def rows(part: PartShape) -> float:
            return part.rows if is_full else part.fan.expected_rows(size / shape.joined)

        batch = OuterRound(
            update=lambda block, part: rows(part) * (block.outputs + number),
            answer=lambda block, part: rows(part) * block.outputs * precision + 1,
            inner=lambda block: [(block.parameters * precision, block.parameters * precision)],
        )
        opening = OuterRound(lambda block, part: rows(part) * number, batch.answer, lambda block: [])
        of_epoch = batch.traffic(shape, batches)
        return of_epoch if is_full or epoch > 0 else [*opening.traffic(shape), *of_epoch]

    def server_memory(self, shape: Shape, options: Sgd) -> int:
        """The order of an epoch's joined rows, and vectors over the blocks' rows."""
        return algorithm.FLOAT * shape.joined + super().server_memory(shape, options)

    def exchanges(self, options: Sgd, run: RunShape) -> Exchanges:
        is_full = run.batch_size is None or run.batch_size >= run.rows
        batches = 1 if run.batch_size is None or is_full else -(-run.rows // run.batch_size)
        by = self.figures_by(options, is_linear=run.is_linear)
        return Exchanges(
            run.epochs,
            batches=batches,
            has_opening=not is_full,
            has_start=not run.is_linear or run.has_head,
            evaluates_train=not (is_full and run.is_linear),
            power_rounds=shapes.POWER_ROUNDS if by == "power iteration" and not run.is_private else 0,
        )

    def why_not_private(self, options: Sgd) -> None:
        return None

    def private_form(self, options: Sgd, features: FeaturePrivacy, *, is_linear: bool, blocks: int) -> PrivateForm:
        return PrivateForm(momentum=options.momentum)

    def merit(self, shape: Shape) -> Merit:
        return Merit(1, "it descends a network's objective as on the joined table")


class VflSgdAlgorithm(SgdAlgorithm):
    """The same on expanded blocks."""

    options = rounds.VflSgd
    is_expanded = True


ALGORITHM, BASELINE = SgdAlgorithm(), VflSgdAlgorithm()
