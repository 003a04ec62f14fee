"""TableMapping + Job → Prepared: a plan, and the joined rows that it is run over.

In: a table mapping with labels and weights as their owners sent them. Out: a plan, which is data, and the mapping as
training uses it:

- Labels without the bias of their noise.
- Weights of mean 1: those of a row times those of its class. F is (1/N) Σ w_j ℓ_j + β R with Σ w_j = N, so l2 means the
  same as without weights.
- For the VFL baselines, every block expanded to one row per joined row, as if its clients held X_i. The same algorithms
  then send and compute N values per block instead of n_i.

Penalties and signs are matched with the names of blocks and features. Arrays over rows live here, and end with the run.
"""

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import JobError, PrivacyError, hint
from tablepuppet.job import Job
from tablepuppet.job.make import class_text
from tablepuppet.join.joined_rows import Joined, JoinedRows, RowIndex
from tablepuppet.join.labels import Task
from tablepuppet.join.mapping import LabelInfo, Part, TableMapping, rows_here, summarise
from tablepuppet.models.losses import LabelFacts, Loss, Squared, usual_loss
from tablepuppet.plan.analyst import AnalystNoise, NoisySizes
from tablepuppet.plan.knowledge import check_custody
from tablepuppet.plan.plan import Plan
from tablepuppet.privacy.labels import Channel
from tablepuppet.privacy.options import Rounding
from tablepuppet.protocol.columns import Encoder, NumberEncoder
from tablepuppet.sources.columns import NUMBER_KINDS
from tablepuppet.sources.encoding import encoded_width


class Prepared(msgspec.Struct, frozen=True, eq=False):
    plan: Plan
    mapping: TableMapping
    training: TableMapping  # the same, or expanded for the VFL baselines
    rounding: Rounding = msgspec.field(default_factory=Rounding)  # of metrics that are shown
    noise: AnalystNoise | None = None  # on all of them, for an analyst
    start: Array | None = None  # the constant that scores begin with; None: the best one

    __repr__ = object.__repr__  # without rows


def prepare(mapping: TableMapping, job: Job, noise: AnalystNoise | None = None) -> Prepared:
    """The plan of a job over a mapping, and the mapping as it is trained with; `noise`: on all that is planned by."""
    if not mapping.train.rows:
        raise JobError("there are no training rows; lower test_fraction or validation_fraction, or bring more rows")
    sizes = NoisySizes.of(mapping, noise) if noise is not None and "sizes" in noise.terms.shares else None
    summary = summarise(mapping) if sizes is None else sizes.summary
    check_custody(job, summary)
    if job.model.name == "auto":
        usual = job.model.loss_class or usual_loss(len(mapping.label.classes))
        job = job.replace(model=usual.model, loss=None)
    job = job.replace(options=job.options_for_run).over(summary.train_rows).with_penalty(summary.train_rows)
    mapping = mapping if job.data.exposure is None else _rates(mapping)
    kind = job.model.loss_class or usual_loss(len(mapping.label.classes))
    loss = kind.of(_label_facts(kind, mapping), **job.model.loss_options)
    check_labels(loss, mapping)
    mapping = add_weights(_unbias_labels(mapping, loss), job)
    _check_stopping(job, mapping, loss)
    check_penalties(job, mapping.bound.blocks)
    slope = typical_slope(mapping, loss) if job.is_private and sizes is None else 1.0
    if sizes is not None and noise is not None and noise.bounds is not None:
        slope = (noise.bounds[1] - noise.bounds[0]) / 4
    weight = 1.0 if mapping.train.weights is None else float(mapping.train.weights.max(initial=0.0))
    plan = Plan(job, summary, loss, unit=_unit(job, mapping, loss), slope=slope, weight=weight)
    start = None if sizes is None else loss.best_constant(*sizes.labels)
    return Prepared(plan, mapping, expand_blocks(mapping) if job.is_expanded else mapping, noise=noise, start=start)


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
    """Requires validation rows for early stopping, and a metric of theirs."""
    if job.patience is None:
        return
    if not mapping.validation.rows:
        raise JobError("no joined row fell on the validation side, and patience needs some; raise validation_fraction")
    known = ["loss", *(metric.name for metric in loss.metrics if metric.can_monitor)]
    if job.monitor not in known:
        raise JobError(f'monitor="{job.monitor}" is not a metric for this label; choose one of {", ".join(known)}')


def _unbias_labels(mapping: TableMapping, loss: Loss) -> TableMapping:
    """Labels that their owners made noisy, with the bias taken out; some losses know the noise themselves."""
    channel = mapping.label.channel
    if channel is None or loss.label_noise == "targets":
        return mapping
    moved = _targets(mapping, channel)[1, 1] - channel.targets(2)[1, 1] if mapping.label.classes else 0.0
    train, validation, test = (
        side.with_labels(channel.unbiased(side.labels) + moved)
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
    """The kind of label that a job's loss needs."""
    loss = job.model.loss_class
    if job.data.negatives:
        return "seen"
    if loss is not None:
        return loss.task
    return "any" if job.model.loss_name == "auto" else "classes"


def may_draw(job: Job) -> bool:
    """Whether a sample of joined rows may stand for a join that is too large. Private features and pairs that did not
    meet need every joined row."""
    return not job.is_private and not job.data.negatives


def has_sums(job: Job, label: LabelInfo) -> bool:
    """Whether a job's training asks of joined rows for nothing but sums over the join's tree."""
    kind = job.model.loss_class or usual_loss(len(label.classes))
    is_exact = may_draw(job) and label.channel is None and job.search is None and kind.separate is not Loss.separate
    return is_exact and algorithm_of(job.options).takes_trees and job.model.is_convex


def _label_facts(kind: type[Loss], mapping: TableMapping) -> LabelFacts:
    classes, channel = len(mapping.label.classes), mapping.label.channel
    if classes:
        return LabelFacts(classes, targets=None if channel is None else _targets(mapping, channel))
    if kind.is_quadratic:  # for any labels
        return LabelFacts()
    train = mapping.train
    counts = train.label_counts()
    occurs = counts > 0
    labels = train.labels[occurs] if channel is None else channel.unbiased(train.labels[occurs])
    values, inverse = np.unique(labels, return_inverse=True)
    shares = np.bincount(inverse, counts[occurs], len(values)) / max(1, int(counts.sum()))
    return LabelFacts(0, values, shares)


def _targets(mapping: TableMapping, channel: Channel) -> Array:
    """A class's target, by the class that was seen. A class whose estimated share of training rows is below 0 gets half
    a row's: else the loss has no least value, and an intercept goes to infinity."""
    counts, classes = mapping.train.label_counts(), len(mapping.label.classes)
    occurs, rows = counts > 0, max(1, int(counts.sum()))
    targets = channel.targets(classes)
    seen = np.bincount(mapping.train.labels[occurs].astype(np.intp), counts[occurs], classes) / rows
    shares, least = seen @ targets, 0.5 / rows
    if shares.min() >= least or 2 * least * classes > 1:
        return targets
    kept = np.maximum(shares - least, 0.0)
    return np.asarray(targets + least + kept * (1 - classes * least) / kept.sum() - shares)


def add_weights(mapping: TableMapping, job: Job) -> TableMapping:
    """The mapping with each row's weight, if the job has any; test rows all count alike."""
    if not job.data.has_weights:
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
        train=mapping.train.with_weights(scale * train),
        validation=mapping.validation.with_weights(scale * validation),
        test=mapping.test.with_weights(None),
    )


def _rates(mapping: TableMapping) -> TableMapping:
    """Labels per unit of exposure, which is their weight: for counts, the same as the offset log exposure."""
    if mapping.label.classes or mapping.label.channel is not None:
        raise JobError("exposure belongs to a label that is a number, without noise; leave it out")
    sides = []
    for side in (mapping.train, mapping.validation, mapping.test):
        exposure = np.ones(len(side.labels)) if side.weights is None else side.weights
        if side.rows and not bool((exposure[side.label_counts() > 0] > 0).all()):
            raise JobError("exposure must be above 0 in every joined row; filter the others out with WHERE")
        sides.append(side.with_labels(np.divide(side.labels, exposure, out=side.labels * 0, where=exposure > 0)))
    train, validation, test = sides
    return replace(mapping, train=train, validation=validation, test=test)


def _class_factors(mapping: TableMapping, job: Job) -> Array | None:
    """The weight of each class, as scikit-learn means it; None: the same for all."""
    given, label = job.data.class_weight, mapping.label
    if given is None:
        return None
    if not label.classes:
        raise JobError("class_weight needs a label with classes, and this one is a number; use weight for rows")
    if given != "balanced":
        return _map_class_weights(given, label)
    present = _of_label_rows(mapping.train, None)
    codes = mapping.train.labels.astype(np.intp)
    counts = np.bincount(codes, mapping.train.label_counts() * present, minlength=len(label.classes))
    is_there = counts > 0
    share = counts.sum() / max(1, int(is_there.sum()))
    return np.asarray(np.divide(share, counts, out=np.ones(len(counts)), where=is_there))


def _map_class_weights(given: dict[str, float], label: LabelInfo) -> Array:
    known = [class_text(c) for c in label.classes]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise JobError(
            f"class_weight names {unknown[0]!r}, which is none of the label's {len(known)} classes; "
            "the others count 1 where they are not named"
        )
    return np.array([given.get(name, 1.0) for name in known])


def _of_label_rows(side: Joined, factors: Array | None) -> Array:
    weights = np.ones(len(side.labels)) if side.weights is None else side.weights
    return weights if factors is None else weights * factors[side.labels.astype(np.intp)]


def expand_blocks(mapping: TableMapping) -> TableMapping:
    """The mapping whose blocks are X_i instead of T_i; a joined row lies with the client of its base row."""
    parts: list[Part] = []
    sides = [rows_here(side) for side in (mapping.train, mapping.test, mapping.validation)]
    indices: list[list[RowIndex]] = [[] for _ in sides]
    for number in range(len(mapping.bound.blocks)):
        own = mapping.parts_of(number)
        train_rows, trained = _expand(sides[:1], number, own, "train")
        test_rows, held = _expand(sides[1:], number, own, "test")
        for every, index in zip(indices, (*trained, *held), strict=True):
            every.append(index)
        starts = [0, 0]
        for part, a, b in zip(own, train_rows, test_rows, strict=True):
            stops = [starts[0] + len(a), starts[1] + len(b)]
            inside = [slice(x, y) for x, y in zip(starts, stops, strict=True)]
            parts.append(replace(part, only=a, test_rows=b, train=inside[0], test=inside[1]))
            starts = stops
    train, test, validation = (
        replace(side, indices=tuple(own), state={}) for side, own in zip(sides, indices, strict=True)
    )
    multiplicity = tuple(np.ones(index.rows, np.int64) for index in train.indices)
    return replace(
        mapping, parts=tuple(parts), multiplicity=multiplicity, train=train, test=test, validation=validation
    )


def _expand(
    sides: Sequence[JoinedRows], block: int, parts: tuple[Part, ...], side: str
) -> tuple[list[RowNumbers], list[RowIndex]]:
    """Each part's joined rows as its own row numbers, and where each joined row of the sides now lies.

    A joined row without a row in this block (−1) goes to the first part, as a row of zeros.
    """
    rows = np.concatenate([own.indices[block].numbers(own.rows) for own in sides])
    borders = np.cumsum([own.rows for own in sides])[:-1]
    if not parts:
        return [], [RowIndex.of(own, 0) for own in np.split(rows, borders)]
    starts = [getattr(part, side).start for part in parts]
    holder = np.maximum(np.searchsorted(starts, rows, side="right") - 1, 0)
    order = np.argsort(holder, kind="stable")
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows))
    numbers = []
    for k, part in enumerate(parts):
        mine = rows[order[holder[order] == k]]
        own = getattr(part, f"{side}_rows")
        numbers.append(np.where(mine < 0, -1, np.append(own, -1)[mine - starts[k]]).astype(own.dtype))
    return numbers, [RowIndex.of(own, len(rows)) for own in np.split(place, borders)]


def check_penalties(job: Job, blocks: Sequence[Any]) -> None:
    """Every name that a penalty speaks of is there."""
    known = [name for block in blocks for name in dict.fromkeys((block.name, block.table))]
    for name in job.model.l2 if isinstance(job.model.l2, dict) else ():
        if name not in known:
            raise JobError(f"l2 names {name!r}, and the query has no such table; {hint(name, known)}")
    _check_features("signs", job.model.signs, blocks)


def _check_features(option: str, given: Mapping[str, int], blocks: Sequence[Any]) -> None:
    features = [feature for block in blocks for feature in block.features]
    for name in given:
        if not any(name in _spellings(feature) for feature in features):
            raise JobError(f"{option} names {name!r}, which is not a feature of the query; {hint(name, features)}")


def _sign_of(feature: str, given: Mapping[str, int]) -> int:
    return next((given[name] for name in _spellings(feature) if name in given), 0)


def column_signs(job: Job, blocks: Sequence[Any], encoders: Sequence[Sequence[Encoder]]) -> tuple[tuple[int, ...], ...]:
    """The sign of each encoded column of each block; nothing where a job has none."""
    if not job.model.signs:
        return ()
    found = []
    for block, own in zip(blocks, encoders, strict=True):
        signs: list[int] = []
        for feature, encoder in zip(block.features, own, strict=True):
            sign = _sign_of(feature, job.model.signs)
            if sign and not isinstance(encoder, NumberEncoder):
                raise JobError(f"signs names {feature!r}, which is text: only a number can be bound to a sign")
            width = encoded_width(encoder)
            free = int(isinstance(encoder, NumberEncoder) and encoder.has_missing)  # the column of missing values
            signs += [sign] * (width - free) + [0] * free
        found.append(tuple(signs))
    return tuple(found)


def monotone_signs(given: Mapping[str, int], blocks: Sequence[Any]) -> list[list[int]]:
    """The user's sign for each block's columns, a vector's one by one; nothing where there is none."""
    _check_features("monotone", given, blocks)
    found = []
    for block in blocks:
        signs: list[int] = []
        for feature, info in zip(block.features, block.columns, strict=True):
            sign = _sign_of(feature, given)
            if sign and (info.kind == "vector" or info.kind not in NUMBER_KINDS):
                raise JobError(f"monotone names {feature!r}, which is no number")
            signs += [sign] * (info.size if info.kind == "vector" else 1)
        found.append(signs if any(signs) else [])
    return found


def _spellings(feature: str) -> tuple[str, ...]:
    """How a feature may be called: as results name it, or by its column alone.

    >>> _spellings("o.price")
    ('o.price', 'price')
    """
    return tuple(dict.fromkeys((feature, feature.rpartition(".")[2])))
