"""What an owner with an analyst budget agrees to, rule by rule, and what it charges."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import tablepuppet as tp
from tablepuppet.errors import PolicyError
from tablepuppet.models.spec import ModelSpec
from tablepuppet.owner.analyst_budget import charge, check_shown, rows_each
from tablepuppet.owner.owner_log import OwnerLog
from tablepuppet.owner.policy import Policy, TableRules
from tablepuppet.owner.scans import ScanUse
from tablepuppet.privacy.accounting import gaussian_noise
from tablepuppet.privacy.analyst import SHARES, AnalystBudget, AnalystTerms
from tablepuppet.privacy.ledger import TableBudget
from tablepuppet.privacy.options import FeaturePrivacy
from tablepuppet.protocol.contract import BlockTerms, Column, Contract, Folds, Moments, ScanTerms, Training

BUDGET = TableBudget(analyst=AnalystBudget(epsilon=95.0, per="day"))
OWNER = Policy(budget={"orders": BUDGET})
TERMS = AnalystTerms(table="orders", epsilon=90.0, delta=1e-5, shares=SHARES["train"])
COLUMNS = (Column('"k"', ("key",)), Column('"x"', ("feature",)), Column('"y"', ("label",)))
SCAN = ScanTerms(0, "orders", COLUMNS, None)
TREES = Training(
    msgspec.to_builtins(tp.Boosting(trees=4, splits="random")), ModelSpec(kind="boosted"), 4, None, 0.0, False, True
)
DUE = gaussian_noise(90.0, 1e-5, 1, 1.0) * (1 / 0.8) ** 0.5 * 2  # four tenths more for the model's share, of four trees
NOISE = FeaturePrivacy(noise=DUE)
HONEST = Contract(
    purpose="train", asker="ann", label="y", scans=(SCAN,), blocks=(BlockTerms("o", 0, (1,)),), training=TREES,
    analyst=TERMS, feature_privacy=NOISE,
)  # fmt: skip
PERSON = {"orders": TableRules(subject="p", rows_per_subject=2)}
PARTNER = replace(SCAN, scan=1, table="items")
BOTH: dict[str, Any] = {"scans": (SCAN, PARTNER)}


def terms(**changed: Any) -> dict[str, Any]:
    return {"analyst": replace(TERMS, **changed)}


def trained(**changed: Any) -> dict[str, Any]:
    return {"training": replace(TREES, **changed)}


def options(**changed: Any) -> dict[str, Any]:
    return trained(algorithm=TREES.algorithm | changed)


def noise(given: float) -> dict[str, Any]:
    return {"feature_privacy": FeaturePrivacy(noise=given)}


def scan(**changed: Any) -> dict[str, Any]:
    return {"scans": (replace(SCAN, **changed),)}


def rules(**given: Any) -> dict[str, Any]:
    return {"tables": {"items": TableRules(**given)}}


USES = {0: ScanUse("orders", (), frozenset())}
MOMENTS = Moments("task", '"t"', "orders", ("a",))
CASES: list[tuple[dict[str, Any], dict[str, Any], int | None, str]] = [  # rules, terms, stability, refusal
    ({}, {}, 1, ""),
    ({}, noise(0.999 * DUE), 1, "less noise on leaves than its ε needs"),
    ({}, {"feature_privacy": None}, 1, "less noise on leaves than its ε needs"),
    ({}, {"feature_privacy": FeaturePrivacy(epsilon=1.0)}, 1, "less noise on leaves than its ε needs"),
    ({}, trained(has_weights=True), 1, "less noise on leaves than its ε needs"),
    ({}, options(trees=5), 1, "less noise on leaves than its ε needs"),
    ({}, terms(cap=2), 1, "less noise on leaves than its ε needs"),
    ({}, options(splits="best"), 1, "if it is one of drawn trees"),
    ({}, options(subsample=0.5), 1, "if it is one of drawn trees"),
    ({}, trained(earlier_splits=1), 1, "if it is one of drawn trees"),
    ({}, {}, None, "any number of the subquery's rows"),
    ({}, {}, 2, "any number of the subquery's rows"),
    ({}, {**terms(rows=2), **noise(2 * DUE)}, 2, ""),
    ({"tables": PERSON}, {}, 2, "for each p of orders, and the contract states another unit"),
    ({"tables": PERSON}, {**terms(rows=2, subject="p"), **noise(2 * DUE)}, 2, ""),
    ({"tables": PERSON}, {**terms(rows=5, subject="p"), **scan(clients=3)}, 2, "any number of the subquery's rows"),
    ({"tables": PERSON}, {**terms(rows=6, subject="p"), **noise(6 * DUE), **scan(clients=3)}, 2, ""),
    ({}, {"analyst": None}, 1, "does not say how much"),
    ({}, terms(table="items"), 1, "reads two such tables, or one twice"),
    ({}, {"scans": (SCAN, replace(SCAN, scan=1))}, 1, "reads two such tables, or one twice"),
    ({}, {"shuffles": 1}, 1, "have no noisy form"),
    ({}, {"blocks": (BlockTerms("o", 0, (1,), values=1),)}, 1, "have no noisy form"),
    ({}, {"folds": Folds(2)}, 1, "have no noisy form"),
    ({}, {"others": (TREES,)}, 1, "have no noisy form"),
    ({}, scan(columns=(*COLUMNS, Column('"w"', ("weight",)))), 1, "have no noisy form"),
    ({}, scan(merges="sums"), 1, "have no noisy form"),
    ({}, scan(moments=(MOMENTS,)), 1, "have no noisy form"),
    ({}, {"purpose": "profile"}, 1, "a contract to profile has none"),
    ({}, {"purpose": "predict"}, 1, "a contract to predict has none"),
    ({}, {"purpose": "profile", "analyst": None}, 1, "how keys of orders meet others is exact"),
    ({}, {"purpose": "predict", "analyst": None}, 1, "scores are of single rows"),
    ({"predictions": "held"}, {"purpose": "predict", "analyst": None}, 1, "scores are of single rows"),
    ({"predictions": True}, {"purpose": "predict", "analyst": None}, 1, ""),
    ({}, {"purpose": "explain", **terms(shares=SHARES["explain"]), **noise(1e-9)}, 1, ""),
    ({}, BOTH, 1, ""),
    ({"minimum_rows": 5}, {**BOTH, **noise(4.9)}, 1, "noise on them must then hide 5"),
    ({"minimum_rows": 5}, {**BOTH, **noise(5.0)}, 1, ""),
    ({"minimum_rows": 5}, noise(4.9), 1, ""),  # no other table of this owner takes part
    ({"minimum_difference": 5}, {**BOTH, **noise(4.9)}, 1, "noise on them must then hide 5"),
    ({"minimum_rows": 5, "minimum_difference": 0}, {**BOTH, **noise(4.9)}, 1, "noise on them must then hide 5"),
    ({"minimum_rows": 5, **rules(subject="p")}, {**BOTH, **noise(9.0)}, 1, "their rows need a limit"),
    ({"minimum_rows": 5, **rules(subject="p", rows_per_subject=3)}, {**BOTH, **noise(14.9)}, 1, "must then hide 15"),
    ({"minimum_rows": 5, **rules(subject="p", rows_per_subject=3)}, {**BOTH, **noise(15.0)}, 1, ""),
]


@pytest.mark.parametrize(("given", "changed", "stability", "why"), CASES)
def test_an_owner_agrees_to_what_is_noisy_and_counted(
    given: dict[str, Any], changed: dict[str, Any], stability: int | None, why: str
) -> None:
    owner, contract = replace(OWNER, **given), replace(HONEST, **changed)
    uses = {own.scan: ScanUse(own.table, (), frozenset(), stability=stability) for own in contract.scans}
    if not why:
        check_shown(owner, contract, uses)
        return
    with pytest.raises(PolicyError, match=why):
        check_shown(owner, contract, uses)


def test_rows_of_an_owners_other_tables_count_by_their_subjects() -> None:
    owner = replace(OWNER, **rules(subject="p", rows_per_subject=3))
    assert rows_each(owner, replace(HONEST, **BOTH)) == 3
    assert rows_each(owner, HONEST) == 1
    assert rows_each(owner, replace(HONEST, **BOTH, analyst=None)) == 1


def test_each_job_is_charged_to_its_asker_by_itself_in_the_period_of_its_day() -> None:
    now = [datetime(2026, 11, 18, tzinfo=UTC)]
    log = OwnerLog(clock=lambda: now[0])
    small = replace(TERMS, epsilon=50.0)

    def pay(**changed: Any) -> float | None:
        contract = replace(HONEST, analyst=replace(small, **changed.pop("terms", {})), **changed)
        return charge(OWNER, log, contract, USES)

    left = [pay(), pay()]
    assert left[0] is not None
    assert left[1] is not None
    assert left[0] > left[1] > 0
    with pytest.raises(PolicyError, match="ann has ε = "):
        pay()
    assert pay(asker="bob") == pytest.approx(left[0])
    now[0] = datetime(2026, 11, 19, tzinfo=UTC)
    assert pay() == pytest.approx(left[0])
    told = [(s.table, s.what, s.noise, s.steps, s.asker, s.period) for s in log.account.spendings]
    days = [("ann", "2026-11-18")] * 2 + [("bob", "2026-11-18"), ("ann", "2026-11-19")]
    assert told == [("orders", "analyst", small.noise, 1, *day) for day in days]
    assert len({s.name for s in log.account.spendings}) == 4


def test_the_first_of_several_models_is_refused_if_all_of_them_cost_too_much() -> None:
    for epsilon, is_fine in ((94.0, True), (96.0, False)):
        log, terms = OwnerLog(), replace(TERMS, epsilon=epsilon, fits=4, ahead=3)
        assert terms.noise == pytest.approx(2 * gaussian_noise(epsilon, 1e-5, 1, 1.0))
        contract = replace(HONEST, analyst=terms)
        if is_fine:
            assert charge(OWNER, log, contract, USES)
        else:
            with pytest.raises(PolicyError, match=r"budget\.orders\.analyst"):
                charge(OWNER, log, contract, USES)
        assert [s.noise for s in log.account.spendings] == [terms.noise] * is_fine
