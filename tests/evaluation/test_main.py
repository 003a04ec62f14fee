"""python -m evaluation: from original files to a table, figures, records and a page; wrong input is exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from evaluation.__main__ import main
from tests.evaluation import files


def evaluate(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["evaluation", *arguments])
    return main()


def test_one_command_writes_table_figures_records_and_page_and_another_shows_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = files.walmart(tmp_path / "walmart"), tmp_path / "out"
    given = ("--out", str(out), "--seeds", "1", "--epochs", "2", "--only", "RFL-Newton")
    assert evaluate(monkeypatch, "walmart", "--data", str(data.parent), *given) == 0
    table = (out / "walmart.md").read_text(encoding="utf-8")
    assert "| RFL-Newton |" in table
    assert (out / "walmart.html").is_file()
    assert sorted(f.name for f in (out / "runs" / "walmart").iterdir()) == ["centralised-0.json", "rfl-newton-0.json"]
    assert (out / "figures" / "walmart-time-rfl.png").is_file()
    (out / "walmart.md").unlink()
    assert evaluate(monkeypatch, "walmart", "--reuse", "--out", str(out)) == 0
    assert (out / "walmart.md").read_text(encoding="utf-8") == table
    capsys.readouterr()
    assert evaluate(monkeypatch, "figures", "--out", str(out)) == 0
    drawn = [Path(line.removeprefix("figure: ")).name for line in capsys.readouterr().out.splitlines()]
    assert drawn == ["convergence.svg", "convergence.png", "time-rfl.svg", "time-rfl.png"]


@pytest.mark.slow
def test_factor_heads_stand_beside_the_sum_and_the_papers_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = files.movielens(tmp_path / "movielens1m"), tmp_path / "out"
    assert evaluate(monkeypatch, "movielens-factor", "--data", str(data.parent), "--out", str(out)) == 0
    table = (out / "movielens-factor.md").read_text(encoding="utf-8")
    assert "The paper, without ids: linear RMSE 1.083" in table
    assert [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| factor")] == [
        "| factor by als, ids, 6 sweeps",
        "| factor by als, ids",
        "| factor by als, ids, 24 sweeps",
        "| factor by als, ids and features",
        "| factor by sgd, ids",
    ]


@pytest.mark.slow
def test_one_command_runs_all_workloads_without_and_with_privacy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("EVALUATION_ENCODER", "hashed")
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for name, make in {
        "movielens1m": files.movielens,
        "mimic3demo": files.mimic,
        "yelp": files.yelp,
        "nycflights13": files.flights,
        "walmart": files.walmart,
    }.items():
        make(data / name)
    given = (
        "--out",
        str(out),
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--no-search",
        "--yelp-rows",
        "300",
        "--yelp-size",
        "8",
        "--without",
        "boosting",
        "movielens-factor",
        "movielens-seen",
    )
    assert evaluate(monkeypatch, "all", "--data", str(data), *given) == 0
    assert "left out, there is no folder yelp_reviews" in capsys.readouterr().out
    written = {page.stem for page in out.glob("*.md")}
    ran = ("movielens-linear", "movielens-nn", "mimic", "yelp", "yelp-generated", "flights", "walmart")
    both = {*ran, *(f"{name}-private" for name in ran)}
    corrected = {f"correction-{which}" for which in ("update", "rows", "labels")}
    assert written == both | corrected | {"movielens-linear-distances"}
    assert both == {page.stem for page in out.glob("*.html")}
    tables = [json.loads(file.read_text(encoding="utf-8")) for file in out.glob("evaluation-*.json")]
    assert len(tables) == len(written)
    assert all(table["provenance"] == tables[0]["provenance"] for table in tables)
    root = ElementTree.fromstring((out / "figures" / "convergence.svg").read_text(encoding="utf-8"))
    legends = [g for g in root.iter("{http://www.w3.org/2000/svg}g") if g.get("id", "").startswith("legend_")]
    assert len(legends) == 2 * len(ran)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("walmart",), "needs --data"),
        (("walmart", "--data", "nowhere"), "holds none of train.parquet"),
        (("walmart", "--reuse"), "without --reuse first"),
    ],
)
def test_what_is_missing_is_said_and_the_exit_code_is_two(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert evaluate(monkeypatch, *arguments, "--out", str(tmp_path / "out")) == 2
    assert said in capsys.readouterr().err
