"""The privacy of a job, block by block: how much noise, over how many steps, for which ε.

In: a job and a table mapping. Out: a `PrivatePlan`: the facts that clients compute their noise from, and the ledger of
the job's planned spending. algorithms/noise.py has the noise itself. Nothing here reads a feature.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from tablepuppet.algorithms.noise import BlockFacts, NoisePlan, RunFacts, RunTerms, plan_noise
from tablepuppet.algorithms.registry import FEDERATED, algorithm_of, name_algorithms, own_model
from tablepuppet.errors import PrivacyError
from tablepuppet.job import Job
from tablepuppet.join.mapping import MappingSummary
from tablepuppet.models.losses import Loss
from tablepuppet.plan.knowledge import exchanges_of
from tablepuppet.privacy.accounting import gaussian_noise
from tablepuppet.privacy.labels import true_epsilon
from tablepuppet.privacy.ledger import Ledger, Release, check_budget
from tablepuppet.privacy.options import PredictionPrivacy


class PrivatePlan(msgspec.Struct, frozen=True):
    """The clients' measures, block by block, and their cost."""

    noise: NoisePlan  # on gradients and predictions
    ledger: Ledger  # if every step is taken
    planned_rounds: int
    rounds: int  # outer rounds after which the budget is spent; no more are run
    facts: RunFacts | None = None  # from which clients compute the noise; None: there is none
    own: Any = None  # how a model of its own kind is noised (algorithms/algorithm.py)

    @property
    def is_noisy(self) -> bool:
        return any(g is not None and g.clips for g in self.noise.gradients)

    def spent(self, rounds: int) -> Ledger:
        return self.ledger.after(rounds / self.planned_rounds)


def plan_privacy(job: Job, mapping: MappingSummary, loss: Loss, slope: float, weight: float = 1.0) -> PrivatePlan:
    """Everything that follows from `privacy` before training; refuses a promise that cannot be kept.

    `slope`: ∂ℓ/∂a of a typical training row; `weight`: the largest of any row.
    """
    _check(job)
    features, predictions = job.privacy.features, job.privacy.predictions
    terms, facts = _find_facts(job, mapping, loss, slope, weight)
    rounds = terms.outer_rounds(facts)
    labels = _label_release(job, mapping)
    releases: list[Release] = list(labels)
    own, leaves = own_model(job.model.spec), None
    if features is not None and own is not None:
        leaves = own.plan_noise(job, mapping, loss, slope, weight)
        noise, rounds = NoisePlan((None,) * len(facts.blocks)), leaves.rounds
        releases += leaves.releases
    else:
        noise = plan_noise(terms, facts)
        if noise.model is not None:
            releases += noise.model.releases(noise.deviations, hides_predictions=predictions.mode == "local")
    uses, shown = facts.uses, terms.showings
    most, bound = max(uses.values(), default=1), terms.prediction_bound(facts.blocks, slope, loss.bound)
    if predictions.mode == "local":
        for table in sorted(uses):
            releases.append(_prediction_release(table, predictions, bound, shown * most, shown * uses[table]))
    subjects = {scan.table: scan.subject for scan in mapping.bound.scans}
    named = [r if r.what == "label" else replace(r, subject=subjects.get(r.table, "")) for r in releases]
    ledger = Ledger(tuple(named))
    budget = job.privacy.budget
    check_budget(Ledger(tuple(labels)), budget.label, None)
    affordable = rounds
    if budget.features is not None and features is not None:
        affordable = _affordable(ledger, budget.features, rounds)
        if affordable == 0 or features.epsilon is not None or leaves is not None:  # which is not cut short
            check_budget(ledger, None, budget.features)
    has_gradients = any(g is not None for g in noise.gradients)
    form = None if leaves is None else leaves.form
    return PrivatePlan(noise, ledger, rounds, affordable, facts if has_gradients else None, form)


def _find_facts(
    job: Job, mapping: MappingSummary, loss: Loss, slope: float, weight: float
) -> tuple[RunTerms, RunFacts]:
    """The agreed terms, and the public facts of the run."""
    terms = RunTerms(
        options=job.options,
        is_linear=job.model.spec.is_linear,
        batch=job.batch(mapping.train_rows),
        l2=job.model.l2,
        features=job.privacy.features,
        predictions=job.privacy.predictions,
        showings=exchanges_of(job, mapping.train_rows).showings,
    )
    blocks = tuple(_find_block_facts(job, mapping, number) for number in range(len(mapping.bound.blocks)))
    bound = terms.prediction_bound(blocks, slope, loss.bound)
    facts = RunFacts(
        blocks=blocks,
        rows=mapping.train_rows,
        epochs=job.epochs,
        outputs=loss.outputs,
        slope=slope,
        bound=loss.bound,
        curvature=loss.typical_curvature,
        change=terms.signal_change(loss, bound, weight) if terms.features is not None else 0.0,
    )
    return terms, facts


def _find_block_facts(job: Job, mapping: MappingSummary, number: int) -> BlockFacts:
    block, counted = mapping.bound.blocks[number], mapping.blocks[number]
    clients = tuple(part.client for part in mapping.parts_of(number))
    return BlockFacts(
        name=block.name,
        table=block.table,
        tables=tuple(mapping.tables_of(number)),
        clients=clients,
        is_masked=job.privacy.masks(len(set(clients))),
        rows=counted.rows,
        joined=counted.joined,
        most=counted.most,
        squared_norm=float(sum(max(1, column.size) for column in block.columns) or 1),
        is_derived=any(mapping.bound.scans[part.scan].query is not None for part in mapping.parts_of(number)),
    )


def _check(job: Job) -> None:
    if not job.is_private:
        return
    if job.is_expanded:
        raise PrivacyError(f"{job.algorithm} is a baseline without privacy; use {job.algorithm.removeprefix('vfl-')!r}")
    algorithm = algorithm_of(job.options)
    why = algorithm.why_not_private(job.options)
    if why is None:
        return
    if algorithm.is_pooled or algorithm.why_not_private(algorithm.options()) is None:  # other options would do
        raise PrivacyError(why)
    others = name_algorithms(a for a in FEDERATED if a.why_not_private(a.options()) is None)
    raise PrivacyError(f'{why}; use {others} with privacy.features or predictions of mode "local"')


def _label_release(job: Job, mapping: MappingSummary) -> list[Release]:
    privacy, channel = job.privacy.label, mapping.label.channel
    if privacy is None or channel is None:
        return []
    how = {"krr": "randomised response", "laplace": "Laplace noise", "bins": "randomised response on bins"}
    mechanism = how[privacy.mechanism]
    if privacy.mechanism == "laplace" and not channel.is_additive:
        mechanism += f" and argmax, which leaves ε = {true_epsilon(channel):.3g}"
    # A row draws once for each expression that is its label somewhere in the query, under any filters.
    labels: dict[str, set[str]] = {}
    for branch in mapping.bound.branches:
        scan = mapping.bound.scans[branch.label_place.scan]
        labels.setdefault(scan.table, set()).add(scan.expressions[branch.label_place.label])
    return [
        Release(what="label", table=t, observer="everyone", mechanism=mechanism, epsilon=privacy.epsilon * len(drawn))
        for t, drawn in labels.items()
    ]


def _prediction_release(table: str, predictions: PredictionPrivacy, bound: float, planned: int, shown: int) -> Release:
    """The price for a table's rows: the noise covers as many showings as the table that is read most often has."""
    assert predictions.epsilon is not None
    noise = gaussian_noise(predictions.epsilon, predictions.delta, planned, 1.0)
    return Release(
        what="predictions",
        table=table,
        observer="server",
        mechanism=f"predictions within ±{bound:.3g}, noised by their owner for any other row in its place",
        noise=noise,
        steps=shown,
        delta=predictions.delta,
    )


def _affordable(ledger: Ledger, budget: float, rounds: int) -> int:
    """The most rounds that no table's outsider ε exceeds the budget after."""
    low, high = 0, rounds
    while low < high:
        middle = (low + high + 1) // 2
        after = ledger.after(middle / rounds)
        is_within = all(after.epsilon("features", table, "outsider") <= budget for table in after.tables("features"))
        low, high = (middle, high) if is_within else (low, middle - 1)
    return low
