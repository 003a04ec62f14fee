"""Runs a plan of boosted trees: bins, then tree after tree, then the model's splits.

In: a plan and a link to the clients. Out: a Result. A tree takes as many rounds as its checks need
(algorithms/boosting/server.py); held-out rows are scored without any, for keys cover them.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tablepuppet.algorithms.base import Problem
from tablepuppet.algorithms.boosting.fixed_point import LabelNoise, Labels
from tablepuppet.algorithms.boosting.kernels import announce_compilation
from tablepuppet.algorithms.boosting.known_blocks import KnownBlock
from tablepuppet.algorithms.boosting.messages import (
    GrownTrees,
    HoldSplits,
    ReleaseSplits,
    SplitRule,
    Splits,
    compact,
    shift_keys,
)
from tablepuppet.algorithms.boosting.options import Boosting
from tablepuppet.algorithms.boosting.plan import LeafPlan
from tablepuppet.algorithms.boosting.prediction import add_trees
from tablepuppet.algorithms.boosting.random_splits import DrawnServer, Draws
from tablepuppet.algorithms.boosting.rounds import TreeRounds
from tablepuppet.algorithms.boosting.rows import BlockIndex
from tablepuppet.algorithms.boosting.server import BoostingServer, HeldRows
from tablepuppet.algorithms.boosting.tree_checks import SETS, NewKey
from tablepuppet.algorithms.numerics.search import best_intercept
from tablepuppet.arrays import Array, floats
from tablepuppet.errors import JobError, TransportError
from tablepuppet.join.joined_rows import JoinedRows
from tablepuppet.join.mapping import Part
from tablepuppet.join.row_index import RowIndex
from tablepuppet.memory import trim_heap
from tablepuppet.models.metrics import Moment
from tablepuppet.plan.knowledge import check_exposure, held_blocks
from tablepuppet.plan.plan import Plan
from tablepuppet.plan.prepare import Prepared, monotone_signs
from tablepuppet.prediction.model import BlockModel
from tablepuppet.protocol.base import Message
from tablepuppet.training import metrics as measuring
from tablepuppet.training.convergence import Patience, judge
from tablepuppet.training.curves import Curves
from tablepuppet.training.metrics import Criterion, Measured, MeasuredOn, Metrics
from tablepuppet.training.noisy_metrics import NoisyMetrics
from tablepuppet.training.result import EpochRecord, Result, RoundEvent
from tablepuppet.training.run import OnRound
from tablepuppet.training.server import UnionOperator, clients_of
from tablepuppet.training.start import open_parts
from tablepuppet.transport.link import Link

_RECORDS = 10  # of a run, where nothing waits for each of them


def run_boosting(prepared: Prepared, link: Link, job_id: str, on_round: OnRound | None = None) -> Result:
    """Trains the plan's trees."""
    plan, mapping = prepared.plan, prepared.mapping
    job = plan.job
    assert isinstance(job.options, Boosting)
    check_exposure(plan.exposures, job)
    announce_compilation()
    union = UnionOperator(link, job_id, mapping, plan.loss.outputs, job.privacy)
    open_parts(union, mapping, job, wants_moments=job.privacy.features is None, wants_statistics=False)
    names = [block.name for block in mapping.bound.blocks]
    sides = [side.fetch() for side in (mapping.train, mapping.test, mapping.validation)]
    is_outer = [any(side.indices[b].is_partial for side in sides) for b in range(len(names))]
    signs = monotone_signs(job.options.monotone, mapping.bound.blocks)
    if any(map(any, signs)) and plan.loss.outputs > 1:
        raise JobError("monotone needs one score per row; a label of several classes has one for each of them")
    before = job.warm_start
    if before is not None:
        _check_before(before, plan)
    leaves: LeafPlan | None = plan.private.own
    rounds = TreeRounds(union, job.options, names, is_outer, signs, before, leaves)
    kinds, earlier = rounds.start(plan.loss.outputs)
    trim_heap()
    draws = None
    if job.options.is_random:
        first = 0 if before is None else len(before.trees)
        draws = Draws(rounds.drawable, job.options, job.seed, range(first, first + job.options.trees))
    server, start = _server(prepared, sides, kinds, rounds, draws)
    if draws is not None:
        for known, keys in zip(server.blocks, rounds.tell(draws.keys), strict=True):
            known.learn(keys)
    if before is not None:
        _add_earlier(server, before, earlier)
    noisy = None if prepared.noise is None else NoisyMetrics(prepared.noise)
    training = _Training(plan, union, rounds, server, sides, start, on_round, noisy)
    training.loop()
    found = training.finish()
    verdict = judge(prepared, [r.objective for r in found.history], found.metrics, [()] * len(names), is_settled=True)
    noise = server.labels.noise
    further = () if noise is None else noise.describe(mapping.train.rows)
    return replace(found, notes=(*verdict.notes, *further), baseline=verdict.baseline)


def _server(
    prepared: Prepared,
    sides: Sequence[JoinedRows],
    kinds: Sequence[NDArray[np.uint8]],
    rounds: TreeRounds,
    draws: Draws | None,
) -> tuple[BoostingServer, Array]:
    """The server's half, and the constant that scores begin with."""
    job, loss, union, signs = prepared.plan.job, prepared.plan.loss, rounds.union, rounds.signs
    train, test, validation = sides
    problem = Problem(loss, 0.0, prepared.mapping.train, tuple(index.rows for index in train.indices))
    values, label = floats(train.labels), job.privacy.label
    bounds = None if label is None or prepared.mapping.label.classes else label.bounds
    noise = LabelNoise.of(loss, prepared.mapping.label.channel, values, bounds)
    before = job.warm_start
    start = prepared.start
    if start is None:
        start = best_intercept(problem, problem.zeros()) if before is None else np.array(before.start)
        if bounds is not None and loss.is_quadratic:
            start = np.clip(start, *bounds)
    label_index = train.label_index
    held = [
        HeldRows([_index(p) for p in side.indices], np.asfortranarray(np.tile(start, (side.rows, 1))))
        for side in (test, validation)
    ]
    blocks = []
    for number, (index, parts) in enumerate(zip(train.indices, union.blocks, strict=True)):
        held_rows = sum(len(p.test_rows) for p in parts)
        further = kinds[number][len(signs[number]) :]  # columns of categories, which come after all others
        if signs[number] and (len(kinds[number]) < len(signs[number]) or not np.isin(further, SETS).all()):
            raise JobError(
                f"monotone cannot be held to: vectors of {clients_of(parts)} have other lengths than declared"
            )
        blocks.append(KnownBlock(number, kinds[number], index.rows, held_rows, clients_of(parts), signs[number]))
    assert isinstance(job.options, Boosting)
    given: dict[str, Any] = {}
    if draws is not None:
        given = {"draws": draws, "noise": None if rounds.leaves is None else rounds.leaves.noise}
    server = (BoostingServer if draws is None else DrawnServer)(
        **given,
        options=job.options,
        loss=loss,
        labels=Labels(values, label_index.index, train.weights, noise),
        indices=[_index(p) for p in train.indices],
        blocks=blocks,
        starts=[[p.train.start for p in parts] for parts in union.blocks],
        scores=np.asfortranarray(np.tile(start, (train.rows, 1))),
        held=held,
        seed=job.seed,
        first=0 if before is None else len(before.trees),
    )
    return server, start


def _check_before(before: GrownTrees, plan: Plan) -> None:
    """More trees are added to trees over the same tables and features, whose splits can be kept as they were."""
    blocks = [(b.name, list(b.features)) for b in plan.mapping.bound.blocks]
    if [(b.name, b.features) for b in before.blocks] != blocks or len(before.start) != plan.loss.outputs:
        raise JobError(
            "warm_start is a model of other tables, features or classes; write the same SELECT list and aliases, or "
            "leave warm_start out"
        )
    held = held_blocks(plan.job, plan.mapping)
    kept = [own.name for own, is_held in zip(before.blocks, held, strict=True) if own.is_held and not is_held]
    if kept:
        raise JobError(f"the splits of {', '.join(kept)} stay with their owners; go on with release=False")


def _add_earlier(server: BoostingServer, before: GrownTrees, earlier: Sequence[Sequence[NewKey]]) -> None:
    train, held = [], []
    for known, keys in zip(server.blocks, earlier, strict=True):
        size = known.rows + 1 + known.held
        bits = [np.unpackbits(key.right, count=size) for key in keys]
        every = np.stack(bits) if bits else np.zeros((0, size), np.uint8)
        train.append(every[:, : known.rows + 1])
        held.append(np.roll(every[:, known.rows :], -1, axis=1))  # the row that does not exist comes last
    sides = [(server.indices, server.scores, train), *((h.indices, h.scores, held) for h in server.held)]
    for indices, scores, own in sides:
        numbers = [p.index if len(p.index) else np.arange(len(scores)) for p in indices]
        add_trees(before.trees, own, numbers, scores)


def _index(p: RowIndex) -> BlockIndex:
    return BlockIndex.of(p.rows, p.index, is_sorted=p.is_sorted and not p.is_partial)


@dataclasses.dataclass
class _Training:
    """One run under way."""

    plan: Plan
    union: UnionOperator
    rounds: TreeRounds
    server: BoostingServer
    sides: Sequence[JoinedRows]
    start: Array
    on_round: OnRound | None
    noisy: NoisyMetrics | None = None  # for an analyst
    history: list[EpochRecord] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        job = self.plan.job
        sides = [self.server.scores, *(held.scores for held in self.server.held)]
        is_warm = job.warm_start is not None and job.patience is not None
        self.begins = [side.copy(order="F") if is_warm else self.start for side in sides]
        self.began = time.perf_counter()
        self.patience = None if job.patience is None else Patience(job.monitor, job.patience, job.min_delta)
        self.options = self.server.options
        self.curves: dict[str, Curves] = {}
        self.measured: dict[str, MeasuredOn] = {}  # drawn rows that it was measured on

    def loop(self) -> None:
        trees = self.options.trees
        for number in range(1, trees + 1):
            self.server.grow(self.rounds.ask)
            wants = self.patience is not None or number == trees or number % max(1, trees // _RECORDS) == 0
            record = self._record(number) if wants else None
            if self.on_round is not None:
                self.on_round(RoundEvent(number, number, trees, record))
            if self.patience is not None and record is not None:
                self.patience.sees(number, record.metrics["validation"], self.start)
                if self.patience.is_over:
                    break

    def _record(self, number: int) -> EpochRecord:
        objective, metrics = self._measure(is_last=number == self.options.trees)
        traffic, seconds = self.union.link.meter.account("training"), time.perf_counter() - self.began
        residuals = {"splits": float(sum(block.revealed for block in self.server.blocks))}
        record = EpochRecord(number, objective, metrics, traffic.rounds, traffic.bytes, seconds, residuals)
        self.history.append(record)
        return record

    def _measure(self, *, is_last: bool) -> tuple[float, dict[str, Metrics]]:
        if is_last:
            self.server.finish()
        loss, channel, whole = self.plan.loss, self.plan.mapping.label.channel, self.plan.mapping.whole
        (train, test, validation), held = self.sides, self.server.held
        sides = {"train": (train, self.server.scores), "validation": (validation, held[1].scores)}
        sides["test"] = (test, held[0].scores)
        found: dict[str, Measured] = {}
        for name, (side, own) in sides.items():
            if name == "validation" and not side.rows:
                continue
            moment = Moment.FINISHED if is_last else Moment.EPOCH if name == "train" else Moment.HELD_OUT
            criterion = Criterion(loss, moment, channel, self.noisy)
            drawn_from = None if whole is None else getattr(whole, name)
            found[name] = measuring.measure_scores(side, own, criterion, drawn_from)
        metrics, self.curves, self.measured = measuring.by_side(found, self.plan.mapping.label.classes)
        return found["train"].loss, metrics

    def finish(self) -> Result:
        best = self._best()
        place = next(i for i, record in enumerate(self.history) if record.epoch == best)
        if best < self.options.trees:  # else the last record has it
            objective, metrics = self._measure(is_last=True)
            self.history[place] = dataclasses.replace(self.history[place], objective=objective, metrics=metrics)
        objective, metrics = self.history[place].objective, self.history[place].metrics
        known = self.server.blocks
        trees, keys = compact(self.server.trees, lambda b, k: known[b].missing_key(k), len(known))
        before = self.plan.job.warm_start
        if before is not None:
            there = [block.splits for block in before.blocks]
            trees = (*map(tuple, before.trees), *(tuple(shift_keys(t, there) for t in group) for group in trees))
        job_id, mapping = self.union.job, self.plan.mapping
        held = held_blocks(self.plan.job, mapping)
        released = self.union.ask(
            lambda part: self._end(part, keys[part.block], is_held=held[part.block]), "evaluation"
        )
        blocks = []
        for number, block in enumerate(mapping.bound.blocks):
            parts = self.union.blocks[number]
            answers = [released[part.number][0] for part in parts]
            earlier = [] if before is None else before.blocks[number].rules
            blocks.append(
                BlockModel.of(
                    block,
                    encoders=(),
                    theta=np.zeros((0, len(self.start))),
                    is_outer=self.rounds.is_outer[number],
                    mean=np.zeros(len(self.start)),
                    is_held=held[number],
                    splits=() if held[number] else (*earlier, *_rules(answers, parts)),
                )
            )
        return Result(
            plan=self.plan,
            objective=objective,
            metrics=metrics,
            curves=self.curves,
            measured=self.measured,
            history=tuple(self.history),
            traffic=self.union.link.meter.traffic(),
            blocks=tuple(blocks),
            encoded_intercept=self.start,
            classes=mapping.label.classes,
            epoch=best,
            id=job_id if any(held) else "",
            trees=trees,
            privacy=self.plan.ledger,
        )

    def _best(self) -> int:
        """The number of trees that are kept: all, or those that validation rows liked best."""
        count = len(self.server.trees)
        if self.patience is None or self.patience.best_epoch in (0, count):
            return count
        self.server.cut(self.patience.best_epoch, self.begins)
        return self.patience.best_epoch

    def _end(self, part: Part, keys: list[int], *, is_held: bool) -> Message:
        job, unions = self.union.job, self.server.blocks[part.block].unions
        if not is_held:
            return ReleaseSplits(job=job, part=part.number, unions=unions, keys=keys)
        features = list(self.plan.mapping.bound.blocks[part.block].features)
        return HoldSplits(job=job, part=part.number, unions=unions, keys=keys, block=part.block, features=features)


def _rules(answers: Sequence[Message], parts: Sequence[Part]) -> tuple[SplitRule, ...]:
    """The rules of a block's keys, on which all its clients must agree."""
    found = [cast("Splits", a).rules for a in answers]
    if any(rules != found[0] for rules in found):
        raise TransportError(f"{clients_of(parts)} of one table do not agree on the splits of their trees")
    return tuple(found[0]) if found else ()
