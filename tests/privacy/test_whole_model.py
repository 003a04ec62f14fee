"""Audits of the whole released model, in one run each (Steinke, Nasr and Jagielski, 2023): own and partner tables.

Every canary is a base row whose features are there or zero. It has a column of its own in its table, and each of its κ
joined rows falls on a row of another table that shares a column with no other canary's: what the canary does to other
tables' parameters, through predictions and the signal, shows there. Guesses come from both."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

import tablepuppet as tp
from tablepuppet.algorithms.noise import WholeModel
from tablepuppet.privacy.gaussian import GradientPrivacy

EPSILON, DELTA = 1.0, 1e-5
QUERY = "SELECT u.v, f.group_name, f.y FROM f JOIN u ON f.k = u.k"


def found_epsilon(right: int, guesses: int, alarm: float) -> float:
    """The least ε at which so many right guesses are not a surprise: a lower bound of the true one."""
    low, high = 0.0, 20.0
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        chance = scipy.stats.binom.sf(right - 1, guesses, 1.0 / (1.0 + math.exp(-middle)))
        low, high = (middle, high) if chance < alarm else (low, middle)
    return low


def slices(table: pa.Table, clients: int) -> list[pa.Table]:
    size = -(-table.num_rows // clients)
    return [table.slice(i * size, size) for i in range(clients)]


def audited(name: str, cap: int, clients: int = 1, canaries: int = 300, seed: int = 0, **privacy: Any) -> float:
    """A lower bound of ε of the released model, from one run; too high once in 10⁷ looks."""
    chance = np.random.default_rng(seed)
    is_in = chance.random(canaries) < 0.5
    sign = np.where(chance.random(canaries) < 0.5, 1.0, -1.0)  # of all its labels
    own = np.hstack([4.0 * sign[:, None], np.eye(canaries)]) * is_in[:, None]  # a column for all, and one of its own
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(own.ravel()), canaries + 1)
    keys = np.repeat(np.arange(canaries), cap)
    order = chance.permutation(len(keys))
    tables = {
        "u": pa.table({"k": np.arange(canaries), "v": vectors}),
        "f": pa.table({"k": keys, "group_name": [f"g{k:04}" for k in keys], "y": 3.0 * sign[keys]}).take(order),
    }
    given: dict[str, Any] = {"label": "y", "model": "linear", "test_fraction": 0.0, "l2": 0.0, "standardize": False}
    features: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "cap": cap, "clip": 3.0}
    algorithm: Any = tp.Sgd(learning_rate=0.5 * cap, schedule="constant")  # far beyond what is wise: all shows
    if name == "admm":
        algorithm, features = "admm", features | {"learning_rate": 0.5 * cap, "local_steps": 1}
    batch_size = len(keys) // 4 if name == "sgd in batches" else None
    given |= {"algorithm": algorithm, "epochs": 2 if batch_size else 4, "batch_size": batch_size}
    privacy = {"features": features, "allow_reconstruction": True} | privacy
    with tp.Federation({name: slices(table, clients) for name, table in tables.items()}) as federation:
        result = federation.train(QUERY, privacy=privacy, **given)
    assert max(result.privacy.epsilon("features", t, "outsider") for t in ("u", "f")) <= EPSILON * (1 + 1e-3)
    blocks = {block.name: block.theta[:, 0] for block in result.blocks}
    assert (len(blocks["u"]), len(blocks["f"])) == (canaries + 1, canaries)
    own_scores, partner_scores = sign * blocks["u"][1:], -sign * blocks["f"]
    scores = own_scores / (own_scores.std() or 1.0) + 3.0 * partner_scores / (partner_scores.std() or 1.0)
    best = 0.0
    for found in (own_scores, partner_scores, scores):  # an attacker may take the best; three looks are allowed for
        ranked = np.argsort(found)
        for share in (0.1, 0.25):
            half = max(5, int(share * canaries))
            right = int(is_in[ranked[-half:]].sum() + (~is_in[ranked[:half]]).sum())
            best = max(best, found_epsilon(right, 2 * half, 1e-7))
    return best


@pytest.mark.one_in(7)
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("cap", [5, 20, 100])
@pytest.mark.parametrize("name", ["sgd", "sgd in batches", "admm"])
def test_the_whole_released_model_keeps_its_epsilon(name: str, cap: int, clients: int) -> None:
    assert audited(name, cap, clients) <= EPSILON


@pytest.mark.parametrize("name", ["sgd", "admm"])
def test_with_noisy_predictions_it_keeps_it_too(name: str) -> None:
    assert audited(name, 100, predictions={"mode": "local", "epsilon": 8.0}) <= EPSILON


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "sgd in batches", "admm"])
def test_more_canaries_and_other_runs_find_no_more(name: str) -> None:
    assert max(audited(name, 100, canaries=1200, seed=seed) for seed in range(3)) <= EPSILON


@pytest.mark.parametrize("name", ["sgd", "admm"])
def test_the_audit_catches_noise_that_is_enough_for_the_own_table_only(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WholeModel, "across", lambda self, number: 0.0)
    monkeypatch.setattr(WholeModel, "scales", property(lambda self: list(self.clips)))
    assert audited(name, 100) > 1.5


def test_the_audit_catches_shares_of_noise_that_are_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three clients each brings a fortieth of its share."""
    share = GradientPrivacy.deviation
    monkeypatch.setattr(GradientPrivacy, "deviation", property(lambda self: share.__get__(self) / 40.0))
    assert audited("sgd", 20, clients=3) > 1.5
