"""Plan: the run to come, as data. `explain` renders it, the engine runs it."""

import json
from functools import cached_property
from typing import Any, cast

import msgspec

from tablepuppet.algorithms.algorithm import Algorithm
from tablepuppet.algorithms.boosting.plan import trees_beside
from tablepuppet.algorithms.registry import BY_NAME, algorithm_of, is_expanded, own_model
from tablepuppet.algorithms.shape import Shape
from tablepuppet.job import Job
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.models.heads.base import HeadSpec
from tablepuppet.models.heads.kinds import head_spec
from tablepuppet.models.losses import Loss
from tablepuppet.models.spec import ModelSpec
from tablepuppet.plan.costs import (
    RUN_EPOCHS,
    Advice,
    Cost,
    advise,
    client_memory,
    cost,
    range_of,
    server_memory,
    shape_of,
)
from tablepuppet.plan.explain import document, plan_html, render
from tablepuppet.plan.history import find_leaks, history_insights
from tablepuppet.plan.knowledge import Exposure, Ids, Insight, exposures, insights
from tablepuppet.plan.private import PrivatePlan, plan_privacy
from tablepuppet.privacy.ledger import Ledger
from tablepuppet.transport.meter import Account

_MANY_ROUNDS = 150  # of a run: on a slow network more of them take longer than 20 seconds


class AlgorithmCost(msgspec.Struct, frozen=True):
    algorithm: str
    epoch: Cost  # one that is not the first
    run: Cost
    server_memory: int
    client_memory: int


class Gain(msgspec.Struct, frozen=True):
    """The gain of a model over the sum of tables, and its cost."""

    model: str  # as a user writes it
    share: float  # of the sum's residual, in whole per cents; 0: nothing was found
    blocks: tuple[str, ...]  # that interact
    rounds: int
    bytes: float


class Plan(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The plan of a job, without any row; `str(plan)` explains it. `federation.explain` returns it.

    >>> plan = federation.explain(query, label="returned")
    >>> plan.mapping.train_rows, [cost.algorithm for cost in plan.costs][:2]
    (101, ['newton', 'admm'])
    """

    job: Job
    mapping: MappingSummary
    loss: Loss
    widths: tuple[int, ...] | None = None  # encoded columns of each block, once statistics are known
    unit: float = 1.0  # of a numeric label (ModelSpec.unit)
    slope: float = 1.0  # ∂ℓ/∂a of a typical training row, by which feature privacy clips
    weight: float = 1.0  # the largest of any joined training row
    ids: Ids = ()  # which features are ids that stay with their owners, once statistics are known
    gains: tuple[Gain, ...] = ()  # of models that are no sum, where a probe was asked for
    notes: tuple[str, ...] = ()  # the job's price from an analyst budget

    @property
    def spec(self) -> ModelSpec:
        """The model of every block. A sum's includes the label's unit; other heads multiply by it themselves."""
        return msgspec.structs.replace(self.job.model.spec, unit=self.unit if self.job.model.is_sum else 1.0)

    @property
    def head(self) -> HeadSpec:
        blocks, learns = len(self.mapping.bound.blocks), self.algorithm.learns_shrinkage
        return head_spec(self.job.model, blocks, self.loss.outputs, self.unit, learns=learns)

    @property
    def algorithm(self) -> Algorithm[Any]:
        return algorithm_of(self.job.options)

    @property
    def batch_size(self) -> int | None:
        return self.job.batch(self.mapping.train_rows)

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self)

    def cost(self, algorithm: str, epochs: int, *, after: int = 0) -> Cost:
        """Rounds and bytes of `epochs` epochs of `algorithm`, with this job's options if it is its own; `after`:
        earlier epochs.

        >>> federation.explain(query, label="returned").cost("newton", 3).rounds
        6
        """
        options = self.job.options if algorithm == self.job.algorithm else BY_NAME[algorithm].options()
        return cost(self.shape, algorithm, options, epochs, self.batch_size, after=after)

    @property
    def costs(self) -> list[AlgorithmCost]:
        """The cost of every algorithm that can train the model."""
        found = []
        for name, algorithm in BY_NAME.items():
            model = self.job.model
            is_able = model.head in algorithm.heads and (model.is_sum or not is_expanded(name))
            is_alike = algorithm.supports_nonsmooth == self.algorithm.supports_nonsmooth
            is_own = bool(algorithm.own_model) == (own_model(model.spec) is not None)  # some train one of their own
            lacks_curvature = algorithm.requires_curvature and not self.loss.is_smooth
            is_too_linear = algorithm.requires_linear and not self.shape.is_linear
            if lacks_curvature or is_too_linear or not (is_able and is_alike and is_own):
                continue
            options = self.job.options if name == self.job.algorithm else algorithm.options()
            placement = self.mapping.placement
            memory = (server_memory(self.shape, name, options, placement), client_memory(self.shape, name, options))
            run = algorithm.run_epochs(options, RUN_EPOCHS)
            found.append(AlgorithmCost(name, self.cost(name, 1, after=1), self.cost(name, run), *memory))
        return found

    @property
    def advice(self) -> Advice:
        """Which algorithm to take, and why."""
        if (own := own_model(self.job.model.spec)) is not None:
            return cast(Advice, own.advise(self.shape, self.job.options))
        if self.algorithm.supports_nonsmooth:
            return Advice(self.algorithm.name, "it takes penalties with kinks, l1 and signs, and reaches the optimum")
        found = advise(self.shape, self.batch_size, is_smooth=self.loss.is_smooth)
        if self.loss.is_smooth or not self.job.model.is_convex:
            return found
        return Advice(found.algorithm, "the loss has kinks; it takes some hundred rounds, one for each epoch")

    @property
    def remarks(self) -> list[str]:
        """The cost of a model that is no sum, where there can be one; a warning if a network takes many rounds."""
        if self.job.is_private or self.algorithm.is_pooled or own_model(self.job.model.spec) is not None:
            return []
        if self.job.model.is_convex:
            return [trees_beside(self.shape)]
        own, epochs = self.cost(self.job.algorithm, self.job.epochs), self.job.epochs
        if not self.algorithm.uses_batches or own.rounds <= _MANY_ROUNDS:
            return []
        steps = max(1, (_MANY_ROUNDS - 1) // epochs)
        fewer = f"epochs={epochs}, batch_size={-(-self.shape.joined // steps)}, optimizer='adam' and learning_rate=0.04"
        many = f"this job takes {range_of(own)}: one for every batch. With {fewer} there are {steps * epochs + 1:,}"
        return [f"{many}; compare the accuracy, which can fall", trees_beside(self.shape)]

    @property
    def insights(self) -> list[Insight]:
        """Who learns what."""
        own, given = own_model(self.job.model.spec), (self.mapping, self.shape, self.job)
        found = insights(*given, self.ids) if own is None else own.insights(*given)
        return [*found[:-1], *history_insights(self.mapping), *found[-1:]]

    @property
    def leaks(self) -> list[str]:
        return list(find_leaks(self.mapping, self.job))

    @property
    def exposures(self) -> list[Exposure]:
        """How many numbers the server may see of a row."""
        own = own_model(self.job.model.spec)
        if own is not None:
            return own.exposures(self.shape, self.job.options)
        return exposures(self.shape, self.job)

    @cached_property
    def private(self) -> PrivatePlan:
        """The clients' measures for the job's privacy; refuses a promise that cannot be kept."""
        return plan_privacy(self.job, self.mapping, self.loss, self.slope, self.weight)

    @property
    def ledger(self) -> Ledger:
        """The privacy that the job will spend if every epoch is run."""
        return self.private.ledger

    def explain(self, counted: Account | None = None, epochs: int | None = None) -> str:
        """The plan as text; with the numbers that a run `counted` in so many `epochs`, if given."""
        return render(self, counted, epochs)

    def to_json(self) -> str:
        """The plan as a JSON document, with unrounded numbers."""
        return json.dumps(document(self), ensure_ascii=False, indent=2)

    def __str__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        return plan_html(self)

    def __repr__(self) -> str:
        return f"Plan({self.job.model.name} by {self.job.algorithm}, {self.mapping.joined_rows:,} joined rows)"
