"""The compiled losses equal the plain ones, and their elementary functions the C library's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tablepuppet.models import jit
from tablepuppet.models.jit import kernel
from tablepuppet.models.losses import Logistic, Loss, Softmax
from tablepuppet.models.losses.logistic_compiled import CompiledLogistic
from tablepuppet.models.losses.softmax_compiled import CompiledSoftmax

PAIRS: list[tuple[Loss, Loss]] = [
    (Logistic(), CompiledLogistic()),
    (Softmax(3), CompiledSoftmax(3)),
    (Softmax(2, np.array([[1.4, -0.4], [-0.4, 1.4]])), CompiledSoftmax(2, np.array([[1.4, -0.4], [-0.4, 1.4]]))),
]
IDS = ["logistic", "softmax", "debiased"]


@kernel
def _each(
    x: NDArray[np.float64], exponential: NDArray[np.float64], soft: NDArray[np.float64], single: NDArray[np.float32]
) -> None:
    for j in range(len(x)):
        single[j] = jit.exp_single(np.float32(x[j]))
        exponential[j] = jit.exp(x[j])
        soft[j] = jit.log1p_exp(x[j])


def test_elementary_functions_are_accurate_to_a_few_ulps() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=4000) * 100, rng.normal(size=4000), [0.0, -700.0, 700.0]]).clip(-700, 700)
    exponential, soft, single = np.empty_like(x), np.empty_like(x), np.empty(len(x), np.float32)
    _each(x, exponential, soft, single)
    np.testing.assert_allclose(exponential, np.exp(x), rtol=5e-16)
    np.testing.assert_allclose(soft, np.logaddexp(0.0, x), rtol=1e-15)
    np.testing.assert_allclose(single, np.exp(x.astype(np.float32).astype(float).clip(-87, 87)), rtol=4e-7)


@pytest.mark.parametrize(("plain", "compiled"), PAIRS, ids=IDS)
@pytest.mark.parametrize("rows", [0, 1, 255, 600])
def test_compiled_losses_equal_plain_ones(plain: Loss, compiled: Loss, rows: int) -> None:
    rng = np.random.default_rng(rows)
    scores = rng.normal(size=(rows, plain.outputs)) * 5
    labels = rng.integers(0, max(2, plain.outputs), rows).astype(float)
    np.testing.assert_allclose(compiled.value(scores, labels), plain.value(scores, labels), atol=1e-13)
    np.testing.assert_allclose(compiled.gradient(scores, labels), plain.gradient(scores, labels), atol=1e-14)
    np.testing.assert_allclose(compiled.curvature(scores, labels), plain.curvature(scores, labels), atol=1e-14)
    vectors = rng.normal(size=(rows, 2, plain.outputs))
    curved = compiled.hessian_product(scores, labels, vectors), plain.hessian_product(scores, labels, vectors)
    np.testing.assert_allclose(*curved, atol=1e-13)


@pytest.mark.parametrize(("plain", "compiled"), PAIRS, ids=IDS)
@pytest.mark.parametrize("wants_curvature", [False, True])
def test_derivatives_in_one_pass_are_those_of_each_function(plain: Loss, compiled: Loss, wants_curvature: bool) -> None:
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(600, plain.outputs)) * 5
    labels = rng.integers(0, max(2, plain.outputs), 600).astype(float)
    for loss in (plain, compiled):
        total, gradient, curvature = loss.derivatives(scores, labels, wants_curvature=wants_curvature)
        assert total == pytest.approx(plain.value(scores, labels).sum(), rel=1e-13)
        assert total == loss.total(scores, labels)
        np.testing.assert_allclose(gradient, plain.gradient(scores, labels), atol=1e-14)
        assert (curvature is not None) == wants_curvature
        if curvature is not None:
            np.testing.assert_allclose(curvature, plain.curvature(scores, labels), atol=1e-14)


@pytest.mark.parametrize(("plain", "compiled"), PAIRS, ids=IDS)
@pytest.mark.parametrize("rho", [1e-4, 0.1, 30.0])
def test_proximal_maps_are_stationary_wherever_they_start(plain: Loss, compiled: Loss, rho: float) -> None:
    rng = np.random.default_rng(1)
    shape = (600, plain.outputs)
    labels = rng.integers(0, max(2, plain.outputs), shape[0]).astype(float)
    for spread in (1.0, 40.0):
        centre, start = rng.normal(size=shape) * spread, rng.normal(size=shape) * spread
        for loss in (plain, compiled):
            u = loss.proximal(centre, rho, labels, start)
            slope = loss.gradient(u, labels) + rho * (u - centre)
            np.testing.assert_allclose(slope, 0.0, atol=1e-9 * (1.0 + rho))
