"""How far one base row moves all sums of a run: no further than the ledger counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tablepuppet as tp
from tablepuppet.algorithms.admm.algorithm import ALGORITHM as ADMM
from tablepuppet.algorithms.admm.client import Admm
from tablepuppet.algorithms.admm.server import join_step, opening_step
from tablepuppet.algorithms.noise import WholeModel
from tablepuppet.models.losses import Logistic, Loss, Squared, Weighted
from tablepuppet.models.losses.classes import Softmax
from tablepuppet.models.losses.numbers import Huber, Quantile
from tablepuppet.privacy.accounting import Mechanism, composed_epsilon, participation, replacement_epsilon
from tablepuppet.privacy.gaussian import clip_scale
from tablepuppet.protocol.base import Predictions

LOSSES: list[Loss] = [Squared(), Logistic(), Huber(0.7), Quantile(0.3), Softmax(3)]


def labels(loss: Loss, rows: int, chance: np.random.Generator) -> Any:
    return chance.integers(0, 3 if loss.outputs > 1 else 2, rows).astype(float)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@given(move=st.floats(0.01, 5), seed=st.integers(0, 10**6))
def test_a_slope_changes_no_more_than_its_loss_says(loss: Loss, move: float, seed: int) -> None:
    chance = np.random.default_rng(seed)
    scores = chance.normal(size=(50, loss.outputs), scale=2)
    away = chance.normal(size=scores.shape)
    away *= move / np.linalg.norm(away, axis=1, keepdims=True)
    y = labels(loss, 50, chance)
    change = np.linalg.norm(loss.gradient(scores + away, y) - loss.gradient(scores, y), axis=1)
    assert change.max() <= loss.slope_change(move) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("change", "most"), [(0.0, 0.0), (0.5, 1.0), (2.9, 5.8), (3.0, 6.0), (9.0, 6.0), (np.inf, 6.0)]
)
def test_another_tables_row_moves_a_clipped_share_to_any_other_at_the_most(change: float, most: float) -> None:
    """By so much for each unit of its signal (2) as the signal changes, and from C = 3 to −C where that is less."""
    blocks: list[Any] = [SimpleNamespace(reach=2.0)]
    assert WholeModel(blocks, [3.0], change, 1.0).across(0) == pytest.approx(most)


@pytest.mark.parametrize(
    ("loss", "rho", "change"),
    [
        (Squared(), 0.4, 1.0),
        (Squared(), 2.0, 5.0 / 3.0),
        (Logistic(), 0.4, 0.25),
        (Softmax(3), 0.4, 0.5 * np.sqrt(2.0)),
    ],
    ids=str,
)
def test_the_signal_of_admm_changes_by_these_figures(loss: Loss, rho: float, change: float) -> None:
    for weight, move in ((1.0, 1.0), (1.0, 0.5)):
        found = ADMM.signal_change(Admm(rho=rho), loss, move, weight, is_linear=True)
        assert found == pytest.approx(change * weight * move)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@given(
    move=st.floats(0.01, 3),
    rho=st.floats(0.02, 5),
    weight=st.floats(0.1, 4),
    seed=st.integers(0, 10**6),
    is_steady=st.booleans(),
)
def test_the_signal_of_admm_changes_no_more_than_it_says_in_any_round(
    loss: Loss, move: float, rho: float, weight: float, seed: int, is_steady: bool
) -> None:
    """Two histories of scores that lie within `move` of each other in every round."""
    chance = np.random.default_rng(seed)
    rows, options = 30, Admm(rho=rho).for_private_run()
    weighted = Weighted(loss, np.full(rows, weight))
    y, given = labels(loss, rows, chance), {"intercept": np.zeros(loss.outputs), "before": np.zeros(loss.outputs)}
    shards = [SimpleNamespace(labels=y, state={"u": np.zeros((rows, loss.outputs))}) for _ in range(2)]
    if not loss.is_smooth:
        for shard in shards:
            shard.state["dual"] = np.zeros((rows, loss.outputs))
    allowed = ADMM.signal_change(options, loss, move, weight, is_linear=True)
    away = np.zeros((rows, loss.outputs))
    for number in range(8):
        scores = chance.normal(size=(rows, loss.outputs))
        if number == 0 or not is_steady:
            away = chance.normal(size=scores.shape)
            away *= move / np.linalg.norm(away, axis=1, keepdims=True)
        for shard, moved in zip(shards, (scores, scores + away), strict=True):
            shard.scores = moved
        if number == 0:
            for shard in shards:
                opening_step(shard, intercept=given["intercept"])
            continue
        steps = [
            join_step(shard, loss=weighted, rho=rho * loss.typical_curvature, relax=options.relax, **given)
            for shard in shards
        ]
        first, second = (step[0][0] for step in steps)
        assert np.linalg.norm(first - second, axis=1).max() <= allowed * (1 + 1e-6)


@settings(max_examples=2 * settings().max_examples)
@given(clip=st.floats(0.1, 5), reach=st.floats(0.1, 5), seed=st.integers(0, 10**6))
def test_a_rows_share_moves_with_its_signal_by_at_most_the_reach(clip: float, reach: float, seed: int) -> None:
    chance = np.random.default_rng(seed)
    x, signals = 3 * chance.normal(size=(40, 5)), chance.normal(size=(2, 40, 2))
    norms = np.linalg.norm(x, axis=1)
    shares = [np.einsum("kd,kc->kdc", x, s * clip_scale(s, norms, clip, reach)[:, None]) for s in signals]
    moved = np.linalg.norm((shares[0] - shares[1]).reshape(40, -1), axis=1)
    assert (moved <= reach * np.linalg.norm(signals[0] - signals[1], axis=1) * (1 + 1e-9)).all()
    assert (moved <= 2 * clip * (1 + 1e-9)).all()


def test_a_mixture_over_joined_rows_lies_between_what_it_always_and_what_it_never_moves() -> None:
    plain = composed_epsilon((Mechanism(4.0, 50, 0.05, 10),), 1e-5)
    mixed = composed_epsilon((Mechanism(4.0, 50, 0.05, 10, 0.05),), 1e-5)
    always = composed_epsilon((Mechanism(1 / np.hypot(0.25, 0.5), 50, participation(0.05, 10)),), 1e-5)
    assert plain < mixed < always
    once = composed_epsilon((Mechanism(4.0, 50, 0.05, 1, 0.1),), 1e-5)  # one joined row: a mixture of two
    assert once == pytest.approx(composed_epsilon((Mechanism(1 / np.hypot(0.25, 0.1), 50, 0.05),), 1e-5), rel=5e-3)


@pytest.mark.parametrize("probability", [1.0, 0.1])
def test_another_row_in_its_place_costs_more_than_none(probability: float) -> None:
    mechanisms = (Mechanism(5.0, 20, probability, 3, 0.02),)
    zeroed, replaced = (found(mechanisms, 1e-5) for found in (composed_epsilon, replacement_epsilon))
    assert 1.9 * zeroed < replaced < 4 * zeroed


@pytest.mark.parametrize(
    "given",
    [
        {"algorithm": "sgd", "batch_size": None},
        {"algorithm": "admm"},
        pytest.param({"algorithm": "sgd"}, marks=pytest.mark.slow),  # batches take the accountant ten seconds
    ],
)
def test_predictions_leave_within_bounds_that_follow_from_labels(given: dict[str, Any]) -> None:
    chance = np.random.default_rng(0)
    users = pa.table({"k": np.arange(100), "x": chance.uniform(-1, 1, 100)})
    rides = pa.table({"k": np.arange(300) % 100, "z": chance.uniform(-1, 1, 300)})
    rides = rides.append_column("y", pa.array(1e4 * (rides["z"].to_numpy() + chance.normal(size=300))))
    features = {"epsilon": 50.0, "cap": 3, "bounds": {"x": (-1, 1), "z": (-1, 1)}}
    privacy = {"features": features, "allow_reconstruction": True}
    query, shown = "SELECT u.x, r.z, r.y FROM rides r JOIN users u ON r.k = u.k", []
    with tp.Federation({"users": users, "rides": rides}) as federation:
        for client in federation._clients.values():

            def answer(message: Any, inner: Any = client.answer) -> Any:
                found = inner(message)
                if isinstance(found, Predictions):
                    shown.append(float(np.abs(found.values).max()))
                return found

            client.answer = answer  # type: ignore[method-assign]
        result = federation.train(query, label="y", epochs=3, privacy=privacy, **given)
    bound = result.plan.private.noise.gradients[0]
    assert bound is not None
    assert bound.prediction_bound == pytest.approx(0.5 * np.std(rides["y"].to_numpy()), rel=0.1)
    assert 0 < max(shown) <= bound.prediction_bound * (1 + 1e-9)


@pytest.mark.parametrize(("meets", "spreads"), [(1, 1.5), (2, 0.5)])
def test_predictions_have_more_room_where_no_row_is_joined_twice(meets: int, spreads: float) -> None:
    chance = np.random.default_rng(0)
    left = pa.table({"k": np.arange(200), "x": chance.uniform(-1, 1, 200), "y": chance.normal(size=200)})
    right = pa.table({"k": np.arange(200) // meets})
    right = right.append_column("z", pa.array(chance.uniform(-1, 1, 200)))
    features = {"epsilon": 5.0, "bounds": {"x": (-1, 1), "z": (-1, 1)}}
    given = {"features": features, "allow_reconstruction": True}
    with tp.Federation({"l": left, "r": right}) as owners:
        query = "SELECT l.x, r.z, l.y FROM l JOIN r ON l.k = r.k"
        plan = owners.explain(query, label="y", algorithm="sgd", batch_size=None, privacy=given)
    found = plan.private.noise.gradients[0]
    assert found is not None
    assert found.prediction_bound == pytest.approx(spreads * np.std(left["y"].to_numpy()), rel=0.15)
