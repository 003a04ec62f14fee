"""Subjects under an analyst budget: the unit is a person with all rows, whichever owners hold them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.privacy.test_analyst import BOUNDS, QUERY, SEEN, TREES, asks, federation, tables, watched

import tablepuppet as tp
from tablepuppet.algorithms.boosting.fixed_point import LeafNoise
from tablepuppet.arrays import Array
from tablepuppet.errors import PolicyError, PrivacyError
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.owner.policy import Policy, TableRules
from tablepuppet.plan.analyst import AnalystNoise
from tablepuppet.privacy.accounting import gaussian_noise
from tablepuppet.privacy.analyst import SHARES, AnalystBudget, AnalystTerms
from tablepuppet.privacy.ledger import TableBudget
from tablepuppet.protocol.contract import Column, Contract, ScanTerms

__all__ = ["watched"]  # a fixture


def of_people(people: int = 600, each: int = 5, without: int | None = None) -> dict[str, pa.Table]:
    """Orders of people, in no order of theirs; `without`: this person and all orders of theirs are not there."""
    given = tables(people * each)
    who = np.random.default_rng(4).permutation(np.repeat(np.arange(people), each))
    orders = given["orders"].append_column("who", pa.array(who))
    q = np.where(who == 7, 2.9, orders["q"])
    y = np.where(who == 7, True, orders["y"])
    orders = orders.drop(["q", "y"]).append_column("q", pa.array(q)).append_column("y", pa.array(y))
    return given | {"orders": orders if without is None else orders.filter(pa.array(who != without))}


def of_subjects(most: int | None, **rules: Any) -> Policy:
    budget = {"orders": TableBudget(analyst=AnalystBudget(epsilon=100.0))}
    return Policy(budget=budget, tables={"orders": TableRules(subject="who", rows_per_subject=most)}, **rules)


def distance(most: int | None, claimed: int, clients: int = 1) -> float:
    """How far a person with five orders moves sizes and metrics, in units of what noise is for."""
    sigma, found = gaussian_noise(5.0, 1e-5, 1, 1.0), list[Any]()
    names = ["orders"] if clients == 1 else [f"orders[{k}]" for k in range(clients)]
    model: tp.Result | None = None
    for without in (None, 7):
        SEEN.clear()
        given: dict[str, Any] = dict(of_people(without=without))
        if clients > 1:
            parts = np.asarray(given["orders"]["id"]) % clients
            given["orders"] = [given["orders"].filter(pa.array(parts == k)) for k in range(clients)]
        with federation(given, policies=dict.fromkeys(names, of_subjects(most))) as owners:
            plan = owners.explain(QUERY, label="y", **TREES, test_fraction=0.0, privacy=asks(5.0))
            assert f"one who of orders, with all rows, that is there or is not, in at most {claimed}" in _flat(plan)
            model = model or owners.train(QUERY, label="y", **TREES, test_fraction=0.0, privacy=asks(5.0))
            SEEN[:] = SEEN[:1]
            owners.evaluate(model, rows="all", privacy=asks(5.0))
        found.append(list(SEEN))
    moved = [
        float(np.linalg.norm(ours - theirs)) * sigma / deviation
        for (_, ours, deviation), (_, theirs, _) in zip(*found, strict=True)
    ]
    assert len(moved) == 2  # sizes and metrics
    return float(max(moved))


def _flat(shown: Any) -> str:
    return " ".join(str(shown).split())


@pytest.mark.parametrize(("most", "claimed"), [(None, 1), (2, 2), (5, 5)])
def test_a_person_with_all_orders_moves_sums_by_less_than_the_noise_is_for(
    watched: None, most: int | None, claimed: int
) -> None:
    assert 0.3 < distance(most, claimed) <= 1.0 + 1e-9


def test_a_person_whose_orders_lie_with_three_owners_is_one_person(watched: None) -> None:
    assert 0.3 < distance(1, 3, clients=3) <= 1.0 + 1e-9


@pytest.mark.parametrize("most", [1, 2])
def test_a_person_moves_the_sums_of_leaves_by_so_many_rows_and_no_more(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    seen: list[tuple[Array, LeafNoise]] = []

    def watch(self: LeafNoise, sums: Any, generator: Any) -> Array:
        seen.append((sums * self.unit, self))
        return np.ones(sums.shape)

    monkeypatch.setattr(AnalystNoise, "add", lambda self, part, sums, norm: np.full(sums.shape, 9000.0))
    monkeypatch.setattr(LeafNoise, "noisy", watch)
    for without in (None, 7):
        with federation(of_people(without=without), policies={"orders": of_subjects(most)}) as owners:
            owners.train(QUERY, label="y", **TREES, test_fraction=0.0, privacy=asks())
    (ours, noise), (theirs, _) = seen[0], seen[TREES["trees"]]
    assert (most - 0.6) * noise.clip / 2 < float(np.linalg.norm(ours - theirs)) <= most * noise.clip * (1 + 1e-9)
    due = most * noise.clip * gaussian_noise(1.0, 1e-5, 1, 1.0) * math.sqrt(TREES["trees"] / SHARES["train"]["model"])
    assert noise.deviation == pytest.approx(due)


def test_with_pure_noise_nothing_depends_on_people(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(shape: tuple[int, ...]) -> Array:
        return np.random.default_rng(5).normal(9000.0, 9.0, shape)

    monkeypatch.setattr(AnalystNoise, "add", lambda self, part, sums, norm: draw(sums.shape))
    monkeypatch.setattr(LeafNoise, "noisy", lambda self, sums, generator: draw(sums.shape))
    seen = []
    for given in (of_people(), of_people(without=7), of_people(people=30, each=100)):
        with federation(given, policies={"orders": of_subjects(2, minimum_rows=20)}) as owners:
            plan = owners.explain(QUERY, label="y", **TREES, privacy=asks())
            result = owners.train(QUERY, label="y", **TREES, privacy=asks())
            measured, drift = owners.evaluate(result, privacy=asks()), owners.drift(result, privacy=asks())
        shown = (plan, plan.to_json(), result, result.metrics, result.trees, result.notes, result.history)
        seen.append([*map(str, shown), str(measured.to_dict()), str(drift.to_dict())])
    assert seen[0] == seen[1] == seen[2]


def test_the_first_orders_of_each_person_are_read_and_no_others_decide_which() -> None:
    taken = []
    for without in (None, 8):
        with federation(of_people(without=without), policies={"orders": of_subjects(2)}) as owners:
            client, inner = owners._clients["orders"], owners._clients["orders"].answer

            def answer(message: Any, client: Any = client, inner: Any = inner) -> Any:
                told = inner(message)
                if isinstance(message, ProposeContract):
                    scan = client.tables.scan(message.job, 0)
                    taken.append((scan.row_keys(), scan.rows()))
                    scan.release()
                    assert scan.rows().num_rows == len(scan.row_keys())  # read again, and no more of them
                return told

            client.answer = answer  # type: ignore[method-assign]
            owners.explain(QUERY, label="y", **TREES, privacy=asks())
    assert {len(keys) for keys, _ in taken} == {1200, 1198}
    assert all(np.unique(keys, return_counts=True)[1].max() == 2 for keys, _ in taken)
    stays = np.isin(taken[0][0], taken[1][0])
    assert taken[0][1].filter(pa.array(stays)).equals(taken[1][1])


@pytest.mark.parametrize(
    ("clients", "rows", "subject", "why"),
    [(1, 1, "who", "no noise covers"), (3, 2, "who", "no noise covers"), (1, 2, "", "another unit"), (3, 6, "who", "")],
)
def test_a_contract_that_counts_fewer_orders_of_a_person_is_refused(
    clients: int, rows: int, subject: str, why: str
) -> None:
    with federation(of_people(), policies={"orders": of_subjects(2)}) as owners:
        client = owners._clients["orders"]
        client.answer(OpenScan(job="j", scan=0, table="orders", columns=['"y"']))
        terms = AnalystTerms(
            table="orders", epsilon=1.0, delta=1e-5, shares=SHARES["evaluate"], rows=rows, subject=subject
        )
        stated: dict[str, int | None] = {"orders": rows}
        scan = ScanTerms(0, "orders", (Column('"y"', ("label",)),), None, clients, stability=stated, subject="who")
        contract = Contract(purpose="evaluate", asker="s", label="y", scans=(scan,), blocks=(), analyst=terms)
        if not why:
            client.answer(ProposeContract(job="j", contract=contract))
            return
        with pytest.raises(PolicyError, match=why):
            client.answer(ProposeContract(job="j", contract=contract))


@pytest.mark.parametrize(("each", "is_refused"), [(1, False), (2, True)])
def test_minimum_rows_of_a_partner_count_its_people(each: int, is_refused: bool) -> None:
    """Sixteen of thirty items are ordered: of sixteen makers, or of eight."""
    given = tables(rows=60_000)
    ordered = pa.array(np.asarray(given["orders"]["item"]) % 16)
    given["orders"] = given["orders"].drop(["item"]).append_column("item", ordered)
    given["items"] = given["items"].append_column("maker", pa.array(np.arange(30) // each))
    rules = Policy(minimum_rows=10, tables={"items": TableRules(subject="maker", rows_per_subject=each)})
    budget = Policy(budget={"orders": TableBudget(analyst=AnalystBudget(epsilon=100.0))})
    with federation(given, policies={"orders": budget, "items": rules}) as owners:
        asked: dict[str, Any] = {"label": "y", **TREES, "trees": 600, "test_fraction": 0.0, "privacy": asks(1.0)}
        if not is_refused:
            owners.explain(QUERY, **asked)
            return
        with pytest.raises(PrivacyError, match="most of them meet few rows of a partner"):
            owners.explain(QUERY, **asked)


def test_no_name_is_left_out_because_few_rows_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one row more would bring the scores of twenty rows, where noise is for one."""
    query = "SELECT o.name, o.q, o.y FROM orders o"
    found: list[Array] = []

    def watch(self: AnalystNoise, part: str, sums: Array, norm: float) -> Array:
        found.append(sums)
        return sums + 1000.0

    monkeypatch.setattr(AnalystNoise, "add", watch)
    given = tables()
    name = np.array(given["orders"]["name"].to_pylist(), dtype=object)
    name[:20] = "rare"
    with tp.Federation(given | {"orders": _renamed(given["orders"], name)}) as own:
        trees: dict[str, Any] = {"model": "boosted", "trees": 20, "depth": 4, "min_child_weight": 0.1}
        model = own.train(query, label="y", **trees, test_fraction=0.0).model
    assert any(rule.left for block in model.blocks for rule in block.splits)
    budget = {"orders": TableBudget(analyst=AnalystBudget(epsilon=90.0))}
    for rare in (20, 19):
        name[19] = "rare" if rare == 20 else "name 1"
        with federation(
            {"orders": _renamed(given["orders"], name)}, policies={"orders": Policy(minimum_rows=20, budget=budget)}
        ) as owners:
            owners.evaluate(model, rows="all", privacy=asks(5.0, bounds=BOUNDS))
    assert float(np.abs(found[0] - found[1]).sum()) <= 6.0  # one row moved, from cell to cell


def _renamed(orders: pa.Table, name: Any) -> pa.Table:
    return orders.drop(["name"]).append_column("name", pa.array(name.tolist()))
