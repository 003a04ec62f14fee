"""Labels of the joined rows: agreed classes, one value per row of the label table, and the columns read with them.

In: the branches' label columns. Out: the label's kind, each row's side of the split, sample weights if the job has any,
and the values over the *label space*. That space is the rows of every distinct label column, clients one after the
other.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import MappingError
from tablepuppet.exchanges.labels import DescribeLabels, Labels, LabelSummary, SendLabels, SendWeights
from tablepuppet.job.job import Walk
from tablepuppet.join.mapping import LabelInfo, in_label_type
from tablepuppet.privacy.labels import channel_of
from tablepuppet.privacy.options import Privacy
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.contract import Folds
from tablepuppet.sql.bound import BoundQuery, LabelPlace
from tablepuppet.transport.link import Link

_CLASSES = 100  # distinct numbers that may be classes; more are a quantity
_BYTE = 127  # the largest number of a class that a byte holds
_FEW_CLASSES = 20  # that may have one row each
_ONE_CLASS = (
    "has only one class, so that there is nothing to learn or to measure; choose another label, or another WHERE"
)
Task = Literal["number", "binary", "classes", "any", "seen"]  # that a loss needs; any: of either kind; seen: any number


class LabelSpace(msgspec.Struct, frozen=True, eq=False):
    """Labels of all label rows; `offsets` is where the rows of each place begin."""

    info: LabelInfo
    values: Array | NDArray[np.int8]  # numbers of classes take a byte
    is_test: NDArray[np.bool_]
    is_validation: NDArray[np.bool_]
    weights: Array | None  # as their owners have them
    offsets: dict[LabelPlace, int]
    folds: NDArray[np.int16] | None = None  # of cross-validation


class MappingRequest(msgspec.Struct, frozen=True):
    """A job's request for the mapping of its tables."""

    job: str
    task: Task
    seed: int = 0
    test_fraction: float = 0.15
    max_joined_rows: int | None = None
    privacy: Privacy = msgspec.field(default_factory=Privacy)
    folds: Folds | None = None
    analyst_cap: int | None = None  # joined rows of each row of a table with an analyst budget, on all sides
    walk: Walk | None = None  # how joined rows are walked over; None: as it costs least
    may_draw: bool = False  # whether a tree may have any number of joined rows, and some may stand for all
    has_sums: Callable[[LabelInfo], bool] | None = None  # whether all that is asked of them are sums over a tree


def read_labels(
    bound: BoundQuery, link: Link, request: MappingRequest, client_rows: Sequence[dict[str, int]]
) -> LabelSpace:
    """Two rounds: which classes are there, then the labels as class numbers or numbers, with their weights.

    `client_rows[scan][client]` is the number of rows of a client's scan.
    """
    if bound.branches[0].label_place.label < 0:
        return _no_labels(bound, client_rows)
    privacy, folds = request.privacy.label, request.folds
    places = list(dict.fromkeys(branch.label_place for branch in bound.branches))
    owners = [(place, client) for place in places for client in bound.scans[place.scan].clients]
    if folds is not None and folds.by == "time" and len(owners) > 1:
        raise MappingError(
            "folds by time need all rows of the label in one place, and several owners hold them; use folds by group, "
            "or test_where for a time of your own"
        )
    # Under noise the values of a number do not leave to help choose a model.
    wants_classes = request.task not in ("number", "seen") and (request.task != "any" or privacy is None)
    described: list[LabelSummary] = link.ask_each(
        [
            (client, DescribeLabels(job=request.job, scan=p.scan, column=p.label, wants_classes=wants_classes))
            for p, client in owners
        ]
    )
    info = _agree(described, request.task, bound.label)
    classes = None if info.kind == "number" else [c if isinstance(c, str) else float(c) for c in info.classes]
    if privacy is not None:
        info = replace(info, channel=channel_of(privacy, None if classes is None else len(classes)))
    starts = np.cumsum([0, *(client_rows[place.scan][client] for place, client in owners)]).tolist()
    requests: list[tuple[str, Message]] = []
    for (place, client), start in zip(owners, starts, strict=False):
        requests.append((client, _ask_for_labels(request.job, place, classes, start)))
        if place.weight >= 0:
            requests.append((client, SendWeights(job=request.job, scan=place.scan, column=place.weight)))
    offsets = {place: start for (place, _), start in reversed(list(zip(owners, starts, strict=False)))}
    total, answers = starts[-1], iter(link.ask_each(requests))
    values, is_test, is_validation = np.empty(total), np.empty(total, np.bool_), np.zeros(total, np.bool_)
    weights = np.empty(total) if any(place.weight >= 0 for place in places) else None
    fold_of = None if folds is None else np.zeros(total, np.int16)
    for _, start in zip(owners, starts, strict=False):
        own: Labels = next(answers)
        inside = slice(start, start + len(own.values))
        values[inside], is_test[inside] = own.values, own.is_test
        if own.is_validation is not None:
            is_validation[inside] = own.is_validation
        if fold_of is not None and own.folds is not None:
            fold_of[inside] = own.folds
        if weights is not None:
            weights[inside] = next(answers).values
    compact: Array | NDArray[np.int8] = values
    if privacy is None:
        if request.analyst_cap is None:  # else one row with another class would be noticed
            _check_classes(info, values, bound.label)
        # Bytes, but not where some are missing.
        if info.kind == "class" and 0.0 <= values.min(initial=0.0) <= values.max(initial=0.0) <= _BYTE:
            compact = values.astype(np.int8)
    return LabelSpace(info, compact, is_test, is_validation, weights, offsets, fold_of)


def _ask_for_labels(job: str, place: LabelPlace, classes: list[str | float] | None, start: int) -> SendLabels:
    test, validation, fold = (n if n >= 0 else None for n in (place.test, place.validation, place.fold))
    return SendLabels(
        job=job,
        scan=place.scan,
        column=place.label,
        classes=classes,
        offset=start,
        test_column=test,
        validation_column=validation,
        fold_column=fold,
    )


def _check_classes(info: LabelInfo, values: Array, label: str) -> None:
    """There is something to learn, and not a class for every few rows."""
    if info.kind == "class" and len(values) and bool(np.fmin.reduce(values) == np.fmax.reduce(values)):
        raise MappingError(f"label {label} {_ONE_CLASS}")
    if len(info.classes) > max(_FEW_CLASSES, len(values) / 2):
        raise MappingError(
            f"label {label} has {len(info.classes):,} classes in {len(values):,} rows, too few of each to learn from. "
            "A number or a date that is written as text is learned as a number: CAST(… AS DOUBLE), CAST(… AS DATE). "
            "Else group the classes with CASE"
        )


def _no_labels(bound: BoundQuery, client_rows: Sequence[dict[str, int]]) -> LabelSpace:
    """The label space of a query without a label: its rows, all of them for training."""
    offsets: dict[LabelPlace, int] = {}
    total = 0
    for place in dict.fromkeys(branch.label_place for branch in bound.branches):
        offsets[place] = total
        total += sum(client_rows[place.scan].values())
    nothing = np.zeros(total, np.bool_)
    return LabelSpace(LabelInfo("number"), np.zeros(total), nothing, nothing, None, offsets)


def _agree(summaries: Sequence[LabelSummary], task: Task, label: str) -> LabelInfo:
    """The label's kind and classes, from each owner's summary and the model's task."""
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
    if kinds == {"boolean"}:
        return LabelInfo("class", (False, True))
    found = sorted({c for s in summaries for c in s.classes}, key=lambda c: (isinstance(c, str), c))
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
            'use model="softmax" for classes, model="linear" for numbers, or make two classes in the SELECT, for '
            "example (x > 0) AS y"
        )
    return LabelInfo("class", in_label_type(found))
