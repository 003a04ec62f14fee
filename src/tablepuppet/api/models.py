"""A model as users give it to a federation: a result, a loaded model or its folder; and the job that asks about it.

In: what a user wrote. Out: a Model, the labelled rows that it is measured on as a Job, or the options that a job starts
with its weights from.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tablepuppet.algorithms.registry import DEFAULT, own_model
from tablepuppet.errors import ModelError
from tablepuppet.job import Job, make_job
from tablepuppet.models.heads.kinds import offered_head
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.saved import load
from tablepuppet.protocol.columns import NumberEncoder
from tablepuppet.training.result import Result


def own_head(model: Model, head: Any) -> AbstractContextManager[None]:
    """While inside, the server knows the head of the user's own that the model has."""
    return offered_head(
        model.head_module if head is None else head, "" if model.head is None else model.head.spec.module
    )


def labelled_job(model: Model, query: str | None) -> Job:
    """The labelled rows of a query, by default of the model's own, with its features as it was trained on them."""
    numbers = [e for block in model.blocks for e in block.encoders if isinstance(e, NumberEncoder)]
    is_plain = bool(numbers) and all((e.scale == 1.0).all() and not e.mean.any() for e in numbers)
    given: dict[str, Any] = {"test_fraction": 0.0, "loss": "cross_entropy" if model.classes else "squared"}
    given["standardize"] = not is_plain
    if "keys" in model.metadata:
        given["privacy"] = model.metadata["keys"]
    if query is None and model.metadata.get("weight") is not None:
        given["weight"] = model.metadata["weight"]  # an item of the query may be that, and no feature
    given["exposure"] = model.metadata.get("exposure")
    text = model.query if query is None else query
    return make_job(text, label=model.label, model="linear", algorithm=DEFAULT, given=given)


def model_of(model: Model | Result) -> Model:
    chosen = model.model if isinstance(model, Result) else model
    if not isinstance(chosen, Model):
        raise ModelError(f"this needs a Result or a loaded model, not a {type(model).__name__}; see tp.load(path)")
    return chosen


def with_start(options: dict[str, Any]) -> dict[str, Any]:
    """Options in which a model to start with is what a job holds of it."""
    given = options.get("warm_start")
    if given is None:
        return options
    model = model_of(load(given) if isinstance(given, str | Path) else given)
    own = own_model(model.spec)
    if own is not None:
        return {**options, "warm_start": own.continue_from(model)}
    return {**options, "warm_start": None, "start": model.weights()}
