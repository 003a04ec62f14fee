"""Clipped sums: no base row moves one by more than C, whatever its multiplicity; noise has the stated deviation."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tablepuppet.algorithms.admm.client import LocalStep
from tablepuppet.algorithms.base import PrivateGradient
from tablepuppet.algorithms.numerics.optimizers import Moments
from tablepuppet.arrays import Array
from tablepuppet.errors import PrivacyError
from tablepuppet.models.linear import Features, LinearModel
from tablepuppet.privacy.gaussian import GradientPrivacy, clip_scale, secure_generator

ALARM = 1e-8


def features(x: Array, codes: NDArray[np.int64] | None = None) -> Features:
    categories = () if codes is None else (codes.astype(np.int32),)
    columns = () if codes is None else (slice(x.shape[1], x.shape[1] + 3),)
    width = x.shape[1] + (0 if codes is None else 3)
    return Features(np.ascontiguousarray(x), categories, np.arange(x.shape[1]), columns, width)


def linear(rows: int, seed: int = 0, scale: float = 3.0) -> LinearModel:
    generator = np.random.default_rng(seed)
    given = features(scale * generator.normal(size=(rows, 4)), generator.integers(-1, 3, rows))
    return LinearModel(given, given.take(np.arange(0)), 2, given.row_norms())


@settings(max_examples=40)
@given(st.integers(1, 30), st.floats(0.01, 10), st.integers(0, 100))
def test_removing_one_base_row_moves_the_sum_by_at_most_the_clip(rows: int, clip: float, seed: int) -> None:
    model = linear(rows, seed)
    # A row's signal is already the sum over its joined rows: a multiplicity of 1,000 is just a larger Y.
    signal = 1000.0 * np.random.default_rng(seed).normal(size=(rows, 2))
    theta = model.initial()
    privacy = GradientPrivacy(clip=clip, noise=0.0)
    total = model.clipped_gradient(theta, signal, privacy, None, None)
    for k in range(rows):
        others = np.delete(np.arange(rows), k)
        without = model.clipped_gradient(theta, signal[others], privacy, others, None)
        assert np.linalg.norm(total - without) <= clip * (1 + 1e-9)


def test_the_closed_form_equals_clipping_each_rows_own_gradient() -> None:
    model, clip = linear(50), 2.0
    signal = np.random.default_rng(1).normal(size=(50, 2))
    x = model.train.to_dense()
    each = np.einsum("kd,kc->kdc", x, signal)
    norms = np.linalg.norm(each.reshape(50, -1), axis=1)
    expected = (each * np.minimum(1.0, clip / norms)[:, None, None]).sum(axis=0)
    found = model.clipped_gradient(model.initial(), signal, GradientPrivacy(clip=clip, noise=0.0), None, None)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_no_noise_and_a_huge_clip_give_the_plain_gradient() -> None:
    model = linear(20)
    signal = np.random.default_rng(1).normal(size=(20, 2))
    private = PrivateGradient(GradientPrivacy(clip=1e12, noise=0.0, limit=9), secure_generator())
    plain = model.gradient(model.initial(), signal)
    np.testing.assert_allclose(private.gradient(model, model.initial(), signal, None), plain, rtol=1e-12)


@pytest.mark.parametrize("clip", [0.5, 30.0])
def test_noise_has_the_stated_deviation_and_no_memory(clip: float) -> None:
    model = linear(3)
    private = PrivateGradient(GradientPrivacy(clip=clip, noise=4.0, limit=10_000), secure_generator())
    signal = np.zeros((3, 2))
    drawn = np.stack([private.gradient(model, model.initial(), signal, None).ravel() for _ in range(3000)])
    variance = drawn.var() / (4.0 * clip) ** 2
    tails = scipy.stats.chi2(drawn.size).ppf([ALARM / 2, 1 - ALARM / 2]) / drawn.size
    assert tails[0] < variance < tails[1]
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 6 / np.sqrt(drawn.size)


def test_two_generators_never_agree() -> None:
    generators = [secure_generator() for _ in range(2000)]  # of 32 bits, two would agree once in two thousand times
    assert len({generator.bytes(8) for generator in generators}) == len(generators)
    assert len({generator.random() for generator in generators}) == len(generators)


def test_noise_is_made_under_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nonce distinguishes streams of one key, and is no secret."""
    drawn = secrets.token_bytes
    monkeypatch.setattr(secrets, "token_bytes", lambda size: bytes(size) if size < 32 else drawn(size))
    generators = [secure_generator() for _ in range(50)]
    assert len({generator.bytes(8) for generator in generators}) == len(generators)
    monkeypatch.setattr(secrets, "token_bytes", lambda size: bytes(size))
    assert secure_generator().bytes(8) == secure_generator().bytes(8)  # it comes from nowhere else


def test_noise_does_not_follow_from_what_samples_are_drawn_by() -> None:
    first, second = secure_generator(), secure_generator()
    second.bit_generator.state = first.bit_generator.state
    assert (first.integers(2**62, size=4) == second.integers(2**62, size=4)).all()
    assert first.bytes(64) != second.bytes(64)


def test_base_rows_are_sampled_at_the_stated_rate() -> None:
    private = PrivateGradient(GradientPrivacy(clip=1.0, noise=1.0, rate=0.07, limit=9), secure_generator())
    counts, sizes = np.zeros(200), []
    for _ in range(1500):
        taken = private.sample(200)
        counts[taken] += 1
        sizes.append(len(taken))
    assert scipy.stats.chisquare(counts).pvalue > ALARM
    assert scipy.stats.binomtest(int(counts.sum()), 200 * 1500, 0.07).pvalue > ALARM
    # each row for itself: a sample of a fixed size would not spread
    spread = float(np.var(sizes)) * 1500 / (200 * 0.07 * 0.93)
    assert ALARM < scipy.stats.chi2.cdf(spread, 1499) < 1 - ALARM


def test_zero_features_and_zero_noise_still_shrink_theta_by_the_penalty() -> None:
    nothing = features(np.zeros((10, 4)))
    model = LinearModel(nothing, nothing, 1, nothing.row_norms())
    privacy = GradientPrivacy(clip=1.0, noise=0.0, steps=20, rate=0.5, limit=999)
    start = np.arange(4.0)[:, None]
    private = PrivateGradient(privacy, secure_generator())
    step = LocalStep(model, private, np.ones((10, 1)), np.ones(10), 10, l2=0.3)
    theta, _ = step.solve(start, Moments.zero(start, "sgd"), 0.5, "sgd")
    np.testing.assert_allclose(theta, start * 0.85**20, rtol=1e-12)


def test_a_part_without_joined_rows_stays_where_it_is_and_takes_no_noisy_step() -> None:
    nothing = features(np.zeros((10, 4)))
    model = LinearModel(nothing, nothing, 1, nothing.row_norms())
    privacy = GradientPrivacy(clip=1.0, noise=2.0, steps=20, rate=0.5, limit=999)
    private, start = PrivateGradient(privacy, secure_generator()), np.arange(4.0)[:, None]
    step = LocalStep(model, private, np.ones((10, 1)), np.ones(10), 0, l2=0.3)
    theta, _ = step.solve(start, Moments.zero(start, "sgd"), 0.5, "sgd")
    np.testing.assert_array_equal(theta, start)
    assert private.taken == 0


def test_local_steps_without_noise_find_the_solution_of_the_theta_step() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (40, 3))
    model = LinearModel(features(x), features(x), 1)
    signal, quadratic = np.random.default_rng(1).normal(size=(40, 1)), np.full(40, 2.0)
    expected = np.linalg.solve(2.0 * x.T @ x / 40 + 0.1 * np.eye(3), -x.T @ signal / 40)
    privacy = GradientPrivacy(clip=1e9, noise=0.0, steps=600, rate=1.0, limit=999)
    private = PrivateGradient(privacy, secure_generator())
    step = LocalStep(model, private, signal, quadratic, 40, l2=0.1)
    theta, _ = step.solve(np.zeros((3, 1)), Moments.zero(np.zeros((3, 1)), "sgd"), 0.2, "sgd")
    np.testing.assert_allclose(theta, expected, atol=1e-6)


@pytest.mark.parametrize("bound", [0.5, 2.0])
def test_shown_predictions_are_within_the_bound_before_their_noise(bound: float) -> None:
    privacy = GradientPrivacy(clip=0.0, noise=0.0, prediction_bound=bound, prediction_noise=0.0, prediction_limit=9)
    shown = PrivateGradient(privacy, secure_generator()).disclose(np.array([[3.0, -4.0], [0.1, 0.1]]))
    assert np.linalg.norm(shown[0]) == pytest.approx(bound)
    assert shown[1].tolist() == [0.1, 0.1]


def test_predictions_carry_the_noise_that_was_planned_each_time_anew() -> None:
    privacy = GradientPrivacy(clip=0.0, noise=0.0, prediction_bound=1.0, prediction_noise=2.5, prediction_limit=2)
    private = PrivateGradient(privacy, secure_generator())
    first, second = private.disclose(np.zeros((4000, 1))), private.disclose(np.zeros((4000, 1)))
    for drawn in (first, second, (first - second) / np.sqrt(2)):
        tails = scipy.stats.chi2(drawn.size).ppf([ALARM / 2, 1 - ALARM / 2]) / drawn.size
        assert tails[0] < float((drawn**2).mean()) / 2.5**2 < tails[1]
    with pytest.raises(PrivacyError, match="covers 2 noisy predictions"):
        private.disclose(np.zeros((4000, 1)))


@given(st.floats(0.01, 10.0), st.floats(0.01, 10.0), st.integers(0, 2**32))
def test_a_rows_share_is_cut_to_the_clip_and_to_its_reach_for_each_unit_of_signal(
    clip: float, reach: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    signal, norms = random.normal(size=(40, 2)) * 3, random.uniform(0, 5, 40)
    sizes = np.linalg.norm(signal, axis=1)
    left = clip_scale(signal, norms, clip, reach) * sizes * norms
    assert (left <= np.minimum(clip, reach * sizes) * (1 + 1e-12)).all()


def test_no_more_noisy_gradients_leave_than_were_counted() -> None:
    private = PrivateGradient(GradientPrivacy(clip=1.0, noise=1.0, limit=2), secure_generator())
    model = linear(3)
    for _ in range(2):
        private.gradient(model, model.initial(), np.ones((3, 2)), None)
    with pytest.raises(PrivacyError, match="covers 2 noisy gradients"):
        private.gradient(model, model.initial(), np.ones((3, 2)), None)
