"""What a job's privacy means for its blocks: how much noise, over how many steps, for which ε.

In: a job and a table mapping. Out: a `PrivatePlan`: what each block's clients do to gradients and predictions, and the
ledger of what the job will spend. Steps, caps and rates are public (the join graph is): nothing here reads a feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tablepuppet.algorithms.options import Admm, Newton, Sgd
from tablepuppet.errors import PrivacyError
from tablepuppet.job import Job
from tablepuppet.mapping.mapping import TableMapping
from tablepuppet.models.losses import Loss
from tablepuppet.privacy.accounting import composed_noise, gaussian_noise, participation
from tablepuppet.privacy.gaussian import GradientPrivacy
from tablepuppet.privacy.labels import true_epsilon
from tablepuppet.privacy.ledger import Ledger, Release, Sampling, check_budget
from tablepuppet.privacy.options import FeaturePrivacy, PredictionPrivacy


@dataclass(frozen=True, slots=True)
class PrivatePlan:
    """What clients do, block by block, and what it costs."""

    gradients: tuple[GradientPrivacy | None, ...]  # per block
    ledger: Ledger  # if every step is taken
    planned_rounds: int
    rounds: int  # outer rounds after which the budget is spent; no more are run

    @property
    def is_noisy(self) -> bool:
        """Whether gradients are clipped and noised."""
        return any(g is not None and g.clips for g in self.gradients)

    def spent(self, rounds: int) -> Ledger:
        """The ledger after so many outer rounds."""
        return self.ledger.after(rounds / self.planned_rounds)


def plan_privacy(job: Job, mapping: TableMapping, loss: Loss) -> PrivatePlan:
    """Everything that follows from `privacy` before training; refuses what cannot be kept."""
    _check(job)
    rounds = _rounds(job, mapping)
    features, predictions = job.privacy.features, job.privacy.predictions
    labels = _label_release(job, mapping)
    blocks = range(len(mapping.bound.blocks))
    releases, gradients = list(labels), []
    plans = [] if features is None else [_BlockPlan.of(job, features, mapping, number, rounds) for number in blocks]
    shown = rounds + job.epochs + 2 + (not job.spec.is_linear)  # the opening, the end; a network's first values
    shared = _shared_predictions(predictions, shown)
    for number in blocks:
        if features is None:
            gradients.append(None if shared is None else GradientPrivacy(clip=0.0, noise=0.0, **shared))
        else:
            plan = plans[number]
            noise = plan.noise(plans)
            gradients.append(plan.gradient(noise, len(blocks), loss, shared))
            releases += plan.releases(noise)
        if shared is not None:
            releases += [_prediction_release(table, predictions, shown) for table in _tables(mapping, number)]
    ledger = Ledger(tuple(releases))
    budget = job.privacy.budget
    check_budget(Ledger(tuple(labels)), budget.label, None)
    affordable = rounds
    if budget.features is not None and features is not None:
        affordable = _affordable(ledger, budget.features, rounds)
        if affordable == 0 or features.epsilon is not None:
            check_budget(ledger, None, budget.features)
    return PrivatePlan(tuple(gradients), ledger, rounds, affordable)


@dataclass(frozen=True, slots=True)
class _BlockPlan:
    """One block's noise and its releases."""

    job: Job
    features: FeaturePrivacy
    mapping: TableMapping
    number: int
    most: int  # κ, or the largest multiplicity
    mean: float  # multiplicity
    steps: int  # in the whole run

    @classmethod
    def of(cls, job: Job, features: FeaturePrivacy, mapping: TableMapping, number: int, rounds: int) -> _BlockPlan:
        multiplicity = mapping.multiplicity[number]
        most = int(multiplicity.max(initial=1))  # at most the cap, where there is one
        mean = float(multiplicity.mean()) if len(multiplicity) else 1.0
        steps = rounds * _steps_per_round(job, len(mapping.parts_of(number)))
        return cls(job, features, mapping, number, most, mean, steps)

    @property
    def tables(self) -> list[str]:
        return _tables(self.mapping, self.number)

    @property
    def rate(self) -> float:
        """Of joined rows in a batch (sgd), of base rows in a local step (admm)."""
        if isinstance(self.job.options, Admm):
            return self.features.sample
        rows, size = self.mapping.train.rows, self.job.batch_size
        return 1.0 if size is None or size >= rows else size / rows

    @property
    def cap(self) -> int:
        return 1 if isinstance(self.job.options, Admm) else self.most

    def noise(self, plans: Sequence[_BlockPlan]) -> float:
        """σ: enough for all that a row of each of the block's tables takes part in, here and in other blocks."""
        if self.features.noise is not None:
            return self.features.noise
        assert self.features.epsilon is not None
        found = []
        for table in set(self.tables):
            runs = [(p.steps, participation(p.rate, p.cap)) for p in plans for t in p.tables if t == table]
            found.append(composed_noise(self.features.epsilon, self.features.delta, tuple(sorted(runs))))
        return max(found, default=1.0)

    def gradient(self, noise: float, blocks: int, loss: Loss, shared: dict[str, Any] | None) -> GradientPrivacy:
        options = self.job.options
        features = len(self.mapping.bound.blocks[self.number].features)
        if not isinstance(options, Admm):
            return GradientPrivacy(
                clip=self.features.clip or 1.0,
                noise=noise,
                limit=self.steps,
                batch_rate=self.rate,
                **(shared or {}),
            )
        # ‖x‖² is at most the number of features, since each lies within ±1 or is one-hot.
        curvature = (
            options.start_rho() * loss.bound * (blocks if options.variant == "sharing" else 1) * max(1, features)
        )
        # A network's steps are those of its local optimiser.
        rate = 1.0 / (curvature + self.job.l2) if self.job.spec.is_linear else 0.0
        return GradientPrivacy(
            clip=self.features.clip or max(1.0, self.mean),
            noise=noise,
            limit=self.steps,
            steps=self.features.local_steps,
            rate=self.features.sample,
            learning_rate=self.features.learning_rate or rate,
            **(shared or {}),
        )

    def releases(self, noise: float) -> list[Release]:
        """What outsiders learn, and what the server learns of updates alone: of each table, as often as it is read."""
        is_admm = isinstance(self.job.options, Admm)
        sampled: Sampling = "poisson" if self.rate < 1.0 else "none"
        seen: Sampling = sampled if is_admm or self.rate == 1.0 else "known"
        given: dict[str, Any] = {
            "what": "features",
            "noise": noise,
            "steps": self.steps,
            "rate": self.rate,
            "cap": self.cap,
            "multiplicity": self.most,
            "delta": self.features.delta,
        }
        how = (
            f"noisy {'local steps' if is_admm else 'gradients'} of block {self.mapping.bound.blocks[self.number].name}"
        )
        found = []
        for table in self.tables:
            own, alone = f"{how}; own table's updates", f"{how} alone, predictions apart"
            found.append(Release(observer="outsider", table=table, sampling=sampled, mechanism=own, **given))
            found.append(Release(observer="server", table=table, sampling=seen, mechanism=alone, **given))
        return found


def _check(job: Job) -> None:
    privacy, options = job.privacy, job.options
    if job.algorithm == "centralized" and (privacy.features or privacy.predictions.mode == "local"):
        raise PrivacyError("the centralised baseline pools all features; it has no private form")
    if privacy.features is None and privacy.predictions.mode == "trusted":
        return
    if job.is_expanded:
        raise PrivacyError(f"{job.algorithm} is a baseline without privacy; use {job.algorithm.removeprefix('vfl-')!r}")
    if isinstance(options, Newton):
        raise PrivacyError(
            "newton needs exact second moments in every round, which have no private form here; "
            'use algorithm="sgd" or algorithm="admm" with privacy.features or predictions of mode "local"'
        )
    if isinstance(options, Admm) and options.union == "exact":
        raise PrivacyError('union="exact" sends exact second moments; under privacy use union="consensus"')


def blinded(job: Job) -> Job:
    """The job with nothing left in it that looks at exact predictions beside the noisy steps."""
    if job.privacy.features is None and job.privacy.predictions.mode == "trusted":
        return job
    options = job.options
    if isinstance(options, Admm):
        options = msgspec.structs.replace(options, memory=0, adapt=False, tolerance=0.0)
    elif isinstance(options, Sgd):
        options = msgspec.structs.replace(options, tolerance=0.0)
    return msgspec.structs.replace(job, options=options)


def _rounds(job: Job, mapping: TableMapping) -> int:
    """Outer rounds of the whole run."""
    rows, size = mapping.train.rows, job.batch_size
    is_batched = isinstance(job.options, Sgd) and size is not None and size < rows
    return job.epochs * (-(-rows // (size or 1)) if is_batched else 1)


def _steps_per_round(job: Job, clients: int) -> int:
    if not isinstance(job.options, Admm) or job.privacy.features is None:
        return 1
    return job.privacy.features.local_steps * (job.options.inner_rounds if clients > 1 else 1)


def _label_release(job: Job, mapping: TableMapping) -> list[Release]:
    privacy, channel = job.privacy.label, mapping.label.channel
    if privacy is None or channel is None:
        return []
    how = {"krr": "randomised response", "laplace": "Laplace noise", "bins": "randomised response on bins"}
    mechanism = how[privacy.mechanism]
    if privacy.mechanism == "laplace" and not channel.is_additive:
        mechanism += f" and argmax, which leaves ε = {true_epsilon(channel):.3g}"
    branch = mapping.bound.branches[0]
    table = mapping.bound.scans[branch.relations[branch.label_relation].scan].table
    return [Release(what="label", table=table, observer="everyone", mechanism=mechanism, epsilon=privacy.epsilon)]


def _shared_predictions(predictions: PredictionPrivacy, shown: int) -> dict[str, Any] | None:
    """How predictions are noised in mode "local": a row is shown at most so often."""
    if predictions.mode == "trusted":
        return None
    assert predictions.epsilon is not None
    noise = gaussian_noise(predictions.epsilon, predictions.delta, shown, 1.0)
    # Another row in its place moves a prediction by at most 2H.
    return {
        "prediction_bound": predictions.bound,
        "prediction_noise": noise * 2.0 * predictions.bound,
        "prediction_limit": shown,
    }


def _prediction_release(table: str, predictions: PredictionPrivacy, shown: int) -> Release:
    assert predictions.epsilon is not None
    noise = gaussian_noise(predictions.epsilon, predictions.delta, shown, 1.0)
    return Release(
        what="predictions",
        table=table,
        observer="server",
        mechanism=f"predictions within ±{predictions.bound:g}, noised by their owner",
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


def _tables(mapping: TableMapping, block: int) -> list[str]:
    """The tables that a block's rows come from: one for each scan, for a base row may be in several."""
    scans = {part.scan for part in mapping.parts_of(block)}
    return [mapping.bound.scans[scan].table for scan in sorted(scans)]


def exposure(job: Job, mapping: TableMapping, widths: Sequence[int], outputs: int) -> list[tuple[str, int, int]]:
    """Per block: how many numbers the server sees of its most exposed row, and how many features that row has."""
    rounds = _rounds(job, mapping)
    is_batched = rounds > job.epochs
    found = []
    for number, (block, width) in enumerate(zip(mapping.bound.blocks, widths, strict=True)):
        shown = rounds
        if is_batched:
            most = int(mapping.multiplicity[number].max(initial=1))
            size = job.batch_size or mapping.train.rows
            shown = int(np.ceil(rounds * participation(size / mapping.train.rows, most))) + job.epochs + 1
        found.append((block.name, outputs * shown, width))
    return found


def check_exposure(job: Job, mapping: TableMapping, widths: Sequence[int], outputs: int) -> None:
    """Refuses a private job whose exact predictions would let the server solve for the rows themselves."""
    privacy = job.privacy
    if privacy.features is None or privacy.predictions.mode == "local" or privacy.allow_reconstruction:
        return
    for name, shown, width in exposure(job, mapping, widths, outputs):
        if shown >= width:
            raise PrivacyError(
                f"block {name}: the server would see {shown:,} exact predictions of a row that has {width:,} encoded "
                "features, enough to reconstruct it, whatever noise the model carries. Take fewer rounds, use "
                'predictions = {mode = "local", …}, or trust the server with it: allow_reconstruction = true'
            )
