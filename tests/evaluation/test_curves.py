"""Means over seeds and the time until the centralised figure is reached, from records made by hand."""

from __future__ import annotations

import msgspec
import pytest
from evaluation.curves import curve, seconds_to
from evaluation.lineup import CENTRALISED, LINEUP
from evaluation.running import Outcome
from tests.report.runs import trained

from tablepuppet.report.record import RunRecord
from tablepuppet.report.recording import record_of


def run(values: list[float], size: int = 1_000_000) -> RunRecord:
    """A real run's record with another history: one round of so many bytes an epoch."""
    record = record_of(trained()[0])
    history = [
        msgspec.structs.replace(record.history[0], epoch=i, rounds=i, bytes=i * size, metrics={"test": {"rmse": value}})
        for i, value in enumerate(values, 1)
    ]
    return msgspec.structs.replace(record, history=history, metrics={"test": {"rmse": values[-1]}})


def centralised() -> Outcome:
    return Outcome(CENTRALISED, (run([1.0]), run([2.0])))


def test_a_run_that_has_converged_stays_where_it_is() -> None:
    moments = curve(Outcome(LINEUP[1], (run([3.0, 1.0]), run([5.0, 4.0, 2.0]))), "rmse")
    assert [m.value for m in moments] == [4.0, 2.5, 1.5]
    assert moments[2].spread == pytest.approx(0.5**0.5)


def test_the_time_counts_until_the_figure_stays_close() -> None:
    # Close at first, then not, then close for good: the third epoch counts.
    outcome = Outcome(LINEUP[1], (run([1.00005, 1.2, 1.00005, 1.0]), run([2.5, 2.5, 2.00001])))
    assert seconds_to(outcome, centralised(), "rmse", "us-uk") == pytest.approx(3 * 0.136 + 3e6 * 8 / 0.42e9)


def test_no_time_where_one_run_never_arrives() -> None:
    outcome = Outcome(LINEUP[1], (run([1.0]), run([2.5])))
    assert seconds_to(outcome, centralised(), "rmse", "us-uk") is None
