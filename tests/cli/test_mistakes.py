"""A user's mistake never gives a traceback: exit code 2 and one clear message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.mistakes import MISTAKES, right, write

from tablepuppet.cli.main import main


def test_the_job_that_the_mistakes_are_made_in_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write(right(), tmp_path)
    assert main(["train", str(job)]) == 0
    assert "accuracy" in capsys.readouterr().out


def test_a_job_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    job = write(right(), tmp_path)
    job.write_text(job.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert main(["explain", str(job)]) == 0


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gives_exit_code_2_and_one_clear_message(
    mistake: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TABLEPUPPET_TRACEBACK", "1")  # an error of our own would come through
    files, word = MISTAKES[mistake]
    job = write(right() | files, tmp_path)
    assert main(["train", str(job)]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Error: ")
    assert shown.err.count("Error: ") == 1
    assert "Traceback" not in shown.err
    assert word in shown.err


@pytest.mark.parametrize("mistake", ["a misspelt key", "an unknown column", "a join without a row"])
def test_a_mistake_is_one_document_with_json(mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, _ = MISTAKES[mistake]
    job = write(right() | files, tmp_path)
    assert main(["explain", str(job), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["train"],
        ["train", "none.toml"],
        ["train", "."],
        ["explain", "a\x00b"],
        ["train", "job.toml", "--fast"],
        ["fly"],
    ],
    ids=str,
)
def test_a_wrong_call_gives_exit_code_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err
    assert "Traceback" not in shown.err
    assert main([*arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train job.toml --epochs 3", "write epochs = … in the job file; see tablepuppet train --help"),
        ("train job.toml more.toml", "(more.toml); see tablepuppet train --help"),
        (
            "evaluate model job.toml --rows tests",
            "'tests' is not one of 'test', 'train', 'all'; see tablepuppet evaluate",
        ),
        ("search job.toml --folds two", "must be a whole number; see tablepuppet search --help"),
        ("demo --flights 10", "must be greater than or equal to 1000; see tablepuppet demo --help"),
        ("tran job.toml", "No such command 'tran'. Did you mean 'train'?"),
        ("export model", "Choose from: sql, onnx, lightgbm; see tablepuppet export --help"),
    ],
)
def test_a_wrong_call_is_answered_in_one_sentence(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: ")
    assert words in line
    assert "Value error" not in line


def test_nothing_follows_the_sentence_at_the_end_of_the_process() -> None:
    wrong = [sys.executable, "-m", "tablepuppet", "evaluate", "model", "job.toml", "--rows", "tests"]
    assert len(subprocess.run(wrong, capture_output=True, text=True, check=False).stderr.splitlines()) == 1


def test_the_program_itself_leaves_with_the_exit_code(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tablepuppet", "train", str(tmp_path / "none.toml")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 2
    assert process.stderr.startswith("Error: ")
