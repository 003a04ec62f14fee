"""One block under feature privacy: how many noisy steps on which samples, and what its clients do to gradients.

In: a job and its table mapping. Out: per block its steps and what its clients do to gradients (whole_model.py has the
noise of all blocks). Steps, caps and rates are public (the join graph is), and so are labels that carry noise of their
own or none: nothing here reads a feature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tablepuppet.algorithms.algorithm import PrivateForm
from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.job import Job
from tablepuppet.mapping.mapping import MappingSummary
from tablepuppet.models.losses import Loss
from tablepuppet.models.spec import l2_of
from tablepuppet.privacy.gaussian import GradientPrivacy, NoisySteps
from tablepuppet.privacy.options import FeaturePrivacy


@dataclass(frozen=True, slots=True)
class NoisyBlock:
    """One block's noisy steps."""

    job: Job
    features: FeaturePrivacy
    mapping: MappingSummary
    number: int
    most: int  # κ, or the largest multiplicity
    mean: float  # multiplicity
    form: PrivateForm
    local: int  # steps in a row: inner rounds share those of an outer round
    steps: int  # in the whole run
    outputs: int  # numbers that a row predicts

    @classmethod
    def of(
        cls, job: Job, features: FeaturePrivacy, mapping: MappingSummary, number: int, rounds: int, outputs: int
    ) -> NoisyBlock:
        block = mapping.blocks[number]
        most = max(1, block.most)  # at most the cap, where there is one
        mean = block.joined / block.rows if block.rows else 1.0
        form = algorithm_of(job.options).private_form(
            job.options, features, is_linear=job.spec.is_linear, blocks=len(mapping.bound.blocks)
        )
        inner = form.inner_rounds if len(mapping.parts_of(number)) > 1 else 1
        local = -(-form.local_steps // inner)
        return cls(job, features, mapping, number, most, mean, form, local, rounds * inner * local, outputs)

    @property
    def l2(self) -> float:
        block = self.mapping.bound.blocks[self.number]
        return l2_of(self.job.l2, block.name, block.table)

    @property
    def is_local(self) -> bool:
        """Whether clients sample base rows; otherwise the server samples joined rows."""
        return self.job.options.samples_at_clients

    @property
    def tables(self) -> list[str]:
        return tables_of(self.mapping, self.number)

    @property
    def rate(self) -> float:
        """Of joined rows in a batch, or of base rows in a local step."""
        if self.is_local:
            return self.features.sample
        rows = self.mapping.train_rows
        size = self.job.batch(rows)
        return 1.0 if size is None or size >= rows else size / rows

    @property
    def cap(self) -> int:
        return 1 if self.is_local else self.most

    @property
    def squared_norm(self) -> float:
        """What ‖x‖² is at most: every feature, or entry of a vector, lies within ±1 or is one-hot."""
        return float(sum(max(1, column.size) for column in self.mapping.bound.blocks[self.number].columns) or 1)

    @property
    def reach(self) -> float:
        """R: how far a row's share of a sum may move, for each unit of its signal; no bound for a network's outputs."""
        is_linear = self.job.spec.is_linear
        return math.sqrt(self.squared_norm) if is_linear or self.outputs == 1 else math.inf

    @property
    def name(self) -> str:
        return self.mapping.bound.blocks[self.number].name

    def descent(self, noise: float, loss: Loss, squared_norms: float) -> NoisySteps:
        """The block's steps as their cost depends on them; `squared_norms` is the sum over all blocks."""
        form = self.form
        if form.blocks is None:
            curvature = form.curvature * loss.bound * (1.0 + squared_norms)
        else:
            curvature = form.curvature * loss.typical_curvature * form.blocks * self.squared_norm
        return NoisySteps(
            features=self.squared_norm,
            rows=max(1.0, self.mean * (1.0 if self.is_local else self.rate)),
            noise=noise,
            steps=self.steps,
            divisor=self.rate * self.mapping.train_rows,
            rate=1.0 / (curvature + self.l2),
            momentum=form.momentum,
        )

    def gradient(self, noise: float, clip: float, rate: float, shared: dict[str, Any]) -> GradientPrivacy:
        """What the block's clients do; `rate` is of a local step."""
        given: dict[str, Any] = {"clip": clip, "noise": noise, "limit": self.steps, "reach": self.reach, **shared}
        if not self.is_local:
            return GradientPrivacy(batch_rate=self.rate, **given)
        rate = self.features.learning_rate or self.form.learning_rate or rate
        return GradientPrivacy(learning_rate=rate, steps=self.local, rate=self.features.sample, **given)


def outer_rounds(job: Job, mapping: MappingSummary) -> int:
    """Outer rounds of the whole run."""
    rows = mapping.train_rows
    size = job.batch(rows)
    algorithm = algorithm_of(job.options)
    if algorithm.takes_turns:
        return job.epochs * len(mapping.bound.blocks)
    is_batched = algorithm.uses_batches and size is not None and size < rows
    return job.epochs * (-(-rows // (size or 1)) if is_batched else 1)


def tables_of(mapping: MappingSummary, block: int) -> list[str]:
    """The tables that a block's rows come from: one for each scan, for a base row may be in several."""
    scans = {part.scan for part in mapping.parts_of(block)}
    return [mapping.bound.scans[scan].table for scan in sorted(scans)]
