"""split="time": the latest rows are for the test, and a gap before them is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fuzz.test_histories import rows_of
from tests.sql.test_history import make_tables

import tablepuppet as tp
from tablepuppet.errors import CatalogError

QUERY = "SELECT t.x, (SELECT count(*) FROM results r WHERE r.k = t.k AND r.day < t.ts) AS n, t.y FROM task t"


def count_rows(query: str = QUERY, **options: Any) -> tuple[int, int]:
    with tp.Federation(make_tables(kind="timestamp")) as federation:
        plan = federation.explain(query, label="y", model="linear", split="time", **options)
    return plan.mapping.train_rows, plan.mapping.test_rows


def count_expected(condition: str, where: str = "true") -> int:
    begins = f"(SELECT quantile_disc(ts, 0.8) FROM task t WHERE {where})"
    sql = f"SELECT count(*) AS n FROM task t WHERE {where} AND {condition.format(begins=begins)}"
    return int(rows_of(sql, make_tables(kind="timestamp"))["n"][0].as_py())


@pytest.mark.parametrize("where", ["true", "t.x > 0"])
def test_the_latest_rows_are_for_the_test(where: str) -> None:
    found = count_rows(f"{QUERY} WHERE {where}", test_fraction=0.2)
    late = count_expected("ts >= {begins}", where)
    assert found == (count_expected("true", where) - late, late)


def test_rows_in_the_gap_are_left_out() -> None:
    train, test = count_rows(test_fraction=0.2, gap="40 days")
    assert test == count_expected("ts >= {begins}")
    assert train == count_expected("ts < {begins} - INTERVAL 40 DAY")


@pytest.mark.parametrize("moments", ["task", "(SELECT DISTINCT k, ts FROM task)"])
def test_a_history_in_groups_of_the_task_is_split_too(moments: str) -> None:
    tables = make_tables(kind="timestamp")
    once = "SELECT * FROM task QUALIFY row_number() OVER (PARTITION BY k, ts) = 1"
    tables["task"] = rows_of(once, tables)
    inner = f"SELECT t2.k, t2.ts, count(*) AS n FROM {moments} t2 JOIN results r ON r.k = t2.k AND r.day < t2.ts"
    on = "h.k = t.k AND h.ts = t.ts"
    query = f"SELECT t.x, coalesce(h.n, 0) AS n, t.y FROM task t LEFT JOIN ({inner} GROUP BY 1, 2) h ON {on}"
    with tp.Federation(tables) as federation:
        found, expected = (
            federation.train(text, label="y", model="boosted", trees=5, split="time") for text in (query, QUERY)
        )
    assert found.objective == pytest.approx(expected.objective, rel=1e-12)
    assert found.metrics["test"] == pytest.approx(expected.metrics["test"])


def test_a_saved_model_is_measured_on_its_later_rows(tmp_path: Path) -> None:
    with tp.Federation(make_tables()) as federation:
        result = federation.train(QUERY, label="y", model="linear", split="t.ts", test_fraction=0.2)
        result.save(tmp_path / "model")
        measured = federation.evaluate(tp.load(tmp_path / "model"))
        with pytest.raises(CatalogError, match="leave the query out"):
            federation.evaluate(result, QUERY)
    assert measured.metrics["rmse"] == pytest.approx(result.metrics["test"]["rmse"])
    assert not any("before training rows" in note for note in result.notes)


def test_a_policy_that_grants_no_other_column_is_kept(tmp_path: Path) -> None:
    rules = tmp_path / "policy.toml"
    rules.write_text(
        '[tables.task]\nfeatures = ["x"]\nlabels = ["y"]\nkeys = ["k"]\ncutoffs = ["ts"]\nfilters = ["ts"]\n'
    )
    table = make_tables()["task"]
    tables = make_tables() | {"task": table.append_column("secret", table["x"])}
    with tp.Federation(tables, policies={"task": rules}) as federation:
        assert federation.train(QUERY, label="y", model="linear", split="time").metrics["test"]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"split": "time", "test_where": "x > 0"}, "without test_where"),
        ({"split": "time", "gap": "a while"}, "90 days"),
        ({"split": "time", "test_fraction": 0.0}, "with a test_fraction"),
        ({"gap": "30 days"}, 'add split="time"'),
        ({"gap": "30 days", "test_where": "x > 0"}, 'add split="time"'),
    ],
)
def test_what_is_no_split_is_refused(given: dict[str, Any], match: str) -> None:
    with tp.Federation(make_tables()) as federation, pytest.raises(tp.TablePuppetError, match=match):
        federation.explain(QUERY, label="y", model="linear", **given)


def test_labels_of_several_owners_are_not_ordered() -> None:
    tables: dict[str, Any] = make_tables()
    halves = np.arange(120) % 2 == 0
    tables["task"] = [tables["task"].filter(halves), tables["task"].filter(~halves)]
    with tp.Federation(tables) as federation, pytest.raises(tp.TablePuppetError, match="several owners"):
        federation.explain(QUERY, label="y", model="linear", split="time")
