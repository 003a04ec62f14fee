"""Everything in one go: what is left, what is left out, and going on after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from evaluation.__main__ import parser
from evaluation.running import KEPT
from tests.evaluation import files

from evaluation import whole
from tablepuppet.errors import JobError

ROOT = Path(__file__).parents[2]


def test_what_is_left_goes_by_what_was_done_and_not_by_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("evaluation.whole.time.perf_counter", lambda: now[0])
    progress = whole.Progress({"long": 60.0, "short": 30.0}, {"long": 4, "short": 2}, began=0.0)
    assert progress.words() == "0 min"
    progress.step("long", is_kept=True)
    now[0] = 120.0  # twice as slow as its cost
    progress.step("long", is_kept=False)
    assert progress.words() == "2 min, about 6 left"
    progress.end("short")
    assert progress.words() == "2 min, about 4 left"


def test_only_the_same_commit_and_options_are_resumed(tmp_path: Path) -> None:
    asked = parser().parse_args(["all", "--out", str(tmp_path), "--resume"])
    asked.both = True
    with pytest.raises(JobError, match="no interrupted evaluation"):
        whole._begin(asked, "abc")
    asked.resume = False
    (tmp_path / "evaluation-old.json").write_text("{}", encoding="utf-8")
    whole._begin(asked, "abc")
    assert not (tmp_path / "evaluation-old.json").exists()
    asked.resume = True
    whole._begin(asked, "abc")
    with pytest.raises(JobError, match=r"is of commit abc .* this is commit def"):
        whole._begin(asked, "def")
    asked.epochs = 3
    with pytest.raises(JobError, match=r"--epochs 10.*--epochs 3"):
        whole._begin(asked, "abc")


def test_reviews_wait_for_a_model_or_for_somebody_who_wants_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "yelp_reviews").mkdir()
    monkeypatch.setattr("evaluation.embedding.find_spec", lambda _: None)
    monkeypatch.delenv("EVALUATION_ENCODER", raising=False)
    assert "yelp-10k" not in whole._chosen(tmp_path)
    assert "yelp-10k: left out, there is no language model" in capsys.readouterr().out
    monkeypatch.setenv("EVALUATION_ENCODER", "hashed")
    assert "yelp-10k" in whole._chosen(tmp_path)


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_where_it_was(tmp_path: Path) -> None:
    data, out = files.walmart(tmp_path / "walmart").parent, tmp_path / "out"
    words = ["--data", str(data), "--out", str(out), "--seeds", "1", "--epochs", "2", "--no-search"]
    words += ["--yelp-rows", "300", "--yelp-size", "8", "--without", "boosting"]
    command = [sys.executable, "-m", "evaluation", "all", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as first:
        assert first.stdout is not None
        said = [line for line, _ in zip((line for line in first.stdout if ", seed " in line), range(4), strict=False)]
        os.killpg(first.pid, signal.SIGKILL)
    assert len(said) == 4
    done = subprocess.run([*command, "--resume"], cwd=ROOT, capture_output=True, text=True, check=True)
    kept = [line.split("] ", 1)[1] for line in done.stdout.splitlines() if line.endswith(KEPT)]
    assert {line.split("] ", 1)[1].rstrip() + KEPT for line in said} <= set(kept)
    tables = [json.loads(file.read_text(encoding="utf-8")) for file in out.glob("evaluation-*.json")]
    assert {table["command"].split()[3] for table in tables} == {"walmart", "yelp-generated", "corrections"}
    assert [table["provenance"] for table in tables] == [{**tables[0]["provenance"], "elsewhere": None}] * len(tables)
