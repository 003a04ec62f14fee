"""Progress in plain text: where somebody watches, after a while, and never where it was switched off."""

from __future__ import annotations

import io
import re
import time
from contextlib import redirect_stderr

import pytest
from tests.algorithms.neural_join import JOINS, federation

import tablepuppet as tp
from tablepuppet import progress
from tablepuppet.progress import show_progress
from tablepuppet.training.result import EpochRecord, RoundEvent

QUERY = JOINS["one-to-many"].format(y="number")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_training_shows_rounds_and_objective_and_clears_its_line() -> None:
    def slowly(_: RoundEvent) -> None:
        time.sleep(0.5)

    with federation() as owner, redirect_stderr(Terminal()) as terminal:
        result = owner.train(QUERY, label="number", algorithm="admm", epochs=3, progress=True, on_round=slowly)
    shown = terminal.getvalue()
    assert " of 3 rounds" in shown
    assert f"objective {result.history[0].objective:.6g}" in shown
    assert shown.endswith("\r\x1b[1A\x1b[2K")  # the line is cleared


def test_what_is_done_at_once_shows_nothing_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 60.0)  # at once, on a machine that does much else
    with federation() as owner, redirect_stderr(Terminal()) as terminal:
        result = owner.train(QUERY, label="number", epochs=1)
        owner.explain(QUERY, label="number")
        owner.predict(result)
    assert terminal.getvalue() == ""


def test_what_takes_longer_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.1)
    with redirect_stderr(Terminal()) as terminal, show_progress("explaining", None):
        until = time.monotonic() + 60
        while "explaining" not in terminal.getvalue():
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.parametrize("wanted", [None, False])
def test_a_log_is_left_alone_unless_asked(wanted: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    with federation() as owner:
        result = owner.train(QUERY, label="number", epochs=2, progress=wanted)
        owner.predict(result, progress=wanted)
    assert capsys.readouterr() == ("", "")


def test_a_log_that_asks_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("training", True) as bar:
        bar.on_round(RoundEvent(1, 5, 10, EpochRecord(1, 0.25, {}, 5, 100, 0.1)))
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    *before, seconds, what, objective = line.split()
    assert (before, what, objective) == (["training", "━" * 12, "5", "of", "10", "rounds"], "objective", "0.25")
    assert re.fullmatch(r"0:00:\d\d", seconds)


def test_a_terminal_that_goes_away_does_not_end_a_run() -> None:
    with redirect_stderr(Terminal()) as out, show_progress("training", True):
        out.close()
        time.sleep(0.4)


def test_an_estimator_passes_it_on() -> None:
    with federation() as owner, redirect_stderr(Terminal()) as terminal:
        model = tp.RelationalRegressor(progress=True, epochs=1).fit(owner, QUERY, label="number")
        assert "training" in terminal.getvalue()
        model.predict(owner)
    assert "predicting" in terminal.getvalue()


def test_another_value_is_refused() -> None:
    with federation() as owner, pytest.raises(tp.TablePuppetError, match="progress must be True or False or None"):
        owner.train(QUERY, label="number", progress="yes")  # type: ignore[arg-type]
