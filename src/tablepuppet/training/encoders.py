"""Features, agreed: clients' join-weighted statistics → one set of encoders per block."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from tablepuppet.contract import id_features
from tablepuppet.errors import PrivacyError, TransportError
from tablepuppet.exchanges.features import (
    Encoded,
    EncodeFeatures,
    FeatureNames,
    FeatureStatistics,
    FindIds,
    FoundIds,
    OpenPart,
    SumStatistics,
)
from tablepuppet.job import Job
from tablepuppet.join.mapping import Part, TableMapping
from tablepuppet.plan.disclosure import Ids
from tablepuppet.plan.plan import Plan
from tablepuppet.plan.prepare import Prepared
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.columns import Encoder, IdEncoder, NumberEncoder, NumberStatistics
from tablepuppet.sources.columns import STRING_KINDS
from tablepuppet.sources.encoding import encoded_width, encoder, merge
from tablepuppet.sources.statistics import Statistics, first_totals, means_only, second_totals, without_ids
from tablepuppet.training.server import UnionOperator
from tablepuppet.transport.link import Link


def private_encoder(statistics: Statistics, name: str, bounds: Mapping[str, tuple[float, float]], job: Job) -> Encoder:
    """An encoder that no number in the data has shaped: public bounds become ±1, and a missing number the middle.

    Which categories a string has, and whether any value is missing, is taken to be public.
    """
    if not isinstance(statistics, NumberStatistics):
        return encoder(statistics, job.data.standardize, job.data.max_categories)
    known = bounds.get(name) or bounds.get(name.rpartition(".")[2])
    ones = np.ones_like(statistics.mean)
    if known is None and not job.data.standardize:
        return NumberEncoder(mean=0 * ones, scale=ones, fill=0 * ones, has_missing=statistics.missing > 0)
    if known is None:
        raise PrivacyError(
            f"feature {name} is a number, and its mean and spread would be read from the data, outside the promise of "
            f'privacy.features; give public bounds, features = {{bounds = {{"{name}" = [low, high]}}}}, '
            "or standardize = false"
        )
    low, high = known
    middle = 0.5 * (low + high) * ones
    return NumberEncoder(mean=middle, scale=0.5 * (high - low) * ones, fill=middle, has_missing=statistics.missing > 0)


def agree_on_encoders(union: UnionOperator, mapping: TableMapping, job: Job) -> list[list[Encoder]]:
    """Statistics of every part, then the merged encoders to every part of a block."""
    encoders = gather_statistics(union, mapping, job)

    def encode(part: Part) -> Message:
        return EncodeFeatures(job=union.job, part=part.number, encoders=encoders[part.block])

    widths = union.ask(encode, "setup")
    for block in union.blocks:
        if len({cast("Encoded", widths[p.number][0]).width for p in block}) > 1:
            raise TransportError("the clients of one table encode to different widths")
    return encoders


def open_parts(
    union: UnionOperator, mapping: TableMapping, job: Job, *, wants_moments: bool = True, wants_statistics: bool = True
) -> dict[int, list[Message]]:
    """Tells every part which of its rows take part, and how often; by part, its statistics."""
    found = _find_ids(union, mapping, job)

    def open_part(part: Part) -> Message:
        multiplicity = mapping.multiplicity[part.block][part.train]
        ids, finds_ids = id_features(job, mapping.bound.blocks[part.block])
        ids = found.get(part.block, ids)
        fits = int(multiplicity.max(initial=0)) < 2**31
        return OpenPart(
            job=union.job,
            part=part.number,
            scan=part.scan,
            columns=list(part.columns),
            train_rows=part.train_rows,
            test_rows=part.test_rows,
            wants_moments=wants_moments,
            wants_statistics=wants_statistics,
            wants_key=union.is_masked[part.block],
            ids=ids,
            has_absent=any(p.has_absent for p in union.blocks[part.block]),
            finds_ids=finds_ids,
            id_salt=_salt(job) if (ids or finds_ids) and len(union.blocks[part.block]) > 1 else "",
            multiplicity=None if (multiplicity == 1).all() else multiplicity.astype(np.int32 if fits else np.int64),
        )

    opened = union.ask(open_part, "setup")
    union.keep_keys(opened)
    return opened


def _find_ids(union: UnionOperator, mapping: TableMapping, job: Job) -> dict[int, tuple[int, ...]]:
    """What one client of a block takes for ids, all of them must: one round, where it is theirs to say."""
    requests: list[tuple[Part, Message]] = []
    for part in union.parts:
        block = mapping.bound.blocks[part.block]
        has_texts = any(column.kind in STRING_KINDS for column in block.columns)
        if len(union.blocks[part.block]) > 1 and has_texts and id_features(job, block)[1]:
            asked = FindIds(job=union.job, part=part.number, scan=part.scan, columns=list(part.columns))
            requests.append((part, asked))
    answers = union.exchange(requests, "setup")
    found: dict[int, set[int]] = {}
    for part, _ in requests:
        found.setdefault(part.block, set()).update(cast("FoundIds", answers[part.number][0]).places)
    return {block: tuple(sorted(places)) for block, places in found.items()}


def gather_statistics(union: UnionOperator, mapping: TableMapping, job: Job) -> list[list[Encoder]]:
    """Every part's statistics, merged to the encoders of each block; masked sums of them take further rounds."""

    opened = open_parts(union, mapping, job, wants_moments=job.privacy.features is None)
    every = []
    for block in union.blocks:
        statistics = [cast("FeatureStatistics | FeatureNames", opened[p.number][0]).columns for p in block]
        every.append([merge(c) for c in zip(*statistics, strict=True)])
    every = _sum_masked(union, every)
    encoders: list[list[Encoder]] = []
    for block, merged in zip(union.blocks, every, strict=True):
        if job.privacy.features is None:
            encoders.append([encoder(s, job.data.standardize, job.data.max_categories, _salt(job)) for s in merged])
        else:
            names = mapping.bound.blocks[block[0].block].features if block else ()
            bounds = job.privacy.features.bounds
            encoders.append([private_encoder(s, n, bounds, job) for s, n in zip(merged, names, strict=True)])
    return encoders


def _salt(job: Job) -> str:
    """The same for the same job, which so repeats bit for bit, and another for another query or seed."""
    return hashlib.sha256(f"{job.seed} {job.data.query}".encode()).hexdigest()[:16]


def _sum_masked(union: UnionOperator, agreed: list[list[Statistics]]) -> list[list[Statistics]]:
    """The statistics of masked blocks, of which so far only names are known, from sums over their clients."""
    for is_second, totals in ((False, first_totals), (True, second_totals)):

        def ask(part: Part, is_second: bool = is_second) -> Message:
            columns, peers = agreed[part.block], union.peers(part)
            columns = means_only(columns) if is_second else without_ids(columns)
            return SumStatistics(job=union.job, part=part.number, columns=columns, peers=peers, is_second=is_second)

        for block, found in union.masked_sums(ask).items():
            agreed[block] = totals(agreed[block], found)
    return agreed


def with_statistics(prepared: Prepared, link: Link, job_id: str) -> Plan:
    """The plan with how many columns each block is encoded to, and which are ids: one round, for explain."""
    plan, mapping = prepared.plan, prepared.mapping
    union = UnionOperator(link, job_id, mapping, plan.loss.outputs, plan.job.privacy)
    encoders = gather_statistics(union, mapping, plan.job)
    return replace(plan, widths=widths_of(encoders), ids=ids_of(encoders))


def widths_of(encoders: Sequence[Sequence[Encoder]]) -> tuple[int, ...]:
    """How many columns each block is encoded to."""
    return tuple(sum(map(encoded_width, block)) for block in encoders)


def ids_of(encoders: Sequence[Sequence[Encoder]]) -> Ids:
    """Which features of each block are ids: "here" with the one owner, or known to the server by "tokens"."""
    return tuple(
        tuple("" if not isinstance(e, IdEncoder) else "here" if e.tokens is None else "tokens" for e in block)
        for block in encoders
    )
