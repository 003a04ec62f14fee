"""admm, declared."""

from math import inf, isfinite, sqrt

from tablepuppet.algorithms import algorithm
from tablepuppet.algorithms.admm import client
from tablepuppet.algorithms.admm.client import Admm, AdmmFigures, VflAdmm, local_epochs
from tablepuppet.algorithms.admm.server import AdmmServer
from tablepuppet.algorithms.algorithm import FLOAT, Algorithm, Merit, PrivateForm
from tablepuppet.algorithms.numerics.linear_systems import WIDE
from tablepuppet.algorithms.shape import BlockShape, Exchanges, OuterRound, PartShape, RoundTraffic, RunShape, Shape
from tablepuppet.models.losses import Loss
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.options import FeaturePrivacy

_SINGLE = 4  # bytes of the state per joined row, where it only steers the run
_ITERATED = 120e-9  # CPU seconds of a joined row
_NEURAL = 3.0  # a network takes far fewer noisy steps than plain ones; each is this much longer


class AdmmAlgorithm(Algorithm[Admm]):
    """The alternating direction method of multipliers in its sharing form."""

    options = Admm
    summary = "alternating direction method of multipliers; each table solves its own problem in every round"
    requests = (client.AdmmUpdate,)
    figures = AdmmFigures
    remedy = 'use variant="sharing", or another rho'
    forms_second_moments = True
    uses_proximal_map = True
    epochs = 30
    walks = 2.5
    class_seconds = 0.35e-6, 0.01e-6
    figures_come = "summed"
    sums = "the parameters"
    server, start, step = AdmmServer, staticmethod(client.client_start), staticmethod(client.client_step)

    def refusal(self, options: Admm, spec: ModelSpec) -> str | None:
        if spec.is_linear or options.union != "exact":
            return None
        return 'union="exact" solves linear models only; train a neural model with union="consensus"'

    def chooses_steps(self, options: Admm, *, is_linear: bool, features: FeaturePrivacy | None) -> bool:
        is_given = options.local_learning_rate is not None or (features and features.learning_rate is not None)
        return not is_linear and not is_given

    def public_figures(self, features: int) -> AdmmFigures:
        return AdmmFigures(float(features))

    def cpu(self, shape: Shape, options: Admm, epoch: int, batches: int = 1) -> float:
        """A proximal map that iterates takes long; local steps of networks take longest."""
        seconds = super().cpu(shape, options, epoch, batches) + shape.joined * shape.curvature_varies * _ITERATED
        if not shape.is_linear:
            for block, part in shape.parts:
                size, epochs = local_epochs(part.rows, len(block.parts), options)
                passes = epochs * (options.inner_rounds if block.is_split else 1)
                seconds += algorithm.network_seconds(
                    passes * part.rows, block.parameters, passes * -(-part.rows // size)
                )
        return seconds

    def traffic(self, shape: Shape, options: Admm, epoch: int, batch_size: int | None) -> list[RoundTraffic]:
        """Down Y, up predictions; inner rounds by consensus, or one with second moments."""
        c, precision = shape.outputs, shape.model_bytes / shape.value_bytes

        def update(block: BlockShape, part: PartShape) -> float:
            return part.rows * c

        def answer(block: BlockShape, part: PartShape) -> float:
            directions = 2 + (min(epoch, options.memory) if options.averages else 0)
            return update(block, part) * precision + (directions**2 if shape.is_linear else 1)

        def inner(block: BlockShape) -> list[tuple[float, float]]:
            values = block.parameters * precision
            if options.union == "exact":
                return [(values + (epoch == 0) * block.width**2, values)]
            return [(values, values)] * options.inner_rounds

        return OuterRound(update, answer, inner).traffic(shape)

    def server_memory(self, shape: Shape, options: Admm) -> int:
        kept = options.memory + 5 if options.averages and shape.is_linear else 4
        return shape.outputs * FLOAT * sum(block.rows for block in shape.blocks) * kept

    def state_memory(self, shape: Shape, options: Admm) -> int:
        per_row = _SINGLE if options.averages and shape.is_linear else FLOAT
        return shape.outputs * shape.joined * (per_row + FLOAT * shape.has_kinks)

    def client_memory(self, shape: Shape, options: Admm, block: BlockShape, part: PartShape) -> float:
        """Second moments and their eigenvectors; of wide blocks, directions and the vectors of a solver by products."""
        has_matrix = block.width <= WIDE or (block.is_split and options.union == "exact")
        if shape.is_linear and has_matrix:
            return 4 * FLOAT * block.width**2
        return (options.memory + 8 if shape.is_linear else 4) * FLOAT * block.parameters

    def exchanges(self, options: Admm, run: RunShape) -> Exchanges:
        inner = 1 if options.union == "exact" else options.inner_rounds
        return Exchanges(run.epochs, has_start=not run.is_linear, inner=inner)

    def why_not_private(self, options: Admm) -> str | None:
        if options.union == "exact":
            return 'union="exact" sends exact second moments; under privacy use union="consensus"'
        return None

    def private_form(self, options: Admm, features: FeaturePrivacy, *, is_linear: bool, blocks: int) -> PrivateForm:
        return PrivateForm(
            local_steps=features.local_steps,
            inner_rounds=options.inner_rounds,
            curvature=options.start_rho(is_linear),
            blocks=blocks if options.variant == "sharing" else 1,
            learning_rate=None if is_linear else _NEURAL * options.first_local_rate,
        )

    def signal_change(self, options: Admm, loss: Loss, move: float, weight: float, *, is_linear: bool) -> float:
        """Of c = 2λ⁺ − λ, which remembers all rounds (docs/decisions/0047).

        λ⁺ = ℓ'(u) and Δλ⁺ = g (ρΔa + Δλ)/(ρ + g) with some g of at most L. So |Δλ| ≤ L|Δa|. And |Δc| is at most |Δa|
        times (2gρ + |g − ρ|L)/(ρ + g), which is at most L where ρ ≤ L.
        """
        if not loss.is_smooth:
            return 3.0 * weight * loss.slope_change(move)  # λ lies within the slopes that there are
        if not isfinite(loss.slope_change(move)):
            return inf
        most = weight * loss.bound
        rho = options.start_rho(is_linear) * loss.typical_curvature
        factor = most if rho <= most else most * (3.0 * rho - most) / (rho + most)
        return factor * move * (1.0 if loss.outputs == 1 else sqrt(2.0))

    def merit(self, shape: Shape) -> Merit:
        return Merit(2 if shape.is_linear else 0, "it reaches the optimum")


class VflAdmmAlgorithm(AdmmAlgorithm):
    """The same on expanded blocks."""

    options = VflAdmm
    is_expanded = True


ALGORITHM, BASELINE = AdmmAlgorithm(), VflAdmmAlgorithm()
