"""Feature privacy of trees whose splits are drawn: the noise on their leaves, and the cost for each table's rows.

In: a job, a table mapping, the loss. Out: `OwnNoise`: the mechanisms and releases of every table, the noise, and the
bounds, public, that borders lie between. Nothing here reads a feature.
"""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import numpy as np

from tablepuppet.algorithms.boosting.fixed_point import LeafNoise
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.own_model import OwnNoise
from tablepuppet.errors import PrivacyError
from tablepuppet.job import Job
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.models.losses import Loss
from tablepuppet.privacy.accounting import Mechanism, composed_noise
from tablepuppet.privacy.ledger import Release
from tablepuppet.sources.columns import STRING_KINDS

Bounds = list[tuple[float, float] | None]
_LOOSE = 2.5  # the clip of a number's slopes, in units of a typical one
_LOGISTIC = 3.0  # s: p² + (3p(1 − p))² ≤ 1 for every p
_PART = 3.0  # of C, that s·h is at the most with other losses


class LeafPlan(msgspec.Struct, frozen=True):
    """The noise and bounds of trees under feature privacy."""

    noise: LeafNoise
    bounds: list[Bounds]  # public, by block and feature


def plan_leaves(job: Job, mapping: MappingSummary, loss: Loss, slope: float, weight: float) -> OwnNoise:
    """The noise on a run's leaves, and its privacy cost. `slope`: of a typical row; `weight`: the largest of any."""
    assert isinstance(job.options, Boosting)
    trees, bounds = job.options.trees, public_bounds(job, mapping)
    noise = leaf_noise(job, mapping, loss, slope, weight)
    is_for_analyst = job.privacy.analyst is not None  # whose terms give the cost, and sizes are noisy
    return OwnNoise(trees, [] if is_for_analyst else leaf_releases(job, mapping, noise), LeafPlan(noise, bounds))


def leaf_noise(job: Job, mapping: MappingSummary, loss: Loss, slope: float, weight: float) -> LeafNoise:
    """The least noise that keeps the rows of every table within ε; or the job's own, in units of the clip."""
    assert isinstance(job.options, Boosting)
    features, trees = job.privacy.features, job.options.trees
    assert features is not None
    clip = features.clip or weight * _slope_bound(mapping, loss, slope)
    is_logistic = loss.task == "binary" and loss.bound == 0.25
    curvature = weight * loss.bound
    noise = features.noise
    if noise is None:
        assert features.epsilon is not None
        most = max(joined_rows(mapping).values(), default=1)
        noise = most * composed_noise(features.epsilon, features.delta, (Mechanism(1.0, trees),))
    scale = _LOGISTIC * clip / weight if is_logistic else clip / (_PART * curvature)
    return LeafNoise(clip=clip, scale=scale, curvature=curvature, deviation=noise * clip)


def _slope_bound(mapping: MappingSummary, loss: Loss, slope: float) -> float:
    """The clip of the slope of a row of weight one: its largest value, or one above the usual; from labels alone."""
    channel = mapping.label.channel
    if loss.task == "binary":
        ends = np.array([0.0, 1.0]) if channel is None else channel.unbiased(np.array([0.0, 1.0]))
        return float(np.abs([*ends, *(1.0 - ends)]).max())
    if loss.task == "classes" and channel is None:
        return math.sqrt(2.0)
    return _LOOSE * slope


def joined_rows(mapping: MappingSummary) -> dict[str, int]:
    """κ of every table: joined rows that one of its rows is in at most, over all that read it."""
    found: Counter[str] = Counter()
    for number, block in enumerate(mapping.blocks):
        for table in mapping.tables_of(number):
            found[table] += max(1, block.most)
    return dict(sorted(found.items()))


def leaf_releases(job: Job, mapping: MappingSummary, noise: LeafNoise) -> list[Release]:
    """The model's releases to outsiders: for each table one for each tree, or group of trees of all classes."""
    features = job.privacy.features
    assert features is not None
    assert isinstance(job.options, Boosting)
    return [
        Release(
            what="features",
            table=table,
            observer="outsider",
            mechanism="noisy sums of leaves, added by the server; splits are drawn from public borders",
            noise=noise.deviation / (noise.clip * most),
            steps=job.options.trees,
            multiplicity=most,
            delta=features.delta,
            scope="leaves",
        )
        for table, most in joined_rows(mapping).items()
    ]


def public_bounds(job: Job, mapping: MappingSummary) -> list[Bounds]:
    """By block and feature: the bounds of its borders; None: a string."""
    assert job.privacy.features is not None
    given = job.privacy.features.bounds
    found: list[Bounds] = []
    for block in mapping.bound.blocks:
        own: Bounds = []
        for name, column in zip(block.features, block.columns, strict=True):
            known = given.get(name) or given.get(name.rpartition(".")[2])
            if column.kind not in STRING_KINDS and known is None:
                raise PrivacyError(
                    f"feature {name} is a number, and borders would be read from the data, outside the promise of "
                    f'privacy.features; give public bounds, features = {{bounds = {{"{name}" = [low, high]}}}}'
                )
            own.append(None if column.kind in STRING_KINDS else known)
        found.append(own)
    return found
