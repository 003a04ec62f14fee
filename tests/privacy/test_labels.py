"""Label mechanisms follow their stated channel, draw once per row, and can be debiased."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

from tablepuppet.errors import JobError, PrivacyError
from tablepuppet.owner.labels import LabelNoise
from tablepuppet.owner.row_sets import row_ids
from tablepuppet.privacy.labels import argmax_truth, channel_of, privatise, true_epsilon, uniform_numbers
from tablepuppet.privacy.options import LabelPrivacy

SECRET = bytes(range(32))
ROWS = 60_000
ALARM = 1e-5  # the probability that a correct mechanism fails a statistical test here


def uniform(rows: int = ROWS, name: str = "labels") -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    ids = np.stack([np.arange(rows, dtype=np.uint64), np.zeros(rows, np.uint64)], axis=1)
    return uniform_numbers(SECRET, name, ids, np.zeros(rows))


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_flips_follow_randomised_response(classes: int, epsilon: float) -> None:
    truth = np.arange(ROWS, dtype=np.float64) % classes
    noisy = privatise(truth, LabelPrivacy(epsilon=epsilon), classes, uniform())
    odds = math.exp(epsilon)
    for c in range(classes):
        seen = np.bincount(noisy[truth == c].astype(int), minlength=classes)
        expected = np.full(classes, 1.0 / (odds + classes - 1)) * seen.sum()
        expected[c] = odds / (odds + classes - 1) * seen.sum()
        assert scipy.stats.chisquare(seen, expected).pvalue > ALARM


def test_no_two_labels_are_more_than_e_to_the_epsilon_apart() -> None:
    for classes in (2, 3, 10):
        channel = channel_of(LabelPrivacy(epsilon=1.7), classes)
        assert true_epsilon(channel) == pytest.approx(1.7)
        assert channel.truth + (classes - 1) * channel.other == pytest.approx(1.0)


@pytest.mark.parametrize(("classes", "epsilon"), [(2, 2.57), (5, 2.84)])
def test_the_papers_laplace_and_argmax_is_a_weaker_randomised_response(classes: int, epsilon: float) -> None:
    stated = 5.66
    assert stated == pytest.approx(2 * math.sqrt(2) / 0.5, abs=0.01)
    channel = channel_of(LabelPrivacy(epsilon=stated, mechanism="laplace"), classes)
    assert true_epsilon(channel) == pytest.approx(epsilon, abs=0.01)
    noise = np.random.default_rng(0).laplace(scale=2 / stated, size=(200_000, classes))
    noise[:, 0] += 1.0
    hits = int((noise.argmax(axis=1) == 0).sum())
    assert scipy.stats.binomtest(hits, 200_000, argmax_truth(stated, classes)).pvalue > ALARM


def test_asked_again_a_row_has_the_same_noise_and_other_labels_have_other_noise() -> None:
    values = np.arange(1000.0) % 2
    rows = np.stack([np.arange(1000, dtype=np.uint64), np.zeros(1000, np.uint64)], axis=1)
    noise = LabelNoise(LabelPrivacy(epsilon=0.5), SECRET, "orders y", rows)
    first = noise.add_to(values, [0.0, 1.0])
    assert (noise.add_to(values, [0.0, 1.0]) == first).all()
    order = np.random.default_rng(0).permutation(1000)
    shown = msgspec.structs.replace(noise, rows=rows[order])  # in another order, the same noise
    assert (shown.add_to(values[order], [0.0, 1.0]) == first[order]).all()
    others = [
        LabelNoise(LabelPrivacy(epsilon=0.6), SECRET, "orders y", rows).add_to(values, [0.0, 1.0]),
        LabelNoise(LabelPrivacy(epsilon=0.5), bytes(32), "orders y", rows).add_to(values, [0.0, 1.0]),
        LabelNoise(LabelPrivacy(epsilon=0.5), SECRET, "orders z", rows).add_to(values, [0.0, 1.0]),
    ]
    for other in others:
        assert (other != first).sum() > 200
    changed = values.copy()
    changed[7] = 1 - changed[7]
    moved = np.flatnonzero(noise.add_to(changed, [0.0, 1.0]) != first)  # a changed label draws anew, and no other does
    assert set(moved.tolist()) <= {7}


def test_rows_that_are_equal_in_every_column_have_draws_of_their_own() -> None:
    ids = row_ids(pa.table({"c0": ["a"] * 50}))
    assert len(np.unique(uniform_numbers(SECRET, "labels", ids, np.zeros(50)), axis=0)) == 50


def test_noisy_numbers_have_no_digits_that_tell_of_the_label() -> None:
    privacy = LabelPrivacy(epsilon=2.0, mechanism="laplace", bounds=(0.0, 1.0))
    grid = 2.0**-31  # of a deviation's power of two, ½, and 30 bits below it
    noisy = privatise(np.random.default_rng(0).random(1000), privacy, None, uniform(1000))
    assert (np.rint(noisy / grid) * grid == noisy).all()


def test_two_classes_are_unbiased_after_the_channel() -> None:
    truth = (np.arange(ROWS) % 3 == 0).astype(np.float64)
    channel = channel_of(LabelPrivacy(epsilon=1.0), 2)
    estimate = channel.unbiased(privatise(truth, LabelPrivacy(epsilon=1.0), 2, uniform()))
    for value in (0.0, 1.0):
        own = estimate[truth == value]
        assert abs(own.mean() - value) < 4.5 * own.std() / math.sqrt(len(own))


@pytest.mark.parametrize("mechanism", ["bins", "laplace", "krr"])
def test_numbers_and_their_squares_are_unbiased_after_the_channel(mechanism: str) -> None:
    privacy = LabelPrivacy(epsilon=3.0, mechanism=mechanism, bounds=(1.0, 5.0), bins=5)  # type: ignore[arg-type]
    channel = channel_of(privacy, None)
    truth = 1.0 + np.arange(ROWS, dtype=np.float64) % 5
    estimate = privatise(truth, privacy, None, uniform())
    estimate = estimate if channel.is_additive else channel.unbiased(estimate)
    error = estimate - truth
    assert abs(error.mean()) < 4.5 * error.std() / math.sqrt(ROWS)
    square = channel.unbiased_square(estimate) - truth**2
    assert abs(square.mean()) < 4.5 * square.std() / math.sqrt(ROWS)


def test_a_number_between_two_bins_keeps_its_mean() -> None:
    privacy = LabelPrivacy(epsilon=20.0, mechanism="bins", bounds=(0.0, 1.0), bins=2)
    estimate = channel_of(privacy, None).unbiased(privatise(np.full(ROWS, 0.3), privacy, None, uniform()))
    assert abs(estimate.mean() - 0.3) < 4.5 * math.sqrt(0.21 / ROWS)


def test_the_targets_of_softmax_are_unbiased() -> None:
    channel = channel_of(LabelPrivacy(epsilon=1.0), 4)
    response = np.full((4, 4), channel.other) + (channel.truth - channel.other) * np.eye(4)
    np.testing.assert_allclose(response @ channel.targets(4), np.eye(4), atol=1e-12)


@pytest.mark.parametrize("mechanism", ["krr", "laplace"])
def test_a_row_without_a_label_is_as_private_as_one_with_any(mechanism: Literal["krr", "laplace"]) -> None:
    """P(seen | NULL) is within e^ε of P(seen | any class): NULLIF(y, 1) tells no 1."""
    privacy, classes, rows, draws = LabelPrivacy(epsilon=1.0, mechanism=mechanism), 3, ROWS, uniform()
    seen = privatise(np.full(rows, np.nan), privacy, classes, draws)
    missing = np.bincount(seen.astype(np.intp), minlength=classes) / rows
    for label in range(classes):
        told = privatise(np.full(rows, float(label)), privacy, classes, draws)
        ratio = missing / (np.bincount(told.astype(np.intp), minlength=classes) / rows)
        assert (np.abs(np.log(ratio)) <= 1.0 + 0.05).all()


@pytest.mark.parametrize("mechanism", ["bins", "laplace"])
def test_a_number_that_is_missing_leaves_as_the_middle_of_its_bounds(mechanism: Literal["bins", "laplace"]) -> None:
    privacy = LabelPrivacy(epsilon=1.0, mechanism=mechanism, bounds=(-1.0, 3.0))
    draws = uniform(1000)
    missing, middle = (privatise(np.full(1000, value), privacy, None, draws) for value in (np.nan, 1.0))
    np.testing.assert_array_equal(missing, middle)


@pytest.mark.parametrize("mechanism", ["bins", "laplace"])
def test_a_number_beyond_its_bounds_leaves_as_the_nearer_of_them(mechanism: Literal["bins", "laplace"]) -> None:
    privacy = LabelPrivacy(epsilon=1.0, mechanism=mechanism, bounds=(-1.0, 3.0))
    draws = uniform(1000)
    for far, end in ((-900.0, -1.0), (900.0, 3.0)):
        beyond, at = (privatise(np.full(1000, value), privacy, None, draws) for value in (far, end))
        np.testing.assert_array_equal(beyond, at)


def test_numbers_at_the_two_ends_of_their_bounds_leave_with_nearly_the_same_chances() -> None:
    """P(seen | low) is within e^ε of P(seen | high), wherever it is seen, and ε is not given away."""
    privacy = LabelPrivacy(epsilon=1.0, mechanism="laplace", bounds=(-1.0, 3.0))
    edges, draws = np.linspace(-6.0, 8.0, 15), uniform()
    low, high = (np.histogram(privatise(np.full(ROWS, end), privacy, None, draws), edges)[0] for end in (-1.0, 3.0))
    ratio = np.abs(np.log(low / high))
    assert 0.9 < ratio.max() < 1.0 + 0.1


def test_a_class_that_is_missing_leaves_as_any_class_alike() -> None:
    privacy = LabelPrivacy(epsilon=3.0)
    seen = privatise(np.full(ROWS, np.nan), privacy, 4, uniform())
    assert np.allclose(np.bincount(seen.astype(np.intp), minlength=4) / ROWS, 0.25, atol=4.5 * 0.5 / math.sqrt(ROWS))


@pytest.mark.parametrize("epsilon", [0.015, 1.001, 2.999, 1.0000011, 0.0001])
def test_an_epsilon_that_is_almost_another_draws_no_labels_anew(epsilon: float) -> None:
    with pytest.raises(JobError, match=r"label\.epsilon must be a multiple of 0\.01"):
        LabelPrivacy(epsilon=epsilon)
    assert LabelPrivacy(epsilon=round(epsilon, 2) or 0.01).epsilon > 0


def test_a_number_without_bounds_is_refused() -> None:
    with pytest.raises(PrivacyError, match="needs public bounds"):
        channel_of(LabelPrivacy(epsilon=1.0), None)


def test_accuracy_and_area_on_noisy_labels_are_corrected() -> None:
    generator = np.random.default_rng(1)
    truth = (generator.random(ROWS) < 0.3).astype(np.float64)
    guess = np.where(generator.random(ROWS) < 0.8, truth, 1 - truth)
    channel = channel_of(LabelPrivacy(epsilon=2.0), 2)
    noisy = privatise(truth, LabelPrivacy(epsilon=2.0), 2, uniform())
    assert channel.accuracy(float((guess == noisy).mean())) == pytest.approx((guess == truth).mean(), abs=0.015)
    scores = truth + generator.normal(size=ROWS)
    area = [scipy.stats.mannwhitneyu(scores[y == 1], scores[y == 0]).statistic for y in (truth, noisy)]
    true_area, seen = (a / ((y == 1).sum() * (y == 0).sum()) for a, y in zip(area, (truth, noisy), strict=True))
    assert channel.auc(seen, float(noisy.mean())) == pytest.approx(true_area, abs=0.015)


def test_a_label_that_changes_gets_another_draw_and_no_other_row_does() -> None:
    """With a draw that is the row's alone, a label before and after a change is known wherever it was flipped twice."""
    ids = np.stack([np.arange(3000, dtype=np.uint64), np.zeros(3000, np.uint64)], axis=1)
    before = np.arange(3000.0) % 2
    changed = before.copy()
    changed[:1000] = 1.0 - changed[:1000]
    first, second = (uniform_numbers(SECRET, "labels", ids, labels) for labels in (before, changed))
    assert (first[1000:] == second[1000:]).all()
    assert not (first[:1000] == second[:1000]).any()
    assert abs(np.corrcoef(first[:1000, 0], second[:1000, 0])[0, 1]) < 5 / np.sqrt(1000)
