"""Rows of one person: what a policy's `subject` counts is people."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.errors import PolicyError
from tablepuppet.owner.policy import Policy, TableRules
from tablepuppet.privacy.ledger import TableBudget

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
        with pytest.raises(PolicyError, match=r"protects one row.*rule tables\.visits\.subject"):
            federation.train(QUERY, **job, **private)
        grouped = "SELECT g.a, g.y FROM (SELECT patient, avg(a) AS a, max(y) AS y FROM visits GROUP BY patient) g"
        with pytest.raises(PolicyError, match="do not say whom they are about"):
            federation.train(grouped, **JOB)
    with with_policy(visits(100, 1)) as federation:
        federation.train(QUERY, **job, **private)
