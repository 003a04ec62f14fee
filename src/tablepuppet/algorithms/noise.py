"""The noise of feature privacy: one block's steps and samples, and the disclosure of a row by all blocks.

One block: how many noisy steps on which samples, and how its clients clip and noise gradients. Steps, caps and rates
are public (the join graph is), and so are labels, with noise of their own or none. Nothing here reads a feature.

The whole model: how far one base row moves all noisy sums of a run together, and the noise that this takes.

    its own table b       C_b                        in a step whose sample it is in
    another table b       m · min(2 C_b, D R_b)      where m of its joined rows take part: each moves the signal of
                                                     a row of b by at most D, and its share by R_b times as much

D is the algorithm's bound on the change of a signal when a score moves by H, the bound of predictions. All blocks are
noised, block b by S_b times one σ. σ is the least that keeps the rows of every table within (ε, δ): a claim about the
whole model. In: noisy blocks, clips, H. Out: noise per block, mechanisms per table, releases.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tablepuppet.algorithms.algorithm import PrivateForm
from tablepuppet.algorithms.options import AlgorithmOptions
from tablepuppet.algorithms.registry import algorithm_of
from tablepuppet.models.losses import Loss
from tablepuppet.models.spec import l2_of
from tablepuppet.privacy import accounting
from tablepuppet.privacy.accounting import Mechanism
from tablepuppet.privacy.gaussian import GradientPrivacy, NoisySteps, tuned
from tablepuppet.privacy.ledger import Release
from tablepuppet.privacy.masks import honest_parts
from tablepuppet.privacy.options import FeaturePrivacy, PredictionPrivacy

Natural = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[float, Meta(gt=0.0)]


class BlockFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Public facts about a block once the tables are joined."""

    name: str
    table: str  # as the query names it first
    tables: tuple[str, ...]  # that its rows come from: one for each scan and each row of it that a base row changes
    clients: tuple[str, ...]  # of each part
    is_masked: bool  # whether the server sees sums over its clients only
    rows: Natural
    joined: Natural
    most: Natural  # joined rows that one row is in
    squared_norm: Positive  # F: every feature, or entry of a vector, lies within ±1 or is one-hot
    is_derived: bool = False  # whether its rows come out of a subquery


class RunFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Public facts about a run, from the join graph and the labels. Each client knows its own share of it better."""

    blocks: tuple[BlockFacts, ...]
    rows: Natural  # N
    epochs: Natural
    outputs: Natural  # numbers that a row predicts
    slope: Positive  # r of a typical training row
    bound: Positive  # L, of the loss
    curvature: Positive  # its typical one
    change: Annotated[float, Meta(ge=0.0)]  # D

    @property
    def uses(self) -> Counter[str]:
        return Counter(table for block in self.blocks for table in block.tables)


class RunTerms(msgspec.Struct, frozen=True):
    options: AlgorithmOptions
    is_linear: bool
    batch: int | None  # joined rows; None: all
    l2: float | dict[str, float]
    features: FeaturePrivacy | None
    predictions: PredictionPrivacy
    showings: int  # of one row in one block, evaluation included

    def prediction_bound(self, blocks: Sequence[BlockFacts], slope: float, curvature: float) -> float:
        """H. A row adds more to others' noise the more joined rows it has; if it has one, clipping predictions costs
        more than noise."""
        is_alone = all(block.most <= 1 for block in blocks)
        has_noisy_sums = self.features is not None and self.predictions.mode == "trusted"
        return self.predictions.bound or (1.5 if is_alone and has_noisy_sums else 0.5) * slope / curvature

    def outer_rounds(self, facts: RunFacts) -> int:
        """Outer rounds of the whole run."""
        algorithm, size = algorithm_of(self.options), self.batch
        if algorithm.takes_turns:
            return facts.epochs * len(facts.blocks)
        is_batched = algorithm.uses_batches and size is not None and size < facts.rows
        return facts.epochs * (-(-facts.rows // (size or 1)) if is_batched else 1)

    def signal_change(self, loss: Loss, bound: float, weight: float) -> float:
        """D, where scores move by H; `weight`: the largest of any row."""
        return algorithm_of(self.options).signal_change(self.options, loss, bound, weight, is_linear=self.is_linear)


class NoisePlan(msgspec.Struct, frozen=True):
    """The clients' noise, block by block, and its privacy cost for rows of each table."""

    gradients: tuple[GradientPrivacy | None, ...]  # per block
    rates: tuple[float, ...] = ()  # each block's learning rate of noisy batches, where the user gave none
    spends: Mapping[str, tuple[Mechanism, ...]] = msgspec.field(default_factory=dict)
    model: "WholeModel | None" = None
    deviations: tuple[float, ...] = ()


def plan_noise(terms: RunTerms, facts: RunFacts) -> NoisePlan:
    """The noise of all blocks. The server and every client compute it, each from the terms that were agreed on."""
    numbers = range(len(facts.blocks))
    features, predictions = terms.features, terms.predictions
    bound = terms.prediction_bound(facts.blocks, facts.slope, facts.bound)
    shared: dict[str, Any] = {"prediction_bound": bound}
    if predictions.mode != "trusted":  # disclosed within H under noise, at most so often per row, in all blocks
        assert predictions.epsilon is not None
        showings = terms.showings * max(facts.uses.values(), default=1)
        noise = accounting.gaussian_noise(predictions.epsilon, predictions.delta, showings, 1.0)
        # Another row in its place moves a prediction by at most 2H.
        shared |= {"prediction_noise": noise * 2.0 * bound, "prediction_limit": terms.showings}
    if features is None:
        only = GradientPrivacy(clip=0.0, noise=0.0, **shared) if predictions.mode == "local" else None
        return NoisePlan((only,) * len(numbers))
    blocks = [NoisyBlock.of(terms, features, facts, number) for number in numbers]
    model, deviations, rates = _calibrate(blocks, bound)
    given = zip(blocks, deviations, model.clips, rates, strict=True)
    gradients = tuple(block.gradient(n / c, c, rate, shared) for block, n, c, rate in given)
    spends = {table: model.mechanisms(table, deviations) for table in model.tables}
    return NoisePlan(gradients, tuple(rates), spends, model, tuple(deviations))


def _calibrate(blocks: "Sequence[NoisyBlock]", bound: float) -> "tuple[WholeModel, list[float], list[float]]":
    """Clips, noise and learning rates of all blocks: clips by a rough figure of the noise (privacy/gaussian.py)."""
    if not blocks:
        return WholeModel((), (), 0.0, bound), [], []
    facts, given = blocks[0].facts, blocks[0].features.clip

    def steps(deviations: Sequence[float], clips: Sequence[float]) -> list[NoisySteps]:
        return [b.descent(n / c) for b, n, c in zip(blocks, deviations, clips, strict=True)]

    clips = [given] * len(blocks) if given is not None else None
    if clips is None:
        typical = [block.descent(1.0).typical(facts.slope) for block in blocks]
        rough = WholeModel(blocks, typical, facts.change, bound).deviations(is_rough=True)
        clips = [clip for clip, _ in tuned(steps(rough, typical), facts.slope, facts.bound, None)]
    model = WholeModel(blocks, clips, facts.change, bound)
    deviations = model.deviations()
    return model, deviations, [rate for _, rate in tuned(steps(deviations, clips), facts.slope, facts.bound, clips)]


class NoisyBlock(msgspec.Struct, frozen=True):
    terms: RunTerms
    features: FeaturePrivacy
    facts: RunFacts
    number: int
    form: PrivateForm
    local: int  # steps in a row: inner rounds share those of an outer round
    steps: int  # in the whole run

    @classmethod
    def of(cls, terms: RunTerms, features: FeaturePrivacy, facts: RunFacts, number: int) -> "NoisyBlock":
        form = algorithm_of(terms.options).private_form(
            terms.options, features, is_linear=terms.is_linear, blocks=len(facts.blocks)
        )
        inner = form.inner_rounds if len(facts.blocks[number].clients) > 1 else 1
        local = -(-form.local_steps // inner)
        return cls(terms, features, facts, number, form, local, terms.outer_rounds(facts) * inner * local)

    @property
    def block(self) -> BlockFacts:
        return self.facts.blocks[self.number]

    @property
    def name(self) -> str:
        return self.block.name

    @property
    def most(self) -> int:
        """κ, or the largest multiplicity."""
        return max(1, self.block.most)  # at most the cap, where there is one

    @property
    def is_local(self) -> bool:
        """Whether clients sample base rows; otherwise the server samples joined rows."""
        return self.terms.options.samples_at_clients

    @property
    def rate(self) -> float:
        """Of joined rows in a batch, or of base rows in a local step."""
        if self.is_local:
            return self.features.sample
        rows, size = self.facts.rows, self.terms.batch
        return 1.0 if size is None or size >= rows else size / rows

    @property
    def summed_over(self) -> int:
        """Parts that bring the noise together, a minority of the clients left out; 1: each part brings all of it.

        A local step is followed by others on the same rows, and noisy predictions concern single clients. There each
        part's own noise must suffice.
        """
        is_shared = self.features.shared_noise and not self.is_local and self.terms.predictions.mode == "trusted"
        return honest_parts(self.block.clients) if is_shared and self.block.is_masked else 1

    @property
    def reach(self) -> float:
        """R: how far a row's share of a sum may move, for each unit of its signal; no bound for a network's outputs."""
        is_bounded = self.terms.is_linear or self.facts.outputs == 1
        return math.sqrt(self.block.squared_norm) if is_bounded else math.inf

    def descent(self, noise: float) -> NoisySteps:
        """The block's steps as their cost depends on them."""
        form, facts, block = self.form, self.facts, self.block
        if form.blocks is None:
            curvature = form.curvature * facts.bound * (1.0 + sum(each.squared_norm for each in facts.blocks))
        else:
            curvature = form.curvature * facts.curvature * form.blocks * block.squared_norm
        mean = block.joined / block.rows if block.rows else 1.0
        return NoisySteps(
            features=block.squared_norm,
            rows=max(1.0, mean * (1.0 if self.is_local else self.rate)),
            noise=noise,
            steps=self.steps,
            divisor=self.rate * facts.rows,
            rate=1.0 / (curvature + l2_of(self.terms.l2, block.name, block.table)),
            momentum=form.momentum,
        )

    def gradient(self, noise: float, clip: float, rate: float, shared: dict[str, Any]) -> GradientPrivacy:
        """The noise that the block's clients add; `rate` is of a local step."""
        given: dict[str, Any] = {"clip": clip, "noise": noise, "limit": self.steps, "reach": self.reach, **shared}
        if not self.is_local:
            return GradientPrivacy(batch_rate=self.rate, summed_over=self.summed_over, **given)
        rate = self.features.learning_rate or self.form.learning_rate or rate
        return GradientPrivacy(learning_rate=rate, steps=self.local, rate=self.features.sample, **given)


class WholeModel(msgspec.Struct, frozen=True, dict=True):
    """All blocks of a run under one σ."""

    blocks: Sequence[NoisyBlock]
    clips: Sequence[float]  # C
    change: float  # D: of a joined row's signal, where a row of another table is zero instead
    bound: float  # H

    @cached_property
    def tables(self) -> dict[str, Counter[int]]:
        found: dict[str, Counter[int]] = {}
        for number, block in enumerate(self.blocks):
            for table in block.block.tables:
                found.setdefault(table, Counter())[number] += 1
        return dict(sorted(found.items()))

    def max_joined_rows(self, table: str) -> int:
        """κ: joined rows that one base row has at most, over all that read it."""
        return sum(self.blocks[number].most * times for number, times in self.tables[table].items())

    def across(self, number: int) -> float:
        """How far one joined row moves the sum of another table's block."""
        return min(2.0 * self.clips[number], self.change * self.blocks[number].reach)

    @cached_property
    def scales(self) -> list[float]:
        """S: noise grows with the root of the farthest that a table moves the block, at the least cost."""
        found = []
        for number, block in enumerate(self.blocks):
            farthest = self.clips[number]
            for table, uses in self.tables.items():
                if set(uses) != {number}:
                    usual = self.max_joined_rows(table) * (1.0 if block.is_local else block.rate)
                    farthest = max(farthest, max(1.0, usual) * self.across(number))
            found.append(math.sqrt(farthest))
        most = max((self.clips[i] / s for i, s in enumerate(found)), default=1.0)
        return [s * most for s in found]

    def mechanisms(self, table: str, deviations: Sequence[float]) -> tuple[Mechanism, ...]:
        """The mechanisms that a row of a table goes through, with such noise in each block."""
        uses, joined = self.tables[table], self.max_joined_rows(table)
        # A table that several blocks read moves a block both ways: noise is shared out between the two.
        both = math.sqrt(2.0) if len(uses) > 1 else 1.0
        own = {number: both * times * self.clips[number] / deviations[number] for number, times in uses.items()}
        others = {
            number: both * sum(self._spread(o, uses) for o in uses if o != number) * self.across(number) / deviation
            for number, deviation in enumerate(deviations)
        }
        first = self.blocks[next(iter(uses))]
        if not first.is_local:  # one batch of joined rows for all blocks
            noise, partners = 1.0 / _norm(own.values()), _norm(others.values())
            return (Mechanism(noise, first.steps, first.rate, joined, partners),)
        found = []
        for number, moved in own.items():  # a row that a block has twice is sampled twice, each with half of the noise
            block, times = self.blocks[number], uses[number]
            if self._spread(number, uses) > 1:  # rows before and after a change are sampled as one
                found.append(Mechanism(1.0 / moved, block.steps, accounting.participation(block.rate, times)))
            else:
                found += [Mechanism(math.sqrt(times) / moved, block.steps, block.rate)] * times
        steps = max(block.steps for block in self.blocks)
        through = _norm(moved * joined * math.sqrt(self.blocks[n].steps / steps) for n, moved in others.items())
        return (*found, Mechanism(1.0 / through, steps)) if through else tuple(found)

    def _spread(self, number: int, uses: Counter[int]) -> int:
        """Rows of a block that change as one: those of a subquery that one base row changes, before and after."""
        return uses[number] if self.blocks[number].block.is_derived else 1

    def deviations(self, *, is_rough: bool = False) -> list[float]:
        """The noise of each block: enough for the rows of every table."""
        features = self.blocks[0].features
        if features.noise is not None:
            return [features.noise * clip for clip in self.clips]
        assert features.epsilon is not None
        target = (features.epsilon, features.delta)
        asked = {table: self.mechanisms(table, self.scales) for table in self.tables}
        rough = {table: accounting.rough_noise(*target, mechanisms) for table, mechanisms in asked.items()}
        if is_rough:
            noise = max(rough.values(), default=1.0)
        else:  # the table that seems to need most decides; the others check whether it is enough for them
            noise = 0.0
            for table in sorted(rough, key=lambda table: -rough[table]):
                scaled = tuple(m.scaled(noise) for m in asked[table]) if noise else ()
                if not noise or accounting.composed_epsilon(scaled, target[1], 1e-3) > target[0]:
                    noise = max(noise, accounting.composed_noise(*target, asked[table]))
        return [(noise or 1.0) * scale for scale in self.scales]

    def releases(self, deviations: Sequence[float], *, hides_predictions: bool) -> list[Release]:
        """Releases of the whole model to outsiders; if predictions are noisy, also of own steps to others."""
        found = []
        for table, uses in self.tables.items():
            names = ", ".join(self.blocks[number].name for number in uses)
            mechanisms = self.mechanisms(table, deviations)
            first = self.blocks[next(iter(uses))]
            given: dict[str, Any] = {"what": "features", "table": table, "delta": first.features.delta}
            given |= {"multiplicity": self.max_joined_rows(table)}
            for mechanism in mechanisms:
                is_other = first.is_local and mechanism is mechanisms[-1] and len(mechanisms) > uses.total()
                found.append(
                    Release(
                        observer="outsider",
                        mechanism=_describe_mechanism(first, names, is_other=is_other, bound=self.bound),
                        noise=mechanism.noise,
                        steps=mechanism.steps,
                        rate=mechanism.probability,
                        cap=mechanism.joined,
                        partners=mechanism.partners,
                        sampling="poisson" if mechanism.probability < 1.0 else "none",
                        scope=("others" if is_other else "own") if first.is_local else "model",
                        **given,
                    )
                )
            for number in uses.elements() if hides_predictions else ():
                # A table's own steps, to all other parties; the rest follows from noisy predictions.
                block = self.blocks[number]
                found.append(
                    Release(
                        observer="server",
                        mechanism=_describe_mechanism(block, block.name, is_other=False, bound=None),
                        noise=deviations[number] / self.clips[number],
                        steps=block.steps,
                        rate=block.rate,
                        sampling="none" if block.rate == 1.0 else "poisson" if block.is_local else "known",
                        scope="own",
                        **given,
                    )
                )
        return found


def _describe_mechanism(block: NoisyBlock, names: str, *, is_other: bool, bound: float | None) -> str:
    what = "local steps" if block.is_local else "gradients"
    if is_other:
        return f"noisy {what} of other tables, through predictions of {names} within ±{bound:.3g}"
    through = (
        "" if bound is None or block.is_local else f" and of other tables, through predictions within ±{bound:.3g}"
    )
    shared = ""
    if block.summed_over > 1:
        shared = ", each client's noise a share that is enough if most clients of the table are honest"
    return f"noisy {what} of {names}{through}{shared}"


def _norm(values: Any) -> float:
    return math.sqrt(sum(value * value for value in values))
