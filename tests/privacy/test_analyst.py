"""Analyst budgets: accounts, refusals, and that what an analyst sees is noise enough for one row more or less."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.privacy.test_runs import Tap

import tablepuppet as tp
from tablepuppet.algorithms.boosting.fixed_point import LeafNoise
from tablepuppet.arrays import Array
from tablepuppet.cli.main import main
from tablepuppet.errors import (
    DisconnectedError,
    PolicyError,
    PrivacyError,
    QueryError,
    SourceError,
    TrainingError,
    TransportError,
)
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.schema import OpenScan
from tablepuppet.models.losses import Logistic, Loss, Squared
from tablepuppet.models.losses.classes import Softmax
from tablepuppet.models.metrics import Moment
from tablepuppet.owner.owner_log import OwnerLog, verify
from tablepuppet.owner.policy import Policy, read_policy
from tablepuppet.plan.analyst import AnalystNoise
from tablepuppet.privacy.accounting import gaussian_noise
from tablepuppet.privacy.analyst import SHARES, AnalystBudget, AnalystTerms, Part, epsilon_left
from tablepuppet.privacy.ledger import Spending, TableBudget
from tablepuppet.protocol.contract import Folds
from tablepuppet.training import noisy_metrics
from tablepuppet.training.metrics import Criterion
from tablepuppet.training.noisy_metrics import NoisyMetrics, _contributions, _norm
from tablepuppet.training.rounding import hide_rows

QUERY = "SELECT o.q, i.price, o.y FROM orders o JOIN items i ON o.item = i.item"
BOUNDS = {"q": (-3, 3), "price": (-3, 3)}
TREES: dict[str, Any] = {"model": "boosted", "splits": "random", "trees": 3, "depth": 2}


WEAKER: list[dict[str, Any]] = [{"splits": "best"}, {"subsample": 0.5}, {"trees": 4}]
WEAKER_TERMS: list[dict[str, Any]] = [{"table": "items"}, {"rows": 0}, {"epsilon": 90.0}]


def tables(rows: int = 1500, seed: int = 0) -> dict[str, pa.Table]:
    random = np.random.default_rng(seed)
    price = random.normal(size=30)
    item, q = random.integers(0, 30, rows), random.normal(size=rows)
    y = q + price[item] + random.normal(size=rows) > 0
    z = 2.0 * q + price[item]
    name = [f"name {n % 3}" for n in range(rows)]
    orders = pa.table({"id": np.arange(rows), "item": item, "q": q, "y": y, "z": z, "name": name})
    return {"orders": orders, "items": pa.table({"item": np.arange(30), "price": price})}


def asks(epsilon: float = 1.0, **given: Any) -> dict[str, Any]:
    return {"analyst": {"epsilon": epsilon, "bounds": {**BOUNDS, "z": (-8, 8)}, **given}}


def with_budget(epsilon: float = 50.0, table: str = "orders", **rules: Any) -> dict[str, Policy]:
    return {table: Policy(budget={table: TableBudget(analyst=AnalystBudget(epsilon=epsilon))}, **rules)}


def federation(given: dict[str, pa.Table] | None = None, **options: Any) -> tp.Federation:
    return tp.Federation(given or tables(), policies=options.pop("policies", with_budget()), **options)


# -- accounts --------------------------------------------------------------------------------------


def test_a_policy_names_an_analysts_budget(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[budget.orders]\nanalyst = { epsilon = 2, per = "month" }\n')
    assert read_policy(path).budget["orders"].analyst == AnalystBudget(epsilon=2.0, per="month")
    path.write_text("[budget.orders]\nanalyst = { epsilon = 0 }\n")
    with pytest.raises(PolicyError, match="epsilon must lie in"):
        read_policy(path)


@pytest.mark.parametrize(("per", "period"), [("day", "2026-11-18"), ("week", "2026-W47"), ("month", "2026-11")])
def test_a_period_has_a_name(per: Any, period: str) -> None:
    assert AnalystBudget(epsilon=1.0, per=per).period(datetime(2026, 11, 18, tzinfo=UTC)) == period


def test_a_week_over_new_year_is_one_period() -> None:
    days = [datetime(2025, 12, 29, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC)]
    assert {AnalystBudget(epsilon=1.0, per="week").period(day) for day in days} == {"2026-W01"}


def test_what_is_left_is_what_one_more_job_may_take() -> None:
    noises = [gaussian_noise(0.5, 1e-5, 1, 1.0)] * 3
    left = epsilon_left(2.0, 1e-5, noises)
    assert 1.0 < left < 2.0
    assert epsilon_left(2.0, 1e-5, [*noises, gaussian_noise(left, 1e-5, 1, 1.0)]) < 0.05
    assert epsilon_left(2.0, 1e-5, [gaussian_noise(2.0, 1e-5, 1, 1.0)] * 2) == 0.0


def spend(log: OwnerLog, asker: str, table: str = "orders", epsilon: float = 1.0) -> None:
    budget = TableBudget(analyst=AnalystBudget(epsilon=1.5))
    assert budget.analyst is not None
    spending = Spending(
        table=table,
        what="analyst",
        name=f"{asker} {len(log.account.spendings)}",
        noise=gaussian_noise(epsilon, budget.delta, 1, 1.0),
        steps=1,
        asker=asker,
        period=budget.analyst.period(log.now),
    )
    log.spend(spending, budget=budget)


def test_each_asker_table_and_period_has_an_account_that_outlives_the_process(tmp_path: Path) -> None:
    path, now = tmp_path / "log.jsonl", datetime(2026, 11, 18, tzinfo=UTC)
    spend(OwnerLog(path, lambda: now), "ann")
    log = OwnerLog(path, lambda: now)
    with pytest.raises(PolicyError, match=r"ann has ε = 1\.0\d left, and the job takes ε = 1\.2"):
        spend(log, "ann", epsilon=1.2)
    spend(log, "bob", epsilon=1.2)
    spend(log, "ann", table="items", epsilon=1.2)
    spend(OwnerLog(path, lambda: datetime(2026, 12, 1, tzinfo=UTC)), "ann", epsilon=1.2)
    verify(path)


def test_a_job_is_charged_and_one_that_exceeds_the_budget_is_refused() -> None:
    with federation(policies=with_budget(2.0)) as owners:
        result = owners.train(QUERY, label="y", **TREES, privacy=asks(1.5))
        assert "this costs ε = 1.5" in result.notes[0]
        with pytest.raises(PolicyError, match=r"ε = 2 a month, .* the job takes ε = 1\.5; ask for less"):
            owners.evaluate(result, privacy=asks(1.5))
        owners.evaluate(result, privacy=asks(0.5))
        spent = [s for s in owners._clients["orders"].log.account.spendings if s.what == "analyst"]
        assert [s.noise for s in spent] == [gaussian_noise(ε, 1e-5, 1, 1.0) for ε in (1.5, 0.5)]


def test_the_same_job_again_draws_other_noise_and_is_charged_again() -> None:
    with federation() as owners:
        plans = [owners.explain(QUERY, label="y", **TREES, privacy=asks()) for _ in range(2)]
        charged = owners._clients["orders"].log.account.spendings
    assert plans[0].mapping.train_rows != plans[1].mapping.train_rows
    assert [(s.what, s.noise) for s in charged] == 2 * [("analyst", charged[0].noise)]
    assert len({s.name for s in charged}) == 2


def test_noise_on_what_is_shown_hides_as_many_rows_as_a_partner_asks_for() -> None:
    terms = AnalystTerms(table="orders", epsilon=90.0, delta=1e-5, shares=SHARES["train"])
    parts: tuple[Part, ...] = ("sizes", "metrics")
    assert all(AnalystNoise(terms).deviation(part, 1.0) < 20 for part in parts)
    assert all(AnalystNoise(terms, least=20).deviation(part, 1.0) >= 20 for part in parts)


def test_explain_prints_what_training_costs_and_what_is_left_and_costs_its_sizes() -> None:
    with federation(policies=with_budget(2.0)) as owners:
        text = str(owners.explain(QUERY, label="y", **TREES, privacy=asks(1.0)))
    flat = " ".join(text.split())
    assert "this costs ε = 0.195 at δ = 1e-05 (sizes 0.173, partners 0.0809)" in flat
    assert "training costs ε = 1" in flat
    assert "ε = 1.98 is left in this period" in flat


def test_a_search_costs_its_epsilon_and_is_refused_as_a_whole_before_the_first_model() -> None:
    options = {k: v for k, v in TREES.items() if k != "depth"}
    with federation(tables(rows=6000), policies=with_budget(8.0)) as owners:
        search: dict[str, Any] = {"label": "y", "folds": 2, **options}
        found = tp.search(owners, QUERY, {"depth": [1, 3]}, **search, privacy=asks(8.0))
        assert found.best in ({"depth": 1}, {"depth": 3})
        assert {"accuracy", "auc", "loss"} <= set(found.table)
        spent = [s for s in owners._clients["orders"].log.account.spendings if s.what == "analyst"]
        assert [s.noise for s in spent] == [pytest.approx(2 * gaussian_noise(8.0, 1e-5, 1, 1.0))] * 4
    with federation(policies=with_budget(2.0)) as owners:
        with pytest.raises(PolicyError, match=r"has ε = 2 left, and the job takes ε = 3;"):
            tp.search(owners, QUERY, {"depth": [1, 3]}, **search, privacy=asks(3.0))
        assert not owners._clients["orders"].log.account.spendings
        with pytest.raises(PrivacyError, match='use model="boosted"'):
            tp.search(owners, QUERY, {"l2": [0.1, 1.0]}, label="y", privacy=asks(1.0))


def test_a_contract_says_what_each_part_costs() -> None:
    terms = AnalystTerms(table="orders", epsilon=1.0, delta=1e-5, shares=SHARES["train"], rows=2, cap=5)
    assert "(sizes 0.173, partners 0.0809, metrics 0.355, model 0.885)" in terms.lines()[0]
    assert "at most 10 joined rows" in terms.lines()[0]
    assert 1.0 / terms.noise**2 == pytest.approx(sum((10 / terms.deviation(part)) ** 2 for part in terms.shares))


@pytest.mark.parametrize(("name", "value"), [("cap", 0), ("fits", 0), ("ahead", -1)])
def test_an_owner_reads_no_terms_under_which_there_would_be_no_noise(name: str, value: int) -> None:
    terms = AnalystTerms(table="orders", epsilon=1.0, delta=1e-5, shares=SHARES["train"])
    given = msgspec.to_builtins(terms)
    assert msgspec.convert(given, AnalystTerms) == terms
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.convert(given | {name: value}, AnalystTerms)


# -- refusals --------------------------------------------------------------------------------------


def test_what_has_no_noise_is_refused_and_leads_on() -> None:
    with federation() as owners:
        result = owners.train(QUERY, label="y", **TREES, privacy=asks())
        refused: dict[Callable[[], object], str] = {
            lambda: owners.train(QUERY, label="y", **TREES): "explain, train, evaluate and compare take privacy",
            lambda: owners.train(QUERY, label="y", privacy=asks()): 'use model="boosted", splits="random"',
            lambda: owners.train(
                QUERY, label="y", **TREES, patience=2, validation_fraction=0.1, privacy=asks()
            ): "leave",
            lambda: owners.train(QUERY, label="y", **TREES, subsample=0.5, privacy=asks()): "only trees that are drawn",
            lambda: owners.train(QUERY, label="y", **TREES, class_weight="balanced", privacy=asks()): "weights",
            lambda: owners.train(
                QUERY.replace("o.q", "o.name"), label="y", **TREES, privacy=asks()
            ): "o.name would leave",
            lambda: owners.train(
                QUERY.replace("o.y", "o.name"), label="name", **TREES, privacy=asks()
            ): "write it as a condition",
            lambda: owners.train(QUERY, label="y", **TREES, loss="squared", privacy=asks()): "its loss is logistic",
            lambda: owners.evaluate(result): "explain, train, evaluate and compare take privacy",
            lambda: owners.importance(result): "explain, train, evaluate and compare take privacy",
            lambda: owners.drift(result): "drift and evaluate take privacy",
            lambda: owners.partial_dependence(result, feature="q"): "drift and evaluate take privacy",
            lambda: owners.predict(result): "scores are of single rows",
            lambda: owners.profile(QUERY): "explain shows noisy sizes",
        }
        for ask, why in refused.items():
            with pytest.raises((PolicyError, PrivacyError), match=why):
                ask()


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT o.q, i.price, o.y FROM orders o JOIN items i ON o.item = i.item JOIN orders p ON p.id = o.id", "once"),
        ("SELECT o.q, i.price, i.item AS y FROM items i LEFT JOIN orders o ON o.item = i.item", "LEFT JOIN others"),
        (
            "SELECT i.price, i.item AS y FROM items i WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.item = i.item)",
            "use inner JOIN",
        ),
        (
            "SELECT o.r, i.price, o.y FROM (SELECT item, y, rank() OVER (ORDER BY q) AS r FROM orders) o "
            "JOIN items i ON o.item = i.item",
            "any number of the subquery's rows",
        ),
    ],
)
def test_a_query_whose_rows_one_row_reaches_without_a_bound_is_refused(query: str, why: str) -> None:
    with federation() as owners, pytest.raises((PolicyError, PrivacyError), match=why):
        owners.explain(query, label="y", **TREES, privacy=asks())


def test_a_job_over_two_such_tables_or_none_is_refused() -> None:
    both = with_budget() | with_budget(table="items")
    with federation(policies=both) as owners, pytest.raises(PrivacyError, match="a job reads one such table"):
        owners.explain(QUERY, label="y", **TREES, privacy=asks())
    with federation(policies={}) as owners, pytest.raises(PrivacyError, match="no owner of these tables keeps"):
        owners.explain(QUERY, label="y", **TREES, privacy=asks())


def test_an_owner_refuses_terms_of_an_analysts_job_that_a_server_weakened() -> None:
    with federation() as owners:
        tap, client = Tap(owners), owners._clients["orders"]
        owners.train(QUERY, label="y", **TREES, privacy=asks())
        [honest] = [m for m in tap.asked(ProposeContract) if "orders" in m.contract.tables]
        opened = [m for m in tap.asked(OpenScan) if m.table == "orders"]
        contract = honest.contract
        training, terms, noise = contract.training, contract.analyst, contract.feature_privacy
        assert training is not None
        assert terms is not None
        assert noise is not None
        assert noise.noise is not None
        changes: list[dict[str, Any]] = [
            *({"training": msgspec.structs.replace(training, algorithm=training.algorithm | own)} for own in WEAKER),
            {"training": msgspec.structs.replace(training, earlier_splits=3)},
            {"training": msgspec.structs.replace(training, has_weights=True)},
            *({"analyst": msgspec.structs.replace(terms, **changed)} for changed in WEAKER_TERMS),
            {"analyst": None},
            {"feature_privacy": msgspec.structs.replace(noise, noise=0.99 * noise.noise)},
            {"feature_privacy": None},
            {"shuffles": 1},
            {"folds": Folds(2)},
            {"others": (training,)},
            {"purpose": "profile", "training": None},
        ]
        for number, change in enumerate(({}, *changes)):
            job = f"job {number}"
            for message in opened:
                client.answer(msgspec.structs.replace(message, job=job))
            asked = msgspec.structs.replace(honest, job=job, contract=msgspec.structs.replace(contract, **change))
            if not change:
                assert client.answer(asked).is_agreed  # type: ignore[attr-defined]
                continue
            with pytest.raises(PolicyError):
                client.answer(asked)


def test_a_refusal_by_an_exact_count_is_none_that_an_analyst_meets() -> None:
    jobs = [QUERY, QUERY + " WHERE o.id <> 7"]
    with federation(policies=with_budget(minimum_rows=20)) as owners:
        for query in jobs:
            owners.explain(query, label="y", **TREES, privacy=asks())


def test_what_fails_on_rows_fails_alike() -> None:
    found = []
    splits: list[dict[str, Any]] = [{}, {"test_where": "o.q < 1000"}, {}]
    few = QUERY + " WHERE o.id IN (7, 8)"  # enough to train on, were they counted exactly
    for query, split in zip((QUERY + " WHERE o.q > 1000", QUERY, few), splits, strict=True):
        with federation() as owners, pytest.raises(PrivacyError) as failure:
            owners.explain(query, label="y", **TREES, **split, privacy=asks())
        found.append(str(failure.value))
    assert len(set(found)) == 1


@pytest.mark.parametrize("kind", [TrainingError, TransportError, SourceError, QueryError, MemoryError, ValueError])
def test_every_kind_of_failure_on_rows_is_the_same_one(kind: type[Exception]) -> None:
    terms = AnalystTerms(table="orders", epsilon=1.0, delta=1e-5, shares=SHARES["train"])
    with pytest.raises(PrivacyError, match="the job fails on its rows, or") as failure, hide_rows(AnalystNoise(terms)):
        raise kind("1,499 rows")
    assert "1,499" not in str(failure.value)
    with pytest.raises(kind, match="1,499"), hide_rows(None):
        raise kind("1,499 rows")
    with pytest.raises(DisconnectedError), hide_rows(AnalystNoise(terms)):  # the run goes on when the client is back
        raise DisconnectedError("away")


def test_groups_that_fail_for_one_row_do_not_reveal_it() -> None:
    """Infinite, out of range and overflowing, where one order has a large q."""
    items = "stddev(q * 1e250) AS a, kurtosis(q * 1e250) AS b, CAST(max(q) * 1e6 AS INT) * 1000 AS c"
    query = (
        f"SELECT o.a, o.b, o.c, i.price, o.y FROM (SELECT item, id % 50 AS g, {items}, bool_or(y) AS y FROM orders "
        "GROUP BY item, g) o JOIN items i ON o.item = i.item"
    )
    bounds = dict.fromkeys(("a", "b", "c", "price"), (-3, 3))
    for q in (0.0, 1e20):
        given = tables()
        large = pa.array(np.where(np.arange(1500) == 7, q, np.minimum(given["orders"]["q"], 2.0)))
        given["orders"] = given["orders"].drop(["q"]).append_column("q", large)
        with federation(given) as owners:
            owners.train(query, label="y", **TREES, test_fraction=0.0, privacy=asks(bounds=bounds))


@pytest.mark.parametrize("is_there", [False, True])
def test_a_single_row_of_a_class_decides_on_nothing(is_there: bool) -> None:
    given = tables()
    given["orders"] = given["orders"].drop(["y"]).append_column("y", pa.array((np.arange(1500) == 7) & is_there))
    with federation(given) as owners:
        owners.train(QUERY, label="y", **TREES, privacy=asks())


@pytest.mark.parametrize("is_there", [False, True])
def test_no_row_makes_a_join_too_large_for_the_server(is_there: bool) -> None:
    """Two tables of the analyst's repeat a key that one order may have."""
    given = tables()
    item = np.where((np.arange(1500) == 7) & is_there, 31, given["orders"]["item"])
    given["orders"] = given["orders"].drop(["item"]).append_column("item", pa.array(item))
    given["items"] = pa.table({"item": np.append(np.arange(30), np.full(200_000, 31)), "price": np.zeros(200_030)})
    given["more"] = given["items"].rename_columns(["item", "cost"])
    query = QUERY.replace("i.price", "i.price, m.cost") + " JOIN more m ON o.item = m.item"
    with federation(given) as owners, pytest.raises(PrivacyError, match="could be in 40,000,000,000 joined rows"):
        owners.explain(query, label="y", **TREES, privacy=asks(bounds=BOUNDS | {"cost": (-3, 3)}))


@pytest.mark.parametrize("is_there", [False, True])
def test_rules_of_a_partner_do_not_count_the_rows_that_meet_a_table_with_a_budget(is_there: bool) -> None:
    """A partner's last row takes part if an order has its key."""
    given = tables(rows=8000)
    item = np.where(np.arange(8000) == 7, 30 if is_there else 3, given["orders"]["item"])
    given["orders"] = given["orders"].drop(["item"]).append_column("item", pa.array(item))
    given["items"] = pa.table({"item": np.arange(31), "price": np.linspace(-1, 1, 31)})
    policies = with_budget() | {"items": Policy(minimum_rows=20)}
    with federation(given, policies=policies) as owners:
        noisy = {**TREES, "trees": 30, "test_fraction": 0.0, "privacy": asks(1.0)}
        result = owners.train(QUERY, label="y", **noisy)
        owners.evaluate(result, rows="all", privacy=asks(1.0))
        with pytest.raises(PolicyError, match="noise on them must then hide 20"):
            owners.train(QUERY, label="y", **noisy | {"trees": 3, "privacy": asks(9.0)})


def test_noise_stands_for_the_rows_of_an_owners_other_tables_too() -> None:
    rules = with_budget(minimum_rows=31)["orders"]
    shop = federation(owners={"shop": ["orders", "items"]}, policies={"shop": rules})
    with shop, pytest.raises(PolicyError, match="noise on them must then hide 31"):
        shop.train(QUERY, label="y", **TREES, test_fraction=0.0, privacy=asks(9.0))


# -- neighbours ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Watched(AnalystNoise):
    """Keeps what noise is added to."""

    def add(self, part: Part, sums: Array, norm: float) -> Array:
        SEEN.append((part, sums, self.terms.deviation(part, norm) * math.sqrt(self.terms.shares[part])))
        return super().add(part, sums, norm)


SEEN: list[tuple[str, Array, float]] = []


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tablepuppet.train.AnalystNoise", Watched)
    SEEN.clear()


GROUPED = (
    "SELECT o.q, i.price, o.y FROM "
    "(SELECT item, id % 50 AS g, avg(q) AS q, bool_or(y) AS y FROM orders GROUP BY item, g) o "
    "JOIN items i ON o.item = i.item"
)


# Half of the orders have no item, and each other one has three.
LEFT = QUERY.replace("o.q, i.price", "o.q, COALESCE(i.price, 2) AS price").replace(
    "JOIN items i ON o.item = i.item", "LEFT JOIN items i ON o.item = i.item % 10 AND i.item < 15"
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("query", "label", "table", "cap"),
    [
        (QUERY, "y", "orders", 1),
        (QUERY + " WHERE o.q > -1", "y", "orders", 1),
        (QUERY.replace("o.y", "o.z"), "z", "orders", 1),
        (GROUPED, "y", "orders", 1),
        (QUERY, "y", "items", 80),
        (LEFT, "y", "orders", 3),
    ],
)
def test_one_row_moves_all_sums_together_by_less_than_the_noise_is_for(
    watched: None, query: str, label: str, table: str, cap: int
) -> None:
    given = tables()
    row = 7 if table == "orders" else 3
    neighbour = {**given, table: pa.concat_tables([given[table][:row], given[table][row + 1 :]])}
    epsilon = 5.0 if table == "orders" else 95.0
    sigma = gaussian_noise(epsilon, 1e-5, 1, 1.0)
    found: list[list[tuple[str, Array, float]]] = []
    models: list[tp.Result] = []
    for tables_ in (given, neighbour):
        SEEN.clear()
        with federation(tables_, policies=with_budget(100.0, table=table)) as owners:
            is_split = table == "orders" and query is not GROUPED
            options = TREES | ({"test_where": "o.q > 0"} if is_split else {"test_fraction": 0.0})
            models.append(owners.train(query, label=label, **options, privacy=asks(epsilon, cap=cap)))
        with federation(tables_, policies=with_budget(100.0, table=table)) as owners:
            owners.compare(models[0], models[0], rows="all", privacy=asks(epsilon, cap=cap))
        found.append(list(SEEN))
    parts = [part for part, _, _ in found[0]]
    assert parts == ["sizes", "metrics", "metrics", "metrics"]
    moved = []
    for (part, ours, deviation), (_, theirs, _) in zip(*found, strict=True):
        if part == "sizes":
            moved.append(float(np.linalg.norm(ours - theirs)) / (deviation / sigma))
    compared = [own[-1] for own in found]  # the same model on both tables
    moved.append(float(np.linalg.norm(compared[0][1] - compared[1][1])) / (compared[0][2] / sigma))
    assert 0.0 < max(moved) <= 1.0 + 1e-9


def test_one_row_moves_the_sums_of_leaves_by_less_than_their_noise_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Array, LeafNoise]] = []

    def watch(self: LeafNoise, sums: Any, generator: Any) -> Array:
        seen.append((sums * self.unit, self))
        return np.zeros(sums.shape) + 1.0

    monkeypatch.setattr(AnalystNoise, "add", lambda self, part, sums, norm: np.full(sums.shape, 9000.0))
    monkeypatch.setattr(LeafNoise, "noisy", watch)
    given = tables()
    neighbour = given | {"orders": pa.concat_tables([given["orders"][:7], given["orders"][8:]])}
    for tables_ in (given, neighbour):
        with federation(tables_) as owners:
            owners.train(GROUPED, label="y", **TREES, test_fraction=0.0, privacy=asks())
    sums, noise = seen[0]
    moved = float(np.linalg.norm(sums - seen[TREES["trees"]][0]))
    assert 0.0 < moved <= 2 * noise.clip  # a group before and after
    due = 2 * noise.clip * gaussian_noise(1.0, 1e-5, 1, 1.0) * math.sqrt(TREES["trees"] / SHARES["train"]["model"])
    assert noise.deviation == pytest.approx(due)


def test_no_row_is_in_more_joined_rows_than_the_cap() -> None:
    with federation(policies=with_budget(100.0, table="items")) as owners:
        result = owners.train(QUERY, label="y", **TREES, test_fraction=0.0, privacy=asks(95.0, cap=2))
        assert result.plan.mapping.joined_rows < 100  # of 1,500: thirty items, two rows of each, and noise


@pytest.mark.parametrize("query", [QUERY, LEFT])
def test_with_pure_noise_for_every_noisy_sum_nothing_depends_on_rows(
    monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    def draw(shape: tuple[int, ...]) -> Array:
        return np.random.default_rng(5).normal(9000.0, 9.0, shape)

    monkeypatch.setattr(AnalystNoise, "add", lambda self, part, sums, norm: draw(sums.shape))
    monkeypatch.setattr(LeafNoise, "noisy", lambda self, sums, generator: draw(sums.shape))
    seen = []
    policies = with_budget() | {"items": Policy(minimum_rows=5)}
    for given in (tables(), tables(rows=1700, seed=3)):
        given["items"] = tables()["items"]
        with federation(given, policies=policies) as owners:
            plan = owners.explain(query, label="y", **TREES, privacy=asks())
            result = owners.train(query, label="y", **TREES, privacy=asks())
            measured = owners.evaluate(result, privacy=asks())
            compared = owners.compare(result, result, privacy=asks())
            drift = owners.drift(result, privacy=asks())
        assert result.blocks[0].encoders == ()  # no mean, of which low digits would be a row's
        shown = [str(plan), plan.to_json(), str(result), result.metrics, result.trees, result.notes, result.traffic]
        shown += [
            result.model.importance().to_dict(),
            result.history,
            result.blocks[0].splits,
            result.model.metadata,
            result.encoded_intercept,
        ]
        seen.append([str(one) for one in (*shown, measured.to_dict(), compared.to_dict(), drift.to_dict())])
    assert seen[0] == seen[1]


# -- attacks ---------------------------------------------------------------------------------------


def test_two_evaluations_of_neighbouring_rows_tell_a_row_no_better_than_epsilon_allows() -> None:
    terms = AnalystTerms(table="t", epsilon=1.0, delta=1e-5, shares=SHARES["evaluate"])
    noisy, criterion = NoisyMetrics(AnalystNoise(terms)), Criterion(Logistic(), Moment.FINISHED)
    random = np.random.default_rng(0)
    scores, labels = random.normal(size=(200, 1)), (random.random(200) < 0.5).astype(np.float64)
    scores[0], labels[0] = 3.9, 0.0  # a bin that nobody else is in
    trials, told = 1500, []
    for rows in (slice(0, None), slice(1, None)):
        sums = [noisy(criterion, scores[rows], labels[rows]).on for _ in range(trials)]
        told.append(np.array([on.rows for on in sums if on is not None]))
    best = max(np.mean(told[0] > t) - np.mean(told[1] > t) for t in range(100, 300))
    most = (math.e - 1) / (math.e + 1) + 1e-5
    assert best <= most + 3 * math.sqrt(0.5 / trials)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3), Squared()], ids=lambda loss: loss.name)
def test_no_joined_row_contributes_more_than_its_sums_have_noise_for(loss: Loss) -> None:
    terms = AnalystTerms(table="orders", epsilon=1.0, delta=1e-5, shares=SHARES["evaluate"])
    noise, found = AnalystNoise(terms, bounds=(-1.0, 3.0)), []
    for label, score in itertools.product(
        (0.0, 1.0, -9.0, 9.0) if loss.task == "number" else (0.0, 1.0), (-50.0, 50.0)
    ):
        scores = np.full((1, loss.outputs), score)
        scores[0, 0] = -score if loss.outputs > 1 else score
        found.append(float(np.linalg.norm(_contributions(loss, scores, np.array([label]), noise))))
    assert max(found) <= _norm(loss) + 1e-12
    assert max(found) >= _norm(loss) - (1e-12 if loss.task == "number" else 0.3)


@pytest.mark.parametrize(("select", "squared"), [("o.q, i.price", 7.0), ("o.q", 6.0)])
def test_sizes_have_noise_for_a_row_of_each_side_relation_block_and_class(
    select: str, squared: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A joined row counts on its side, as a row of its table, for its class, and for each relation and each block."""
    lengths, add = dict[str, float](), AnalystNoise.add

    def added(noise: AnalystNoise, part: Part, sums: Any, norm: float) -> Any:
        lengths[part] = norm
        return add(noise, part, sums, norm)

    monkeypatch.setattr(AnalystNoise, "add", added)
    with federation() as owners:
        query = f"SELECT {select}, o.y FROM orders o JOIN items i ON o.item = i.item"
        owners.explain(query, label="y", **TREES, privacy=asks())
    assert lengths["sizes"] == pytest.approx(math.sqrt(squared))


class AskedError(Exception):
    """The sums that are about to get noise, and the length of a row's contribution that it is for."""


class NoNoise(AnalystNoise):
    def add(self, part: Part, sums: Any, norm: float) -> Any:
        raise AskedError(sums, norm)


@pytest.mark.parametrize(
    ("loss", "squared"), [(Logistic(), 10.0), (Softmax(3), 10.0), (Squared(), 8.625)], ids=lambda given: str(given)[:7]
)
def test_no_joined_row_contributes_more_to_a_comparison_than_its_sums_have_noise_for(
    loss: Loss, squared: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = AnalystTerms(table="orders", epsilon=1.0, delta=1e-5, shares=SHARES["evaluate"])
    noisy, found = NoisyMetrics(NoNoise(terms, bounds=(-1.0, 3.0))), []
    monkeypatch.setattr(noisy_metrics, "rows_here", lambda rows: rows)
    labels = (-9.0, 1.0, 9.0) if loss.task == "number" else (0.0, 1.0)
    for label, *scores in itertools.product(labels, (-50.0, 0.0, 50.0), (-50.0, 0.0, 50.0)):
        rows = SimpleNamespace(joined_labels=lambda label=label: np.array([label]))
        given = [np.pad([[score]], ((0, 0), (0, loss.outputs - 1))) for score in scores]
        both: list[Any] = [
            SimpleNamespace(model=SimpleNamespace(loss=loss), rows=rows, scores=lambda own=own: own) for own in given
        ]
        with pytest.raises(AskedError) as asked:
            noisy.compare(both[0], both[1], cast("Any", None))
        sums, norm = asked.value.args
        assert norm == pytest.approx(math.sqrt(squared))
        found.append(float(np.linalg.norm(sums)))
    assert 0.8 * norm < max(found) <= norm


def test_metrics_are_those_of_exact_sums_where_noise_is_small() -> None:
    given = tables(rows=1500)
    with federation(given, policies=with_budget(100.0)) as owners, tp.Federation(given) as open_:
        result = open_.train(QUERY, label="y", model="logistic")
        noisy = owners.evaluate(result, rows="all", privacy=asks(80.0))
        exact = open_.evaluate(result, rows="all")
        assert noisy["accuracy"] == pytest.approx(exact["accuracy"], abs=0.02)
        assert noisy["auc"] == pytest.approx(exact["auc"], abs=0.02)
        assert noisy["log_loss"] == pytest.approx(exact["log_loss"], abs=0.02)
        number = open_.train(QUERY.replace("o.y", "o.z"), label="z")
        noisy = owners.evaluate(number, rows="all", privacy=asks(20.0))
        exact = open_.evaluate(number, rows="all")
        assert noisy["r2"] == pytest.approx(exact["r2"], abs=0.1)
        with pytest.raises(PrivacyError, match="give bounds of a number"):
            owners.evaluate(number, rows="all", privacy={"analyst": {"epsilon": 1.0}})


def test_commands_take_the_analysts_terms_from_the_job_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, table in tables().items():
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    (tmp_path / "policy.toml").write_text("[budget.orders]\nanalyst = { epsilon = 9 }\n")
    (tmp_path / "federation.toml").write_text(
        '[tables]\norders = "orders.parquet"\nitems = "items.parquet"\n[policies]\norders = "policy.toml"\n'
    )
    options = "".join(f"{name} = {value!r}\n" for name, value in TREES.items())
    asked = "[privacy.analyst]\nepsilon = 1.0\nbounds = { q = [-3, 3], price = [-3, 3] }\n"
    job = f'query = "{QUERY}"\nlabel = "y"\nfederation = "federation.toml"\n{options}{asked}'
    (tmp_path / "job.toml").write_text(job.replace("'", '"'))
    model, path = str(tmp_path / "model"), str(tmp_path / "job.toml")
    assert main(["train", path, "--save", model]) == 0
    assert main(["evaluate", model, path]) == 0
    assert main(["compare", model, model, path]) == 0
    assert "its mean loss differs by" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "job.toml").write_text(job.replace("'", '"').partition("[privacy")[0])
    assert main(["evaluate", model, path]) != 0
    assert "evaluate and compare take privacy" in " ".join(capsys.readouterr().err.split())
