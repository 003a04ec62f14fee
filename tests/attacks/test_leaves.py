"""Attacks on a released model of random splits, by somebody who knows all rows but one and what that one joins with.

The attacker undoes each leaf's value to its noisy sum, and takes off what all others add. What is left is noise and,
if the row is there, its share: with the row's joined rows in one leaf that is nearly the most that noise must hide.
"""

from __future__ import annotations

from typing import Any

import dp_accounting
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.attacks.meddler import Meddler
from tests.attacks.test_group_sums import Server
from tests.plan.disclosure import expect_disclosures
from tests.privacy.test_runs import Tap

import tablepuppet as tp
from tablepuppet.algorithms.boosting import messages as trees
from tablepuppet.algorithms.boosting.fixed_point import LeafNoise
from tablepuppet.algorithms.boosting.tree_checks import NumberBins
from tablepuppet.errors import PolicyError, PrivacyError
from tablepuppet.exchanges.registry import REQUESTS
from tablepuppet.owner.policy import Policy
from tablepuppet.privacy.ledger import TableBudget
from tablepuppet.protocol.base import Failure
from tablepuppet.protocol.codec import decode

QUERY = "SELECT o.x, i.z, o.y FROM orders o JOIN items i ON o.item = i.item"
KAPPA, TREES, RATE, DELTA = 5, 40, 0.05, 1e-5
BOUNDS = {"x": (0.0, 1.0), "z": (0.0, 1.0)}
JOB: dict[str, Any] = {
    "label": "y",
    "model": "boosted",
    "splits": "random",
    "trees": TREES,
    "depth": 5,
    "bins": 16,
    "learning_rate": RATE,
    "test_fraction": 0.0,
}


def tables(is_in: bool = True) -> dict[str, pa.Table]:
    """Labels are zero, but for those of the last item, at a place of its own; or it is in no order."""
    rng = np.random.default_rng(2)
    item = np.append(np.repeat(np.arange(60), KAPPA), np.full(KAPPA, 60))
    x, z, y = np.append(rng.random(300), np.full(KAPPA, 0.99)), np.append(rng.random(60), 0.98), item == 60
    y[:20] = True
    kept = item < 60 + is_in
    orders = pa.table({"item": item[kept], "x": x[kept], "y": y[kept].astype(np.int64)})
    return {"orders": orders, "items": pa.table({"item": np.arange(61), "z": z})}


def features(epsilon: float = 1.0, **given: Any) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": DELTA, "cap": KAPPA, "bounds": BOUNDS, **given}


def train(is_in: bool = True, seed: int = 0, **given: Any) -> tp.Result:
    privacy = {"features": features(), "allow_reconstruction": True}
    return tp.Federation(tables(is_in)).train(QUERY, **(JOB | given), seed=seed, privacy=privacy)


def seen(result: tp.Result) -> tuple[np.ndarray, np.ndarray]:
    """By tree and leaf: what is left of noisy Σg without all rows but the last item's, and what those would add."""
    assert result.plan.private.own is not None
    leaf_noise = result.plan.private.own.noise
    rows = tables()
    orders, items = (rows[name].to_pydict() for name in ("orders", "items"))
    values = [np.array(orders["x"]), np.array(items["z"])[orders["item"]]]
    is_last, y = np.array(orders["item"]) == 60, np.array(orders["y"], np.float64)
    scores, left, added = np.full(len(y), result.encoded_intercept[0]), [], []
    for (tree,) in result.trees:
        at = np.zeros(len(y), np.int64)
        for node in tree.splits:
            rule = result.blocks[tree.block[node]].splits[tree.key[node]]
            right = np.zeros(len(y), np.bool_) if rule.border is None else values[tree.block[node]] > rule.border
            at = np.where(at == node, tree.left[node] + right, at)
        leaves = [n for n, child in enumerate(tree.left) if child < 0]
        g = 1 / (1 + np.exp(-scores)) - y
        others, own = (np.bincount(at[side], g[side], len(tree.left))[leaves] for side in (~is_last, is_last))
        value, cover = (np.array(given)[leaves] for given in (tree.value, tree.cover))
        left.append(-value * (cover + 1.0 + leaf_noise.shrinkage) / RATE - others)
        added.append(own)
        scores += np.array(tree.value)[at]
    return np.array(left), np.array(added)


def distance(result: tp.Result) -> float:
    """How far the two worlds lie apart, in deviations of the noise as the attacker finds it in all other leaves."""
    left, added = seen(result)
    return float(np.sqrt((added**2).sum()) / left[added == 0].std())


ALLOWED = 1.0 / dp_accounting.get_sigma_gaussian(1.0, DELTA)  # what (1, 1e-5)-DP allows two normal worlds to be apart


def test_a_row_is_hidden_as_far_as_its_epsilon_says() -> None:
    found = distance(train())
    assert 0.75 * ALLOWED < found < 1.05 * ALLOWED  # the row is nearly the worst that there is, and yet hidden


def test_the_audit_finds_half_of_the_noise_and_a_row_that_counts_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = LeafNoise.noisy

    def half(own: LeafNoise, sums: Any, generator: Any) -> Any:
        return noisy(msgspec.structs.replace(own, deviation=own.deviation / 2), sums, generator)

    monkeypatch.setattr(LeafNoise, "noisy", half)
    assert distance(train()) > 1.6 * ALLOWED
    monkeypatch.undo()
    monkeypatch.setattr("tablepuppet.algorithms.boosting.plan.joined_rows", lambda mapping: {"orders": 1, "items": 1})
    assert distance(train()) > 3 * ALLOWED


def test_who_is_in_the_table_is_told_without_noise_and_not_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def guess(is_in: bool, seed: int) -> bool:
        left, added = seen(train(is_in, seed, trees=4, depth=3))
        return bool((left * added).sum() > (added**2).sum() / 2)

    worlds = [bool(number % 2) for number in range(16)]
    right = [guess(is_in, seed) == is_in for seed, is_in in enumerate(worlds)]
    assert sum(right) < 16  # by chance, all of them: one time in 10,000
    monkeypatch.setattr(LeafNoise, "noisy", lambda own, sums, generator: sums * own.unit / np.array([1.0, own.scale]))
    assert all(guess(is_in, seed) == is_in for seed, is_in in enumerate(worlds[:4]))


def test_nothing_of_the_model_but_noisy_sums_depends_on_rows() -> None:
    one, other = train(True), train(False)
    for mine, theirs in zip(one.trees, other.trees, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert (a.left, a.block, a.key, a.to_left) == (b.left, b.block, b.key, b.to_left)
    assert [block.splits for block in one.blocks] == [block.splits for block in other.blocks]


def test_the_account_of_an_owner_comes_to_what_the_ledger_says_and_ends_with_its_budget() -> None:
    policies = {name: Policy(budget={name: TableBudget(features=1.2)}) for name in ("orders", "items")}
    privacy = {"features": features(), "allow_reconstruction": True}
    with tp.Federation(tables(), policies=policies) as federation:
        with pytest.raises(PolicyError, match="without noise"):
            federation.train(QUERY, **JOB)
        result = federation.train(QUERY, **JOB, privacy=privacy)
        for name in ("orders", "items"):
            account = federation._clients[name].log.account
            told = result.privacy.epsilon("features", name, "outsider")
            assert told <= account.spent(name, "features", DELTA) <= 1.0  # an owner counts no other table's rows
        assert result.privacy.epsilon("features", "items", "outsider") == pytest.approx(1.0, rel=5e-3)
        assert result.privacy.epsilon("features", "orders", "outsider") < 0.3  # an order is in one joined row
        with pytest.raises(PolicyError, match=r"budget of features of (items|orders) is ε = 1\.2 over all jobs"):
            federation.train(QUERY, **JOB, privacy=privacy)


def test_a_server_has_no_field_for_bounds_or_cost_and_cannot_send_borders() -> None:
    assert not {"bounds", "spends"} & {*trees.StartTrees.__struct_fields__}
    assert "bins" not in trees.SketchFeatures.__struct_fields__
    privacy = {"features": features(), "allow_reconstruction": True}
    with tp.Federation(tables()) as federation:
        tap = Tap(federation)
        federation.train(QUERY, **JOB, privacy=privacy)
        asked = [decode(frame, REQUESTS) for frame in tap.down]
        start = next(a for a in asked if isinstance(a, trees.StartTrees) and a.name == "i")
    with tp.Federation(tables()) as federation:
        meddler = Meddler(
            federation,
            "items",
            trees.StartTrees,
            lambda job: [msgspec.structs.replace(start, job=job, bins=[NumberBins(np.array([0.5]))])],
        )
        federation.train(QUERY, **JOB, privacy=privacy)
    (answer,) = meddler.answers
    assert isinstance(answer, Failure)
    assert "put in bins by that owner" in answer.message


def test_owners_of_one_table_split_by_the_borders_that_were_agreed_on() -> None:
    """Their bins come from the server, which could draw borders around one row."""

    def draw_borders(who: str, asked: Any) -> Any:
        if not isinstance(asked, trees.StartTrees) or not asked.bins or who != "items[1]":
            return asked
        given: Any = asked.bins[0]
        moved = msgspec.structs.replace(given, borders=given.borders + 1e-3)
        return msgspec.structs.replace(asked, bins=[moved])

    items = tables()["items"]
    shared = {**tables(), "items": [items[:30], items[30:]]}
    with tp.Federation(shared) as federation:
        privacy = {"features": features(), "allow_reconstruction": True}
        federation.train(QUERY, **JOB, privacy=privacy)
        Server(federation, draw_borders)
        with pytest.raises(PolicyError, match="borders lie evenly between the bounds"):
            federation.train(QUERY, **JOB, privacy=privacy)


def test_bits_that_tell_rows_need_a_word_or_a_cap() -> None:
    with tp.Federation(tables()) as federation:
        with pytest.raises(PrivacyError, match="allow_reconstruction = true"):
            federation.explain(QUERY, **JOB, privacy={"features": features()})
        with pytest.raises(PrivacyError, match="give public bounds"):
            federation.explain(QUERY, **JOB, privacy={"features": features(bounds={"x": (0.0, 1.0)})})
        capped = federation.train(QUERY, **JOB, max_splits=4, privacy={"features": features()})
    told = [n for t, n in capped.traffic.all_told.items() if t.what == "splits"]
    assert told == [4, 4]


@pytest.mark.parametrize(
    "given", [{"trees": 3, "depth": 2}, {"trees": 100, "max_splits": 9}, {"feature_fraction": 0.5}]
)
def test_what_is_told_is_known_before_training(given: dict[str, Any]) -> None:
    privacy = {"features": features(), "allow_reconstruction": True}
    with tp.Federation(tables()) as federation:
        plan = federation.explain(QUERY, **(JOB | given), privacy=privacy)
        result = federation.train(QUERY, **(JOB | given), privacy=privacy)
    assert result.traffic.all_told == expect_disclosures(plan)
    assert result.traffic.rounds == 1
