"""The command as a whole: help, versions, exit codes, streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tablepuppet
from tablepuppet.cli.main import main, make_app
from tablepuppet.errors import TablePuppetError, TrainingError

COMMANDS = sorted(
    command.name or command.callback.__name__ for command in make_app().registered_commands if command.callback
)


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

    monkeypatch.setattr("tablepuppet.cli.main.make_app", lambda: fail)
    assert main(["train", "job.toml"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Error: ")
    assert "Traceback" not in shown.err


@pytest.mark.one_in(2)
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


def test_an_interrupt_that_python_would_lose_while_libraries_load_ends_the_command(tmp_path: Path) -> None:
    # Raised inside a callback of the garbage collector, as imports have them, it would be printed and forgotten.
    (tmp_path / "typer.py").write_text(
        "import os, signal, time, weakref\n"
        "class Lock: pass\n"
        "lock = Lock()\n"
        "reference = weakref.ref(lock, lambda _: os.kill(os.getpid(), signal.SIGINT))\n"
        "del lock\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "tablepuppet", "explain", "x.toml", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "Error: interrupted from the keyboard\n")
    assert json.loads(done.stdout)["error"]["kind"] == "Interrupted"


def test_an_interrupt_while_libraries_load_is_one_message(tmp_path: Path) -> None:
    # A module of the same name stands for a library whose loading is interrupted.
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tablepuppet", "demo"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "Error: interrupted from the keyboard\n")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    def complete(words: str) -> str:
        # What each shell hands over: the words so far, and for bash the number of the one to complete.
        told = {"_TYPER_COMPLETE_ARGS": words, "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        asked = {"_TABLEPUPPET_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args", **told}
        program = "import sys; from tablepuppet.cli.main import main; sys.exit(main([]))"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **asked},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout

    assert "predict" in complete("tablepuppet pr")
    assert "--report" in complete("tablepuppet train --re")
