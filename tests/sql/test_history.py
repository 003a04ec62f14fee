"""Histories of other owners: each form of the SQL gives DuckDB's rows and features on pooled tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from tests.fuzz.oracle import L2, encode, ridge
from tests.plan.disclosure import expect_disclosures

import tablepuppet as tp
from tablepuppet.owner.policy import Policy

WINDOW = "r.k = t.k AND r.day < t.ts AND r.day >= t.ts - INTERVAL 90 DAY"
ANY = "EXISTS (SELECT 1 FROM results r WHERE r.k = t.k AND r.day < t.ts)"


def make_tables(seed: int = 0, *, kind: str = "date") -> dict[str, pa.Table]:
    """Moments and events with duplicates, ties, NULLs, keys without history and history without keys."""
    random = np.random.default_rng(seed)
    rows, events = 120, 400
    start = np.datetime64("2020-01-01")
    moments = pa.array(start + 30 * random.integers(0, 8, rows), mask=random.random(rows) < 0.05)
    days = pa.array(start - 120 + random.integers(0, 360, events), mask=random.random(events) < 0.05)
    if kind != "date":
        zone = "UTC" if kind == "zoned" else None
        moments, days = (column.cast(pa.timestamp("us")).cast(pa.timestamp("us", zone)) for column in (moments, days))
    task = {
        "k": random.integers(0, 25, rows),
        "ts": moments,
        "x": random.normal(size=rows),
        "y": random.normal(size=rows),
    }
    results = {
        "k": pa.array(random.integers(0, 20, events), mask=random.random(events) < 0.05),
        "day": days,
        "points": pa.array(random.normal(size=events).round(2), mask=random.random(events) < 0.1),
        "place": random.choice(["a", "b", "c"], events),
    }
    return {"task": pa.table(task), "results": pa.table(results)}


def check_equal(sql: str, found: Mapping[str, str], tables: dict[str, pa.Table], clients: int = 1) -> None:
    """The federation's optimum is the one over DuckDB's rows; `found`: of an item, where a history has a row."""
    with duckdb.connect(config={"threads": 1}) as connection:
        for name, table in tables.items():
            connection.register(name, table)
        marks = ", ".join(f"({text}) AS found_{item}" for item, text in found.items())
        head, tail = sql.split(" FROM task t", 1)
        rows = connection.sql(f"{head}{', ' if marks else ''}{marks} FROM task t{tail}").to_arrow_table()
    items = [name for name in rows.column_names if name != "y" and not name.startswith("found_")]
    always = pa.chunked_array([pa.array(np.ones(rows.num_rows, bool))])
    columns = [encode(rows[item], rows[f"found_{item}"] if item in found else always) for item in items]
    parts = {name: [table] for name, table in tables.items()}
    if clients > 1:
        keys = tables["results"]["k"].to_pandas().fillna(-1).astype(int)
        parts["results"] = [
            tables["results"].filter(pa.array((keys % clients == c).to_numpy())) for c in range(clients)
        ]
    with tp.Federation(parts) as federation:
        result = federation.train(
            sql, label="y", model="linear", algorithm="newton", test_fraction=0.0, standardize=False, l2=L2
        )
    assert result.plan.mapping.train_rows == rows.num_rows
    assert result.objective == pytest.approx(ridge(np.hstack(columns), rows["y"].to_numpy()), rel=1e-9)


FORMS = {
    "correlated aggregate": (
        f"SELECT t.x, (SELECT avg(r.points) FROM results r WHERE {WINDOW}) AS mean, t.y FROM task t",
        {},
    ),
    "count": (f"SELECT t.x, (SELECT count(*) FROM results r WHERE {WINDOW}) AS n, t.y FROM task t", {}),
    "several windows": (
        f"SELECT (SELECT avg(r.points) FROM results r WHERE {WINDOW}) AS mean, (SELECT count(r.points) FROM results r "
        "WHERE r.k = t.k AND r.day < t.ts) AS n, (SELECT max(r.points) FROM results r WHERE r.k = t.k AND r.day < t.ts "
        "AND r.place = 'a') AS best, t.y FROM task t",
        {},
    ),
    "not strict": (
        "SELECT t.x, (SELECT sum(r.points) FROM results r WHERE r.k = t.k AND r.day <= t.ts) AS s, t.y FROM task t",
        {},
    ),
    "days since": (
        "SELECT t.x, (SELECT date_diff('day', max(r.day), t.ts) FROM results r WHERE r.k = t.k AND r.day < t.ts) AS d, "
        "t.y FROM task t",
        {},
    ),
    "no key": (
        "SELECT t.x, (SELECT avg(r.points) FROM results r WHERE r.day < t.ts) AS m, t.y FROM task t",
        {},
    ),
    "rounded moment": (
        "SELECT t.x, (SELECT count(*) FROM results r WHERE r.k = t.k AND r.day < date_trunc('month', t.ts)) AS n, t.y "
        "FROM task t",
        {},
    ),
    "a quantile of some rows": (
        "SELECT t.x, (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY r.points) FROM results r WHERE r.k = t.k AND "
        "r.day < t.ts AND r.place = 'a') AS m, (SELECT count(*) FROM results r WHERE r.k = t.k AND r.day < t.ts) AS n, "
        "t.y FROM task t",
        {},
    ),
    "lateral": (
        "SELECT t.x, h.n, h.mean, h.both, t.y FROM task t LEFT JOIN LATERAL (SELECT count(*) AS n, avg(r.points) AS "
        "mean, coalesce(sum(r.points), 0) + count(*) AS both FROM results r WHERE r.k = t.k AND r.day < t.ts) h "
        "ON true",
        {},
    ),
    "lateral with filter": (
        "SELECT h.n, h.late, t.y FROM task t, LATERAL (SELECT count(*) AS n, count(*) FILTER (WHERE r.day >= t.ts - "
        "INTERVAL 30 DAY) AS late FROM results r WHERE r.k = t.k AND r.day < t.ts) h",
        {},
    ),
    "grouped": (
        "SELECT t.x, h.best, h.mean, t.y FROM task t LEFT JOIN (SELECT t2.k, t2.ts, max(r.points) AS best, "
        "avg(r.points) AS mean FROM (SELECT DISTINCT k, ts FROM task) t2 JOIN results r ON r.k = t2.k AND r.day < "
        "t2.ts GROUP BY 1, 2) h ON h.k = t.k AND h.ts = t.ts",
        {"best": ANY, "mean": ANY},
    ),
    "rows": (
        "SELECT t.x, r.points, t.y FROM task t JOIN results r ON r.k = t.k AND r.day < t.ts AND r.day >= t.ts - "
        "INTERVAL 60 DAY",
        {},
    ),
    "rows by WHERE": (
        "SELECT t.x, r.points, t.y FROM task t, results r WHERE r.k = t.k AND r.day < t.ts AND r.day > t.ts - INTERVAL "
        "20 DAY",
        {},
    ),
    "rows that may miss": (
        "SELECT t.x, r.points, t.y FROM task t LEFT JOIN results r ON r.k = t.k AND r.day BETWEEN t.ts - INTERVAL 9 "
        "DAY AND t.ts",
        {"points": "r.k IS NOT NULL"},
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["date", "timestamp", "zoned"])
@pytest.mark.parametrize("form", FORMS)
def test_a_history_has_the_features_of_pooled_tables(form: str, kind: str) -> None:
    sql, found = FORMS[form]
    check_equal(sql, found, make_tables(kind=kind))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("form", [form for form in FORMS if form != "no key"])
def test_a_history_whose_keys_lie_with_one_client_each_may_have_several(form: str) -> None:
    sql, found = FORMS[form]
    check_equal(sql, found, make_tables(1), clients=3)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("form", ["lateral", "days since", "several windows", "no key"])
def test_a_history_whose_keys_lie_with_several_clients_is_merged_where_policies_say_so(form: str) -> None:
    tables, (sql, _) = make_tables(1), FORMS[form]
    is_first = np.arange(400) % 2 == 0
    parts = {
        "task": tables["task"],
        "results": [tables["results"].filter(is_first), tables["results"].filter(~is_first)],
    }
    options: dict[str, Any] = {"label": "y", "model": "linear", "test_fraction": 0.0}
    with tp.Federation(tables) as federation:
        expected = federation.train(sql, **options)
    with tp.Federation(parts, policies={"results": Policy(merge_groups="extremes")}) as federation:
        assert federation.train(sql, **options).objective == pytest.approx(expected.objective, rel=1e-12)
    with tp.Federation(parts) as federation, pytest.raises(tp.TablePuppetError, match="own rows only"):
        federation.train(sql, **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("kind", ["", "LEFT "])
def test_asof_joins_the_latest_row(kind: str, clients: int) -> None:
    tables = make_tables(2)
    first = {(k, day): row for row, (k, day) in reversed(list(enumerate(zip(*_lists(tables["results"]), strict=True))))}
    tables["results"] = tables["results"].take(sorted(first.values()))  # ASOF takes any of two at one moment
    sql = f"SELECT t.x, s.points, s.place, t.y FROM task t ASOF {kind}JOIN results s ON s.k = t.k AND s.day <= t.ts"
    matched = "s.k IS NOT NULL"
    check_equal(sql, {"points": matched, "place": matched} if kind else {}, tables, clients)


def _lists(results: pa.Table) -> tuple[list[object], list[object]]:
    return results["k"].to_pylist(), results["day"].to_pylist()


GROUPED = (
    "SELECT t.x, h.n, t.y FROM task t LEFT JOIN (SELECT t2.k, t2.ts, count(*) AS n FROM task t2 JOIN results r ON "
    "r.k = t2.k AND r.day < t2.ts GROUP BY 1, 2) h ON h.k = t.k AND h.ts = t.ts"
)


def test_a_history_that_is_grouped_by_rows_counts_each_of_them_once() -> None:
    tables = make_tables(3)
    first = {pair: row for row, pair in reversed(list(enumerate(zip(*_moments(tables["task"]), strict=True))))}
    once = {**tables, "task": tables["task"].take(sorted(first.values()))}
    check_equal(GROUPED, {"n": ANY}, once)
    with tp.Federation(tables) as federation, pytest.raises(tp.TablePuppetError, match="SELECT DISTINCT"):
        federation.train(GROUPED, label="y", model="linear")


def _moments(task: pa.Table) -> tuple[list[object], list[object]]:
    return task["k"].to_pylist(), task["ts"].to_pylist()


@pytest.mark.parametrize(
    ("sql", "match"),
    [
        (
            "SELECT (SELECT avg(r.points) FROM results r WHERE r.k = t.k AND r.day < t.ts AND r.points < t.x) AS m, "
            "t.y FROM task t",
            "one moment",
        ),
        ("SELECT (SELECT r.points FROM results r WHERE r.k = t.k AND r.day < t.ts) AS m, t.y FROM task t", "LIMIT 1"),
        (
            "SELECT (SELECT avg(r.points) FROM results r WHERE r.k = t.k AND r.points < t.x) AS m, t.y FROM task t",
            "date or a time",
        ),
        ("SELECT s.points, t.y FROM task t ASOF JOIN results s ON s.k = t.k", "ASOF JOIN compares"),
        (
            "SELECT (SELECT avg(v.points) FROM (SELECT r.points FROM results r WHERE r.k = t.k AND r.day < t.ts ORDER "
            "BY r.day DESC LIMIT 3) v) AS m, t.y FROM task t",
            "WHERE of the history itself",
        ),
        (
            "SELECT (SELECT product(r.points) FROM results r WHERE r.k = t.k AND r.day < t.ts) AS m, t.y FROM task t",
            "do not run the function product",
        ),
        (
            "SELECT h.n, t.y FROM task t JOIN (SELECT t2.k, t2.ts, count(r.k) AS n FROM (SELECT DISTINCT k, ts FROM "
            "task) t2 LEFT JOIN results r ON r.k = t2.k AND r.day < t2.ts GROUP BY 1, 2) h ON h.k = t.k AND h.ts = "
            "t.ts",
            "inner join",
        ),
        (
            "SELECT h.n, t.y FROM task t CROSS JOIN (SELECT t2.k, t2.ts, count(*) AS n FROM task t2 JOIN results r ON "
            "r.k = t2.k AND r.day < t2.ts GROUP BY 1, 2) h",
            "no key joins h",
        ),
        (
            "SELECT h.n, t.y FROM task t LEFT JOIN LATERAL (SELECT r.place, count(*) AS n FROM results r WHERE r.k = "
            "t.k AND r.day < t.ts GROUP BY r.place) h ON true",
            "GROUP BY",
        ),
    ],
)
def test_what_is_no_history_is_refused_with_what_to_write(sql: str, match: str) -> None:
    with tp.Federation(make_tables()) as federation, pytest.raises(tp.TablePuppetError, match=match):
        federation.train(sql, label="y", model="linear")


PAIRS = {
    "task": '[tables.task]\nfeatures = ["x"]\nlabels = ["y"]\nkeys = ["k"]\ncutoffs = ["ts"]\npairs = ["k"]\n',
    "results": '[tables.results]\nfeatures = ["points", "day", "place"]\nkeys = ["k"]\npairs = ["k"]\n'
    'filters = ["day", "place"]\n',
}


def write_policies(folder: Path, texts: Mapping[str, str] = PAIRS) -> dict[str, Any]:
    for table, text in texts.items():
        (folder / f"{table}.toml").write_text(text)
    return {table: folder / f"{table}.toml" for table in texts}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "sql",
    [
        *(FORMS[form][0] for form in ("several windows", "lateral with filter", "grouped", "rows", "rounded moment")),
        "SELECT t.x, s.points, t.y FROM task t ASOF LEFT JOIN results s ON s.k = t.k AND s.day <= t.ts",
    ],
)
def test_a_history_of_pairs_has_the_features_of_all_cutoffs(sql: str, tmp_path: Path) -> None:
    tables = make_tables(5, kind="zoned")
    once = "SELECT * FROM results QUALIFY row_number() OVER (PARTITION BY k, day) = 1"
    with duckdb.connect() as connection:  # ASOF takes any of two at one moment
        tables["results"] = connection.register("results", tables["results"]).sql(once).to_arrow_table()
    options: dict[str, Any] = {"label": "y", "model": "linear", "test_fraction": 0.0}
    with tp.Federation(tables) as federation:
        expected = federation.train(sql, **options)
    with tp.Federation(tables, policies=write_policies(tmp_path)) as federation:
        found = federation.train(sql, **options)
        predicted = federation.predict(found, key=["k"])
    assert found.objective == pytest.approx(expected.objective, rel=1e-12)
    assert 'pairs of a key, "k", and task' in " ".join(str(found.plan).split())
    assert predicted.num_rows == found.plan.mapping.train_rows


def test_a_history_with_too_many_rows_is_refused_and_pairs_make_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tablepuppet.owner.query_guard.MOST_HISTORY_ROWS", 100)
    options: dict[str, Any] = {"label": "y", "model": "linear", "test_fraction": 0.0}
    with tp.Federation(make_tables()) as federation:
        assert federation.train(FORMS["no key"][0], **options).converged
        for form in ("count", "rows"):
            with pytest.raises(tp.TablePuppetError, match=r"more than 100 rows.*round the moments.*as pairs"):
                federation.train(FORMS[form][0], **options)
    with tp.Federation(make_tables(), policies=write_policies(tmp_path)) as federation:
        assert federation.train(FORMS["count"][0], **options).converged


def test_a_saved_model_predicts_with_new_moments(tmp_path: Path) -> None:
    tables = make_tables(4)
    sql = FORMS["lateral"][0]
    with tp.Federation(tables) as federation:
        result = federation.train(sql, label="y", model="linear", test_fraction=0.0)
        result.save(tmp_path / "model")
        before = federation.predict(tp.load(tmp_path / "model"), sql, key=["x"])
    later = tables["task"].set_column(1, "ts", pa.array(np.repeat(np.datetime64("2021-02-03"), 120)))
    with tp.Federation({**tables, "task": later}) as federation:
        after = federation.predict(tp.load(tmp_path / "model"), sql.replace(", t.y", ""), key=["x"])
    assert len(before) == len(after) == 120
    assert not np.allclose(before["prediction"].to_numpy(), after["prediction"].to_numpy())


def test_explain_counts_what_a_history_discloses() -> None:
    with tp.Federation(make_tables()) as federation:
        result = federation.train(FORMS["count"][0], label="y", model="linear", test_fraction=0.0)
    expected = expect_disclosures(result.plan, len(result.history))
    counted = result.traffic.all_told
    history = {key: count for key, count in counted.items() if "cutoff" in key.what}
    assert {(key.client, key.what, key.to): count for key, count in history.items()} == {
        ("task", "cutoff count", "server"): 1,
        ("results", "cutoffs", "client"): 1,
    }
    assert history == {key: count for key, count in expected.items() if "cutoff" in key.what}


def test_a_history_without_a_key_in_common_is_refused_in_words_of_the_query() -> None:
    days = pa.array(np.array(["2024-01-01", "2024-02-01"], "datetime64[D]"))
    task = pa.table({"k": [1, 2], "ts": days, "x": [1.0, 2.0], "y": [1.0, 3.0]})
    tables = {"task": task, "results": pa.table({"k": [8, 9], "day": days, "v": [1.0, 2.0]})}
    latest = "SELECT r.v FROM results r WHERE r.k = t.k AND r.day < t.ts ORDER BY r.day DESC LIMIT 1"
    query = f"SELECT t.x, h.v, t.y FROM task t JOIN LATERAL ({latest}) h ON true"
    with tp.Federation(tables) as federation, pytest.raises(tp.TablePuppetError, match=r"h\.key have no value in"):
        federation.train(query, label="y", model="linear", test_fraction=0.0)
