"""Clips and learning rates under noise follow from public figures, scale with the labels, and slow down in time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.privacy.gaussian import NoisySteps, tuned

PLAIN: dict[str, Any] = {
    "features": 2.0,
    "rows": 4.0,
    "noise": 10.0,
    "steps": 100,
    "divisor": 1e5,
    "rate": 0.1,
}


def steps(**given: Any) -> NoisySteps:
    return NoisySteps(**(PLAIN | given))


def test_the_cost_of_noise_is_what_a_noisy_descent_pays() -> None:
    """One column of ±1, squared loss, no signal: the loss that noise alone adds, by simulation."""
    given = steps(features=1.0, noise=300.0, steps=60, rate=0.02)
    generator, slope, clip = np.random.default_rng(0), 1.5, 2.0
    theta = np.zeros(20_000)
    for step in range(given.steps):
        noise = generator.normal(0.0, given.noise * clip / given.divisor, theta.shape)
        theta -= given.rate * (1 - step / given.steps) * (theta + noise)
    paid = float(np.mean(theta**2)) / slope**2
    assert 0.4 * given.cost(clip, slope, 1.0) < paid <= given.cost(clip, slope, 1.0) * 1.05


def test_a_clip_lies_between_once_and_three_times_what_a_row_typically_sends() -> None:
    typical = 1.5 * np.sqrt(2.0) * 4.0
    quiet, loud = steps(noise=1e-3), steps(noise=1e5)
    (first, _), (second, _) = tuned([quiet, loud], 1.5, 1.0, None)
    assert (first, second) == pytest.approx((3 * typical, typical))
    assert [clip for clip, _ in tuned([quiet, loud], 1.5, 1.0, [0.25, 0.25])] == [0.25, 0.25]


def test_everything_scales_with_the_labels() -> None:
    blocks = [steps(), steps(noise=4e3)]
    unit = tuned(blocks, 1.0, 1.0, None)
    for slope in (1e-3, 20.0):
        for (clip, rate), (one, as_before) in zip(tuned(blocks, slope, 1.0, None), unit, strict=True):
            assert clip == pytest.approx(slope * one)
            assert rate == pytest.approx(as_before)


def test_more_noise_and_momentum_make_steps_smaller_until_the_share_is_kept() -> None:
    for given in (steps(noise=3e4), steps(noise=3e3, momentum=0.9), steps(noise=3e3, steps=10_000)):
        ((clip, rate),) = tuned([given], 1.0, 1.0, None)
        assert rate < 0.2 * given.rate
        assert replace(given, rate=rate).cost(clip, 1.0, 1.0) == pytest.approx(0.01)
    ((_, rate),) = tuned([steps(noise=1e-3)], 1.0, 1.0, None)
    assert rate == PLAIN["rate"]


def test_a_small_table_does_not_slow_a_large_one_down() -> None:
    (_, small), (_, large) = tuned([steps(noise=1e5), steps()], 1.0, 1.0, None)
    assert small < 0.1 * PLAIN["rate"]
    assert large == PLAIN["rate"]


def planned(scale: float, label: str, algorithm: str, **features: Any) -> Any:
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, 400)
    y = scale * (x + generator.normal(size=400))
    table = pa.table({"k": np.arange(400) % 20, "x": x, "y": y, "flag": y > 0})
    other = pa.table({"k": np.arange(20), "z": generator.uniform(-1, 1, 20)})
    bounds = {"x": (-1, 1), "z": (-1, 1)}
    given = {"noise": 5.0, "bounds": bounds} | features
    with tp.Federation({"t": table, "u": other}) as federation:
        plan = federation.explain(
            f"SELECT t.x, u.z, t.{label} FROM t JOIN u ON t.k = u.k",
            label=label,
            algorithm=algorithm,
            epochs=5,
            batch_size=None,
            test_fraction=0.0,
            privacy={"features": given, "allow_reconstruction": True},
        )
    return plan.private


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_a_plan_takes_clips_from_labels_and_multiplicities(algorithm: str) -> None:
    unit, thousand = planned(1.0, "y", algorithm), planned(1000.0, "y", algorithm)
    for one, other in zip(unit.noise.gradients, thousand.noise.gradients, strict=True):
        assert other.clip == pytest.approx(1000 * one.clip)
        assert other.learning_rate == pytest.approx(one.learning_rate)
    assert thousand.noise.rates == pytest.approx(unit.noise.rates)
    assert unit.noise.gradients[1].clip > 5 * unit.noise.gradients[0].clip  # a row of u has twenty joined rows
    chosen = planned(1.0, "y", algorithm, clip=0.25)
    assert [g.clip for g in chosen.noise.gradients] == [0.25, 0.25]


def test_classes_have_a_slope_too() -> None:
    logistic = planned(1.0, "flag", "sgd")
    assert 0.4 < logistic.noise.gradients[0].clip < 3 * 0.5 * np.sqrt(1.0) + 1e-9
