"""Labels of the joined rows: agreed classes, one value per row of the label table.

In: the branches' label columns. Out: what the label is, its values over the *label space* (the
rows of every distinct label column, clients one after the other) and each row's side of the split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from tablepuppet.catalog.bound import BoundQuery
from tablepuppet.errors import MappingError
from tablepuppet.mapping.mapping import LabelInfo
from tablepuppet.privacy.labels import channel_of
from tablepuppet.privacy.options import LabelPrivacy
from tablepuppet.transport.link import Link
from tablepuppet.transport.messages import Array, DescribeLabels, Labels, LabelSummary, SendLabels

_CLASSES = 100  # distinct numbers that may be classes; more are a quantity
Task = Literal["number", "binary", "classes", "any"]


@dataclass(frozen=True, slots=True, eq=False)
class LabelSpace:
    """Labels of all label rows; `offsets` is where each (scan, column) begins."""

    info: LabelInfo
    values: Array
    is_test: NDArray[np.bool_]
    offsets: dict[tuple[int, int], int]


def read_labels(
    bound: BoundQuery,
    link: Link,
    job: str,
    task: Task,
    client_rows: Sequence[dict[str, int]],
    seed: int,
    test_fraction: float,
    privacy: LabelPrivacy | None = None,
) -> LabelSpace:
    """Two rounds: which classes are there, then the labels as class numbers or numbers.

    `client_rows[scan][client]` is the number of rows of a client's scan.
    """
    columns = list(dict.fromkeys((b.relations[b.label_relation].scan, b.label_column) for b in bound.branches))
    owners = [(scan, column, client) for scan, column in columns for client in bound.scans[scan].clients]
    ask: dict[str, list[DescribeLabels]] = {}
    for scan, column, client in owners:
        ask.setdefault(client, []).append(
            DescribeLabels(job=job, scan=scan, column=column, wants_classes=task != "number")
        )
    summaries = [cast(LabelSummary, m) for ms in link.ask(ask).values() for m in ms]
    info = _agree(summaries, task, bound.label)

    classes = None if info.kind == "number" else [float(c) if isinstance(c, bool) else c for c in info.classes]
    if privacy is not None:
        info = replace(info, channel=channel_of(privacy, None if classes is None else len(classes)))
    requests: dict[str, list[SendLabels]] = {}
    offsets: dict[tuple[int, int], int] = {}
    starts: list[int] = []
    total = 0
    for scan, column, client in owners:
        offsets.setdefault((scan, column), total)
        starts.append(total)
        requests.setdefault(client, []).append(
            SendLabels(
                job=job,
                scan=scan,
                column=column,
                classes=classes,
                offset=total,
                seed=seed,
                test_fraction=test_fraction,
                privacy=privacy,
            )
        )
        total += client_rows[scan][client]
    values, is_test = np.empty(total), np.empty(total, np.bool_)
    answers = {client: iter(messages) for client, messages in link.ask(requests).items()}
    for (_, _, client), start in zip(owners, starts, strict=True):
        labels = cast(Labels, next(answers[client]))
        values[start : start + len(labels.values)] = labels.values
        is_test[start : start + len(labels.is_test)] = labels.is_test
    return LabelSpace(info, values, is_test, offsets)


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
    if task == "number":
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
    if task == "binary" and len(found) != 2:
        raise MappingError(
            f'model="logistic" needs a label of two classes, and {label} has {len(found)}; '
            'use model="softmax", or make two of them in the SELECT, for example (x > 0) AS y'
        )
    if len(found) < 2:
        raise MappingError(f"label {label} has only one class; there is nothing to learn")
    if kinds == {"boolean"}:
        return LabelInfo("class", (False, True))
    return LabelInfo("class", tuple(found))
