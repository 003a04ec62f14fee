"""The command as a whole: help, versions, exit codes, streams."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tablepuppet
from tablepuppet.cli import main as program
from tablepuppet.cli.main import app, main
from tablepuppet.errors import TablePuppetError, TrainingError

COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands if command.callback)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_speaks_json(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example" in shown
    assert f"tablepuppet {command}" in shown
    assert "--json" in shown


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tablepuppet {tablepuppet.__version__}\n"


def test_a_misspelt_command_is_the_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "train" in capsys.readouterr().err


def test_an_error_goes_to_standard_error_and_with_json_also_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(tmp_path / "none.toml")]) == 2
    for_people = capsys.readouterr()
    assert for_people.out == ""
    assert "none.toml" in for_people.err
    assert main(["train", str(tmp_path / "none.toml"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "JobError"


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (TablePuppetError("x"), 2),
        (TrainingError("x"), 1),
        (KeyboardInterrupt(), 130),
        (MemoryError(), 1),
        (ZeroDivisionError("a bug"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_is_raised_becomes_an_exit_code_and_one_message(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(program, "app", fail)
    assert main(["train", "job.toml"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Error: ")
    assert "Traceback" not in shown.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_full_disk_behind_standard_output_costs_no_model_and_shows_no_traceback(
    tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{i},{i % 7}.5\n" for i in range(60)))
    (tmp_path / "job.toml").write_text('query = "SELECT t.x, t.y FROM t"\nlabel = "y"\n[tables]\nt = "t.csv"\n')
    command = [sys.executable, "-m", "tablepuppet", "train", "job.toml", "--save", "model", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: cannot write to standard output: No space left on device; send it elsewhere\n"
    assert (tmp_path / "model" / "model.json").exists()
