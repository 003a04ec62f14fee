"""Runs a baseline that pools encoded features: materialises the join, and lets the algorithm fit it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Problem
from tablepuppet.algorithms.numerics.optimizers import noise_edge
from tablepuppet.algorithms.numerics.search import best_intercept
from tablepuppet.algorithms.pooled import Fitted, Pooled, PooledBlock
from tablepuppet.arrays import Array, Codes
from tablepuppet.exchanges.encoding import RevealedFeatures, RevealFeatures
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.mapping import Part, rows_here
from tablepuppet.models.features import Features
from tablepuppet.models.heads.base import apply_head
from tablepuppet.models.losses import Weighted
from tablepuppet.models.metrics import Moment
from tablepuppet.models.modules import build_module, one_torch_thread
from tablepuppet.models.neural import NeuralModel
from tablepuppet.plan.plan import Plan
from tablepuppet.plan.prepare import Prepared
from tablepuppet.prediction.model import BlockModel, mean_contribution
from tablepuppet.protocol.columns import Encoder, NumberEncoder
from tablepuppet.sources.encoding import encoded_width
from tablepuppet.training.convergence import judge
from tablepuppet.training.metrics import Criterion, by_side, measure
from tablepuppet.training.result import EpochRecord, Result, RoundEvent
from tablepuppet.training.run import OnRound, head_penalty
from tablepuppet.training.server import UnionOperator
from tablepuppet.training.start import agree_on_encoders, make_problem
from tablepuppet.transport.link import Link


def run_pooled(prepared: Prepared, link: Link, job_id: str, on_round: OnRound | None = None) -> Result:
    """Trains on the materialised join: the baseline that every other algorithm is measured against."""
    began = time.perf_counter()
    plan, mapping = prepared.plan, prepared.mapping
    job = plan.job
    union = UnionOperator(link, job_id, mapping, plan.head.widths, job.privacy)
    encoders = agree_on_encoders(union, mapping, job)
    problem = make_problem(plan, mapping, union, encoders)
    as_codes = not job.model.is_convex
    revealed = union.ask(lambda p: RevealFeatures(job=job_id, part=p.number, as_codes=as_codes), "training")
    has_absent = [any(column.absent is not None for column in block.columns) for block in mapping.bound.blocks]
    tables = [_table(block, encoders[n], revealed, has_absent=has_absent[n]) for n, block in enumerate(union.blocks)]
    found = (_network if as_codes else _optimum)(prepared, problem, tables)
    rows = rows_here(mapping.train)
    given = (found.intercept, Criterion(plan.loss, Moment.FINISHED, mapping.label.channel))
    trained = problem.head
    seen, held = (
        [_outputs(plan, t, w, n)[side] for n, (t, w) in enumerate(zip(tables, found.thetas, strict=True))]
        for side in (0, 1)
    )
    measured = {"train": measure(apply_head(rows, trained), seen, *given)}
    if mapping.validation.rows:
        measured["validation"] = measure(apply_head(mapping.validation, trained), held, *given)
    measured["test"] = measure(apply_head(mapping.test, trained), held, *given)
    metrics, curves = by_side(measured, mapping.label.classes)
    value = measured["train"].loss + _penalty(problem, rows, found, seen) if as_codes else found.value
    account = link.meter.account("training")
    taken, steps = time.perf_counter() - began, {"iterations": float(found.steps)}
    record = EpochRecord(1, value, metrics, account.rounds, account.bytes, taken, steps)
    if on_round is not None:
        on_round(RoundEvent(1, 1, 1, record))
    blocks = tuple(
        BlockModel.of(b, encoders=tuple(e), theta=w, is_outer=s.is_outer, mean=mean_contribution(h, g, rows.rows))
        for b, e, h, w, g, s in zip(
            mapping.bound.blocks, encoders, seen, found.thetas, mapping.multiplicity, plan.mapping.blocks, strict=True
        )
    )
    verdict = judge(prepared, [value], metrics, encoders, is_settled=True)
    return Result(
        plan=plan,
        objective=value,
        metrics=metrics,
        curves=curves,
        history=(record,),
        traffic=link.meter.traffic(),
        blocks=blocks,
        encoded_intercept=found.intercept,
        classes=mapping.label.classes,
        privacy=plan.ledger,
        epoch=1,
        notes=verdict.notes,
        baseline=verdict.baseline,
        head=None if trained is None else trained.data,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """A block's rows, pooled."""

    train: Features
    test: Features
    missing: tuple[NDArray[np.bool_], NDArray[np.bool_]]  # rows that do not exist


def _table(
    parts: Sequence[Part], encoders: Sequence[Encoder], revealed: Mapping[int, list[Any]], *, has_absent: bool
) -> _Table:
    """A block's rows of all clients; `has_absent`: a row that was not found has a value in some feature."""
    pooled: list[RevealedFeatures] = [revealed[part.number][0] for part in parts]
    missing = tuple(
        np.concatenate([np.zeros(0, np.bool_), *((rows(part) < 0) & (not has_absent) for part in parts)])
        for rows in (attrgetter("train_rows"), attrgetter("test_rows"))
    )
    sides = ([(p.train, p.train_codes) for p in pooled], [(p.test, p.test_codes) for p in pooled])
    train, test = (_features(side, encoders) for side in sides)
    return _Table(train, test, (missing[0], missing[1]))


def _features(parts: Sequence[tuple[Array, tuple[Codes, ...]]], encoders: Sequence[Encoder]) -> Features:
    """One table's features from its clients'; without codes, all columns are numbers."""
    dense = np.concatenate([d for d, _ in parts]) if parts else np.zeros((0, 0))
    codes = tuple(np.concatenate(each) for each in zip(*(c for _, c in parts), strict=True))
    starts = np.cumsum([0, *map(encoded_width, encoders)])
    if not codes:
        return Features(dense, (), np.arange(dense.shape[1]), (), dense.shape[1])
    places = list(zip(encoders, itertools.pairwise(starts.tolist()), strict=True))
    numbers = [np.arange(a, b) for encoder, (a, b) in places if isinstance(encoder, NumberEncoder)]
    columns = tuple(slice(a, b) for encoder, (a, b) in places if not isinstance(encoder, NumberEncoder))
    dense_columns = np.concatenate([np.empty(0, np.int64), *numbers])
    return Features(np.ascontiguousarray(dense), codes, dense_columns, columns, int(starts[-1]))


def _optimum(prepared: Prepared, problem: Problem, tables: Sequence[_Table]) -> Fitted:
    """A linear model, solved on the feature matrix of the join."""
    plan, rows = prepared.plan, rows_here(prepared.mapping.train)
    algorithm: Any = plan.algorithm  # a baseline, whose own methods these are
    assert isinstance(plan.job.model.l2, int | float)
    joined = np.concatenate([rows.expand(block, t.train.dense) for block, t in enumerate(tables)], axis=1)
    weights = rows.joined_weights()
    loss = plan.loss if weights is None else Weighted(plan.loss, weights)
    best: Fitted = algorithm.fit(joined, rows.joined_labels(), loss, plan.job.model.l2, plan.job.options)
    borders = np.cumsum([t.train.width for t in tables])[:-1]
    return replace(best, thetas=np.split(best.thetas[0], borders))


def _network(prepared: Prepared, problem: Problem, tables: Sequence[_Table]) -> Fitted:
    """A network or a head, trained by torch on the joined rows."""
    plan, joined = prepared.plan, rows_here(prepared.mapping.train)
    job = plan.job
    algorithm: Any = plan.algorithm
    blocks = []
    for bound, table, index in zip(prepared.mapping.bound.blocks, tables, joined.indices, strict=True):
        rows = index.numbers(joined.rows).astype(np.int64)
        exists = np.append(~table.missing[0], False)  # at −1, too
        features = table.train if table.train.rows else table.train.zeros()  # a LEFT JOIN found nobody
        blocks.append(PooledBlock(bound.name, features, np.where(exists[rows], rows, -1)))
    begins = job.chooses_steps and (problem.has_intercept or problem.is_centred)
    pooled = Pooled(
        blocks=blocks,
        labels=joined.joined_labels(),
        weights=joined.joined_weights(),
        loss=plan.loss,
        l2=max(problem.ridges),
        l2_by_output=[problem.by_output(block) for block in range(problem.blocks)],
        head_l2=problem.head_l2,
        spec=plan.spec,
        head=None if problem.head is None else problem.head.head,
        noise=noise_edge(problem),
        unit=plan.unit,
        intercept=best_intercept(problem, problem.zeros()) if begins else np.zeros(plan.loss.outputs),
        has_intercept=problem.has_intercept,
        epochs=job.epochs,
        batch_size=problem.batch_size,
        seed=job.seed,
    )
    with one_torch_thread():
        found: Fitted = algorithm.train(pooled, job.options)
    if problem.head is not None:
        problem.head.own = found.own
        if pooled.noise is not None:
            problem.head.penalties = [(weights, np.zeros(len(weights))) for weights in pooled.noise.weights]
    return found


def _outputs(plan: Plan, table: _Table, theta: Array, number: int) -> tuple[Array, Array]:
    """h of a block's train rows and of those that are held out."""
    if plan.spec.is_linear:
        return table.train.dot(theta), table.test.dot(theta)
    outputs = plan.head.widths[number]
    name = plan.mapping.bound.blocks[number].name
    module = build_module(plan.spec, table.train.width, outputs, seed=plan.job.seed + number, name=name)
    given = (module, plan.spec, table.train, table.test, outputs)
    model = NeuralModel.of(*given, missing=table.missing, stream=0)
    # Blocks without a row answer in float64: walks over joined rows take one type.
    return model.predict(theta).astype(np.float64, copy=False), model.predict_test(theta).astype(np.float64, copy=False)


def _penalty(problem: Problem, joined: JoinedRows, found: Fitted, h: Sequence[Array]) -> float:
    """½ β Σ‖θ‖² of networks; of heads, `head_penalty`."""
    ridge = max(problem.ridges)
    ridges: list[Any] = [problem.by_output(block) or ridge for block in range(problem.blocks)]
    squares = sum(float(np.vdot(theta, np.multiply(b, theta))) for theta, b in zip(found.thetas, ridges, strict=True))
    return 0.5 * squares if problem.head is None else head_penalty(problem, joined, h, squares)
