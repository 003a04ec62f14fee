"""Features, agreed: clients' join-weighted statistics → one set of encoders per block."""

from __future__ import annotations

from typing import cast

import numpy as np

from tablepuppet.errors import TransportError
from tablepuppet.job import Job
from tablepuppet.mapping.mapping import Part, TableMapping
from tablepuppet.operators.union import UnionOperator
from tablepuppet.plan.plan import Plan
from tablepuppet.tables.encoding import encoder, merge
from tablepuppet.tables.features import encoded_width
from tablepuppet.transport.link import Link
from tablepuppet.transport.messages import Encoded, EncodeFeatures, Encoder, FeatureStatistics, Message, OpenPart


def agree_on_encoders(union: UnionOperator, mapping: TableMapping, job: Job) -> list[list[Encoder]]:
    """Two rounds: statistics of every part, then the merged encoders to every part of a block."""
    encoders = gather_statistics(union, mapping, job)
    widths = union.ask(lambda p: EncodeFeatures(job=union.job, part=p.number, encoders=encoders[p.block]), "setup")
    for block in union.blocks:
        if len({cast(Encoded, widths[p.number][0]).width for p in block}) > 1:
            raise TransportError("the clients of one table encode to different widths")
    return encoders


def gather_statistics(union: UnionOperator, mapping: TableMapping, job: Job) -> list[list[Encoder]]:
    """One round: every part's statistics, merged to the encoders of each block."""

    def open_part(part: Part) -> Message:
        multiplicity = mapping.multiplicity[part.block][part.train]
        fits = int(multiplicity.max(initial=0)) < 2**31
        return OpenPart(
            job=union.job,
            part=part.number,
            scan=part.scan,
            columns=list(part.columns),
            train_rows=part.train_rows,
            test_rows=part.test_rows,
            multiplicity=None if (multiplicity == 1).all() else multiplicity.astype(np.int32 if fits else np.int64),
        )

    opened = union.ask(open_part, "setup")
    encoders: list[list[Encoder]] = []
    for block in union.blocks:
        statistics = [cast(FeatureStatistics, opened[p.number][0]).columns for p in block]
        columns = zip(*statistics, strict=True)
        encoders.append([encoder(merge(c), job.standardize, job.max_categories) for c in columns])
    return encoders


def block_widths(plan: Plan, link: Link, job_id: str) -> tuple[int, ...]:
    """How many columns each block will be encoded to: one round of statistics, for explain."""
    union = UnionOperator(link, job_id, plan.mapping, plan.loss.outputs)
    return tuple(sum(map(encoded_width, block)) for block in gather_statistics(union, plan.mapping, plan.job))
