"""Histories that are written for a user: tp.history, and federation.suggest_history."""

from __future__ import annotations

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.fuzz.test_histories import rows_of
from tests.sql.test_history import make_tables

import tablepuppet as tp
from tablepuppet.owner.policy import Policy

QUERY = "SELECT t.x, t.y FROM task t WHERE t.x > -2"


def name_keys(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The same with keys that are named like keys."""
    return {name: table.rename_columns({"k": "driver_id"}) for name, table in tables.items()}


def tp_policy(given: dict[str, object]) -> Policy:
    return msgspec.convert(given, Policy)


def train(federation: tp.Federation, sql: str) -> tp.Result:
    return federation.train(sql, label="y", model="boosted", trees=5, test_fraction=0.0)


def test_every_feature_that_is_written_is_the_one_of_pooled_tables() -> None:
    tables = make_tables(5)
    first = "SELECT * FROM results QUALIFY row_number() OVER (PARTITION BY k, day) = 1"
    tables["results"] = rows_of(first, tables)  # any of two rows of one moment may be the last
    joined = tp.history(
        "results", key="k", time="day", at="t.ts", windows=["6 weeks", None], columns=["points"], categories=["place"]
    ).replace("mode(", "max(")  # any of two that are equally frequent may be the mode
    sql = f"SELECT t.x, results_history.*, t.y FROM task t {joined}"
    pooled = rows_of(sql, tables)
    assert len(pooled.column_names) == 2 + 2 * (1 + 6 + 2) + 2
    with tp.Federation(tables) as federation:
        ours = train(federation, sql)
    with tp.Federation({"pooled": pooled}) as federation:
        theirs = train(federation, "SELECT p.* FROM pooled p")
    assert ours.objective == pytest.approx(theirs.objective, rel=1e-9)


def test_keys_may_have_two_names_and_names_may_need_quotes() -> None:
    text = tp.history("past results", key={"the id": "k"}, time="day", at="t.ts", columns=["a b"], name="h")
    tables = make_tables()
    other = tables["results"].rename_columns({"k": "the id", "points": "a b"})
    rows = rows_of(f"SELECT h.* FROM task t {text}", {"task": tables["task"], "past results": other})
    assert "a b_mean_90d" in rows.column_names


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"at": "ts"}, "with its alias"),
        ({"at": "t.ts +"}, "with its alias"),
        ({"windows": ["a year"]}, "written as"),
        ({"windows": []}, "at least one"),
    ],
)
def test_what_is_no_history_says_how_to_write_it(given: dict[str, object], match: str) -> None:
    with pytest.raises(tp.TablePuppetError, match=match):
        tp.history(**{"table": "results", "key": "k", "time": "day", "at": "t.ts", **given})  # type: ignore[arg-type]


def test_histories_are_found_by_key_and_time_and_the_query_is_kept() -> None:
    tables = name_keys(make_tables(6))
    born = pa.array(np.arange(25, dtype="int32")).cast(pa.date32())  # one row for each key has no history
    tables["drivers"] = pa.table({"driver_id": np.arange(25), "born": born, "name": [f"d{k}" for k in range(25)]})
    tables["visits"] = tables["results"]
    with tp.Federation(tables) as federation:
        text = federation.suggest_history(QUERY, label="y")
        result = train(federation, text)
        read = federation.suggest_history(QUERY.replace("task t", "task t JOIN visits v USING (driver_id)"), label="y")
    assert text.startswith("SELECT t.x, t.y,\n  results_by_driver_id.n,")
    assert text.endswith("WHERE t.x > -2")
    assert "drivers" not in text
    assert "visits_by" in text
    assert "visits_by" not in read
    assert rows_of(text, tables).num_rows == result.plan.mapping.train_rows


def test_the_labels_own_table_has_a_history_where_it_is_named() -> None:
    tables = name_keys(make_tables(7))
    with tp.Federation(tables) as federation:
        text = federation.suggest_history(QUERY, label="y", tables=["task"], windows=[None])
        result = train(federation, text)
    assert "avg(past.y) AS y_mean" in text
    assert rows_of(text, tables).num_rows == result.plan.mapping.train_rows


def test_only_columns_that_their_owner_grants_are_suggested() -> None:
    rules = {"features": ["points", "day"], "keys": ["driver_id"]}
    policy = tp_policy({"tables": {"results": rules}})
    with tp.Federation(name_keys(make_tables()), policies={"results": policy}) as federation:
        text = federation.suggest_history(QUERY, label="y")
        assert train(federation, text).converged
    assert "points_mean" in text
    assert "place" not in text


def test_features_that_earn_nothing_are_pruned() -> None:
    tables = name_keys(make_tables(8))
    random = np.random.default_rng(0)
    text = "SELECT count(*) AS n FROM results r WHERE r.driver_id = t.driver_id AND r.day < t.ts"
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        counts = connection.sql(f"SELECT ({text}) AS n FROM task t").to_arrow_table()["n"].to_numpy()
    y = counts + 0.01 * random.normal(size=len(counts))
    tables["task"] = tables["task"].set_column(3, "y", pa.array(y))
    with tp.Federation(tables) as federation:
        whole = federation.suggest_history(QUERY, label="y")
        pruned = federation.suggest_history(QUERY, label="y", prune=True, trees=30, test_fraction=0.3)
    assert "results_by_driver_id.n\n" in pruned or "results_by_driver_id.n," in pruned
    assert len(pruned) < len(whole) / 2


def test_several_times_are_asked_about_and_several_queries_refused() -> None:
    tables = name_keys(make_tables())
    tables["task"] = tables["task"].append_column("born", tables["task"]["ts"])
    with tp.Federation(tables) as federation:
        with pytest.raises(tp.TablePuppetError, match=r'at="t.ts"'):
            federation.suggest_history(QUERY, label="y")
        assert "past.day < t.born" in federation.suggest_history(QUERY, label="y", at="t.born")
        with pytest.raises(tp.TablePuppetError, match="UNION ALL"):
            federation.suggest_history(f"{QUERY} UNION ALL {QUERY}", label="y")
        with pytest.raises(tp.TablePuppetError, match="Did you mean"):
            federation.suggest_history(QUERY, label="y", at="t.ts", tables=["result"])
