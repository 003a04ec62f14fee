"""How much each joined row counts: sample weights of its label row × the weight of its class, of mean 1.

In: a job and a table mapping whose joined rows carry sample weights as their owners sent them. Out: the same mapping
with the weights that training and validation use. A mean of 1 keeps l2 what it is without weights: F is
(1/N) Σ w_j ℓ_j + β R with Σ w_j = N.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import JobError, PrivacyError
from tablepuppet.job import Job, class_text
from tablepuppet.mapping.mapping import Joined, LabelInfo, TableMapping


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
