"""The server's own memory and time are measured over real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.__main__ import main
from benchmarks.cases import Trial
from benchmarks.processes import measure_apart

from benchmarks import processes
from tablepuppet.errors import JobError


@pytest.mark.slow
def test_the_command_shows_what_the_server_takes_for_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    asked = ["many", "--processes", "--rows", "20000", "--epochs", "2", "--out", str(out)]
    assert main([*asked, "--algorithm", "newton"]) == 0
    [found] = json.loads(out.read_text(encoding="utf-8"))["figures"]
    assert (found["case"], found["joined_rows"], found["algorithm"]) == ("many-20,000", 20_000, "newton")
    assert found["peak"] > 0
    assert min(found["server_cpu"], found["clients_cpu"], found["mapping_cpu"]) > 0
    assert "server ns/row" in " ".join(capsys.readouterr().out.split())


def test_a_baseline_has_no_server_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["many", "--processes", "--algorithm", "sklearn"]) == 2
    assert "pools the tables" in capsys.readouterr().err


def test_a_system_without_proc_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    with pytest.raises(JobError, match="/proc"):
        measure_apart(Trial("many", 1000, None, "newton", "logistic", 2))
