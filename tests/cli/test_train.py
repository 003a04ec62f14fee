"""tablepuppet train and explain on jobs that are right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.mistakes import QUERY, job, right, write

import tablepuppet as tp
from tablepuppet.cli.main import main
from tablepuppet.cli.screen import Screen
from tablepuppet.training.result import RoundEvent


def test_a_job_file_trains_the_model_that_python_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(right() | {"job.toml": job(more="l2 = 0.01\nseed = 3")}, tmp_path)
    assert main(["train", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    tables = {"orders": tmp_path / "orders.parquet", "items": tmp_path / "items.parquet"}
    with tp.Federation(tables) as federation:
        result = federation.train(QUERY, label="returned", l2=0.01, seed=3)
    assert shown["objective"] == result.objective


@pytest.mark.parametrize(
    "algorithm",
    [
        '[algorithm]\nname = "vfl-admm"\nrho = 0.7\nunion = "exact"\n',
        'algorithm = "vfl-admm"\nrho = 0.7\nunion = "exact"',
    ],
    ids=["table", "keys"],
)
def test_options_of_an_algorithm_may_stand_in_a_table_of_their_own(
    algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(right() | {"job.toml": job(more=algorithm)}, tmp_path)
    assert main(["explain", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"] == "vfl-admm"


def test_a_query_and_a_federation_may_lie_in_files_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "query.sql").write_text(QUERY, encoding="utf-8")
    path = write(
        right()
        | {
            "job.toml": 'query_file = "sql/query.sql"\nlabel = "returned"\nfederation = "federation.toml"',
            "federation.toml": '[tables]\norders = ["orders.parquet"]\nitems = "items.parquet"',
        },
        tmp_path,
    )
    assert main(["explain", str(path)]) == 0
    in_the_job = capsys.readouterr().out
    path.write_text('query_file = "sql/query.sql"\nlabel = "returned"', encoding="utf-8")
    assert main(["explain", str(path), "--federation", str(tmp_path / "federation.toml")]) == 0
    assert capsys.readouterr().out == in_the_job
    assert in_the_job.startswith("Train returned (2 classes) by newton")


def test_a_job_file_says_which_tables_one_owner_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    over_both = QUERY.replace("i.price,", "o.quantity * i.price AS paid,")
    path = write(right() | {"job.toml": job(over_both)}, tmp_path)
    assert main(["explain", str(path)]) == 2
    assert "mixes columns of o and i" in capsys.readouterr().err
    held = path.read_text(encoding="utf-8") + '[owners]\nshop = ["orders", "items"]\n'
    path.write_text(held, encoding="utf-8")
    assert main(["train", str(path), "--json"]) == 0
    assert "query.paid" in json.loads(capsys.readouterr().out)["coefficients"]["feature"]
    path.write_text(held.replace("[tables]", 'federation = "f.toml"\n[tables]'), encoding="utf-8")
    assert main(["train", str(path)]) == 2
    assert "has both federation and [tables]" in capsys.readouterr().err


def test_train_saves_reports_and_explains_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(right(), tmp_path)
    model, report = tmp_path / "model", tmp_path / "report.html"
    assert main(["train", str(path), "--save", str(model), "--report", str(report), "--explain"]) == 0
    shown = capsys.readouterr()
    assert "Estimated and counted: newton" in shown.out
    assert shown.err == ""  # no bar where nobody watches
    assert tp.load(model)
    assert report.exists()


def test_an_interrupted_run_ends_with_130_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def interrupted(self: Screen, doing: str) -> Iterator[Callable[[RoundEvent], None]]:
        def on_round(event: RoundEvent) -> None:
            raise KeyboardInterrupt

        yield on_round

    monkeypatch.setattr(Screen, "progress", interrupted)
    assert main(["train", str(write(right(), tmp_path))]) == 130
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "Error: interrupted from the keyboard\n"


@pytest.mark.parametrize(
    ("option", "place", "why"),
    [
        ("--report", "none/report.html", "there is no folder"),
        ("--report", ".", "it is a folder"),
        ("--save", "job.toml", "it is a file"),
        ("--save", ".", "exists and is not a saved model"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_trained(
    option: str,
    place: str,
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write(right(), tmp_path)
    monkeypatch.setattr(tp.Federation, "train", lambda *_, **__: pytest.fail("it trained first"))
    assert main(["train", str(path), option, str(tmp_path / place)]) == 2
    assert why in capsys.readouterr().err


def test_a_job_file_may_ask_for_validation_and_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = 'validation_fraction = 0.3\npatience = 2\nweight = "quantity * quantity"\nclass_weight = {true = 2.5}'
    path = write(right() | {"job.toml": job(more=more)}, tmp_path)
    assert main(["train", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "validation" in shown
    assert "loss" in shown
