"""Rows without a match with another owner: NOT EXISTS, NOT IN, ANTI JOIN, LEFT JOIN … IS NULL, as DuckDB takes them."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

import tablepuppet as tp

rng = np.random.default_rng(8)
VISITS = pd.DataFrame(
    {
        "visit": np.arange(90),
        "patient": pd.array(np.where(rng.random(90) < 0.1, np.nan, rng.integers(0, 30, 90)), dtype="Int64"),
        "ward": rng.integers(0, 4, 90),
        "days": rng.integers(1, 20, 90) / 2,
        "died": rng.random(90) < 0.4,
    }
)
PATIENTS = pd.DataFrame({"id": np.arange(30), "age": rng.integers(20, 90, 30)})
LABS = pd.DataFrame(
    {
        "patient": pd.array(np.where(rng.random(80) < 0.1, np.nan, rng.integers(0, 26, 80)), dtype="Int64"),
        "ward": rng.integers(0, 4, 80),
        "value": rng.integers(0, 100, 80),
    }
)
TABLES = {"visits": VISITS, "patients": PATIENTS, "labs": LABS}
JOINED = "SELECT v.days, p.age, v.died FROM visits v JOIN patients p ON p.id = v.patient"
ALONE = "SELECT v.days, v.ward, v.died FROM visits v"
QUERIES = {
    "not exists": f"""{JOINED}
        WHERE NOT EXISTS (SELECT 1 FROM labs l WHERE l.patient = v.patient AND l.value > 60)""",
    "names without a table": f"{JOINED} WHERE NOT EXISTS (SELECT * FROM labs WHERE patient = visit AND value > 60)",
    "not in, with NULL on the left": f"""{ALONE}
        WHERE v.patient NOT IN (SELECT patient FROM labs WHERE value > 60 AND patient IS NOT NULL)""",
    "not in nothing, which NULL is not in": f"""{ALONE}
        WHERE v.patient NOT IN (SELECT patient FROM labs WHERE value > 1000)""",
    "all differ": f"""{ALONE}
        WHERE v.patient <> ALL (SELECT patient FROM labs WHERE value > 80 AND patient IS NOT NULL)""",
    "two keys": f"{JOINED} WHERE NOT EXISTS (SELECT 1 FROM labs l WHERE l.patient = v.patient AND l.ward = v.ward)",
    "of a joined table": f"{JOINED} WHERE NOT EXISTS (SELECT 1 FROM labs l WHERE l.patient = p.id AND l.value > 70)",
    "not twice": f"{JOINED} WHERE NOT (NOT EXISTS (SELECT 1 FROM labs l WHERE l.patient = v.patient))",
    "in and not in": f"""{JOINED} WHERE v.ward IN (SELECT ward FROM labs WHERE value > 70)
        AND v.patient NOT IN (SELECT id FROM patients WHERE age > 60)""",
    "left join is null": """
        SELECT v.days, p.age, v.died FROM visits v LEFT JOIN labs l ON l.patient = v.patient AND l.value > 60
        LEFT JOIN patients p ON p.id = v.patient WHERE l.patient IS NULL AND l.value IS NULL AND p.age < 85""",
    "keys of two tables": f"""{JOINED}
        LEFT JOIN (SELECT DISTINCT patient, ward FROM labs) l ON l.patient = p.id AND l.ward = v.ward
        WHERE l.ward IS NULL""",
    "anti join": "SELECT v.days, v.died FROM visits v ANTI JOIN labs l USING (patient, ward)",
    "semi join": "SELECT v.days, v.died FROM visits v SEMI JOIN labs l ON l.patient = v.patient",
    "in one branch of two": """
        SELECT v.days, 'a' AS kind, v.died FROM visits v
        WHERE NOT EXISTS (SELECT 1 FROM labs l WHERE l.patient = v.patient)
        UNION ALL SELECT v.days, 'b', v.died FROM visits v JOIN labs l ON l.patient = v.patient""",
}
OPTIONS: dict[str, Any] = {"label": "died", "l2": 0.01, "test_fraction": 0.0, "algorithm": "newton"}


def pooled(query: str) -> pd.DataFrame:
    with duckdb.connect() as connection:
        for name, frame in TABLES.items():
            connection.register(name, frame)
        return connection.sql(query).df()


def check(federation: tp.Federation, query: str, **more: Any) -> tp.Result:
    rows = pooled(query)
    with tp.Federation({"answer": rows}) as one:
        expected = one.train("SELECT * FROM answer", **OPTIONS)
    found = federation.train(query, **OPTIONS, **more)
    assert found.plan.mapping.joined_rows == len(rows) < len(VISITS) * 3
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-9)
    return found


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", QUERIES)
def test_the_rows_are_those_of_duckdb(name: str) -> None:
    with tp.Federation(TABLES) as federation:
        model = check(federation, QUERIES[name])
        predicted = federation.predict(model, QUERIES[name])
        assert len(predicted) == len(pooled(QUERIES[name]))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("keys", ["plain", "dh"])
def test_keys_may_leave_as_anything(keys: str) -> None:
    with tp.Federation(TABLES) as federation:
        for name in ("not exists", "not in, with NULL on the left", "two keys", "keys of two tables"):
            check(federation, QUERIES[name], privacy={"keys": keys})


def test_a_match_with_any_client_of_a_shared_table_leaves_a_row_out() -> None:
    shared = {"labs": [LABS[:30], LABS[20:55], LABS[55:]], "visits": [VISITS[:40], VISITS[40:]]}
    with tp.Federation(TABLES | shared) as federation:
        for name in ("not exists", "not in, with NULL on the left", "left join is null"):
            check(federation, QUERIES[name])


def test_a_null_in_the_list_of_not_in_lets_no_row_pass() -> None:
    query = "SELECT v.days, v.died FROM visits v WHERE v.patient NOT IN (SELECT patient FROM labs)"
    assert pooled(query).empty
    with (
        tp.Federation(TABLES) as federation,
        pytest.raises(tp.TablePuppetError, match="the list of NOT IN, from table labs, has a NULL") as refused,
    ):
        federation.train(query, label="died")
    assert "WHERE … IS NOT NULL inside it" in str(refused.value)
    with (
        tp.Federation(TABLES) as federation,
        pytest.raises(tp.TablePuppetError, match="no row is left once those with a match in patients are out"),
    ):
        federation.train(
            "SELECT v.days, v.died FROM visits v WHERE NOT EXISTS (SELECT 1 FROM patients p WHERE p.id = v.patient) "
            "AND v.patient IS NOT NULL",
            label="died",
        )


def test_explain_and_profile_say_what_is_left_out() -> None:
    with tp.Federation(TABLES) as federation:
        told = str(federation.explain(QUERIES["not exists"], label="died"))
        assert "rows with a match here are left out" in told
        assert "keys of labs" in told
        assert "ANTI JOIN" in str(federation.profile(QUERIES["not exists"], label="died"))
