"""Runs a plan: Algorithm 1 of the paper, for every algorithm alike.

In: a plan and a link to the clients. Out: a Result. The loop knows epochs and rounds; the
algorithm defines a round (join_step, union_step, client_step).
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from tablepuppet.algorithms.base import Problem, Server
from tablepuppet.arrays import Array
from tablepuppet.errors import TrainingError
from tablepuppet.exchanges.parts import Evaluate, Evaluation, HoldPart, Keep, Parameters, Release, Restore
from tablepuppet.exchanges.start import Started, StartPart
from tablepuppet.join.joined_rows import Joined, JoinedRows
from tablepuppet.join.mapping import Part
from tablepuppet.memory import trim_heap
from tablepuppet.models.heads.base import TrainedHead, apply_head
from tablepuppet.models.metrics import Moment
from tablepuppet.plan.knowledge import check_exposure, held_blocks
from tablepuppet.plan.prepare import Prepared
from tablepuppet.prediction.model import BlockModel, mean_contribution
from tablepuppet.protocol.base import Message, Move
from tablepuppet.protocol.columns import Encoder
from tablepuppet.sources.encoding import encoded_width
from tablepuppet.training.convergence import Patience, judge
from tablepuppet.training.curves import Curves
from tablepuppet.training.interactions import Interaction, advise_head, compare_with_sum, explain_pairs, probe
from tablepuppet.training.metrics import Criterion, MeasuredOn, Metrics, SideRows, by_side
from tablepuppet.training.result import EpochRecord, Result, RoundEvent
from tablepuppet.training.server import UnionOperator
from tablepuppet.training.start import agree_on_encoders, figures_of, ids_of, make_problem, widths_of
from tablepuppet.transport.link import Link

OnRound = Callable[[RoundEvent], None]


def run(prepared: Prepared, link: Link, job_id: str, on_round: OnRound | None = None) -> Result:
    training, encoders = _train(prepared, link, job_id, on_round)
    return training.finish(encoders)


def find_interactions(prepared: Prepared, link: Link, job_id: str) -> list[Interaction]:
    """Trains a sum, and finds how much of its residual pairs of tables explain; no parameter is asked for."""
    training, _ = _train(prepared, link, job_id, None)
    joined, seed = training.mapping.train.fetch(), prepared.plan.job.seed
    return explain_pairs(joined, training.contributions, training.intercept, training.problem.loss, seed)


def _train(prepared: Prepared, link: Link, job_id: str, on_round: OnRound | None) -> "tuple[Run, list[list[Encoder]]]":
    plan, mapping = prepared.plan, prepared.training
    job, private = plan.job, plan.private
    union = UnionOperator(link, job_id, mapping, plan.head.widths, job.privacy)
    encoders = agree_on_encoders(union, mapping, job)
    if private.is_noisy:
        check_exposure(replace(plan, widths=widths_of(encoders)).exposures, job)
    problem = make_problem(plan, mapping, union, encoders)
    patience = None if job.patience is None else Patience(job.monitor, job.patience, job.min_delta)
    server = plan.algorithm.server(problem, job.options)
    trim_heap()  # the memory of mapping and statistics
    training = Run(prepared, union, problem, server, on_round, patience)
    training.start()
    training.loop()
    return training, encoders


@dataclasses.dataclass
class Run:
    """One model's training under way."""

    prepared: Prepared
    union: UnionOperator
    problem: Problem
    server: Server
    on_round: OnRound | None
    patience: Patience | None
    is_fold: bool = False  # one of several models over some of the joined rows
    models: int = 1  # that are trained at once
    continues: bool = False  # from the parameters of the model before
    last_moves: Sequence[dict[str, Any] | None] = ()  # of the model before, not sent yet

    def __post_init__(self) -> None:
        self.plan = self.prepared.plan
        self.private = self.plan.private
        self.mapping = self.prepared.training
        self.history: list[EpochRecord] = []
        self.contributions: list[Array] = []  # each block's h of its train rows, at the last evaluation
        self.held_out: list[Array] = []  # and of the others
        self.losses: dict[str, float] = {}  # the mean loss of each side then
        self.rounds = self.epochs = 0
        self.curves: dict[str, Curves] = {}  # of the finished model
        self.measured: dict[str, MeasuredOn] = {}  # drawn rows that it was measured on
        self.best_head: TrainedHead | None = None  # the head at the best epoch
        self.is_restored = False
        self.is_settled = False  # whether training ended by itself
        self.began = time.perf_counter()

    @property
    def intercept(self) -> Array:
        if self.is_restored and self.patience is not None and self.patience.intercept is not None:
            return self.patience.intercept
        return self.server.intercept

    def start(self) -> None:
        weights = self.mapping.train.collapsed_weights()
        answers = self.union.ask(lambda part: self._start_messages(part, weights), "setup")
        started: dict[int, Started] = {number: answer[-1] for number, answer in answers.items()}
        predictions = self.problem.zeros()
        for part in self.union.parts:
            values = started[part.number].values
            if values is not None:
                predictions[part.block][part.train] = values
        if self.problem.is_private:
            self.server.sample_from([started[part.number].entropy for part in self.union.parts])
        self.server.begin(predictions, figures_of(self.plan, self.union, self.problem, started))
        opening = self.server.opening()
        if opening is not None:
            self.server.absorb(self.union.run(opening, self.server.union_step))

    def _start_messages(self, part: Part, weights: Sequence[Array] | None) -> list[Message]:
        """Starts a part, after the last step of the model before."""
        plan, union, problem, job = self.plan, self.union, self.problem, self.plan.job
        move = self.last_moves[part.block] if self.last_moves else None
        own, every = problem.multiplicity[part.block][part.train], problem.multiplicity[part.block]
        is_all = 0 < len(own) == len(every)
        start = StartPart(
            job=union.job,
            part=part.number,
            algorithm=job.options,
            model=plan.spec,
            block=part.block,
            name=plan.mapping.bound.blocks[part.block].name,
            outputs=self.models * plan.head.widths[part.block],
            blocks=problem.blocks,
            clients=problem.clients[part.block],
            joined_rows=problem.joined.rows,
            share=1.0 if is_all else float(own.sum() / max(1, every.sum())),  # of joined rows with a row of the block
            l2=problem.ridges[part.block],
            l1=job.model.l1,
            l2_by_output=problem.by_output(part.block),
            signs=list(problem.signs[part.block]) if problem.signs else [],
            seed=job.seed,
            facts=plan.private.facts,
            weights=None if weights is None else weights[part.block][part.train],
            peers=union.peers(part),
            spread=[] if problem.head is None else problem.head.head.spread(part.block),
            multiplicity=own if self.is_fold else None,
            starts=bool(job.start) and plan.algorithm.can_continue(problem),
            continues=self.continues,
        )
        return [start] if move is None else [Move(job=union.job, part=part.number, **move), start]

    def loop(self) -> None:
        total = self.server.rounds_per_epoch() * self.plan.job.epochs
        for epoch in range(1, self.plan.job.epochs + 1):
            step, is_last, self.epochs = 0, False, epoch
            while not is_last:
                if self.rounds == self.private.rounds:
                    return  # the budget is spent
                self.server.absorb(self.union.run(self.server.join_step(), self.server.union_step))
                self.rounds, step = self.rounds + 1, step + 1
                is_last = self.server.ends_epoch(step) or self.rounds == self.private.rounds
                is_recorded = not self.is_fold or self.plan.algorithm.stops_when_flat
                record = self.record(epoch) if is_last and is_recorded else None
                if self.on_round is not None:
                    self.on_round(RoundEvent(epoch, self.rounds, max(total, self.rounds), record))
            is_over = self.patience is not None and self.patience.is_over
            if self.server.is_converged() or self._is_flat() or is_over:
                self.is_settled = True
                break

    def watch(self, record: EpochRecord) -> None:
        """Lets clients keep their parameters where validation rows were never predicted better."""
        assert self.patience is not None
        if self.patience.sees(record.epoch, record.metrics["validation"], self.server.intercept):
            self.best_head = None if self.problem.head is None else self.problem.head.snapshot()
            self.union.ask(lambda part: Keep(job=self.union.job, part=part.number), "evaluation")

    def restore(self) -> None:
        """The best epoch's parameters are the model."""
        if self.patience is None or self.patience.best_epoch in (0, self.history[-1].epoch):
            return
        self.union.ask(lambda part: Restore(job=self.union.job, part=part.number), "evaluation")
        self.is_restored = True
        if self.problem.head is not None and self.best_head is not None:
            self.problem.head.go_back(self.best_head)

    def _is_flat(self) -> bool:
        """Whether the objective no longer moves, for algorithms without residuals of their own."""
        tolerance = getattr(self.plan.job.options, "tolerance", 0.0)
        if not self.plan.algorithm.stops_when_flat or len(self.history) < 2 or not tolerance:
            return False
        last, now = self.history[-2].objective, self.history[-1].objective
        return abs(last - now) <= tolerance * abs(now)

    def record(self, epoch: int) -> EpochRecord:
        """The end of an epoch: test rows predicted, objective and metrics measured."""
        objective, metrics = self.evaluate(is_last=False)
        traffic, seconds = self.union.link.meter.account("training"), time.perf_counter() - self.began
        residuals = dict(self.server.residuals())
        record = EpochRecord(epoch, objective, metrics, traffic.rounds, traffic.bytes, seconds, residuals)
        self.history.append(record)
        if not objective < self.problem.loss.diverged:
            raise TrainingError(
                f"training diverged in epoch {epoch}: the objective is {objective:.1e}; {self.plan.algorithm.remedy}"
            )
        if self.patience is not None:
            self.watch(record)
        return record

    def evaluate(self, *, is_last: bool) -> tuple[float, dict[str, Metrics]]:
        server, mapping = self.server, self.mapping
        moves = server.settle()
        wants_train = server.predictions is None or self.is_restored
        answers = self._ask_evaluations(moves, train=wants_train)
        head, widths = self.problem.head, self.plan.head.widths
        test = [np.zeros((mapping.test.indices[i].rows, k)) for i, k in enumerate(widths)]
        train = self.problem.zeros() if wants_train else cast("list[Array]", server.predictions)
        ridged, penalty = 0.0, 0.0
        for number, block in enumerate(self.union.blocks):
            for part in block:
                test[part.block][part.test] = answers[part.number].test
                values = answers[part.number].train
                if values is not None:
                    train[part.block][part.train] = values
            if block:
                answer = answers[block[0].number]
                ridged += self.problem.ridges[number] * answer.norm if answer.ridged is None else answer.ridged
                penalty += 0.5 * self.problem.ridges[number] * answer.norm + self.problem.l1 * (answer.absolute or 0.0)
        self.contributions, self.held_out = train, test
        known = None if wants_train else server.tally
        moments = (Moment.FINISHED,) * 2 if is_last else (Moment.EPOCH, Moment.HELD_OUT)
        first, others = (Criterion(self.problem.loss, moment, mapping.label.channel) for moment in moments)
        found = {"train": self._side("train").measure(train, self.intercept, first, known)}
        if mapping.validation.rows:
            found["validation"] = self._side("validation").measure(test, self.intercept, others)
        found["test"] = self._side("test").measure(test, self.intercept, others)
        metrics, self.curves, self.measured = by_side(found, mapping.label.classes)
        self.losses = {side: measured.loss for side, measured in found.items()}
        loss = found["train"].loss
        return loss + (penalty if head is None else head_penalty(self.problem, mapping.train, train, ridged)), metrics

    def _side(self, name: str) -> SideRows:
        whole = self.mapping.whole
        joined = apply_head(getattr(self.mapping, name), self.problem.head)
        return SideRows(joined, None if whole is None else getattr(whole, name))

    def _ask_evaluations(self, moves: Sequence[Mapping[str, Any] | None], *, train: bool) -> dict[int, Evaluation]:
        """The predictions of each part's held-out rows, and of its train rows, after its last move."""

        def ask(part: Part) -> list[Message]:
            job, move = self.union.job, moves[part.block]
            first: list[Message] = [] if move is None else [Move(job=job, part=part.number, **move)]
            return [*first, Evaluate(job=job, part=part.number, train=train)]

        return {number: answers[-1] for number, answers in self.union.ask(ask, "evaluation").items()}

    def predict_train(self) -> list[Array]:
        """h of all train rows by the trained model. If the server knows them, clients receive its last step later."""
        known = self.server.predictions
        if known is not None:
            return known
        answers = self._ask_evaluations(self.server.settle(), train=True)
        found = self.problem.zeros()
        for part in self.union.parts:
            found[part.block][part.train] = answers[part.number].train
        return found

    def advice(self, encoders: Sequence[Sequence[Encoder]]) -> list[str]:
        """A note that tables interact, if the sum's residual shows it; or that a plain sum predicts better."""
        job, mapping = self.plan.job, self.mapping
        if not job.model.is_sum:
            sides = {"validation": mapping.validation, "test": mapping.test}
            judged = {side: (rows, self.losses[side]) for side, rows in sides.items() if side in self.losses}
            return compare_with_sum(self.problem, judged, self.held_out, self.contributions)
        is_disclosed = not job.is_private and job.privacy.label is None  # the residual of each joined row
        if not (job.model.is_convex and is_disclosed and isinstance(mapping.train, JoinedRows)):
            return []
        found = probe(mapping.train, self.contributions, self.intercept, self.problem.loss, job.seed)
        return [] if found is None else [advise_head(replace(self.plan, widths=widths_of(encoders)), found)]

    def finish(self, encoders: list[list[Encoder]]) -> Result:
        self.restore()
        self.server.finish()
        objective, metrics = self.evaluate(is_last=True)
        best = self.patience.best_epoch if self.patience is not None and self.is_restored else len(self.history)
        self.history[best - 1] = dataclasses.replace(self.history[best - 1], objective=objective, metrics=metrics)
        mapping, job_id = self.plan.mapping, self.union.job
        ids = ids_of(encoders)
        held = held_blocks(self.plan.job, mapping, ids)

        def ask(part: Part) -> Message:
            if not held[part.block]:
                return Release(job=job_id, part=part.number)
            features = list(mapping.bound.blocks[part.block].features)
            return HoldPart(job=job_id, part=part.number, block=part.block, features=features)

        released = self.union.ask(ask, "evaluation")
        blocks = []
        for number, block in enumerate(mapping.bound.blocks):
            parts = self.union.blocks[number]
            answer = released[parts[0].number][0] if parts else Parameters(values=np.zeros((0, 0)))
            width = sum(map(encoded_width, encoders[number]))
            unknown = np.full((width, self.plan.head.widths[number]), np.nan)
            mean = np.zeros(self.problem.loss.outputs)  # of a private block nothing exact is released
            if not self.plan.job.is_private:
                known = (self.contributions[number], self.problem.multiplicity[number])
                mean = mean_contribution(*known, self.problem.joined.rows)
            blocks.append(
                BlockModel.of(
                    block,
                    encoders=tuple(encoders[number]),
                    theta=answer.values if isinstance(answer, Parameters) else unknown,
                    is_held=held[number],
                    is_outer=mapping.blocks[number].is_outer,
                    mean=mean,
                )
            )
        objectives = [record.objective for record in self.history]
        verdict = judge(self.prepared, objectives, metrics, encoders, is_settled=self.is_settled)
        return Result(
            plan=replace(self.plan, ids=ids),
            objective=objective,
            metrics=metrics,
            curves=self.curves,
            measured=self.measured,
            history=tuple(self.history),
            traffic=self.union.link.meter.traffic(),
            blocks=tuple(blocks),
            encoded_intercept=self.intercept,
            classes=mapping.label.classes,
            privacy=self.private.spent(self.rounds),
            epoch=best,
            id=job_id if any(held) else "",
            converged=verdict.converged,
            baseline=verdict.baseline,
            notes=(*verdict.notes, *self.advice(encoders)),
            head=None if self.problem.head is None else self.problem.head.data,
        )


def head_penalty(problem: Problem, joined: Joined, h: Sequence[Array], ridged: float) -> float:
    """½ u² (β Σ ‖θ‖² + (λ Σ_j ‖h_i‖² + c Σ ‖θ_i‖²)/N), the head's own among θ; `ridged`: the blocks' β θ²."""
    trained = problem.head
    assert trained is not None
    ridged += problem.head_l2 * float(np.vdot(trained.own, trained.own))
    weights, shrunk = joined.collapsed_weights() if len(trained.per_joined) else None, 0.0
    for number, per_joined in enumerate(trained.per_joined):
        share = problem.multiplicity[number] if weights is None else weights[number][:, 0]
        shrunk += float((share @ np.square(h[number])) @ np.broadcast_to(per_joined, h[number].shape[1]))
        if trained.squares and trained.penalties is not None:
            shrunk += float(trained.squares[number] @ trained.penalties[number][1])
    return 0.5 * trained.head.spec.unit**2 * (ridged + shrunk / problem.joined.rows)
