"""Loggers for common tools: objects to give to `train` as `on_round`.

    federation.train(query, label="returned", on_round=TensorBoard("runs/newton"))
    federation.train(query, label="returned", on_round=MLflow(experiment="returns"))

Each writes the metrics of an epoch at its end, under the names of `write_history`; MLflow also gets the job's
parameters, before the first of them. Both need their extra (`tensorboard`, `mlflow`), which is imported when the
object is made.
"""

import math
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from tablepuppet.errors import JobError
from tablepuppet.report.recording import figures

if TYPE_CHECKING:
    from tablepuppet.job import Job
    from tablepuppet.training.result import RoundEvent

_LONGEST = 6000  # characters of a parameter that MLflow takes


class TensorBoard:
    """Writes one event file into a folder; `tensorboard --logdir` shows it, also during training."""

    def __init__(self, folder: str | Path) -> None:
        self._summary = _need("tensorboard.compat.proto.summary_pb2", "tensorboard")
        self._event = _need("tensorboard.compat.proto.event_pb2", "tensorboard")
        writer = _need("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._writer = writer.EventFileWriter(str(folder))

    def __call__(self, event: "RoundEvent") -> None:
        if event.record is None:
            return
        values = [
            self._summary.Summary.Value(tag=name.replace("_", "/", 1), simple_value=value)
            for name, value in figures(event.record).items()
        ]
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=event.epoch, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """Logs to the run that is active, or to a new one of an experiment; `close` ends the one it began."""

    def __init__(self, experiment: str | None = None, run_name: str | None = None) -> None:
        self._mlflow = _need("mlflow", "mlflow")
        self._is_own = self._mlflow.active_run() is None
        if not self._is_own:
            return
        try:
            if experiment is not None:
                self._mlflow.set_experiment(experiment)
            self._mlflow.start_run(run_name=run_name)
        except self._mlflow.exceptions.MlflowException as error:
            raise JobError(
                f"MLflow cannot begin a run at {self._mlflow.get_tracking_uri()}: {str(error).strip().splitlines()[0]} "
                "Name a tracking server (MLFLOW_TRACKING_URI), or pip install mlflow to keep runs in a local file"
            ) from None

    def start(self, job: "Job") -> None:
        """Logs the job's parameters; a parameter that the run already has stays as it is."""
        run = self._mlflow.active_run().info.run_id
        known = self._mlflow.MlflowClient().get_run(run).data.params
        given = {name: text[:_LONGEST] for name, text in parameters(job).items() if name not in known}
        self._mlflow.log_params(given)

    def __call__(self, event: "RoundEvent") -> None:
        if event.record is None:
            return
        known = {name: value for name, value in figures(event.record).items() if math.isfinite(value)}
        self._mlflow.log_metrics(known, step=event.epoch)

    def close(self) -> None:
        if self._is_own:
            self._mlflow.end_run()


def parameters(job: "Job") -> dict[str, str]:
    """A job under flat names: query, label, algorithm, learning_rate, privacy.keys, …"""
    plain: dict[str, Any] = msgspec.to_builtins(job.arguments())
    options, privacy = plain.pop("options"), plain.pop("privacy")
    own = {name: value for name, value in options.items() if name != "type"}
    given = plain | own | {f"privacy.{name}": value for name, value in privacy.items()}
    if job.model.l2_by_rows:
        first = f"{job.model.l2:g} + " if job.model.l2 else ""
        given["l2"] = f"{first}{job.model.l2_by_rows:g} / joined rows"
    return {name: str(value) for name, value in given.items()}


def _need(module: str, extra: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError:
        raise JobError(f"this logger needs the extra {extra}: pip install 'tablepuppet[{extra}]'") from None
