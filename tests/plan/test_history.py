"""Histories in a plan: rows, cutoffs, who learns them, and features that may see the future."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sql.test_history import make_tables

import tablepuppet as tp

ITEM = "(SELECT count(*) FROM {table} r WHERE r.k = t.k AND {bounds}) AS n"


def explain(bounds: str, **options: Any) -> tp.Plan:
    query = f"SELECT t.x, {ITEM.format(table='results', bounds=bounds)}, t.y FROM task t"
    with tp.Federation(make_tables()) as federation:
        return federation.explain(query, label="y", model="linear", **options)


def test_explain_shows_rows_and_cutoffs_and_who_learns_them() -> None:
    plan = explain("r.day < t.ts")
    text = " ".join(str(plan).split())
    assert 'r: results until 8 cutoffs, the distinct values of task\'s "ts" and not whose they are: 168 rows' in text
    assert 'client results (history of results) · 8 cutoffs, the distinct values of task\'s "ts"' in text
    assert "8 cutoffs" in plan._repr_html_()
    assert plan.to_json().count("8 cutoffs") == 2


PAST = [
    "r.day > t.ts",
    "r.day < t.ts + INTERVAL 9 DAY",
    "r.day >= t.ts - INTERVAL 9 DAY",
    "(r.day < t.ts OR r.place = 'a')",
    "NOT r.day <= t.ts",
    "r.day - INTERVAL 9 DAY < t.ts",
    "date_trunc('month', r.day) <= t.ts",
    "CAST(r.day AS DATE) <= t.ts",
    "r.day BETWEEN t.ts AND t.ts + INTERVAL 9 DAY",
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("bounds", PAST)
def test_a_window_that_reaches_past_the_moment_is_noted(bounds: str) -> None:
    assert any("reaches past the moment" in leak for leak in explain(bounds).leaks)


@pytest.mark.parametrize(
    "bounds",
    [
        "r.day < t.ts",
        "t.ts >= CAST(r.day AS TIMESTAMP)",
        "r.day + INTERVAL 2 DAY < t.ts",
        "r.day BETWEEN t.ts - INTERVAL 9 DAY AND t.ts - INTERVAL 1 DAY",
    ],
)
def test_a_window_before_the_moment_is_not_noted(bounds: str) -> None:
    assert explain(bounds, split="time").leaks == []


@pytest.mark.parametrize(
    ("kinds", "bounds", "note"),
    [
        (("timestamp", "date"), "r.day < t.ts", "the whole day of the moment counts"),
        (("zoned", "date"), "r.day <= t.ts", "the whole day of the moment counts"),
        (("date", "timestamp"), "r.day <= t.ts", "nothing later on that day counts"),
        (("date", "timestamp"), "r.day < t.ts", ""),
        (("date", "timestamp"), "CAST(r.day AS DATE) <= t.ts", ""),
        (("timestamp", "date"), "r.day < CAST(t.ts AS DATE)", ""),
        (("timestamp", "timestamp"), "r.day <= t.ts", ""),
    ],
)
def test_dates_that_are_compared_with_times_are_noted(kinds: tuple[str, str], bounds: str, note: str) -> None:
    tables = {name: make_tables(kind=kind)[name] for name, kind in zip(("task", "results"), kinds, strict=True)}
    lateral = f"SELECT t.x, {ITEM.format(table='results', bounds=bounds)}, t.y FROM task t"
    latest = f"SELECT t.x, r.points, t.y FROM task t ASOF JOIN results r ON r.k = t.k AND {bounds}"
    with tp.Federation(tables) as federation:
        for query in (lateral, latest):
            leaks = federation.explain(query, label="y", model="linear", test_fraction=0.0).leaks
            found = [leak for leak in leaks if "a date is its midnight" in leak]
            assert [note in leak for leak in found] == [True] * bool(note)


def test_a_random_split_of_histories_is_noted_in_results_too() -> None:
    query = f"SELECT t.x, {ITEM.format(table='results', bounds='r.day < t.ts')}, t.y FROM task t"
    with tp.Federation(make_tables()) as federation:
        result = federation.train(query, label="y", model="linear")
    assert any('split="time"' in note for note in result.notes)


@pytest.mark.parametrize(
    ("where", "is_noted"),
    [
        ("ts < DATE '2020-04-01'", True),
        ("x > 0", True),
        ("ts >= DATE '2020-04-01'", False),
        ("x > 0 AND DATE '2020-03-01' <= ts", False),
    ],
)
def test_a_test_that_does_not_lie_after_training_is_noted(where: str, is_noted: bool) -> None:
    leaks = explain("r.day < t.ts", test_where=where, test_fraction=0.0).leaks
    assert [("lie before training rows" in leak) for leak in leaks] == [True] * is_noted


@pytest.mark.parametrize(
    ("item", "bound", "leaks"),
    [
        ("avg(r.y)", "< t.ts", ["holds earlier labels"]),
        ("avg(r.y)", "< t.ts - INTERVAL 30 DAY", []),
        ("avg(r.x)", "< t.ts", []),
        ("avg(r.x)", "<= t.ts", ["counts the row itself"]),
    ],
)
def test_a_history_that_holds_labels_is_noted(item: str, bound: str, leaks: list[str]) -> None:
    inner = f"SELECT {item} AS m FROM task r WHERE r.k = t.k AND r.ts {bound}"
    query = f"SELECT t.x, h.m, t.y FROM task t LEFT JOIN LATERAL ({inner}) h ON true"
    with tp.Federation(make_tables()) as federation:
        found = federation.explain(query, label="y", model="linear", test_fraction=0.0).leaks
    assert len(found) == len(leaks)
    assert all(wanted in leak for wanted, leak in zip(leaks, found, strict=True))


@pytest.mark.parametrize(
    ("bounds", "options", "leaks"),
    [
        ("r.day < t.ts", {"test_fraction": 0.0}, ["before the moment"]),
        ("r.day >= t.ts", {}, ["before training rows"]),
        ("r.day >= t.ts", {"split": "time"}, []),
    ],
)
def test_a_label_of_a_history_is_noted_where_features_may_hold_it(
    bounds: str, options: dict[str, Any], leaks: list[str]
) -> None:
    query = f"SELECT t.x, r.points FROM task t JOIN results r ON r.k = t.k AND {bounds} WHERE r.points IS NOT NULL"
    with tp.Federation(make_tables()) as federation:
        found = federation.explain(query, label="points", model="linear", **options).leaks
    assert len(found) == len(leaks)
    assert all(wanted in leak for wanted, leak in zip(leaks, found, strict=True))


def test_a_split_by_another_time_than_the_moment_is_noted() -> None:
    query = f"SELECT t.x, {ITEM.format(table='results', bounds='r.day < t.ts')}, t.y FROM task t"
    tables = make_tables()
    tables["task"] = tables["task"].append_column("born", tables["task"]["ts"])
    with tp.Federation(tables) as federation:
        for split, is_noted in (("t.born", True), ("t.ts", False)):
            leaks = federation.explain(query, label="y", model="linear", split=split).leaks
            assert [("lie before training rows" in leak) for leak in leaks] == [True] * is_noted
