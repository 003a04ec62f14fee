"""tablepuppet report: from run records to a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.report.runs import trained

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


def test_a_file_that_is_no_run_is_the_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.toml").write_text("label = 'x'", encoding="utf-8")
    assert main(["report", str(tmp_path / "job.toml"), "--out", str(tmp_path / "page.html")]) == 2
    assert "job.toml is not a run" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
