"""An audit in one run (Steinke, Nasr and Jagielski, 2023): canaries that may or may not take part are guessed from the
released model; under ε-DP nobody can guess right much more often than e^ε/(1 + e^ε) of the time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

import tablepuppet as tp
from tablepuppet.algorithms import base
from tablepuppet.models.linear import LinearModel
from tablepuppet.owner import releases
from tablepuppet.privacy.gaussian import noised

EPSILON, CANARIES, GUESSES, ALARM = 1.0, 1200, 360, 1e-4


def surprise(monkeypatch: pytest.MonkeyPatch, seed: int = 0, **options: Any) -> float:
    """How likely so many right guesses are, at most, if the released model is ε-DP."""
    chance = np.random.default_rng(seed)
    monkeypatch.setattr(releases, "secure_generator", lambda: np.random.default_rng(seed + 1))
    is_in = chance.random(CANARIES) < 0.5
    own = np.eye(CANARIES)[is_in]  # each canary has a column of its own
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(own.ravel()), CANARIES)
    table = pa.table({"v": vectors, "k": np.arange(len(own)), "y": chance.random(len(own)) < 0.5})
    label = np.zeros(CANARIES)
    label[is_in] = np.where(table["y"].to_numpy(), 1.0, -1.0)
    given: dict[str, Any] = {"epsilon": EPSILON, "delta": 1e-5, "clip": 0.1} | options
    with tp.Federation({"t": table}) as federation:
        result = federation.train(
            "SELECT t.v, t.y FROM t",
            label="y",
            model="logistic",
            algorithm=tp.Sgd(learning_rate=0.5),
            batch_size=None,
            epochs=4,
            test_fraction=0.0,
            l2=0.0,
            standardize=False,
            privacy={"features": given, "allow_reconstruction": True},
        )
    moved = result.blocks[0].theta[:, 0]
    # the auditor knows each canary's label, and makes up one for those that took no part
    label[~is_in] = np.where(chance.random(int((~is_in).sum())) < 0.5, 1.0, -1.0)
    order = np.argsort(moved * label)
    half = GUESSES // 2
    right = int(is_in[order[-half:]].sum() + (~is_in[order[:half]]).sum())
    return float(scipy.stats.binom.sf(right - 1, GUESSES, math.exp(EPSILON) / (1 + math.exp(EPSILON))))


def test_the_audit_finds_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert surprise(monkeypatch) > ALARM


def test_the_audit_catches_a_quarter_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = noised
    monkeypatch.setattr(base, "noised", lambda values, deviation, generator: plain(values, deviation / 4, generator))
    assert surprise(monkeypatch) < ALARM


def test_the_audit_catches_a_missing_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclipped(self: LinearModel, theta: Any, signal: Any, clip: float, *given: Any) -> Any:
        return self.gradient(theta, signal, *given[:2])

    monkeypatch.setattr(LinearModel, "clipped_gradient", unclipped)
    assert surprise(monkeypatch) < ALARM
