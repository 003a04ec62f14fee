"""Runs a baseline that pools encoded features: materialises the join, and lets the algorithm fit it."""

from __future__ import annotations

import itertools
import time
from typing import Any, cast

import numpy as np

from tablepuppet.algorithms.algorithm import PooledAlgorithm
from tablepuppet.arrays import Array
from tablepuppet.engine.convergence import judge
from tablepuppet.engine.encoders import agree_on_encoders
from tablepuppet.engine.metrics import by_side, measure
from tablepuppet.engine.result import EpochRecord, Result, RoundEvent
from tablepuppet.engine.run import OnRound
from tablepuppet.mapping.mapping import rows_here
from tablepuppet.models.losses.weighted import Weighted
from tablepuppet.models.metrics import Moment
from tablepuppet.plan.prepare import Prepared
from tablepuppet.prediction.model import BlockModel, mean_contribution
from tablepuppet.protocol import RevealedFeatures, RevealFeatures
from tablepuppet.server.union import UnionOperator
from tablepuppet.transport.link import Link


def run_pooled(prepared: Prepared, link: Link, job_id: str, on_round: OnRound | None = None) -> Result:
    """Trains on the materialised join: the baseline that every other algorithm is measured against."""
    began = time.perf_counter()
    plan, mapping = prepared.plan, prepared.mapping
    job, algorithm = plan.job, plan.algorithm
    assert isinstance(algorithm, PooledAlgorithm)
    ledger = plan.ledger
    union = UnionOperator(link, job_id, mapping, plan.loss.outputs)
    encoders = agree_on_encoders(union, mapping, job)
    revealed = union.ask(lambda p: RevealFeatures(job=job_id, part=p.number), "training")
    tables: list[tuple[Array, Array]] = []
    for block in union.blocks:
        pooled = [cast(RevealedFeatures, revealed[p.number][0]) for p in block]
        if pooled:
            tables.append((np.concatenate([r.train for r in pooled]), np.concatenate([r.test for r in pooled])))
        else:
            tables.append((np.zeros((0, 0)), np.zeros((0, 0))))
    train = rows_here(mapping.train)
    joined = np.concatenate([train.expand(block, t) for block, (t, _) in enumerate(tables)], axis=1)
    weights = train.joined_weights()
    loss = plan.loss if weights is None else Weighted(plan.loss, weights)
    assert isinstance(job.l2, int | float)
    best = algorithm.fit(joined, train.joined_labels(), loss, job.l2, job.options)
    del joined

    borders = np.cumsum([0, *(t.shape[1] for t, _ in tables)])
    thetas = [best.theta[a:b] for a, b in itertools.pairwise(borders)]
    given: dict[str, Any] = {
        "loss": plan.loss,
        "intercept": best.intercept,
        "moment": Moment.FINISHED,
        "channel": mapping.label.channel,
    }
    found = {"train": measure(train, [t @ w for (t, _), w in zip(tables, thetas, strict=True)], **given)}
    held = [t @ w for (_, t), w in zip(tables, thetas, strict=True)]
    if mapping.validation.rows:
        found["validation"] = measure(mapping.validation, held, **given)
    found["test"] = measure(mapping.test, held, **given)
    metrics, curves = by_side(found, mapping.label.classes)
    account = link.meter.account("training")
    record = EpochRecord(
        1,
        best.value,
        metrics,
        account.rounds,
        account.bytes,
        time.perf_counter() - began,
        {"iterations": float(best.iterations)},
    )
    if on_round is not None:
        on_round(RoundEvent(1, 1, 1, record))
    blocks = tuple(
        BlockModel(b.name, b.table, b.features, tuple(e), w, i.is_partial, mean_contribution(t @ w, g, train.rows))
        for b, e, (t, _), w, g, i in zip(
            mapping.bound.blocks, encoders, tables, thetas, mapping.multiplicity, train.indices, strict=True
        )
    )
    return Result(
        plan=plan,
        objective=best.value,
        metrics=metrics,
        curves=curves,
        history=(record,),
        traffic=link.meter.traffic(),
        blocks=blocks,
        encoded_intercept=best.intercept,
        classes=mapping.label.classes,
        privacy=ledger,
        epoch=1,
        notes=judge(prepared, [best.value], metrics, encoders, is_settled=True).notes,
    )
