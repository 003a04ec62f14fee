"""How a run starts: features are agreed on, then the problem that an algorithm's server half is given, and its parts.

In: a plan. Out: one set of encoders per block, from clients' join-weighted statistics; a Problem; every part, started
at its client (StartPart); the numbers of each block that the algorithm needs before the first round.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from tablepuppet.algorithms.base import Figures, Problem
from tablepuppet.arrays import Array
from tablepuppet.contract import id_features
from tablepuppet.errors import PrivacyError, TransportError
from tablepuppet.exchanges import features, parts
from tablepuppet.exchanges.start import SendFigures, Started
from tablepuppet.job import Job
from tablepuppet.join.mapping import Part, TableMapping
from tablepuppet.models.heads.base import TrainedHead, apply_head
from tablepuppet.models.heads.kinds import SUM_BY_ROWS, make_head
from tablepuppet.models.spec import l2_of
from tablepuppet.plan.knowledge import Ids
from tablepuppet.plan.plan import Plan
from tablepuppet.plan.prepare import Prepared, column_signs
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.columns import Encoder, IdEncoder, NumberEncoder, NumberStatistics, Statistics
from tablepuppet.sources.columns import STRING_KINDS
from tablepuppet.sources.encoding import encoded_width, encoder, entries_of
from tablepuppet.sources.statistics import first_totals, means_only, merge, second_totals, without_ids
from tablepuppet.training.server import UnionOperator
from tablepuppet.transport.link import Link


def private_encoder(statistics: Statistics, known: tuple[float, float] | None, name: str, job: Job) -> Encoder:
    """An encoder that no number in the data has shaped: public bounds become ±1, and a missing number the middle.

    Which categories a string has, and whether any value is missing, is taken to be public.
    """
    if not isinstance(statistics, NumberStatistics):
        return encoder(statistics, job.data.standardize, job.data.max_categories)
    ones = np.ones_like(statistics.mean)
    if known is None and job.data.standardize:
        raise PrivacyError(
            f"feature {name} is a number, and its mean and spread would be read from the data, outside the promise of "
            f'privacy.features; give public bounds, features = {{bounds = {{"{name}" = [low, high]}}}}, '
            "or standardize = false"
        )
    low, high = known or (-1.0, 1.0)  # without either, numbers stay as they are
    middle = 0.5 * (low + high) * ones
    return NumberEncoder(mean=middle, scale=0.5 * (high - low) * ones, fill=middle, has_missing=statistics.missing > 0)


def agree_on_encoders(union: UnionOperator, mapping: TableMapping, job: Job) -> list[list[Encoder]]:
    """Statistics of every part, then the merged encoders to every part of a block."""
    encoders = gather_statistics(union, mapping, job)

    def encode(part: Part) -> Message:
        return parts.EncodeFeatures(job=union.job, part=part.number, encoders=encoders[part.block])

    widths = union.ask(encode, "setup")
    for block in union.blocks:
        if len({widths[p.number][0].width for p in block}) > 1:
            raise TransportError("the clients of one table encode to different widths")
    return encoders


def open_parts(
    union: UnionOperator, mapping: TableMapping, job: Job, *, wants_moments: bool = True, wants_statistics: bool = True
) -> dict[int, list[Any]]:
    """Tells every part which of its rows take part, and how often; by part, its statistics."""
    found = _find_ids(union, mapping, job)

    def open_part(part: Part) -> Message:
        multiplicity = mapping.multiplicity[part.block][part.train]
        ids, finds_ids = id_features(job, mapping.bound.blocks[part.block])
        ids = found.get(part.block, ids)
        fits = int(multiplicity.max(initial=0)) < 2**31
        return features.OpenPart(
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
    """If one client of a block treats a feature as ids, all must: one round, where clients decide."""
    requests: list[tuple[Part, Message]] = []
    for part in union.parts:
        block = mapping.bound.blocks[part.block]
        has_texts = any(column.kind in STRING_KINDS for column in block.columns)
        if len(union.blocks[part.block]) > 1 and has_texts and id_features(job, block)[1]:
            asked = features.FindIds(job=union.job, part=part.number, scan=part.scan, columns=list(part.columns))
            requests.append((part, asked))
    answers = union.exchange(requests, "setup")
    found: dict[int, set[int]] = {}
    for part, _ in requests:
        found.setdefault(part.block, set()).update(answers[part.number][0].places)
    return {block: tuple(sorted(places)) for block, places in found.items()}


def gather_statistics(union: UnionOperator, mapping: TableMapping, job: Job) -> list[list[Encoder]]:
    """Every part's statistics, merged to the encoders of each block; masked sums of them take further rounds."""

    opened = open_parts(union, mapping, job, wants_moments=job.privacy.features is None)
    every = []
    for block in union.blocks:
        statistics = [opened[p.number][0].columns for p in block]
        every.append([merge(c) for c in zip(*statistics, strict=True)])
    every = _sum_masked(union, every)
    encoders: list[list[Encoder]] = []
    for block, merged in zip(union.blocks, every, strict=True):
        if job.privacy.features is None:
            encoders.append([encoder(s, job.data.standardize, job.data.max_categories, _salt(job)) for s in merged])
        else:
            names = mapping.bound.blocks[block[0].block].features if block else ()
            known = map(job.privacy.features.bounds_of, names)
            encoders.append([private_encoder(*given, job) for given in zip(merged, known, names, strict=True)])
    return encoders


def _salt(job: Job) -> str:
    """The same for the same job, which so repeats bit for bit, and another for another query or seed."""
    return hashlib.sha256(f"{job.seed} {job.data.query}".encode()).hexdigest()[:16]


def _sum_masked(union: UnionOperator, agreed: list[list[Statistics]]) -> list[list[Statistics]]:
    """The statistics of masked blocks, so far known by name only, from sums over their clients."""
    for is_second, totals in ((False, first_totals), (True, second_totals)):

        def ask(part: Part, is_second: bool = is_second) -> Message:
            columns, peers = agreed[part.block], union.peers(part)
            columns = means_only(columns) if is_second else without_ids(columns)
            return features.SumStatistics(
                job=union.job, part=part.number, columns=columns, peers=peers, is_second=is_second
            )

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
    return tuple(sum(map(encoded_width, block)) for block in encoders)


def ids_of(encoders: Sequence[Sequence[Encoder]]) -> Ids:
    """Which features of each block are ids: "here" with the one owner, or known to the server by "tokens"."""
    return tuple(
        tuple("" if not isinstance(e, IdEncoder) else "here" if e.tokens is None else "tokens" for e in block)
        for block in encoders
    )


def make_problem(
    plan: Plan, mapping: TableMapping, union: UnionOperator, encoders: Sequence[Sequence[Encoder]]
) -> Problem:
    """The problem for an algorithm's server half."""
    job, private, head = plan.job, plan.private, None
    if not job.model.is_sum:  # a sum is added up by walks over joined rows themselves
        made = make_head(plan.head, job.seed)
        head = TrainedHead(made, made.initial())
    ridges = [l2_of(job.model.l2, block.name, block.table) for block in mapping.bound.blocks]
    return Problem(
        loss=plan.loss,
        l2=[l2 + job.model.l2_by_rows / mapping.train.rows for l2 in ridges],
        head_l2=max(ridges),
        sum_l2=max(ridges) + SUM_BY_ROWS / mapping.train.rows if plan.head.sum_weight else None,
        l1=job.model.l1,
        signs=column_signs(job, mapping.bound.blocks, encoders),
        joined=apply_head(mapping.train, head),
        rows=tuple(index.rows for index in mapping.train.indices),
        clients=tuple(max(1, len(block)) for block in union.blocks),
        multiplicity=mapping.multiplicity,
        epochs=job.epochs,
        batch_size=job.batch(mapping.train.rows),
        seed=job.seed,
        is_private=private.is_noisy,
        private_rates=private.noise.rates,
        is_linear=job.model.spec.is_linear,
        has_intercept=job.model.has_intercept,
        is_centred=job.is_centred,
        unit=plan.unit,
        widths=widths_of(encoders),
        label_rows=min(mapping.train.rows, len(mapping.train.labels)),
        entries=tuple(max(1, sum(map(entries_of, block))) for block in encoders),
        channel=mapping.label.channel,
        head=head,
    )


def figures_of(plan: Plan, union: UnionOperator, problem: Problem, started: Mapping[int, Started]) -> list[Figures]:
    """The numbers of each block that the server half needs."""
    algorithm = plan.algorithm
    kind = algorithm.figures
    if problem.is_private:  # bounds of the curvature that depend on no data: every |x| is at most 1
        return [algorithm.public_figures(len(block.features)) for block in plan.mapping.bound.blocks]
    by = algorithm.figures_by(plan.job.options, is_linear=problem.is_linear)
    if by == "power iteration":
        widths = [started[block[0].number].width if block else 0 for block in union.blocks]
        return [kind(c / problem.joined.rows) for c in union.largest_curvatures(widths)]
    sums = np.zeros((problem.blocks, len(kind.__struct_fields__)))
    for part in union.parts:
        sums[part.block] += _values(kind, started[part.number].figures, part.client)
    if by == "summed" and any(union.is_masked):
        held_back = union.masked_sums(lambda part: SendFigures(job=union.job, part=part.number))
        for block, (total, *_) in held_back.items():
            sums[block] = total
    return [kind(*row) for row in sums.tolist()]


def _values(kind: type[Figures], numbers: dict[str, float], client: str) -> Array:
    """A part's numbers; none where it held them back."""
    try:
        return np.array(msgspec.structs.astuple(msgspec.convert(numbers, kind)))
    except msgspec.ValidationError as error:
        raise TransportError(f"client {client} starts with other figures than the algorithm has: {error}") from None
