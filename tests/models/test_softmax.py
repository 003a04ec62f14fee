"""The compiled loops of the softmax loss give what NumPy gives, written as the formulas are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.special import softmax as expected_softmax

from tablepuppet.models.losses import Loss, Weighted
from tablepuppet.models.losses.classes import Softmax

CASES = [Softmax(3), Softmax(2, np.array([[1.4, -0.4], [-0.4, 1.4]]))]
EACH = pytest.mark.parametrize("loss", CASES, ids=["classes", "debiased"])


@EACH
@pytest.mark.parametrize("rows", [0, 1, 255, 600])
def test_value_and_derivatives_are_those_of_the_formulas(loss: Softmax, rows: int) -> None:
    rng = np.random.default_rng(rows)
    scores, labels = rng.normal(size=(rows, loss.classes)) * 5, rng.integers(0, loss.classes, rows).astype(float)
    target = (np.eye(loss.classes) if loss.targets is None else loss.targets)[labels.astype(int)]
    p = expected_softmax(scores, axis=1)
    value = logsumexp(scores, axis=1) - (target * scores).sum(axis=1)
    np.testing.assert_allclose(loss.value(scores, labels), value, atol=1e-13)
    np.testing.assert_allclose(loss.gradient(scores, labels), p - target, atol=1e-14)
    np.testing.assert_allclose(loss.curvature(scores, labels), p * (1.0 - p), atol=1e-14)
    vectors = rng.normal(size=(rows, 2, loss.classes))
    along = (vectors * p[:, None, :]).sum(axis=2, keepdims=True)
    found = loss.hessian_product(scores, labels, vectors)
    np.testing.assert_allclose(found, p[:, None, :] * (vectors - along), atol=1e-13)
    weights, steps = rng.uniform(0.5, 2.0, rows), rng.normal(size=(loss.classes, 2))
    whole = p[:, :, None] * (np.eye(loss.classes) - p[:, None, :])
    first, second = np.triu_indices(loss.classes)
    np.testing.assert_allclose(loss.pairs(scores, labels), whole[:, first, second], atol=1e-13)
    curved = weights[:, None, None] * found
    products, alone = Weighted(loss, weights).summed_products(scores, labels, vectors)
    np.testing.assert_allclose(products, np.einsum("jpc,jqc->pq", vectors, curved), atol=1e-10)
    np.testing.assert_allclose(alone, curved.sum(axis=0), atol=1e-10)
    summed = steps.T @ np.einsum("n,nab->ab", weights, whole) @ steps
    for one in (
        Weighted(loss, weights).summed_hessian(scores, labels, steps),
        Loss.summed_hessian(loss, scores, labels, steps, weights),
    ):
        np.testing.assert_allclose(one, summed, atol=1e-10)
    for wants_curvature in (False, True):
        total, gradient, curvature = loss.derivatives(scores, labels, wants_curvature=wants_curvature)
        assert total == loss.total(scores, labels)
        np.testing.assert_array_equal(gradient, loss.gradient(scores, labels))
        assert (curvature is not None) == wants_curvature


@EACH
@pytest.mark.parametrize("rho", [1e-4, 0.1, 30.0, None], ids=["tiny", "small", "large", "per row"])
def test_proximal_maps_are_stationary_wherever_they_start(loss: Softmax, rho: float | None) -> None:
    rng = np.random.default_rng(1)
    shape = (600, loss.classes)
    labels = rng.integers(0, loss.classes, shape[0]).astype(float)
    penalty = rng.uniform(1e-3, 10.0, (600, 1)) if rho is None else rho
    for spread in (1.0, 40.0):
        centre, start = rng.normal(size=shape) * spread, rng.normal(size=shape) * spread
        u = loss.proximal(centre, penalty, labels, start)
        slope = loss.gradient(u, labels) + penalty * (u - centre)
        np.testing.assert_allclose(slope / (1.0 + penalty), 0.0, atol=1e-9)
