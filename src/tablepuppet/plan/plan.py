"""Plan: what will be run, as data. `explain` renders it, the engine runs it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tablepuppet.errors import JobError
from tablepuppet.job import Job
from tablepuppet.mapping.expanded import expanded
from tablepuppet.mapping.labels import Task
from tablepuppet.mapping.mapping import TableMapping
from tablepuppet.models.losses import Logistic, Loss, Softmax, Squared

_TASKS: dict[str, Task] = {
    "squared": "number",
    "logistic": "binary",
    "softmax": "classes",
    "cross_entropy": "classes",
    "auto": "any",
}


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A job over a table mapping."""

    job: Job
    mapping: TableMapping
    training_mapping: TableMapping  # the same, or expanded for the VFL baselines
    loss: Loss

    def __repr__(self) -> str:
        """Short, and without any row: the arrays inside hold labels."""
        return f"Plan({self.job.model} by {self.job.algorithm}, {self.mapping.joined_rows:,} joined rows)"


def make_plan(mapping: TableMapping, job: Job) -> Plan:
    """The plan of a job."""
    if not mapping.train.rows:
        raise JobError("there are no training rows; lower test_fraction or bring more rows")
    if job.model == "auto":
        job = msgspec.structs.replace(job, model=_model_for(mapping))
    training = expanded(mapping) if job.is_expanded else mapping
    return Plan(job, mapping, training, _loss(job, mapping))


def _model_for(mapping: TableMapping) -> str:
    """The linear model that fits the label."""
    if mapping.label.kind == "number":
        return "linear"
    return "logistic" if len(mapping.label.classes) == 2 else "softmax"


def task_of(job: Job) -> Task:
    """What kind of label a job's loss needs."""
    return _TASKS[job.loss_name]


def _loss(job: Job, mapping: TableMapping) -> Loss:
    if mapping.label.kind == "number":
        return Squared()
    classes = len(mapping.label.classes)
    is_binary = job.loss_name == "logistic" or (job.loss_name != "softmax" and classes == 2)
    return Logistic() if is_binary else Softmax(classes)
