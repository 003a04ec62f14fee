"""What a job's privacy means for its blocks: how much noise, over how many steps, for which ε.

In: a job and a table mapping. Out: a `PrivatePlan`: what each block's clients do to gradients and predictions, and the
ledger of what the job will spend (noise.py has one block's share, and the noise of all). Nothing
here reads a feature.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tablepuppet.algorithms.registry import FEDERATED, algorithm_of, name_algorithms, own_model
from tablepuppet.errors import PrivacyError
from tablepuppet.job import Job
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.models.losses import Loss
from tablepuppet.plan.disclosure import exchanges_of
from tablepuppet.plan.noise import NoisyBlock, WholeModel, outer_rounds, tables_of
from tablepuppet.privacy.accounting import Mechanism, gaussian_noise
from tablepuppet.privacy.gaussian import GradientPrivacy, NoisySteps, tuned
from tablepuppet.privacy.labels import true_epsilon
from tablepuppet.privacy.ledger import Ledger, Release, check_budget
from tablepuppet.privacy.options import PredictionPrivacy


@dataclass(frozen=True, slots=True)
class PrivatePlan:
    """What clients do, block by block, and what it costs."""

    gradients: tuple[GradientPrivacy | None, ...]  # per block
    ledger: Ledger  # if every step is taken
    planned_rounds: int
    rounds: int  # outer rounds after which the budget is spent; no more are run
    rates: tuple[float, ...] = ()  # each block's learning rate of noisy batches, where the user gave none
    spends: Mapping[str, tuple[Mechanism, ...]] = field(default_factory=dict)  # what rows of each table pay
    own: Any = None  # how a model of its own kind is noised (algorithms/own_model.py)

    @property
    def is_noisy(self) -> bool:
        """Whether gradients are clipped and noised."""
        return any(g is not None and g.clips for g in self.gradients)

    def of(self, block: int, table: str) -> GradientPrivacy | None:
        """What clients do to gradients of a block, on rows of a table."""
        found = self.gradients[block]
        return found if found is None else msgspec.structs.replace(found, spends=self.spends.get(table, ()))

    def spent(self, rounds: int) -> Ledger:
        """The ledger after so many outer rounds."""
        return self.ledger.after(rounds / self.planned_rounds)


def plan_privacy(job: Job, mapping: MappingSummary, loss: Loss, slope: float, weight: float = 1.0) -> PrivatePlan:
    """Everything that follows from `privacy` before training; refuses what cannot be kept.

    `slope`: ∂ℓ/∂a of a typical training row; `weight`: the largest of any row.
    """
    _check(job)
    rounds = outer_rounds(job, mapping)
    features, predictions = job.privacy.features, job.privacy.predictions
    labels = _label_release(job, mapping)
    numbers = range(len(mapping.bound.blocks))
    shown = exchanges_of(job, loss, mapping.train_rows).showings  # of one row in one block, evaluation included
    uses = Counter(table for number in numbers for table in tables_of(mapping, number))
    most = max(uses.values(), default=1)
    bound = predictions.bound or _spreads(job, mapping) * slope / loss.bound
    shared = _shared_predictions(predictions, bound, shown, most)
    releases: list[Release] = list(labels)
    rates: list[float] = []
    gradients: list[GradientPrivacy | None]
    spends: Mapping[str, tuple[Mechanism, ...]] = {}
    own, noise = own_model(job.model.spec), None
    if features is None:
        is_local = predictions.mode == "local"
        gradients = [GradientPrivacy(clip=0.0, noise=0.0, **shared) if is_local else None] * len(numbers)
    elif own is not None:
        noise = own.plan_noise(job, mapping, loss, slope, weight)
        gradients, rounds, spends = [None] * len(numbers), noise.rounds, noise.spends
        releases += noise.releases
    else:
        blocks = [NoisyBlock.of(job, features, mapping, number, rounds, loss.outputs) for number in numbers]
        model, deviations, rates = _calibrate(blocks, loss, slope, bound, weight)
        given = zip(blocks, deviations, model.clips, rates, strict=True)
        gradients = [b.gradient(n / c, c, r, shared) for b, n, c, r in given]
        releases += model.releases(deviations, hides_predictions=predictions.mode == "local")
        spends = {table: model.mechanisms(table, deviations) for table in model.tables}
    if predictions.mode == "local":
        for table in sorted(uses):
            releases.append(_prediction_release(table, predictions, bound, shown * most, shown * uses[table]))
    ledger = Ledger(tuple(releases))
    budget = job.privacy.budget
    check_budget(Ledger(tuple(labels)), budget.label, None)
    affordable = rounds
    if budget.features is not None and features is not None:
        affordable = _affordable(ledger, budget.features, rounds)
        if affordable == 0 or features.epsilon is not None or noise is not None:  # which is not cut short
            check_budget(ledger, None, budget.features)
    form = None if noise is None else noise.form
    return PrivatePlan(tuple(gradients), ledger, rounds, affordable, tuple(rates), spends, form)


def _spreads(job: Job, mapping: MappingSummary) -> float:
    """H in units of the slope over the curvature: what a row adds to others' noise grows with its joined rows, and
    where it has one, cutting predictions short costs more than noise."""
    is_alone = all(block.most <= 1 for block in mapping.blocks)
    has_noisy_sums = job.privacy.features is not None and job.privacy.predictions.mode == "trusted"
    return 1.5 if is_alone and has_noisy_sums else 0.5


def _calibrate(
    blocks: Sequence[NoisyBlock], loss: Loss, slope: float, bound: float, weight: float
) -> tuple[WholeModel, list[float], list[float]]:
    """Clips, noise and learning rates of all blocks: clips by a rough figure of the noise (privacy/gaussian.py)."""
    if not blocks:
        return WholeModel((), (), 0.0, bound), [], []
    job, given = blocks[0].job, blocks[0].features.clip
    algorithm, norms = algorithm_of(job.options), sum(block.squared_norm for block in blocks)
    change = algorithm.signal_change(job.options, loss, bound, weight, is_linear=job.model.spec.is_linear)

    def steps(deviations: Sequence[float], clips: Sequence[float]) -> list[NoisySteps]:
        return [b.descent(n / c, loss, norms) for b, n, c in zip(blocks, deviations, clips, strict=True)]

    clips = [given] * len(blocks) if given is not None else None
    if clips is None:
        typical = [block.descent(1.0, loss, norms).typical(slope) for block in blocks]
        rough = WholeModel(blocks, typical, change, bound).deviations(is_rough=True)
        clips = [clip for clip, _ in tuned(steps(rough, typical), slope, loss.bound, None)]
    model = WholeModel(blocks, clips, change, bound)
    deviations = model.deviations()
    return model, deviations, [rate for _, rate in tuned(steps(deviations, clips), slope, loss.bound, clips)]


def _check(job: Job) -> None:
    if not job.is_private:
        return
    if job.is_expanded:
        raise PrivacyError(f"{job.algorithm} is a baseline without privacy; use {job.algorithm.removeprefix('vfl-')!r}")
    algorithm = algorithm_of(job.options)
    why = algorithm.why_not_private(job.options)
    if why is None:
        return
    if algorithm.is_pooled or algorithm.why_not_private(algorithm.options()) is None:  # other options would do
        raise PrivacyError(why)
    others = name_algorithms(tuple(a for a in FEDERATED if a.why_not_private(a.options()) is None))
    raise PrivacyError(f'{why}; use {others} with privacy.features or predictions of mode "local"')


def _label_release(job: Job, mapping: MappingSummary) -> list[Release]:
    privacy, channel = job.privacy.label, mapping.label.channel
    if privacy is None or channel is None:
        return []
    how = {"krr": "randomised response", "laplace": "Laplace noise", "bins": "randomised response on bins"}
    mechanism = how[privacy.mechanism]
    if privacy.mechanism == "laplace" and not channel.is_additive:
        mechanism += f" and argmax, which leaves ε = {true_epsilon(channel):.3g}"
    # A row draws once for each expression that is its label somewhere in the query, whatever filters there are.
    labels: dict[str, set[str]] = {}
    for branch in mapping.bound.branches:
        scan = mapping.bound.scans[branch.label_place.scan]
        labels.setdefault(scan.table, set()).add(scan.expressions[branch.label_place.label])
    return [
        Release(what="label", table=t, observer="everyone", mechanism=mechanism, epsilon=privacy.epsilon * len(drawn))
        for t, drawn in labels.items()
    ]


def _shared_predictions(predictions: PredictionPrivacy, bound: float, shown: int, uses: int) -> dict[str, Any]:
    """What leaves of predictions: within H; under noise, at most so often of a row, in as many blocks as read it."""
    if predictions.mode == "trusted":
        return {"prediction_bound": bound}
    assert predictions.epsilon is not None
    noise = gaussian_noise(predictions.epsilon, predictions.delta, shown * uses, 1.0)
    # Another row in its place moves a prediction by at most 2H.
    return {"prediction_bound": bound, "prediction_noise": noise * 2.0 * bound, "prediction_limit": shown}


def _prediction_release(table: str, predictions: PredictionPrivacy, bound: float, planned: int, shown: int) -> Release:
    """What a table's rows pay: the noise is for as many showings as the table that is read most often has."""
    assert predictions.epsilon is not None
    noise = gaussian_noise(predictions.epsilon, predictions.delta, planned, 1.0)
    return Release(
        what="predictions",
        table=table,
        observer="server",
        mechanism=f"predictions within ±{bound:.3g}, noised by their owner for any other row in its place",
        noise=noise,
        steps=shown,
        delta=predictions.delta,
    )


def _affordable(ledger: Ledger, budget: float, rounds: int) -> int:
    """The most rounds that no table's outsider ε exceeds the budget after."""
    low, high = 0, rounds
    while low < high:
        middle = (low + high + 1) // 2
        after = ledger.after(middle / rounds)
        is_within = all(after.epsilon("features", table, "outsider") <= budget for table in after.tables("features"))
        low, high = (middle, high) if is_within else (low, middle - 1)
    return low
