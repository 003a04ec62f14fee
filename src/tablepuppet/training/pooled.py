"""Runs a baseline that pools encoded features: materialises the join, and lets the algorithm fit it."""

import itertools
import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Fitted, PartSetup, Problem
from tablepuppet.arrays import Array, Codes, floats
from tablepuppet.exchanges.parts import RevealedFeatures, RevealFeatures
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.mapping import Part, rows_here
from tablepuppet.models.heads.base import apply_head
from tablepuppet.models.linear import Features, LinearModel
from tablepuppet.models.losses import Weighted
from tablepuppet.models.metrics import Moment
from tablepuppet.models.modules import build_module
from tablepuppet.models.neural import Model, NeuralModel
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
    rows = rows_here(mapping.train)
    models = [_model(plan, problem, table, number) for number, table in enumerate(tables)]
    found = _descend(plan, problem, models) if as_codes else _optimum(prepared, tables)
    given = (found.intercept, Criterion(plan.loss, Moment.FINISHED, mapping.label.channel))
    trained = problem.head
    seen, held = (
        # Blocks without a row answer in float64: walks over joined rows take one type.
        [floats(predict(theta)) for predict, theta in zip(side, found.thetas, strict=True)]
        for side in ([model.predict for model in models], [model.predict_test for model in models])
    )
    sides = {"train": (rows, seen), "validation": (mapping.validation, held), "test": (mapping.test, held)}
    kept = {side: own for side, own in sides.items() if side != "validation" or mapping.validation.rows}
    measured = {side: measure(apply_head(joined, trained), h, *given) for side, (joined, h) in kept.items()}
    metrics, curves, _ = by_side(measured, mapping.label.classes)
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


class _Table(msgspec.Struct, frozen=True, eq=False):
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


def _optimum(prepared: Prepared, tables: Sequence[_Table]) -> Fitted:
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


def _descend(plan: Plan, problem: Problem, models: Sequence[Model]) -> Fitted:
    """A network or a head, by the steps of federated training."""
    algorithm: Any = plan.algorithm
    setups = [
        PartSetup(
            model=model,
            multiplicity=floats(problem.multiplicity[number]),
            weights=floats(problem.multiplicity[number]),
            outputs=plan.head.widths[number],
            blocks=problem.blocks,
            clients=1,
            joined_rows=problem.joined.rows,
            l2=problem.ridges[number],
            l2_by_output=np.array(problem.by_output(number)) if problem.by_output(number) else None,
            seed=problem.seed,
            unit=plan.spec.unit,
        )
        for number, model in enumerate(models)
    ]
    found: Fitted = algorithm.train(problem, setups, plan.job.options)
    return found


def _model(plan: Plan, problem: Problem, table: _Table, number: int) -> Model:
    """A block's model over its pooled rows."""
    spec, outputs, seed = plan.spec, plan.head.widths[number], plan.job.seed
    if spec.is_linear:
        start = None if problem.head is None else (seed, number, tuple(problem.head.head.spread(number)))
        return LinearModel(table.train, table.test, outputs, start=start)
    name = plan.mapping.bound.blocks[number].name
    module = build_module(spec, table.train.width, outputs, seed=seed + number, name=name)
    given = (module, spec, table.train, table.test, outputs)
    return NeuralModel.of(*given, missing=table.missing, stream=seed + number)


def _penalty(problem: Problem, joined: JoinedRows, found: Fitted, h: Sequence[Array]) -> float:
    """½ β Σ‖θ‖² of networks; of heads, `head_penalty`."""
    ridge = max(problem.ridges)
    ridges: list[Any] = [problem.by_output(block) or ridge for block in range(problem.blocks)]
    squares = sum(float(np.vdot(theta, np.multiply(b, theta))) for theta, b in zip(found.thetas, ridges, strict=True))
    return 0.5 * squares if problem.head is None else head_penalty(problem, joined, h, squares)
