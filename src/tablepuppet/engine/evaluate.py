"""evaluate: how good a model is on the labelled rows of a query, without learning from them.

In: a model and a plan over the query. Each client is sent the encoders and parameters of its block, as
for a prediction, and answers with h of its rows; the labels come as they do in training. Out: metrics.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from tablepuppet.engine.metrics import Metrics, measure, measure_scores
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
    mapping = prepared.mapping
    found = tuple((block.name, block.features) for block in mapping.bound.blocks)
    if found != tuple((block.name, block.features) for block in model.blocks):
        raise ModelError("the query does not select the features that the model was trained on; use the model's query")
    union = UnionOperator(link, job_id, mapping, model.widths)
    if model.spec.is_boosted:
        return _of_trees(model, mapping, union)
    answers = union.ask(
        lambda part: score_request(model, part, part.train_rows, job_id),
        "evaluation",
    )
    per_row = [np.zeros((mapping.train.indices[i].rows, k)) for i, k in enumerate(model.widths)]
    for part in union.parts:
        per_row[part.block][part.train] = cast(Scores, answers[part.number][0]).values
    rows = headed(_in_classes_of(model, mapping), trained_head(model.head))
    check_labels(model.loss, mapping)
    return measure(rows, per_row, model.loss, model.encoded_intercept, moment=Moment.FINISHED).metrics


def _of_trees(model: Model, mapping: TableMapping, union: UnionOperator) -> Metrics:
    rows = rows_here(_in_classes_of(model, mapping))
    check_labels(model.loss, mapping)
    parts = [(part, part.train_rows, part.train) for part in union.parts]
    bits = ask_bits(model, parts, [index.rows for index in rows.indices], union.link, union.job)
    scores = tree_scores(model, bits, [index.numbers(rows.rows) for index in rows.indices], rows.rows)
    return measure_scores(scores, rows.joined_labels(), None, model.loss, moment=Moment.FINISHED).metrics


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
