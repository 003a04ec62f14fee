"""Losses: derivatives agree with finite differences, proximal maps with their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tablepuppet.models.losses import LOSSES as ALL
from tablepuppet.models.losses import Logistic, Loss, Squared
from tablepuppet.models.losses.base import newton_proximal
from tablepuppet.models.losses.classes import Softmax
from tablepuppet.models.losses.numbers import Gamma, Huber, Poisson, Quantile

NUMBERS: list[Loss] = [Squared(), Poisson(30.0, 2.0), Gamma(30.0, 2.0), Huber(0.7), Quantile(0.3)]
LOSSES: list[Loss] = [*NUMBERS, Logistic(), Softmax(4)]
NAMES = [loss.name for loss in LOSSES]
SMOOTH = [loss for loss in LOSSES if loss.is_smooth]
WITH_HESSIAN = [loss for loss in SMOOTH if not isinstance(loss, Huber)]


def test_every_loss_in_the_list_is_tested_here() -> None:
    assert {type(loss) for loss in LOSSES} >= set(ALL)


def labels_for(loss: Loss, rows: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rng = np.random.default_rng(1)
    if isinstance(loss, Poisson):
        return rng.poisson(2.0, rows).astype(np.float64)
    if isinstance(loss, Gamma):
        return rng.gamma(2.0, size=rows)
    if loss.task == "number":
        return rng.normal(size=rows)
    return rng.integers(0, 2 if loss.outputs == 1 else loss.outputs, rows).astype(np.float64)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_gradient_and_curvature_agree_with_finite_differences(loss: Loss) -> None:
    scores = np.random.default_rng(0).normal(size=(50, loss.outputs)) * 3
    labels = labels_for(loss, 50)
    step = 1e-5
    for c in range(loss.outputs):
        up, down = scores.copy(), scores.copy()
        up[:, c] += step
        down[:, c] -= step
        slope = (loss.value(up, labels) - loss.value(down, labels)) / (2 * step)
        np.testing.assert_allclose(loss.gradient(scores, labels)[:, c], slope, rtol=1e-6, atol=1e-7)
        bend = (loss.gradient(up, labels)[:, c] - loss.gradient(down, labels)[:, c]) / (2 * step)
        found = loss.curvature(scores, labels)[:, c]
        if loss in WITH_HESSIAN:
            np.testing.assert_allclose(found, bend, rtol=1e-6, atol=1e-7)
        elif loss.is_smooth:
            assert (found >= bend - 1e-7).all()
    if not isinstance(loss, Poisson | Gamma):
        assert float(loss.curvature(scores, labels).max()) <= loss.bound + 1e-12


@pytest.mark.parametrize("loss", WITH_HESSIAN, ids=lambda loss: loss.name)
def test_the_hessian_along_directions_agrees_with_finite_differences(loss: Loss) -> None:
    rng = np.random.default_rng(2)
    scores, directions = rng.normal(size=(40, loss.outputs)), rng.normal(size=(40, loss.outputs, 3))
    labels = labels_for(loss, 40)
    step = 1e-5

    def slope(at: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.asarray(np.einsum("jc,jcq->q", loss.gradient(at, labels), directions))

    expected = np.stack(
        [
            (slope(scores + step * directions[:, :, q]) - slope(scores - step * directions[:, :, q])) / (2 * step)
            for q in range(3)
        ]
    )
    vectors = directions.transpose(0, 2, 1)
    found = np.einsum("jpc,jqc->pq", vectors, loss.hessian_product(scores, labels, vectors))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@given(
    centre=arrays(np.float64, (6, 4), elements=st.floats(-60, 60)),
    start=arrays(np.float64, (6, 4), elements=st.floats(-60, 60)),
    rho=st.floats(1e-3, 1e3),
)
def test_the_proximal_map_satisfies_its_definition_from_any_start(
    loss: Loss,
    centre: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    start: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    rho: float,
) -> None:
    width = loss.outputs
    labels = labels_for(loss, 6)
    u = loss.proximal(centre[:, :width].copy(), rho, labels, start[:, :width].copy())
    if loss.is_smooth:
        stationary = loss.gradient(u, labels) + rho * (u - centre[:, :width])
        assert float(np.abs(stationary).max()) <= 1e-7 * max(1.0, rho, float(loss.curvature(u, labels).max()))
    else:  # no slope vanishes at a kink: those on both sides enclose 0
        below, above = (loss.gradient(u + e, labels) + rho * (u - centre[:, :width]) for e in (-1e-7, 1e-7))
        assert float(below.max()) <= 1e-7 * max(1.0, rho)
        assert float(above.min()) >= -1e-7 * max(1.0, rho)


@given(
    centre=arrays(np.float64, (6, 1), elements=st.floats(-60, 60)),
    start=arrays(np.float64, (6, 1), elements=st.floats(-800, 800)),
    rho=st.floats(1e-3, 1e3),
)
def test_newton_finds_the_proximal_map_of_any_convex_loss_of_one_output(
    centre: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    start: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    rho: float,
) -> None:
    for loss in (Squared(), Logistic(), Poisson(), Gamma(), Huber(0.7)):
        labels = labels_for(loss, 6)
        found = newton_proximal(loss, centre, rho, labels, start)
        slope = loss.gradient(found, labels) + rho * (found - centre)
        assert float(np.abs(slope).max()) <= 1e-6 * max(1.0, rho, float(loss.curvature(found, labels).max()))


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_no_constant_is_better_than_the_best_one(loss: Loss) -> None:
    labels, weights = labels_for(loss, 200), np.random.default_rng(5).uniform(size=200)
    best = loss.best_constant(labels, weights)
    moves = np.concatenate([np.zeros((1, loss.outputs)), *(0.01 * s * np.eye(loss.outputs) for s in (-1, 1))])
    costs = [float(weights @ loss.value(np.tile(best + move, (200, 1)), labels)) for move in moves]
    assert costs[0] <= min(costs[1:])


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@pytest.mark.parametrize("rows", [0, 1, 511, 512, 1300])
@pytest.mark.parametrize("size", [1e-9, 3.0, 800.0])
def test_the_total_is_the_sum_over_rows(loss: Loss, rows: int, size: float) -> None:
    scores = np.random.default_rng(rows).normal(size=(rows, loss.outputs)) * size
    if isinstance(loss, Poisson | Gamma):
        scores = np.clip(scores, -600.0, 600.0)
    labels = labels_for(loss, rows)
    assert loss.total(scores, labels) == pytest.approx(loss.value(scores, labels).sum(), rel=1e-13, abs=1e-300)


def test_extreme_scores_do_not_overflow() -> None:
    scores = np.array([[-800.0], [800.0]])
    assert np.isfinite(Logistic().value(scores, np.array([0.0, 1.0]))).all()
    wide = np.array([[-800.0, 800.0, 0.0, 0.0]])
    assert np.isfinite(Softmax(4).value(wide, np.array([1.0]))).all()


def test_soft_targets_debias_softmax_labels() -> None:
    p, q = 0.8, 0.1
    targets = (np.eye(3) - q) / (p - q)
    soft, hard = Softmax(3, targets), Softmax(3)
    scores = np.random.default_rng(3).normal(size=(3, 3))
    noisy = np.full((3, 3), q) + (p - q) * np.eye(3)  # P(reported | true)
    expected = np.array([hard.gradient(scores[[k]], np.array([float(k)]))[0] for k in range(3)])
    reported = np.stack([soft.gradient(scores, np.full(3, float(c))) for c in range(3)], axis=1)
    np.testing.assert_allclose(np.einsum("kc,kcd->kd", noisy, reported), expected, atol=1e-12)
