"""ADMM's θ-step of a neural model under feature privacy: the plain one, but for clip, noise and samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
from tests.algorithms.neural_join import JOINS, federation
from tests.privacy.test_runs import Tap

import tablepuppet as tp
from tablepuppet.algorithms.admm import client as admm_client
from tablepuppet.algorithms.admm.client import AdmmUpdate, LocalStep
from tablepuppet.algorithms.base import PartSetup, PrivateGradient
from tablepuppet.algorithms.numerics.optimizers import Moments
from tablepuppet.arrays import Array
from tablepuppet.errors import PrivacyError
from tablepuppet.exchanges.registry import RESPONSES
from tablepuppet.exchanges.start import Started
from tablepuppet.models.linear import Features
from tablepuppet.models.modules import build_module
from tablepuppet.models.neural import NeuralModel
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.gaussian import GradientPrivacy, secure_generator
from tablepuppet.protocol.base import Predictions
from tablepuppet.protocol.codec import decode

pytest.importorskip("torch")
ROWS, JOINED, ALARM = 40, 100, 1e-8
QUERY = JOINS["one-to-many"].format(y="number")
FEATURES: dict[str, Any] = {"noise": 3.0, "cap": 20, "bounds": {"q": (-4, 4), "t": (-4, 4), "price": (-4, 4)}}


def model(rows: Array, dtype: str = "float64") -> NeuralModel:
    spec = ModelSpec(kind="mlp", hidden=(5,), activation="tanh", dtype=dtype)  # type: ignore[arg-type]
    given = Features(np.ascontiguousarray(rows), (), np.arange(3), (), 3)
    module = build_module(spec, 3, 1, seed=1, name="t")
    exists = np.zeros(len(rows), np.bool_)
    return NeuralModel.of(module, spec, given, given, 1, missing=(exists, exists), stream=0)


def part_of(rows: Array, weights: Array, clients: int, privacy: GradientPrivacy | None, dtype: str) -> PartSetup:
    private = None if privacy is None else PrivateGradient(privacy, secure_generator())
    return PartSetup(model(rows, dtype), weights, weights, 1, 2, clients, JOINED, l2=0.01, private=private)


def setup(clients: int = 1, privacy: GradientPrivacy | None = None, dtype: str = "float64") -> PartSetup:
    generator = np.random.default_rng(0)
    weights = generator.integers(1, 5, ROWS).astype(np.float64)
    return part_of(generator.normal(size=(ROWS, 3)), weights, clients, privacy, dtype)


def theta_step(part: PartSetup, options: tp.Admm) -> Array:
    """Two outer rounds."""
    state, _ = admm_client.client_start(part, options)
    for outer in range(2):
        signal = np.random.default_rng(outer).normal(size=(ROWS, 1))
        update = AdmmUpdate(job="j", part=0, signal=signal, factor=0.8, union_rho=0.3, coefficients=None)
        state, answer = admm_client.client_step(part, options, state, update)
        assert isinstance(answer, Predictions)
    return state.theta


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_noise_and_with_a_huge_clip_it_is_the_plain_step(optimizer: str) -> None:
    options = tp.Admm(
        local_epochs=4,
        local_batch_size=ROWS,
        local_optimizer=optimizer,  # type: ignore[arg-type]
        local_learning_rate=0.05,
        inner_rounds=2,
    )
    privacy = GradientPrivacy(clip=1e12, noise=0.0, steps=4, rate=1.0, limit=1000, learning_rate=0.05)
    private, plain = theta_step(setup(1, privacy), options), theta_step(setup(1), options)
    assert np.abs(private - setup().model.initial()).max() > 1e-3
    np.testing.assert_allclose(private, plain, atol=1e-10)


@pytest.mark.parametrize("clip", [0.05, 2.0])
def test_removing_a_base_row_moves_a_step_by_at_most_the_clip(clip: float) -> None:
    """The slope of a row is Y + MρG h: clipped after both are added, and before the penalty is."""
    generator = np.random.default_rng(3)
    rows, signal = generator.normal(size=(ROWS, 3)), 50.0 * generator.normal(size=(ROWS, 1))
    weights = generator.integers(1, 200, ROWS).astype(np.float64)
    privacy = GradientPrivacy(clip=clip, noise=0.0, steps=1, rate=1.0, limit=1)

    def after(kept: Any) -> Array:
        part = part_of(rows[kept], weights[kept], 1, privacy, "float64")
        theta = part.model.initial()
        assert part.private is not None
        step = LocalStep(part.model, part.private, signal[kept], weights[kept], JOINED, 0.3)
        return step.solve(theta, Moments.zero(theta, "sgd"), 1.0, "sgd")[0]

    whole = after(np.arange(ROWS))
    moves = [np.linalg.norm(whole - after(np.delete(np.arange(ROWS), k))) * JOINED for k in range(ROWS)]
    assert 0.5 * clip < max(moves) <= clip * (1 + 1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_local_step_carries_noise_of_the_planned_deviation(dtype: str) -> None:
    privacy = GradientPrivacy(clip=0.5, noise=4.0, steps=1, rate=0.25, limit=400)
    part = setup(1, privacy, dtype)
    assert part.private is not None
    theta = part.model.initial()
    step = LocalStep(part.model, part.private, np.zeros((ROWS, 1)), np.zeros(ROWS), JOINED, 0.0)
    moves = [step.solve(theta, Moments.zero(theta, "sgd"), 1.0, "sgd")[0] - theta for _ in range(400)]
    drawn = np.stack(moves).astype(np.float64) / (0.5 * 4.0 / (0.25 * JOINED))
    assert moves[0].dtype == dtype
    tails = scipy.stats.chi2(drawn.size).ppf([ALARM / 2, 1 - ALARM / 2]) / drawn.size
    assert tails[0] < float((drawn**2).mean()) < tails[1]
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 6 / np.sqrt(drawn.size)
    with pytest.raises(PrivacyError, match="covers 400 noisy gradients"):
        step.solve(theta, Moments.zero(theta, "sgd"), 1.0, "sgd")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("algorithm", ["admm", "sgd"])
def test_a_private_run_takes_as_many_noisy_steps_as_the_ledger_says(algorithm: str, clients: int) -> None:
    given: dict[str, Any] = {"epochs": 2, "batch_size": 100, "hidden": (4,)}
    if algorithm == "admm":
        given["inner_rounds"] = 3
    features = FEATURES | {"local_steps": 5}
    with federation(clients) as owner:
        taken: list[int] = []

        def note(_: Any) -> None:
            parts = [p for c in owner._clients.values() for p in c.parts.values()]
            taken[:] = [p.setup.private.taken for p in parts if p.setup is not None and p.setup.private is not None]

        privacy = {"features": features, "allow_reconstruction": True}
        result = owner.train(
            QUERY, label="number", model="mlp", algorithm=algorithm, privacy=privacy, on_round=note, **given
        )
        spent = [s for c in owner._clients.values() for s in c.log.account.spendings if s.what == "features"]
    releases = [r for r in result.privacy.releases if r.observer == "outsider"]
    rounds = -(-result.plan.mapping.train_rows // 100)
    # three inner rounds share five steps: two each
    expected = 2 * (3 * 2 if clients > 1 else 5) if algorithm == "admm" else 2 * rounds
    assert {r.steps for r in releases} == set(taken) == {s.steps for s in spent} == {expected}
    own = [r.noise for r in releases if r.scope != "others"]
    assert own == pytest.approx([3.0] * len(own))
    assert {s.noise for s in spent} == {r.noise for r in releases}
    assert np.isfinite(result.objective)


def test_the_sample_of_a_local_step_is_the_clients_secret_and_so_amplifies_towards_the_server() -> None:
    with federation() as owner:
        features = {"epsilon": 3.0, "sample": 0.1, "cap": 20, "bounds": FEATURES["bounds"]}
        privacy = {"features": features, "predictions": {"mode": "local", "epsilon": 8.0}}
        plan = owner.explain(QUERY, label="number", model="mlp", algorithm="admm", epochs=3, privacy=privacy)
    own = [r for r in plan.ledger.releases if r.table == "items" and r.scope == "own"]
    seen = {r.observer: r for r in own}
    assert seen["server"].sampling == seen["outsider"].sampling == "poisson"
    assert seen["server"].rate == seen["outsider"].rate == 0.1
    assert seen["server"].steps == 3 * 20
    assert seen["server"].spent() == seen["outsider"].spent()
    # what a row does to other tables is not sampled, and is counted for all tables' rows alike
    found = [plan.ledger.epsilon("features", table, "outsider") for table in ("items", "orders")]
    assert max(found) == pytest.approx(3, rel=0.03)
    assert "noisy local steps" in str(plan)


def test_a_network_is_first_shown_to_the_server_under_noise_where_predictions_are_local() -> None:
    with federation() as owner:
        tap = Tap(owner)
        local = {"predictions": {"mode": "local", "epsilon": 1.0, "bound": 1.0}}
        owner.train(QUERY, label="number", model="mlp", algorithm="admm", epochs=1, privacy=local)
        first = [a.values for a in (decode(f, RESPONSES) for f in tap.up) if isinstance(a, Started)]
    assert len(first) == 2
    assert all(v is not None and np.abs(v).max() > 5.0 for v in first)
