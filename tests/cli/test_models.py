"""tablepuppet predict and explain --profile."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.cli.mistakes import QUERY, job, right, write

import tablepuppet as tp
from tablepuppet.cli.main import main


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A job file, and beside it a model of it."""
    written = write(right() | {"job.toml": job()}, tmp_path)
    with tp.Federation({name: tmp_path / f"{name}.parquet" for name in ("orders", "items")}) as federation:
        federation.train(QUERY, label="returned").save(tmp_path / "model")
    return written


def test_predictions_are_written_and_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, to = str(path.parent / "model"), path.parent / "answer.parquet"
    assert main(["predict", model, str(path), "--to", str(to)]) == 0
    assert f"written to {to}" in capsys.readouterr().out
    with tp.Federation({name: path.parent / f"{name}.parquet" for name in ("orders", "items")}) as federation:
        expected = federation.predict(tp.load(model), QUERY)
    assert pq.read_table(to).equals(expected)
    assert main(["predict", model, str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == len(document["predictions"]) == expected.num_rows
    assert document["missing"] == []
    assert main(["predict", model, str(path), "--split", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["predictions"]
    assert {row["split"] for row in rows} == {"train", "test"}


def test_a_model_is_measured_on_a_jobs_rows(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(path.parent / "model")
    with tp.Federation({name: path.parent / f"{name}.parquet" for name in ("orders", "items")}) as federation:
        expected = federation.evaluate(tp.load(model), QUERY)
    assert main(["evaluate", model, str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == pytest.approx(dict(expected))
    assert main(["evaluate", model, str(path)]) == 0
    assert "log_loss" in capsys.readouterr().out


def test_comparing_and_drift_end_with_codes_for_cron(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, new = str(path.parent / "model"), str(path.parent / "new")
    assert main(["drift", model, str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drifted"] is False
    assert main(["drift", model, str(path), "--spread", "1", "--shift", "0", "--json"]) in (0, 3)
    capsys.readouterr()
    assert main(["train", str(path), "--warm-start", model, "--save", new]) == 0
    capsys.readouterr()
    assert main(["compare", model, new, str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] > 0
    assert found["which_rows"] == "test"
    assert not found["is_worse"]
    assert main(["compare", model, new, str(path), "--better"]) == 3  # the same weights are no better
    assert "rows that neither model was trained on" in " ".join(capsys.readouterr().out.split())


def test_rows_are_chosen_on_the_command_line_or_in_the_job(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(path.parent / "model")
    counts = {}
    for rows in ("test", "train", "all"):
        assert main(["evaluate", model, str(path), "--rows", rows, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        counts[rows] = found["rows"]
        assert found["which_rows"] == rows
    assert counts["test"] + counts["train"] == counts["all"]
    job = path.with_name("all.toml")
    job.write_text('rows = "all"\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["importance", model, str(job), "--by", "table", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == counts["all"]
    assert main(["train", str(job)]) == 0
    job.write_text('rows = "some"\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["evaluate", model, str(job)]) == 2
    assert 'rows must be "test"' in " ".join(capsys.readouterr().err.split())


def test_new_rows_need_no_label(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, job = str(path.parent / "model"), path.with_name("new.toml")
    text = path.read_text(encoding="utf-8").replace(", o.returned", "")
    job.write_text("\n".join(line for line in text.splitlines() if not line.startswith("label")), encoding="utf-8")
    assert main(["drift", model, str(job), "--json"]) == 0
    assert main(["predict", model, str(job)]) == 0
    assert main(["explain", str(job), "--profile"]) == 0
    assert main(["dependence", model, str(job), "--feature", "i.price"]) == 0
    capsys.readouterr()
    assert main(["train", str(job)]) == 2
    assert "names no label" in " ".join(capsys.readouterr().err.split())


def test_importance_and_dependence_are_shown_and_drawn(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, folder = str(path.parent / "model"), path.parent
    with tp.Federation({name: folder / f"{name}.parquet" for name in ("orders", "items")}) as federation:
        expected = federation.partial_dependence(tp.load(model), QUERY, "i.price", points=5)
        shuffled = federation.importance(tp.load(model), QUERY, by="table")
    assert main(["dependence", model, str(path), "--feature", "i.price", "--points", "5", "--json"]) == 0
    written = capsys.readouterr().out
    (curve,) = json.loads(written)["dependence"]
    assert curve["feature"] == "i.price"
    assert curve["values"] == expected["value"].tolist()
    assert curve["means"]["probability"] == expected["probability"].tolist()
    assert main(["importance", model, str(path), "--by", "table", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["importance"] == shuffled.to_dict("records")
    assert main(["importance", model, str(path), "--by", "table"]) == 0
    assert "how much the mean loss rises" in capsys.readouterr().out
    assert main(["dependence", model, str(path)]) == 2
    assert "name a feature: --feature NAME; the model has" in capsys.readouterr().err
    (folder / "price.json").write_text(written, encoding="utf-8")
    assert main(["train", str(path), "--json"]) == 0
    (folder / "run.json").write_text(capsys.readouterr().out, encoding="utf-8")
    page = folder / "page.html"
    command = ["report", str(folder / "run.json"), "--out", str(page), "--dependence"]
    assert main([*command, str(folder / "price.json")]) == 0
    assert "What a feature does" in page.read_text(encoding="utf-8")
    assert main([*command, str(folder / "run.json")]) == 2
    assert "tablepuppet dependence --json" in capsys.readouterr().err


def test_what_is_wrong_with_the_model_or_the_request_is_the_users_mistake(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(path.parent / "model")
    assert main(["predict", str(path.parent), str(path)]) == 2
    assert main(["predict", model, str(path), "--key", "nothing"]) == 2
    assert main(["predict", model, str(path), "--missing", "perhaps"]) == 2
    assert main(["predict", model, str(path), "--to", "x.xml"]) == 2
    shown = capsys.readouterr().err
    for sentence in (
        "there is no model.json",
        "the key nothing",
        'missing must be "error" or "zero"',
        ".parquet or .csv",
    ):
        assert sentence in " ".join(shown.split())


def test_a_profile_counts_orphans_duplicates_and_null_keys(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(path), "--profile"]) == 0
    assert "distinct keys" in capsys.readouterr().out
    assert main(["explain", str(path), "--profile", "--json"]) == 0
    [join] = json.loads(capsys.readouterr().out)["joins"]
    assert join["left"]["rows"] > 0
    assert join["shape"] in ("many-to-one", "one-to-many", "many-to-many", "one-to-one")
