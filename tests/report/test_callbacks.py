"""Loggers receive every epoch's figures, as the history has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.report.runs import QUERY, tables

import tablepuppet as tp
from tablepuppet.errors import JobError
from tablepuppet.report.callbacks import MLflow, TensorBoard


def train(on_round: TensorBoard | MLflow) -> tp.Result:
    with tp.Federation(tables()) as federation:
        return federation.train(QUERY, label="returned", algorithm="admm", epochs=3, on_round=on_round)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_back_what_the_history_says(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoard(tmp_path)
    result = train(logger)
    logger.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    shown = [(e.step, e.value) for e in events.Scalars("objective")]
    assert shown == [(e.epoch, pytest.approx(e.objective, rel=1e-6)) for e in result.history]
    assert len(events.Scalars("test/accuracy")) == len(result.history)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_back_what_the_history_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    logger = MLflow(experiment="returns")
    run = mlflow.active_run().info.run_id
    result = train(logger)
    logger.close()
    assert mlflow.active_run() is None
    asked = mlflow.MlflowClient(tmp_path.as_uri()).get_run(run).data.params
    assert {name: asked[name] for name in ("label", "algorithm", "l2", "epochs", "relax", "privacy.keys")} == {
        "label": "returned",
        "algorithm": "admm",
        "l2": "1 / joined rows",
        "epochs": "3",
        "relax": "1.6",
        "privacy.keys": "hmac",
    }
    assert asked["query"].split() == QUERY.split()
    shown = mlflow.MlflowClient(tmp_path.as_uri()).get_metric_history(run, "objective")
    assert [(m.step, m.value) for m in shown] == [(e.epoch, e.objective) for e in result.history]


@pytest.mark.filterwarnings("ignore")
def test_a_store_that_mlflow_cannot_use_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    mlflow.set_tracking_uri("nowhere://x")
    try:
        with pytest.raises(JobError, match="Name a tracking server"):
            MLflow(experiment="returns")
    finally:
        mlflow.set_tracking_uri(None)


@pytest.mark.parametrize(("logger", "extra"), [("TensorBoard('x')", "tensorboard"), ("MLflow()", "mlflow")])
def test_a_logger_without_its_extra_says_what_to_install(logger: str, extra: str) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('tensorboard', 'mlflow')))\n"
        "from tablepuppet.errors import JobError\nfrom tablepuppet.report.callbacks import MLflow, TensorBoard\n"
        f"try: {logger}\nexcept JobError as error: print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert f"pip install 'tablepuppet[{extra}]'" in shown.stdout
