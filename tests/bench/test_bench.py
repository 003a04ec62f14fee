"""The benchmark measures what it says, on joins of the size it was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from tablepuppet.bench.cases import SYNTHETIC, make_case
from tablepuppet.bench.measure import POOLED, copy_seconds, measure
from tablepuppet.cli.main import main
from tablepuppet.errors import JobError


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_synthetic_case_joins_to_as_many_rows_as_asked(name: str) -> None:
    case = make_case(name, 2000, None)
    with duckdb.connect(":memory:") as connection:
        for table, rows in case.tables.items():
            connection.register(table, rows)
        ((count,),) = connection.execute(f"SELECT count(*) FROM ({case.query})").fetchall()
    assert count == 2000


def test_figures_hold_together_and_agree_with_pooling() -> None:
    ours = measure("star", 2000, None, "newton", "logistic", 5)
    pooled = measure("star", 2000, None, POOLED, "logistic", 5)
    assert ours.joined_rows == pooled.joined_rows == 2000
    assert ours.server + ours.clients == pytest.approx(ours.epoch)
    assert ours.bytes > 0
    assert ours.peak > 0
    assert copy_seconds(1 << 20) > 0
    # 15 % of our rows are held out, so the objectives are near, not equal.
    assert ours.objective == pytest.approx(pooled.objective, rel=0.1)


def test_the_command_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    assert main(["bench", "many", "--rows", "2000", "--algorithm", "admm", "--out", str(out), "--epochs", "2"]) == 0
    (figures,) = json.loads(out.read_text(encoding="utf-8"))
    assert figures["algorithm"] == "admm"
    assert "admm" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["snowflake", "tpch-large", "movielens"])
def test_an_unknown_case_is_refused(name: str) -> None:
    with pytest.raises(JobError):
        make_case(name, 1000, None)
