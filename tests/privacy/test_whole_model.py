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
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.algorithms.noise import BlockFacts, RunFacts, RunTerms, WholeModel, plan_noise
from tablepuppet.privacy.accounting import Mechanism, composed_epsilon, gaussian_noise
from tablepuppet.privacy.gaussian import GradientPrivacy
from tablepuppet.privacy.options import FeaturePrivacy, PredictionPrivacy

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


# 20 users with at most 4 of 100 rides each: a row of users has a length of at most √3, one of rides of at most 1.
USERS = BlockFacts("u", "users", ("users",), ("a", "b", "c"), True, 20, 100, 4, 3.0)
RIDES = BlockFacts("r", "rides", ("rides",), ("d",), False, 100, 100, 1, 1.0)
GIVEN = FeaturePrivacy(noise=2.0, clip=1.5, cap=4, sample=0.5, local_steps=20)  # deviations of 3
LOCAL = PredictionPrivacy(mode="local", epsilon=4.0)


def plan(options: Any, *blocks: BlockFacts, predictions: PredictionPrivacy | None = None, **changed: Any) -> Any:
    """The noise of three epochs, in four batches each where there are any; a signal changes by at most 0.2."""
    facts = RunFacts(blocks, rows=100, epochs=3, outputs=1, slope=0.5, bound=0.25, curvature=0.25, change=0.2)
    given = {"options": options, "is_linear": True, "batch": 25, "l2": 0.01, "features": GIVEN, "showings": 7}
    return plan_noise(RunTerms(**(given | {"predictions": predictions or PredictionPrivacy()} | changed)), facts)


@pytest.mark.parametrize(
    ("options", "blocks", "table", "mechanisms"),
    [
        # its own sum moves by 1.5, and a user's rides that of rides by 0.2 each; a ride that of users by 0.2 √3
        (tp.Sgd(), (USERS, RIDES), "users", [(2.0, 12, 0.25, 4, 0.2 / 3)]),
        (tp.Sgd(), (USERS, RIDES), "rides", [(2.0, 12, 0.25, 1, 0.2 * 3**0.5 / 3)]),
        # a table in two blocks moves both in both ways, and noise is shared out between the two
        (
            tp.Sgd(),
            (replace(USERS, tables=("e",)), replace(RIDES, tables=("e",))),
            "e",
            [(1, 12, 0.25, 5, 2**1.5 / 15)],
        ),
        # two places of one block: each has its rides; two rows of a subquery: all rides of both move at once
        (tp.Sgd(), (replace(USERS, tables=("e", "e")), RIDES), "e", [(1.0, 12, 0.25, 8, 0.2 / 3)]),
        (tp.Sgd(), (replace(USERS, tables=("e", "e"), is_derived=True), RIDES), "e", [(1.0, 12, 0.25, 8, 0.4 / 3)]),
        # three rounds of twenty local steps; each of the others sees all of its joined rows
        (tp.Admm(), (USERS, RIDES), "users", [(2.0, 60, 0.5, 1, 0.0), (3.75, 60, 1.0, 1, 0.0)]),
        (tp.Admm(), (USERS, RIDES), "rides", [(2.0, 60, 0.5, 1, 0.0), (5 * 3**0.5, 60, 1.0, 1, 0.0)]),
        (
            tp.Admm(),
            (replace(USERS, tables=("e", "e")), RIDES),
            "e",
            [*2 * [(2**0.5, 60, 0.5, 1, 0.0)], (1.875, 60, 1.0, 1, 0.0)],
        ),
        (
            tp.Admm(),
            (replace(USERS, tables=("e", "e"), is_derived=True), RIDES),
            "e",
            [(1.0, 60, 0.75, 1, 0.0), (0.9375, 60, 1.0, 1, 0.0)],
        ),
    ],
)
def test_a_row_is_charged_for_all_that_it_moves(options: Any, blocks: Any, table: str, mechanisms: Any) -> None:
    found = plan(options, *blocks).spends[table]
    assert [tuple(mechanism) for mechanism in found] == [pytest.approx(one) for one in mechanisms]


def test_each_client_adds_noise_of_the_deviation_that_is_charged() -> None:
    sgd, admm = plan(tp.Sgd(), USERS, RIDES).gradients, plan(tp.Admm(), USERS, RIDES).gradients
    assert [one.deviation for one in (*sgd, *admm)] == [pytest.approx(3 / 2**0.5), 3.0, 3.0, 3.0]  # 2 of 3 are honest
    assert [(one.limit, one.batch_rate, one.steps, one.rate) for one in sgd] == 2 * [(12, 0.25, 1, 1.0)]
    assert [(one.limit, one.batch_rate, one.steps, one.rate) for one in admm] == [(60, 1, 2, 0.5), (60, 1, 20, 0.5)]
    assert [one.reach for one in (*sgd, *admm)] == 2 * [pytest.approx(3**0.5), 1.0]
    assert [one.prediction_bound for one in sgd] == [1.0, 1.0]  # half of the slope over the curvature
    alone = plan(tp.Sgd(), replace(USERS, most=1), RIDES).gradients
    assert [one.prediction_bound for one in alone] == [3.0, 3.0]  # three times that, if no row is joined twice
    for change in ({"is_masked": False}, {"clients": ("a", "b")}):
        [users, _] = plan(tp.Sgd(), replace(USERS, **change), RIDES).gradients
        assert users.deviation == 3.0
    [users, _] = plan(tp.Sgd(), USERS, RIDES, features=replace(GIVEN, shared_noise=False)).gradients
    assert users.deviation == 3.0


def test_predictions_carry_noise_for_every_showing_of_a_row_in_every_place() -> None:
    once = plan(tp.Sgd(), USERS, RIDES, predictions=LOCAL)
    twice = plan(tp.Sgd(), *(replace(one, tables=("e",)) for one in (USERS, RIDES)), predictions=LOCAL, features=None)
    for found, showings in ((once, 7), (twice, 14)):  # any other row in its place moves a prediction from −1 to 1
        for one in found.gradients:
            assert one.prediction_noise == pytest.approx(2.0 * gaussian_noise(4.0, 1e-5, showings, 1.0))
            assert one.prediction_limit == 7
    assert [one.deviation for one in once.gradients] == [3.0, 3.0]  # a client is seen by itself


@pytest.mark.parametrize("options", [tp.Sgd(), tp.Admm()], ids=["sgd", "admm"])
def test_noise_is_just_enough_for_the_rows_of_every_table(options: Any) -> None:
    features = FeaturePrivacy(epsilon=1.0, clip=1.5, cap=4, sample=0.5)
    found = plan(options, USERS, RIDES, features=features, batch=None)
    told = [composed_epsilon(tuple(spends), 1e-5) for spends in found.spends.values()]
    assert 0.99 < max(told) <= 1.001
    assert [one.deviation * one.summed_over**0.5 for one in found.gradients] == [
        pytest.approx(d) for d in found.deviations
    ]


def test_a_rows_joined_rows_move_the_sums_of_others_each() -> None:
    mechanism = Mechanism(2.0, 3, 1.0, 4, 0.25)
    assert mechanism.moved(4) == pytest.approx(1.25**0.5)
    one = Mechanism(1 / 3.75**0.5, 1)  # three times a move of √1.25
    assert composed_epsilon((mechanism,), 1e-5) == pytest.approx(composed_epsilon((one,), 1e-5))
    again = mechanism.scaled(2.0)
    assert again.moved(4) == pytest.approx(0.5 * mechanism.moved(4))


@pytest.mark.parametrize(
    ("options", "changed", "predictions", "shares"),
    [
        (tp.Sgd(), {}, None, 2),  # two of three are honest, if most are
        (tp.Sgd(), {"clients": tuple("abcde")}, None, 3),
        (tp.Sgd(), {"clients": ("a", "b")}, None, 1),
        (tp.Sgd(), {"is_masked": False}, None, 1),  # the server sees each one's sum
        (tp.Sgd(), {}, LOCAL, 1),  # noisy predictions are of single clients
        (tp.Admm(), {}, None, 1),  # a local step is followed by others on the same rows
    ],
)
def test_clients_share_the_noise_of_a_sum_that_nobody_sees_but_as_a_whole(
    options: Any, changed: dict[str, Any], predictions: PredictionPrivacy | None, shares: int
) -> None:
    found = plan(options, replace(USERS, **changed), RIDES, predictions=predictions)
    users, rides = found.gradients
    assert (users.summed_over, rides.summed_over) == (shares, 1)
    told = found.model.releases(found.deviations, hides_predictions=False)
    assert {"noise a share" in one.mechanism for one in told if one.table == "users"} == {shares > 1}
    alone = plan(options, replace(USERS, **changed), RIDES, features=replace(GIVEN, shared_noise=False))
    assert [one.summed_over for one in alone.gradients] == [1, 1]
