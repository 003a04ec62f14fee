"""A run as plain data says what the result says, and survives a file."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pandas as pd
import pytest
from tests.report.runs import QUERY, tables, trained

import tablepuppet as tp
from tablepuppet.errors import JobError, ModelError
from tablepuppet.report.page import render
from tablepuppet.report.record import read_record, to_json
from tablepuppet.report.recording import history_frame, record_of
from tablepuppet.transport.meter import NETWORKS


def test_a_record_read_back_is_the_record_that_was_written(tmp_path: Path) -> None:
    for result in trained():
        record = record_of(result)
        (tmp_path / "run.json").write_text(to_json(record), encoding="utf-8")
        assert read_record(tmp_path / "run.json") == record


def test_a_record_has_the_figures_of_the_result() -> None:
    for result in trained():
        record = record_of(result)
        assert record.objective == result.objective
        assert record.metrics == result.metrics
        assert [e.objective for e in record.history] == [e.objective for e in result.history]
        assert record.traffic.training.by_client == dict(result.traffic.by_client)
        assert record.coefficients is not None
        assert record.coefficients.weight == result.coefficients()["weight"].tolist()
        assert len(record.coefficients.scaled) == len(record.coefficients.weight)


@pytest.mark.parametrize("name", NETWORKS)
def test_seconds_from_a_record_are_those_of_the_meter(name: str) -> None:
    for result in trained():
        last = record_of(result).history[-1]
        expected = result.traffic.seconds(name)
        assert NETWORKS[name].seconds(last.slowest_bytes, last.rounds) == pytest.approx(expected)


def test_a_file_that_is_no_run_is_refused_with_its_name(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"format": "something else"}', encoding="utf-8")
    with pytest.raises(ModelError, match=r"other\.json is not a run"):
        read_record(other)
    with pytest.raises(ModelError, match=r"cannot read .*no such file"):
        read_record(tmp_path / "none.json")


def test_the_history_is_one_row_per_epoch_in_csv_and_in_json(tmp_path: Path) -> None:
    result = trained()[1]
    frame = history_frame(result.history)
    assert frame["epoch"].tolist() == [e.epoch for e in result.history]
    assert frame["test_accuracy"].tolist() == [e.metrics["test"]["accuracy"] for e in result.history]
    result.write_history(tmp_path / "history.csv")
    result.write_history(tmp_path / "history.json")
    assert pd.read_csv(tmp_path / "history.csv")["objective"].tolist() == pytest.approx(frame["objective"].tolist())
    assert [row["bytes"] for row in json.loads((tmp_path / "history.json").read_text())] == frame["bytes"].tolist()
    with pytest.raises(JobError, match=r"as \.csv or \.json, not as \.xlsx"):
        result.write_history(tmp_path / "history.xlsx")


def test_a_neural_run_has_a_record_and_a_page_without_coefficients() -> None:
    pytest.importorskip("torch")
    with tp.Federation(tables()) as federation:
        result = federation.train(QUERY, label="returned", model="mlp", algorithm="sgd", epochs=2, batch_size=64)
    record = record_of(result)
    assert record.coefficients is None
    assert [block.width for block in record.data.blocks] == [2, 4]
    assert "no coefficients to list" in render([record])


def test_the_ledger_of_a_private_run_is_in_its_record_and_on_its_page() -> None:
    with tp.Federation(tables()) as federation:
        result = federation.train(
            QUERY, label="returned", algorithm="sgd", epochs=1, batch_size=64, privacy={"label": {"epsilon": 3.0}}
        )
    record = record_of(result)
    assert [(r.what, r.table, r.observer, r.epsilon) for r in record.ledger] == [("label", "orders", "everyone", 3.0)]
    assert record.ledger[0].claim in html.unescape(render([record]))
    assert "did not ask for differential privacy" in render([record_of(trained()[0])])
