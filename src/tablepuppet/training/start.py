"""How a run starts: the problem that an algorithm's server half is given, its parts, and its first figures.

In: a plan, encoders that clients agreed on. Out: a Problem; every part started at its client (StartPart); and the
numbers of each block that the algorithm wants to know before the first round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Figures, Problem
from tablepuppet.arrays import Array
from tablepuppet.errors import TransportError
from tablepuppet.exchanges.start import Started, StartPart
from tablepuppet.join.mapping import Part, TableMapping
from tablepuppet.models.heads.base import TrainedHead, apply_head
from tablepuppet.models.heads.kinds import SUM_BY_ROWS, make_head
from tablepuppet.models.spec import l2_of
from tablepuppet.plan.penalties import column_signs
from tablepuppet.plan.plan import Plan
from tablepuppet.protocol.base import Message
from tablepuppet.protocol.columns import Encoder
from tablepuppet.protocol.steps import Move
from tablepuppet.sources.encoding import entries_of
from tablepuppet.training.encoders import widths_of
from tablepuppet.training.server import UnionOperator


def make_problem(
    plan: Plan, mapping: TableMapping, union: UnionOperator, encoders: Sequence[Sequence[Encoder]]
) -> Problem:
    """What an algorithm's server half is given."""
    job, private, head = plan.job, plan.private, _head(plan)
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
        private_rates=private.rates,
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


def start_parts(
    plan: Plan,
    union: UnionOperator,
    problem: Problem,
    weights: Sequence[Array] | None,
    *,
    models: int = 1,
    is_fold: bool = False,
    continues: bool = False,
    moves: Sequence[dict[str, Any] | None] = (),
) -> dict[int, Started]:
    """Starts every part; `moves`: what the model before had yet to be told."""
    job = plan.job
    starts = bool(job.start) and plan.algorithm.can_continue(problem)

    def start_part(part: Part) -> list[Message]:
        move = moves[part.block] if moves else None
        first: list[Message] = [] if move is None else [Move(job=union.job, part=part.number, **move)]
        start = StartPart(
            job=union.job,
            part=part.number,
            algorithm=job.options,
            model=plan.spec,
            block=part.block,
            name=plan.mapping.bound.blocks[part.block].name,
            outputs=models * plan.head.widths[part.block],
            blocks=problem.blocks,
            clients=problem.clients[part.block],
            joined_rows=problem.joined.rows,
            share=_share(part, problem.multiplicity[part.block]),
            l2=problem.ridges[part.block],
            l1=job.model.l1,
            l2_by_output=problem.by_output(part.block),
            signs=list(problem.signs[part.block]) if problem.signs else [],
            seed=job.seed,
            privacy=plan.private.of(part.block, plan.mapping.bound.scans[part.scan].table),
            weights=None if weights is None else weights[part.block][part.train],
            peers=union.peers(part),
            spread=[] if problem.head is None else problem.head.head.spread(part.block),
            multiplicity=problem.multiplicity[part.block][part.train] if is_fold else None,
            starts=starts,
            continues=continues,
        )
        return [*first, start]

    answers = union.ask(start_part, "setup")
    return {number: cast("Started", answer[-1]) for number, answer in answers.items()}


def figures_of(plan: Plan, union: UnionOperator, problem: Problem, started: Mapping[int, Started]) -> list[Figures]:
    """What the server half wants to know of each block."""
    algorithm = plan.algorithm
    kind = algorithm.figures
    if problem.is_private:  # what bounds the curvature without a look at the data: every |x| is at most 1
        return [algorithm.public_figures(len(block.features)) for block in plan.mapping.bound.blocks]
    by = algorithm.figures_by(plan.job.options, is_linear=problem.is_linear)
    if by == "power iteration":
        widths = [started[block[0].number].width if block else 0 for block in union.blocks]
        return [kind(c / problem.joined.rows) for c in union.largest_curvatures(widths)]
    sums = np.zeros((problem.blocks, len(kind.__struct_fields__)))
    for part in union.parts:
        sums[part.block] += _values(kind, started[part.number].figures, part.client)
    if by == "summed" and any(union.is_masked):
        for block, total in union.sum_figures().items():
            sums[block] = total
    return [kind(*row) for row in sums.tolist()]


def _values(kind: type[Figures], told: dict[str, float], client: str) -> Array:
    """A part's figures; none where it held them back."""
    try:
        return np.array(msgspec.structs.astuple(msgspec.convert(told, kind)))
    except msgspec.ValidationError as error:
        raise TransportError(f"client {client} starts with other figures than the algorithm has: {error}") from None


def _head(plan: Plan) -> TrainedHead | None:
    """The plan's head with its initial values; None: a sum, which walks over joined rows add up by themselves."""
    if plan.job.model.is_sum:
        return None
    head = make_head(plan.head, plan.job.seed)
    return TrainedHead(head, head.initial())


def _share(part: Part, multiplicity: NDArray[np.int64]) -> float:
    """Of the joined rows that the part's block has a row in: how many have one of the part."""
    own = multiplicity[part.train]
    return 1.0 if 0 < len(own) == len(multiplicity) else float(own.sum() / max(1, multiplicity.sum()))
