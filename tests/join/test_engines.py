"""An engine is named in Python, in a job file or on the command line; what it cannot do is said at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cases import make_case
from tests.cli.mistakes import job, right, write

import tablepuppet as tp
from tablepuppet.cli.main import main
from tablepuppet.cli.train import read_job
from tablepuppet.errors import JobError
from tablepuppet.job import make_job
from tablepuppet.join.cluster.cluster import _storage


def trained(**options: Any) -> tp.Result:
    case = make_case("star", 1000, None)
    with tp.Federation(case.tables) as federation:
        return federation.train(case.query, label=case.label, **options)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("spark", "unknown engine 'spark'; choose one of local, ray"),
        ({"name": "ray", "adress": "auto"}, "unknown field `adress`"),
        ({"name": "ray", "workers": 0}, "workers must be at least 1"),
    ],
)
def test_an_engine_that_is_wrong_is_refused(engine: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        trained(engine=engine)


@pytest.mark.parametrize("algorithm", ["centralized", "vfl-admm", "vfl-sgd"])
def test_baselines_run_in_one_process(algorithm: str) -> None:
    with pytest.raises(JobError, match="runs in one process"):
        trained(engine="ray", algorithm=algorithm)


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(JobError, match=r'pip install "tablepuppet\[ray\]"'):
        trained(engine="ray")


@pytest.mark.parametrize("place", ["/dev/null/here", "nowhere://here"])
def test_a_folder_that_cannot_be_written_is_named(place: str) -> None:
    with (
        pytest.raises(JobError, match=f"cannot write to the engine's storage {place}"),
        _storage(tp.Ray(storage=place)),
    ):
        pass


def test_a_job_file_names_the_engine_in_short_or_in_a_table(tmp_path: Path) -> None:
    for more, engine in (
        ('engine = "ray"', tp.Ray()),
        ('[engine]\nname = "ray"\naddress = "auto"\nworkers = 3\n', tp.Ray(address="auto", workers=3)),
    ):
        asked = read_job(write(right() | {"job.toml": job(more=more)}, tmp_path))
        arguments = {"model": "auto", "algorithm": "newton"} | asked.arguments
        given = {k: v for k, v in arguments.items() if k not in ("label", "model", "algorithm")}
        made = make_job(
            asked.query,
            label=arguments["label"],
            model=arguments["model"],
            algorithm=arguments["algorithm"],
            given=given,
        )
        assert made.engine == engine


def test_the_command_line_takes_an_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(right(), tmp_path)
    assert main(["train", str(path), "--engine", "cloud"]) == 2
    assert "unknown engine 'cloud'" in capsys.readouterr().err
    assert main(["train", str(path), "--engine", "local"]) == 0
