"""tablepuppet report: from run records to a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.report.runs import trained

import tablepuppet as tp
from tablepuppet.cli.main import main


def test_runs_side_by_side_are_named_after_their_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for result in trained()[:2]:
        (tmp_path / f"my {result.plan.job.algorithm}.json").write_text(result.to_json(), encoding="utf-8")
    runs = [str(tmp_path / "my newton.json"), str(tmp_path / "my admm.json")]
    assert main(["report", *runs, "--out", str(tmp_path / "page.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == ["my newton", "my admm"]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "my newton" in page
    assert "my admm" in page


def test_a_network_of_ones_own_is_shown_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, page = tmp_path / "run.json", tmp_path / "page.html"
    run.write_text(trained()[0].to_json(), encoding="utf-8")
    assert main(["report", str(run), "--network", "ship & shore=600,0.01", "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    seconds = trained()[0].traffic.seconds(tp.Network(0.6, 0.01))
    assert f"<dt>time on ship &amp; shore</dt><dd>{seconds:.3g} s</dd>" in text
    assert '<option value="network-ship &amp; shore">communication time on ship &amp; shore</option>' in text
    for wrong in ("office", "office=20", "=20,0.1", "office=20,fast", "office=20,-1"):
        assert main(["report", str(run), "--network", wrong, "--out", str(page)]) == 2
        assert "network" in capsys.readouterr().err


def test_a_folder_is_answered_with_what_to_name_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 2
    assert "/*.json" in "".join(capsys.readouterr().err.split())


def test_a_file_that_is_no_run_is_the_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.toml").write_text("label = 'x'", encoding="utf-8")
    assert main(["report", str(tmp_path / "job.toml"), "--out", str(tmp_path / "page.html")]) == 2
    assert "job.toml is not a run" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
