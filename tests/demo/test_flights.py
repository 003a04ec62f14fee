"""The demo's data, and what is said where it is missing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tablepuppet import demo
from tablepuppet.cli.main import main
from tablepuppet.sql import parse


def test_each_airline_has_its_own_flights_and_none_is_lost() -> None:
    table = pa.table({"carrier": ["UA", "AA", "UA", "9E"], "flight": [1, 2, 3, 4]})
    assert [part["flight"].to_pylist() for part in demo.by_airline(table)] == [[4], [2], [1, 3]]


def test_no_feature_is_known_only_after_departure() -> None:
    (branch,) = parse(demo.QUERY).branches
    assert branch
    features = demo.QUERY.split("f.arr_delay > 15")[0]
    assert not any(word in features for word in ("dep_", "arr_", "air_time"))


def test_the_data_is_shipped_with_the_package() -> None:
    table, others = demo.read_flights()
    rows = {name: found.num_rows for name, found in others.items()}
    assert (table.num_rows, rows) == (336_776, {"weather": 26_115, "planes": 3_322, "airports": 1_458})


def test_a_sample_of_the_flights_has_all_airlines() -> None:
    with demo.open_flights(20_000) as federation:
        plan = federation.explain(demo.QUERY, label=demo.LABEL)
    assert len(plan.mapping.bound.scans[0].clients) == 16


@pytest.mark.slow
def test_the_demo_runs_and_its_algorithms_come_close_to_the_pooled_join(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    report = tmp_path_factory.mktemp("demo") / "demo.html"
    assert main(["demo", "--json", "--report", str(report)]) == 0
    shown = json.loads(capsys.readouterr().out)
    gaps = {run["algorithm"]: run["gap"] for run in shown["runs"]}
    assert gaps["newton"] < 1e-5
    assert gaps["admm"] < 1e-3
    assert gaps["sgd"] < 1e-2
    assert report.read_text(encoding="utf-8").startswith("<!doctype html>")
