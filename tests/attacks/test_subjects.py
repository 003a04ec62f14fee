"""Rows of one person: what a policy's `subject` counts is people."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.privacy.white_box import gaussian_epsilon, run_both

import tablepuppet as tp
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.features import OpenPart
from tablepuppet.exchanges.proposal import ProposeContract
from tablepuppet.exchanges.schema import OpenScan, ScanSchema
from tablepuppet.owner.policy import Policy, TableRules
from tablepuppet.privacy.accounting import composed_epsilon, replacement_epsilon
from tablepuppet.privacy.ledger import TableBudget
from tablepuppet.privacy.options import FeaturePrivacy
from tablepuppet.protocol.contract import Column, Contract, ScanTerms

QUERY = "SELECT v.a, v.b, v.y FROM visits v"
JOB: dict[str, Any] = {"label": "y", "algorithm": "newton", "epochs": 2, "test_fraction": 0.0}
RULES = {"visits": TableRules(subject="patient")}


def visits(people: int, each: int) -> dict[str, Any]:
    random, rows = np.random.default_rng(1), people * each
    numbers = {name: random.normal(size=rows) for name in "ab"}
    return {
        "visits": pa.table({"patient": np.repeat(np.arange(people), each), "y": random.integers(0, 2, rows)} | numbers)
    }


def with_policy(tables: dict[str, Any], **rules: Any) -> tp.Federation:
    return tp.Federation(tables, policies={"visits": Policy(tables=RULES, **rules)})


def test_a_hundred_visits_of_five_patients_are_five() -> None:
    with tp.Federation(visits(5, 20), policies={"visits": Policy(minimum_rows=20)}) as federation:
        federation.train(QUERY, **JOB)  # which counts rows
    with with_policy(visits(5, 20), minimum_rows=20) as federation, pytest.raises(PolicyError, match="minimum_rows"):
        federation.train(QUERY, **JOB)
    with with_policy(visits(40, 5), minimum_rows=20) as federation:
        federation.train(QUERY, **JOB)


def test_two_jobs_that_differ_by_all_visits_of_one_patient_are_compared_by_patients() -> None:
    for rules, is_refused in ((RULES, True), ({}, False)):
        policy = Policy(minimum_rows=5, tables=rules)
        with tp.Federation(visits(40, 30), policies={"visits": policy}) as federation:
            federation.train(QUERY, **JOB)
            few = f"{QUERY} WHERE v.patient >= 2"  # sixty visits of two patients are left out
            if is_refused:
                with pytest.raises(PolicyError, match=r"minimum_(rows|difference)"):
                    federation.train(few, **JOB)
            else:
                federation.train(few, **JOB)


def test_a_condition_that_separates_few_patients_is_refused_however_many_visits_they_have() -> None:
    few = f"{QUERY} WHERE v.patient >= 2"
    with tp.Federation(visits(40, 30), policies={"visits": Policy(minimum_rows=5)}) as federation:
        federation.train(few, **JOB)
    with (
        with_policy(visits(40, 30), minimum_rows=5) as federation,
        pytest.raises(PolicyError, match="its conditions on visits tell fewer than 5 rows apart"),
    ):
        federation.train(few, **JOB)


@pytest.mark.parametrize("side", ["test", "validation"])
def test_rows_that_are_held_out_are_not_few(side: str) -> None:
    """Some 12 of 1,200, without any condition."""
    with (
        tp.Federation(visits(40, 30), policies={"visits": Policy(minimum_rows=20)}) as federation,
        pytest.raises(PolicyError, match=f"would be {side} rows"),
    ):
        federation.train(QUERY, **(JOB | {f"{side}_fraction": 0.01}))


def test_labels_of_a_patient_with_four_visits_cost_four_times() -> None:
    private: dict[str, Any] = {"model": "logistic", "privacy": {"label": {"epsilon": 1.0}}}
    for limit, is_refused in ((3.0, True), (4.0, False)):
        with with_policy(visits(50, 4), budget={"visits": TableBudget(label=limit)}) as federation:
            if is_refused:
                with pytest.raises(PolicyError, match="budget of labels"):
                    federation.train(QUERY, **JOB, **private)
            else:
                federation.train(QUERY, **JOB, **private)
                assert federation._clients["visits"].log.account.spent("visits", "label") == 4.0


def test_noise_for_rows_is_refused_where_patients_have_several_and_so_are_rows_of_a_query() -> None:
    features = {"epsilon": 1.0, "bounds": {"a": [-4, 4], "b": [-4, 4]}}
    private: dict[str, Any] = {"privacy": {"features": features, "allow_reconstruction": True}}
    job = JOB | {"algorithm": "sgd", "model": "logistic"}
    with with_policy(visits(50, 2)) as federation:
        with pytest.raises(PolicyError, match=r"protect 1 row of a subject.*rule tables\.visits\.rows_per_subject"):
            federation.train(QUERY, **job, **private)
        grouped = "SELECT g.a, g.y FROM (SELECT patient, avg(a) AS a, max(y) AS y FROM visits GROUP BY patient) g"
        with pytest.raises(PolicyError, match="do not say whom they are about"):
            federation.train(grouped, **JOB)
    with with_policy(visits(100, 1)) as federation:
        federation.train(QUERY, **job, **private)


BOUNDS = {"a": (-4, 4), "b": (-4, 4), "c": (-4, 4)}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "admm": {"algorithm": "admm", "epochs": 2},
    "sgd": {"algorithm": "sgd", "epochs": 2, "batch_size": None},
    "trees": {"algorithm": tp.Boosting(trees=3, depth=2, splits="random")},
}
JOINED = "SELECT v.a, v.b, p.c, v.y FROM visits v JOIN patients p ON v.patient = p.patient"


def seen(is_there: bool, clients: int, extra: int = 0) -> dict[str, Any]:
    """Sixty patients with three visits each; the features of patient 7, who has more, are there or zero."""
    random = np.random.default_rng(3)
    patient = np.concatenate([np.repeat(np.arange(60), 3), np.full(extra, 7)])
    numbers = {name: random.uniform(-4, 4, len(patient)) for name in "ab"}
    numbers = {name: np.where(patient == 7, 4.0 * is_there, values) for name, values in numbers.items()}
    y = np.where(patient == 7, 1, random.integers(0, 2, len(patient)))
    rows = pa.table({"patient": patient, "y": y} | numbers)
    shares = [rows.take(np.arange(k, len(patient), clients)) for k in range(clients)]
    return {"visits": shares, "patients": pa.table({"patient": np.arange(60), "c": random.uniform(-4, 4, 60)})}


def claimed_and_found(name: str, most: int | None, clients: int, extra: int = 0) -> tuple[float, float]:
    """ε of a patient as it is claimed, and as the sums of two runs show it."""
    policy = Policy(tables={"visits": TableRules(subject="patient", rows_per_subject=most)} if most else {})
    features: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "bounds": BOUNDS, "cap": 3, "clip": 0.5}
    privacy: dict[str, Any] = {"features": features, "allow_reconstruction": True}
    owners = ["visits"] if clients == 1 else [f"visits[{k}]" for k in range(clients)]

    def train(is_there: bool) -> float:
        tables = seen(is_there, clients, extra)
        with tp.Federation(tables, policies=dict.fromkeys(owners, policy)) as federation:
            given: dict[str, Any] = {
                "label": "y",
                "model": "boosted" if name == "trees" else "logistic",
                "privacy": privacy,
            }
            result = federation.train(JOINED, test_fraction=0.0, **ALGORITHMS[name], **given)
            lines = [line for line in result.privacy.lines() if "of visits" in line]
            assert all(
                ("per patient of visits" in line or "one patient of visits" in line) == bool(most) for line in lines
            )
            told = [r for r in result.privacy.releases if (r.what, r.table) == ("features", "visits")]
            find = (
                replacement_epsilon if name == "trees" else composed_epsilon
            )  # zero is another leaf for a row of trees
            return find(tuple(r.gaussian for r in told), 1e-5)

    claims, distance = run_both((lambda: train(True), lambda: train(False)))
    assert claims[0] == claims[1]
    return claims[0], gaussian_epsilon(distance, 1e-5)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_noise_covers_all_rows_of_a_patient_that_train(name: str) -> None:
    claimed, found = claimed_and_found(name, most=3, clients=1, extra=0 if name == "trees" else 6)
    assert 0.1 < found <= claimed
    rows, found = claimed_and_found(name, most=None, clients=1)  # what is claimed for a row does not hold for a patient
    assert found > rows


@pytest.mark.one_in(2)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_so_many_rows_of_a_patient_train_with_their_features_and_no_more(most: int) -> None:
    """Without a cap, nine rows count where noise is for one."""
    policy = Policy(tables={"visits": TableRules(subject="patient", rows_per_subject=most)})
    privacy: dict[str, Any] = {"features": {"epsilon": 2.0, "bounds": BOUNDS}, "allow_reconstruction": True}
    with tp.Federation(seen(True, 1, extra=6), policies={"visits": policy}) as federation:
        client, counts = federation._clients["visits"], list[list[int]]()
        inner = client.answer

        def answer(message: Any) -> Any:
            told = inner(message)
            if isinstance(message, OpenPart):
                rows = client.parts[message.job, message.part].request.train_rows
                assert rows is not None
                keys = client.tables.scan(message.job, message.scan).row_keys()
                counts.append(np.unique(keys[rows[rows >= 0]], return_counts=True)[1].tolist())
            return told

        client.answer = answer  # type: ignore[method-assign]
        federation.train(QUERY, **(JOB | {"algorithm": "sgd", "model": "logistic"}), privacy=privacy)
    assert counts == [[most] * 60]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", list(ALGORITHMS))
@pytest.mark.parametrize("most", [3, 5])
def test_noise_covers_rows_of_a_patient_that_lie_with_several_clients(name: str, most: int) -> None:
    claimed, found = claimed_and_found(name, most, clients=3)
    assert 0.1 < found <= claimed


def test_leaves_of_trees_have_no_row_of_a_patient_that_noise_does_not_cover() -> None:
    with pytest.raises(PolicyError, match=r"protect 2 rows.*all of them where leaves.*rows_per_subject"):
        claimed_and_found("trees", most=2, clients=1)


def test_a_contract_names_the_patient_and_is_refused_where_it_counts_fewer_rows() -> None:
    policy = Policy(tables={"visits": TableRules(subject="patient", rows_per_subject=3)})
    with tp.Federation(visits(50, 4), policies={"visits": policy}) as federation:
        client, feature = federation._clients["visits"], (Column('"a"', ("feature",)),)
        opened = client.answer(OpenScan(job="j", scan=0, table="visits", columns=['"a"']))
        assert isinstance(opened, ScanSchema)
        assert (opened.stability, opened.subject) == ({"visits": 3}, "patient")
        for clients, stated in ((1, 2), (2, 5), (1, None), (2, 6)):
            terms = ScanTerms(0, "visits", feature, None, clients, stability={"visits": stated}, subject="patient")
            contract = Contract(
                purpose="train",
                asker="s",
                label="y",
                scans=(terms,),
                blocks=(),
                feature_privacy=FeaturePrivacy(epsilon=1.0),
            )
            if stated == 6:
                client.answer(ProposeContract(job="j", contract=contract))
                assert "at most 6 of them are about one patient" in "\n".join(contract.lines())
            else:
                with pytest.raises(PolicyError, match="counts fewer rows of one subject"):
                    client.answer(ProposeContract(job="j", contract=contract))


@pytest.mark.parametrize("what", ["noisy predictions", "features"])
def test_an_owner_charges_a_patient_no_less_than_the_ledger_claims(what: str) -> None:
    policy = Policy(tables={"visits": TableRules(subject="patient", rows_per_subject=3)})
    features: dict[str, Any] = {"noise": 4.0, "delta": 1e-5, "bounds": BOUNDS, "cap": 1}
    given: dict[str, Any] = ALGORITHMS["trees"] | {"model": "boosted", "privacy": {"features": features}}
    if what == "noisy predictions":
        private = {"predictions": {"mode": "local", "epsilon": 8.0, "delta": 1e-5}}
        given = {"algorithm": "admm", "epochs": 2, "model": "logistic", "privacy": private}
    given["privacy"]["allow_reconstruction"] = True
    with tp.Federation(seen(True, 1), policies={"visits": policy}) as federation:
        ledger = federation.train(QUERY, label="y", test_fraction=0.0, **given).privacy
        spent = federation._clients["visits"].log.account.spent("visits", what, 1e-5)
    claimed = ledger.epsilon(
        *(("features", "visits", "outsider") if what == "features" else ("predictions", "visits", "server"))
    )
    assert 0 < claimed <= spent * (1 + 1e-3)
    assert all(
        "per patient of visits" in line for line in ledger.lines() if line.startswith(("predictions of", "features of"))
    )


def test_test_rows_of_few_patients_are_few() -> None:
    """Some 48 test rows, of about 24 patients."""
    job = JOB | {"test_fraction": 0.04}
    with tp.Federation(visits(30, 40), policies={"visits": Policy(minimum_rows=28)}) as federation:
        federation.train(QUERY, **job)
    with (
        with_policy(visits(30, 40), minimum_rows=28) as federation,
        pytest.raises(PolicyError, match="would be test rows"),
    ):
        federation.train(QUERY, **job)
