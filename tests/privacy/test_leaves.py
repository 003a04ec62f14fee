"""Noisy sums of leaves: no joined row adds more than C, and noise has the deviation that is counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tablepuppet as tp
from tablepuppet.algorithms.boosting.fixed_point import Labels, LeafNoise, clipped_derivatives
from tablepuppet.algorithms.boosting.plan import leaf_noise
from tablepuppet.models.losses import Logistic, Loss, Squared
from tablepuppet.models.losses.classes import Softmax
from tablepuppet.privacy.gaussian import secure_generator
from tablepuppet.privacy.options import FeaturePrivacy


def _moved(rows: np.ndarray, noise: LeafNoise, loss: Loss, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """What these joined rows add to the sums of one leaf, Σg and s·Σh of every output."""
    found = clipped_derivatives(loss, scores, Labels(labels, None), noise)
    return np.array([noise.unit * own[rows].sum() for d in found for own in (d.both >> 32, d.both & 0xFFFFFFFF)])


@given(st.integers(0, 2**32), st.sampled_from(["logistic", "squared", "softmax"]), st.floats(1e-6, 1e6))
def test_a_base_row_moves_no_sum_by_more_than_its_joined_rows_times_the_clip(seed: int, name: str, clip: float) -> None:
    rng = np.random.default_rng(seed)
    loss: Loss = {"logistic": Logistic(), "squared": Squared(), "softmax": Softmax(4)}[name]
    scores = rng.normal(size=(300, loss.outputs)) * rng.choice([0.1, 3.0, 100.0])
    labels = rng.normal(size=300) * 50 if name == "squared" else rng.integers(0, 2, 300).astype(np.float64)
    noise = LeafNoise(clip=clip, scale=float(rng.choice([0.01, 3.0])) * clip, curvature=1.0, deviation=clip)
    joined = rng.choice(300, 7, replace=False)
    assert np.linalg.norm(_moved(joined, noise, loss, scores, labels)) <= 7 * clip
    g, h = noise.clip_rows(rng.normal(size=(50, 3)) * 1e9, rng.random((50, 3)) * 1e9)
    assert np.sqrt((g**2 + h**2).sum(axis=1)).max() * noise.unit <= clip
    assert max(np.abs(g).max(), h.max()) < 2**15


def test_the_slope_and_three_times_the_curvature_of_the_logistic_loss_lie_within_one() -> None:
    p = np.linspace(0, 1, 100_001)
    assert (p**2 + (3 * p * (1 - p)) ** 2).max() <= 1
    noise = LeafNoise(clip=1.0, scale=3.0, curvature=0.25, deviation=1.0)
    g, h = noise.clip_rows(p[:, None], (p * (1 - p))[:, None])
    np.testing.assert_allclose(g[:, 0] * noise.unit, p, atol=2 * noise.unit)  # nothing is cut
    np.testing.assert_allclose(h[:, 0] * noise.unit / 3, p * (1 - p), atol=2 * noise.unit)


@pytest.mark.parametrize("clip", [1.0, 37.0])
def test_noise_of_both_sums_has_its_deviation(clip: float) -> None:
    noise = LeafNoise(clip=clip, scale=2.0, curvature=1.0, deviation=5 * clip)
    drawn = noise.noisy(np.zeros((40_000, 2), np.int64), secure_generator())
    np.testing.assert_allclose(drawn.std(axis=0), [5 * clip, 2.5 * clip], rtol=0.02)
    assert abs((drawn[:, 0] * drawn[:, 1]).mean()) < 0.03 * 12.5 * clip**2


@pytest.mark.parametrize(("weight", "clip"), [(1.0, None), (4.0, None), (4.0, 0.5)])
def test_leaves_are_clipped_to_the_slope_of_the_heaviest_row_and_noised_in_units_of_it(
    weight: float, clip: float | None
) -> None:
    privacy = SimpleNamespace(features=FeaturePrivacy(noise=2.0, clip=clip))
    job: Any = SimpleNamespace(privacy=privacy, options=tp.Boosting(trees=2, splits="random"))
    mapping: Any = SimpleNamespace(label=SimpleNamespace(channel=None))
    most = clip or weight
    found = leaf_noise(job, mapping, Logistic(), 0.4, weight)
    assert (found.clip, found.deviation, found.curvature) == (most, 2.0 * most, 0.25 * weight)
    assert found.scale == pytest.approx(3.0 * most / weight)
