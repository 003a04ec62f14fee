"""evaluate: how good a model is on the labelled rows of a query, without learning from them.

In: a model and a plan over the query. Each client is sent the encoders and parameters of its block, as
for a prediction, and answers with h of its rows; the labels come as they do in training. Out: metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.engine.metrics import Measured, Metrics, measure, measure_scores
from tablepuppet.errors import ModelError
from tablepuppet.mapping.mapping import Joined, TableMapping, rows_here
from tablepuppet.models.heads.base import headed
from tablepuppet.models.heads.kinds import trained_head
from tablepuppet.models.metrics import Moment
from tablepuppet.plan.prepare import Prepared, check_labels
from tablepuppet.prediction.model import Model
from tablepuppet.prediction.predict import score_request
from tablepuppet.prediction.trees import ask_bits, tree_scores
from tablepuppet.protocol import Scores
from tablepuppet.server.union import UnionOperator
from tablepuppet.transport.link import Link


def evaluate(model: Model, prepared: Prepared, link: Link, job_id: str) -> Metrics:
    """The model's metrics over all joined rows of the query."""
    return scored(model, prepared, link, job_id).measured().metrics


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """What a model says of the joined rows of a query, before it is added up: h of each block's rows, or bits."""

    model: Model
    rows: Joined
    blocks: list[Array]  # by row of each block; of trees: bits, by split and row
    union: UnionOperator

    def measured(self, blocks: Sequence[Array] | None = None) -> Measured:
        """How good it is; `blocks`: with these in the place of its own."""
        model, given = self.model, self.blocks if blocks is None else blocks
        if model.spec.is_boosted:
            labels = rows_here(self.rows).joined_labels()
            return measure_scores(self.scores(given), labels, None, model.loss, moment=Moment.FINISHED)
        rows = headed(self.rows, trained_head(model.head))
        return measure(rows, given, model.loss, model.encoded_intercept, moment=Moment.FINISHED)

    def scores(self, blocks: Sequence[Array] | None = None) -> Array:
        """Of every joined row."""
        model, given, rows = self.model, self.blocks if blocks is None else blocks, rows_here(self.rows)
        if model.spec.is_boosted:
            numbers = [index.numbers(rows.rows) for index in rows.indices]
            return tree_scores(model, cast(Any, given), numbers, rows.rows)
        kept = headed(rows, trained_head(model.head))
        kept.allocate("scores", model.outputs)
        kept.run(_keep_scores, given, writes=("scores",), intercept=model.encoded_intercept)
        return rows.state.pop("scores") if "scores" in rows.state else cast(Any, kept).collect("scores")


def _keep_scores(shard: Any, *, intercept: Array) -> tuple[Sequence[Array], dict[str, Any]]:
    shard.state["scores"][...] = shard.scores + intercept
    return (), {}


def scored(model: Model, prepared: Prepared, link: Link, job_id: str) -> Scored:
    """Asks every client what the model says of its rows."""
    mapping = prepared.mapping
    found = tuple((block.name, block.features) for block in mapping.bound.blocks)
    if found != tuple((block.name, block.features) for block in model.blocks):
        raise ModelError("the query does not select the features that the model was trained on; use the model's query")
    union = UnionOperator(link, job_id, mapping, model.widths)
    check_labels(model.loss, mapping)
    rows = _in_classes_of(model, mapping)
    if model.spec.is_boosted:
        parts = [(part, part.train_rows, part.train) for part in union.parts]
        bits = ask_bits(model, parts, [index.rows for index in rows_here(rows).indices], union.link, union.job)
        return Scored(model, rows, cast(list[Array], bits), union)
    answers = union.ask(
        lambda part: score_request(model, part, part.train_rows, job_id),
        "evaluation",
    )
    per_row = [np.zeros((mapping.train.indices[i].rows, k)) for i, k in enumerate(model.widths)]
    for part in union.parts:
        per_row[part.block][part.train] = cast(Scores, answers[part.number][0]).values
    return Scored(model, rows, per_row, union)


def _in_classes_of(model: Model, mapping: TableMapping) -> Joined:
    """The joined rows with their labels numbered as the model numbers classes."""
    classes = mapping.label.classes
    if classes == model.classes:
        return mapping.train
    unknown = len(set(classes) - set(model.classes))
    if unknown:
        raise ModelError(f"the query's label has {unknown} classes that the model does not know; retrain with them")
    number = np.array([model.classes.index(c) for c in classes], np.float64)
    return replace(mapping.train, labels=number[mapping.train.labels.astype(np.intp)])
