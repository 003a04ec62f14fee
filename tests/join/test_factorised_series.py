"""The Fourier series of a loss keeps its promise wherever scores lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.errors import TrainingError
from tablepuppet.join.factorised.series import TILE, fit_series
from tablepuppet.models.losses import Logistic
from tablepuppet.models.losses.base import Analytic


def logistic() -> Analytic:
    core = Logistic().separate(np.zeros(1)).core
    assert isinstance(core, Analytic)
    return core


CORE = logistic()


@given(st.floats(-30, 30), st.floats(0, 30), st.sampled_from([1e-6, 1e-10]))
def test_a_series_keeps_its_promise(low: float, length: float, tolerance: float) -> None:
    series = fit_series(CORE, low, low + length, tolerance)
    scores = np.random.default_rng(0).uniform(low, low + length, 1000)
    slope, curvature, value = series(scores)
    assert series.promise <= tolerance
    np.testing.assert_allclose(slope, CORE.slope(scores), rtol=0.0, atol=1.5 * series.promise)
    np.testing.assert_allclose(curvature, CORE.curvature(scores), rtol=0.0, atol=1.5 * series.promise)
    np.testing.assert_allclose(value, CORE.value(scores), rtol=0.0, atol=1.5 * series.errors[2])
    assert series.frequencies % TILE == 0


@pytest.mark.parametrize(("low", "high", "most"), [(900, 960, 160), (-960, -900, 160), (5000, 5001, 16), (30, 2e5, 0)])
def test_scores_far_from_0_have_a_short_series(low: float, high: float, most: int) -> None:
    if not most:
        with pytest.raises(TrainingError, match="frequencies"):
            fit_series(CORE, low, high)
        return
    series, scores = fit_series(CORE, low, high), np.linspace(low, high, 1000)
    assert series.frequencies <= most
    expected = CORE.slope(scores), CORE.curvature(scores), CORE.value(scores)
    for own, other, error in zip(series(scores), expected, series.errors, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-13, atol=1.5 * error)


@pytest.mark.parametrize(("reach", "most"), [(1, 8), (11, 40), (45, 96), (250, 352), (1500, 1984)])
def test_a_series_is_short(reach: float, most: int) -> None:
    assert fit_series(CORE, -reach, reach).frequencies <= most


def test_scores_that_reach_too_far_are_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tablepuppet.join.factorised.series.MAX_FREQUENCIES", 64)
    with pytest.raises(TrainingError, match=r"from -128 to 128, where no series of 64 frequencies .* raise l2"):
        fit_series(CORE, -120.0, 119.5)
