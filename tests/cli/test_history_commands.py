"""The command line writes histories: tablepuppet history, and explain --suggest-history."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.sql.test_history import make_tables

import tablepuppet as tp
from tablepuppet.cli.main import main


def test_history_prints_the_join(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--key", "k", "--at", "t.ts", "--window", "30 days", "--window", "all"]
    assert main(["history", "results.day", "points", "place:category", *given, "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["join"]
    assert text == tp.history(
        "results", key="k", time="day", at="t.ts", windows=["30 days", None], columns=["points"], categories=["place"]
    )
    assert main(["history", "results.day", *given[:-2], "--window", "long"]) == 2
    assert main(["history", "results", *given]) == 2


def test_explain_prints_the_query_with_histories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, table in make_tables().items():
        pq.write_table(table.rename_columns({"k": "driver_id"}), tmp_path / f"{name}.parquet")
    job = tmp_path / "job.toml"
    job.write_text(
        'query = "SELECT t.x, t.y FROM task t"\nlabel = "y"\nsplit = "time"\n'
        'tables = {task = "task.parquet", results = "results.parquet"}\n'
    )
    assert main(["explain", str(job), "--suggest-history", "--json"]) == 0
    assert "results_by_driver_id.points_mean" in json.loads(capsys.readouterr().out)["query"]
    assert main(["explain", str(job), "--json"]) == 0
