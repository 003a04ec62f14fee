"""The benchmark measures what it says, on joins of the size it was asked for."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from benchmarks.__main__ import main, show_figures
from benchmarks.cases import SYNTHETIC, Trial, make_case
from benchmarks.figures import copy_seconds
from benchmarks.measure import FITS, measure, measure_federated, measure_pooled
from rich.console import Console

from benchmarks import cases
from tablepuppet.cli.screen import Screen
from tablepuppet.errors import JobError


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_synthetic_case_joins_to_as_many_rows_as_asked(name: str) -> None:
    case = make_case(name, 2000, None)
    with duckdb.connect(":memory:") as connection:
        for table, rows in case.tables.items():
            connection.register(table, rows)
        ((count,),) = connection.execute(f"SELECT count(*) FROM ({case.query})").fetchall()
    assert count == 2000


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_every_baseline_finds_the_optimum_that_we_find(model: str) -> None:
    case = make_case("star", 2000, None)
    users = case.tables["users"]
    holes = pa.array([None if i % 5 == 0 else float(i) for i in range(len(users))])
    text = pa.array([None if i % 7 == 0 else "ab"[i % 2] for i in range(len(users))])
    case.tables["users"] = users.set_column(1, "a", holes).set_column(2, "b", text)
    ours = measure_federated(case, "newton", model, 20)
    assert ours.server + ours.clients == pytest.approx(ours.epoch)
    assert ours.bytes > 0
    for name in FITS:
        baseline = measure_pooled(case, name, model)
        assert baseline.joined_rows == ours.joined_rows == 2000
        assert baseline.objective == pytest.approx(ours.objective, abs=1e-6)


@pytest.mark.slow
def test_a_measurement_has_a_process_and_so_a_peak_of_its_own() -> None:
    held = np.ones(1 << 30, np.uint8)  # what this process holds must not count
    assert measure(Trial("star", 2000, None, "sgd", "linear", 2)).peak < len(held)
    assert copy_seconds(1 << 20) > 0


def test_movielens_is_found_in_the_folder_of_all_data(tmp_path: Path) -> None:
    own = tmp_path / "movielens1m"
    own.mkdir()
    for name in ("ratings", "users", "movies_genre"):
        (own / f"{name}.parquet").touch()
    for folder in (own, tmp_path):
        assert make_case("movielens", 0, folder).tables["users"] == own / "users.parquet"


@pytest.mark.slow
def test_tpch_is_made_once_and_trained_on(tmp_path: Path) -> None:
    figures = measure(Trial("tpch-0.001", 0, tmp_path, "newton", "logistic", 2))
    assert figures.joined_rows == 6005
    assert [p.name for p in tmp_path.iterdir()] == ["tpch-0.001"]


def test_the_command_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    rows = ["--rows", "2000", "--rows", "3000"]
    assert main(["many", *rows, "--algorithm", "admm", "--out", str(out), "--epochs", "2"]) == 0
    written = json.loads(out.read_text(encoding="utf-8"))
    found = written["figures"]
    assert set(written["provenance"]) >= {"version", "commit", "machine", "elsewhere"}
    assert [figures["case"] for figures in found] == ["many-2,000", "many-3,000"]
    assert all(figures["algorithm"] == "admm" and figures["step"] > 0 for figures in found)
    assert "admm" in capsys.readouterr().out


def test_what_does_not_fit_the_disk_or_the_memory_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["tpch-10", "--algorithm", "newton", "--data", str(tmp_path)]
    monkeypatch.setattr(cases, "free_memory", lambda: 5_000_000_000)
    assert main(asked) != 0
    assert "takes about 12.6 GB of memory, and 5 GB are free" in capsys.readouterr().err
    monkeypatch.setattr(cases, "free_memory", lambda: 50_000_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1_000_000_000))
    assert main(asked) != 0
    assert "takes about 3.2 GB on disk" in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["snowflake", "tpch-large", "tpch--1", "tpch-inf", "movielens"])
def test_an_unknown_case_is_refused(name: str) -> None:
    with pytest.raises(JobError):
        make_case(name, 1000, None)


def _shown(capsys: pytest.CaptureFixture[str], *, width: int | None) -> list[str]:
    screen = Screen(wants_json=False)
    if width is not None:
        screen.out = Console(force_terminal=True, width=width, highlight=False)
    headings = ("case", "algorithm", *(f"figure {i}" for i in range(12)))
    show_figures(screen, headings, [("movielens", "sklearn-newton", *(f"{i}.123" for i in range(12)))], keys=2)
    return re.sub("\x1b[^m]*m", "", capsys.readouterr().out).splitlines()


def test_a_table_of_figures_is_whole_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    heading, row = _shown(capsys, width=None)
    assert heading.split("  ")[0] == "case"
    assert row.split() == ["movielens", "sklearn-newton", *(f"{i}.123" for i in range(12))]


def test_a_table_of_figures_is_stacked_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _shown(capsys, width=80)
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if line.startswith("movielens")]
    assert [cell for row in rows for cell in row[2:]] == [f"{i}.123" for i in range(12)]
    assert all(row[:2] == ["movielens", "sklearn-newton"] for row in rows)
