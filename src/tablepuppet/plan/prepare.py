"""TableMapping + Job → Prepared: a plan, and the joined rows that it is run over.

In: a table mapping with labels and weights as their owners sent them. Out: a plan, which is data, and beside it the
mapping as training uses it: labels with the bias of their noise taken out; weights, those of a row times those of its
class, of mean 1 (F is (1/N) Σ w_j ℓ_j + β R with Σ w_j = N, so l2 means what it does without weights); for the VFL
baselines every block expanded. What holds arrays over rows lives here, and ends with the run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

import msgspec
import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import JobError, PrivacyError
from tablepuppet.job import Job, class_text
from tablepuppet.mapping.keys.labels import Task
from tablepuppet.mapping.mapping import Joined, LabelInfo, TableMapping
from tablepuppet.mapping.rows.expanded import expanded
from tablepuppet.mapping.summary import summarise
from tablepuppet.models.compiler import is_installed, wins
from tablepuppet.models.losses import LabelFacts, Loss, Squared, usual_loss
from tablepuppet.plan.disclosure import check_custody
from tablepuppet.plan.penalties import check_penalties
from tablepuppet.plan.plan import Plan, is_dear


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prepared:
    """A plan and its joined rows."""

    plan: Plan
    mapping: TableMapping
    training: TableMapping  # the same, or expanded for the VFL baselines


def prepare(mapping: TableMapping, job: Job) -> Prepared:
    """The plan of a job over a mapping, and the mapping as it is trained with."""
    if not mapping.train.rows:
        raise JobError("there are no training rows; lower test_fraction or validation_fraction, or bring more rows")
    summary = summarise(mapping)
    check_custody(job, summary)
    if job.model == "auto":
        kind = job.loss_class or usual_loss(len(mapping.label.classes))
        job = msgspec.structs.replace(job, model=kind.model, loss=None)
    job = msgspec.structs.replace(job, options=job.blinded_options)
    loss = _loss(job, mapping)
    check_labels(loss, mapping)
    mapping = weighted(_unbiased(mapping, loss), job)
    _check_stopping(job, mapping, loss)
    check_penalties(job, mapping.bound.blocks)
    slope = typical_slope(mapping, loss) if job.is_private else 1.0
    weight = 1.0 if mapping.train.weights is None else float(mapping.train.weights.max(initial=0.0))
    plan = Plan(job, summary, loss, unit=_unit(job, mapping, loss), slope=slope, weight=weight)
    return Prepared(plan, mapping, expanded(mapping) if job.is_expanded else mapping)


def _unit(job: Job, mapping: TableMapping, loss: Loss) -> float:
    """A power of two near the spread of a numeric label's training rows: multiplying by it rounds nothing.

    Labels that carry noise of their own have public bounds, and a quarter of their distance is the spread.
    """
    if not loss.is_in_label_units or not job.chooses_steps:
        return 1.0
    private = job.privacy.label
    low, high = (0.0, 0.0) if private is None or private.bounds is None else private.bounds
    spread = (high - low) / 4 if high > low else typical_slope(mapping, Squared())
    return 2.0 ** round(log2(spread))


def typical_slope(mapping: TableMapping, loss: Loss) -> float:
    """r: the root mean square of ∂ℓ/∂a over joined training rows at the best constant, from labels alone."""
    train = mapping.train
    counts = train.label_counts()
    share = counts / max(1, counts.sum())
    labels = np.where(counts > 0, train.labels, 0.0)
    return loss.typical_slope(labels, share) or 1.0


def _check_stopping(job: Job, mapping: TableMapping, loss: Loss) -> None:
    """Early stopping has rows to look at, and a figure of theirs."""
    if job.patience is None:
        return
    if not mapping.validation.rows:
        raise JobError("no joined row fell on the validation side, and patience needs some; raise validation_fraction")
    known = ["loss", *(metric.name for metric in loss.metrics if metric.can_monitor)]
    if job.monitor not in known:
        raise JobError(f'monitor="{job.monitor}" is not a metric for this label; choose one of {", ".join(known)}')


def _unbiased(mapping: TableMapping, loss: Loss) -> TableMapping:
    """Labels that their owners made noisy, with the bias taken out; some losses know the noise themselves."""
    channel = mapping.label.channel
    if channel is None or loss.label_noise == "targets":
        return mapping
    train, validation, test = (
        replace(side, labels=channel.unbiased(side.labels))
        for side in (mapping.train, mapping.validation, mapping.test)
    )
    return replace(mapping, train=train, validation=validation, test=test)


def check_labels(loss: Loss, mapping: TableMapping) -> None:
    """Refuses labels of joined rows that are outside the loss's domain."""
    if mapping.label.channel is not None or type(loss).wrong_labels is Loss.wrong_labels:
        return
    for side in (mapping.train, mapping.validation, mapping.test):
        if side.rows:
            wrong = loss.wrong_labels(side.labels[side.label_counts() > 0])
            if wrong is not None:
                raise JobError(f"label {mapping.bound.label}: {wrong}")


def task_of(job: Job) -> Task:
    """What kind of label a job's loss needs."""
    loss = job.loss_class
    if loss is not None:
        return loss.task
    return "any" if job.loss_name == "auto" else "classes"


def _loss(job: Job, mapping: TableMapping) -> Loss:
    kind = job.loss_class or usual_loss(len(mapping.label.classes))
    loss = kind.of(_label_facts(kind, mapping), **job.loss_options)
    return loss.compiled() if is_installed() and wins(mapping.train.rows, is_dear=is_dear(job, loss)) else loss


def _label_facts(kind: type[Loss], mapping: TableMapping) -> LabelFacts:
    classes, channel = len(mapping.label.classes), mapping.label.channel
    if classes:
        targets = None if channel is None else channel.targets(classes)
        return LabelFacts(classes, targets=targets)
    if kind.is_quadratic:  # whatever its labels are
        return LabelFacts()
    train = mapping.train
    counts = train.label_counts()
    occurs = counts > 0
    labels = train.labels[occurs] if channel is None else channel.unbiased(train.labels[occurs])
    values, inverse = np.unique(labels, return_inverse=True)
    shares = np.bincount(inverse, counts[occurs], len(values)) / max(1, int(counts.sum()))
    return LabelFacts(0, values, shares)


def weighted(mapping: TableMapping, job: Job) -> TableMapping:
    """The mapping with each row's weight, if the job has any; test rows all count alike."""
    if job.weight is None and job.class_weight is None:
        return mapping
    if job.privacy.label is not None:
        raise PrivacyError(
            "weight and class_weight tell rows apart by what privacy.label hides; train without weights, or without "
            "label privacy"
        )
    factors = _class_factors(mapping, job)
    train, validation = (_of_label_rows(side, factors) for side in (mapping.train, mapping.validation))
    total = float(mapping.train.label_counts() @ train)
    if not total > 0:
        raise JobError("the weights of all training rows are 0; there is nothing to learn")
    scale = mapping.train.rows / total
    return replace(
        mapping,
        train=mapping.train.weighted(scale * train),
        validation=mapping.validation.weighted(scale * validation),
        test=mapping.test.weighted(None),
    )


def _class_factors(mapping: TableMapping, job: Job) -> Array | None:
    """The weight of each class, as scikit-learn means it; None: the same for all."""
    given, label = job.class_weight, mapping.label
    if given is None:
        return None
    if not label.classes:
        raise JobError("class_weight needs a label with classes, and this one is a number; use weight for rows")
    if given != "balanced":
        return _mapped(given, label)
    present = _of_label_rows(mapping.train, None)
    codes = mapping.train.labels.astype(np.intp)
    counts = np.bincount(codes, mapping.train.label_counts() * present, minlength=len(label.classes))
    is_there = counts > 0
    share = counts.sum() / max(1, int(is_there.sum()))
    return np.asarray(np.divide(share, counts, out=np.ones(len(counts)), where=is_there))


def _mapped(given: dict[str, float], label: LabelInfo) -> Array:
    known = [class_text(c) for c in label.classes]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise JobError(
            f"class_weight names {unknown[0]!r}, which is none of the label's {len(known)} classes; "
            "the others count 1 where they are not named"
        )
    return np.array([given.get(name, 1.0) for name in known])


def _of_label_rows(side: Joined, factors: Array | None) -> Array:
    """One weight per row of the label table."""
    weights = np.ones(len(side.labels)) if side.weights is None else side.weights
    return weights if factors is None else weights * factors[side.labels.astype(np.intp)]
