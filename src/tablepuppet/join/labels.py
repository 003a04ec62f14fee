"""Labels of the joined rows: agreed classes, one value per row of the label table, and what is read beside it.

In: the branches' label columns. Out: what the label is, its values over the *label space* (the
rows of every distinct label column, clients one after the other), each row's side of the split, and
sample weights where the job has any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import MappingError
from tablepuppet.exchanges.labels import DescribeLabels, Labels, LabelSummary, SendLabels, SendWeights, Weights
from tablepuppet.join.mapping import LabelInfo, in_label_type
from tablepuppet.privacy.labels import channel_of
from tablepuppet.privacy.options import Privacy
from tablepuppet.protocol.contract import Folds
from tablepuppet.sql.bound import BoundQuery, LabelPlace
from tablepuppet.transport.link import Link

_CLASSES = 100  # distinct numbers that may be classes; more are a quantity
_BYTE = 127  # the largest number of a class that a byte holds
_FEW_CLASSES = 20  # that may have one row each
_ONE_CLASS = (
    "has only one class, so that there is nothing to learn or to measure; choose another label, or another WHERE"
)
Task = Literal["number", "binary", "classes", "any", "seen"]  # what a loss needs; any: whatever it is; seen: any number


@dataclass(frozen=True, slots=True, eq=False)
class LabelSpace:
    """Labels of all label rows; `offsets` is where the rows of each place begin."""

    info: LabelInfo
    values: Array | NDArray[np.int8]  # numbers of classes take a byte
    is_test: NDArray[np.bool_]
    is_validation: NDArray[np.bool_]
    weights: Array | None  # as their owners have them
    offsets: dict[LabelPlace, int]
    folds: NDArray[np.int16] | None = None  # of cross-validation


@dataclass(frozen=True, slots=True)
class MappingRequest:
    """What a job asks of the mapping of its tables."""

    job: str
    task: Task
    seed: int = 0
    test_fraction: float = 0.15
    validation_fraction: float = 0.0
    max_joined_rows: int | None = None
    privacy: Privacy = field(default_factory=Privacy)
    folds: Folds | None = None


def read_labels(
    bound: BoundQuery, link: Link, request: MappingRequest, client_rows: Sequence[dict[str, int]]
) -> LabelSpace:
    """Two rounds: which classes are there, then the labels as class numbers or numbers, with their weights.

    `client_rows[scan][client]` is the number of rows of a client's scan.
    """
    job, task, privacy, folds = request.job, request.task, request.privacy.label, request.folds
    places = list(dict.fromkeys(branch.label_place for branch in bound.branches))
    owners = [(place, client) for place in places for client in bound.scans[place.scan].clients]
    # Under noise the values of a number do not leave so that a model may be chosen by them.
    wants_classes = task not in ("number", "seen") and (task != "any" or privacy is None)
    ask: dict[str, list[DescribeLabels]] = {}
    for place, client in owners:
        ask.setdefault(client, []).append(
            DescribeLabels(job=job, scan=place.scan, column=place.label, wants_classes=wants_classes)
        )
    summaries = [cast("LabelSummary", m) for ms in link.ask(ask).values() for m in ms]
    info = _agree(summaries, task, bound.label)

    classes = None if info.kind == "number" else [c if isinstance(c, str) else float(c) for c in info.classes]
    if privacy is not None:
        info = replace(info, channel=channel_of(privacy, None if classes is None else len(classes)))
    requests: dict[str, list[SendLabels | SendWeights]] = {}
    offsets: dict[LabelPlace, int] = {}
    starts: list[int] = []
    total = 0
    for place, client in owners:
        offsets.setdefault(place, total)
        starts.append(total)
        asked = requests.setdefault(client, [])
        asked.append(
            SendLabels(
                job=job,
                scan=place.scan,
                column=place.label,
                classes=classes,
                offset=total,
                seed=request.seed,
                test_fraction=request.test_fraction,
                validation_fraction=request.validation_fraction,
                test_column=place.test if place.test >= 0 else None,
                validation_column=place.validation if place.validation >= 0 else None,
                privacy=privacy,
                folds=0 if folds is None else folds.count,
                fold_by="row" if folds is None else folds.by,
                fold_column=place.fold if place.fold >= 0 else None,
                is_alone=folds is not None and len(owners) == 1,
            )
        )
        if place.weight >= 0:
            asked.append(SendWeights(job=job, scan=place.scan, column=place.weight))
        total += client_rows[place.scan][client]
    values, is_test, is_validation = np.empty(total), np.empty(total, np.bool_), np.zeros(total, np.bool_)
    weights = np.empty(total) if any(place.weight >= 0 for place in places) else None
    if folds is not None and folds.by == "time" and len(owners) > 1:
        raise MappingError(
            "folds by time need all rows of the label in one place, and several owners hold them; use folds by group, "
            "or test_where for a time of your own"
        )
    drawn = None if folds is None else np.zeros(total, np.int16)
    answers = {client: iter(messages) for client, messages in link.ask(requests).items()}
    for (_, client), start in zip(owners, starts, strict=True):
        labels = cast("Labels", next(answers[client]))
        inside = slice(start, start + len(labels.values))
        if len(owners) == 1:
            values, is_test = labels.values, labels.is_test
        else:
            values[inside], is_test[inside] = labels.values, labels.is_test
        if drawn is not None and labels.folds is not None:
            drawn[inside] = labels.folds
        if labels.is_validation is not None:
            is_validation[inside] = labels.is_validation
        if weights is not None:
            weights[inside] = cast("Weights", next(answers[client])).values
    if info.kind == "class" and privacy is None and _is_constant(values):
        raise MappingError(f"label {bound.label} {_ONE_CLASS}")
    if privacy is None and len(info.classes) > max(_FEW_CLASSES, total / 2):
        raise MappingError(
            f"label {bound.label} has {len(info.classes):,} classes in {total:,} rows, too few of each to learn from. "
            "A number or a date that is written as text is learned as a number: CAST(… AS DOUBLE), CAST(… AS DATE). "
            "Else group the classes with CASE"
        )
    if info.kind == "class" and privacy is None and 0.0 <= values.min(initial=0.0) <= values.max(initial=0.0) <= _BYTE:
        return LabelSpace(info, values.astype(np.int8), is_test, is_validation, weights, offsets, drawn)
    return LabelSpace(info, values, is_test, is_validation, weights, offsets, drawn)  # others, or some are missing


def no_labels(bound: BoundQuery, client_rows: Sequence[dict[str, int]]) -> LabelSpace:
    """The label space of a query without a label: its rows, all of them for training."""
    offsets: dict[LabelPlace, int] = {}
    total = 0
    for place in dict.fromkeys(branch.label_place for branch in bound.branches):
        offsets[place] = total
        total += sum(client_rows[place.scan].values())
    nothing = np.zeros(total, np.bool_)
    return LabelSpace(LabelInfo("number"), np.zeros(total), nothing, nothing, None, offsets)


def _is_constant(values: NDArray[np.float64]) -> bool:
    """Whether there are labels, and all that are not missing are the same."""
    return len(values) > 0 and bool(np.fmin.reduce(values) == np.fmax.reduce(values))


def _agree(summaries: Sequence[LabelSummary], task: Task, label: str) -> LabelInfo:
    """What the label is, given what each owner says of its own and what the model needs."""
    kinds = {s.kind for s in summaries}
    if "class" in kinds and len(kinds) > 1:
        raise MappingError(
            f"label {label}: some owners hold text, others hold {' and '.join(sorted(kinds - {'class'}))}"
        )
    if task == "any":
        values = {c for s in summaries for c in s.classes}
        task = "number" if kinds == {"number"} and values != {0.0, 1.0} else "classes"
    if task == "seen" and kinds == {"class"}:
        raise MappingError(
            f"label {label} is text, and with negatives every joined row counts as seen; select "
            "(column IS NOT NULL) AS seen as the label"
        )
    if task in ("number", "seen"):
        if kinds == {"class"}:
            raise MappingError(
                f"label {label} is text, and a linear model needs a number; "
                'use model="logistic" (two classes) or model="softmax"'
            )
        return LabelInfo("number")
    found = sorted({c for s in summaries for c in s.classes}, key=lambda c: (isinstance(c, str), c))
    if kinds == {"boolean"}:
        found = [0.0, 1.0]
    if kinds == {"number"} and not 0 < len(found) <= _CLASSES:
        raise MappingError(
            f"label {label} has more distinct numbers than a classifier takes ({_CLASSES}); "
            'use model="linear", or make classes of it in the SELECT, for example (x > 0) AS y'
        )
    if len(found) < 2:
        raise MappingError(f"label {label} {_ONE_CLASS}")
    if task == "binary" and len(found) != 2:
        raise MappingError(
            f"the model needs a label of two classes, and {label} has {len(found)}; "
            'use model="softmax", or make two of them in the SELECT, for example (x > 0) AS y'
        )
    if kinds == {"boolean"}:
        return LabelInfo("class", (False, True))
    return LabelInfo("class", in_label_type(found))
