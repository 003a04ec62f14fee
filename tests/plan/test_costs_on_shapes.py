"""Every algorithm's cost is what the meter counts, and its CPU time about what is measured, on five shapes of joins."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.algorithms.registry import OF_SUMS
from tablepuppet.bench.cases import Case, chain, many, star
from tablepuppet.engine.result import RoundEvent
from tablepuppet.tables.encoding import encoded_width

ROWS, TIMED_ROWS = 3_000, 150_000


def shared(rows: int) -> Case:
    """A star whose facts lie with three clients."""
    case = star(rows)
    facts: pa.Table = case.tables["facts"]
    cut = [facts.slice(i * (rows // 3), rows // 3) for i in range(3)]
    return replace(case, name="shared", tables={**case.tables, "facts": cut})


def gaps(rows: int) -> Case:
    """A star in which a third of the users are missing, and their facts stay."""
    case = star(rows)
    users: pa.Table = case.tables["users"]
    query = case.query.replace("JOIN users", "LEFT JOIN users")
    return replace(case, name="gaps", tables={**case.tables, "users": users.slice(len(users) // 3)}, query=query)


SHAPES: dict[str, Callable[[int], Case]] = {"star": star, "chain": chain, "many": many, "shared": shared, "gaps": gaps}


def speed() -> float:
    """How much longer this core takes than the one that the model of cost was measured on, for work of that kind."""
    rng = np.random.default_rng(0)
    index, values = rng.integers(0, 10_000, 1 << 15), rng.normal(size=10_000)
    out, sums = np.empty(len(index)), np.zeros(len(values))
    taken = []
    for _ in range(60):
        began = time.process_time()
        np.take(values, index, out=out, mode="clip")
        np.exp(out, out=out)
        np.add.at(sums, index, out)
        taken.append(time.process_time() - began)
    return float(np.median(taken)) / len(index) / 2.8e-9


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [a.name for a in OF_SUMS if not a.takes_kinks])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_epoch_takes_the_cpu_time_that_explain_names_within_a_factor_of_two(shape: str, algorithm: str) -> None:
    case = SHAPES[shape](TIMED_ROWS)
    stamps: list[float] = []

    def at_the_end_of_an_epoch(event: RoundEvent) -> None:
        if event.record is not None:
            stamps.append(time.process_time())

    slower = []
    with tp.Federation(case.tables) as federation:
        given: dict[str, Any] = {"label": case.label, "model": "logistic", "algorithm": algorithm, "epochs": 4}
        for _ in range(3):
            before = speed()
            result = federation.train(case.query, on_round=at_the_end_of_an_epoch, **given)
            epochs = len(result.history)
            measured = (stamps[-1] - stamps[-epochs]) / max(1, epochs - 1)
            estimated = result.plan.cost(algorithm, 1, after=1).cpu
            assert estimated is not None
            slower.append(measured / estimated / (0.5 * (before + speed())))
    assert 0.5 <= np.median(slower) <= 2.0, slower


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [a.name for a in OF_SUMS])
@pytest.mark.parametrize("shape", SHAPES)
def test_rounds_and_bytes_are_those_that_explain_names(shape: str, algorithm: str) -> None:
    case = SHAPES[shape](ROWS)
    with tp.Federation(case.tables) as federation:
        result = federation.train(case.query, label=case.label, model="logistic", algorithm=algorithm, epochs=3)
    plan = replace(result.plan, widths=tuple(sum(map(encoded_width, block.encoders)) for block in result.blocks))
    estimate = plan.cost(algorithm, len(result.history))
    counted = (result.traffic.payload_down, result.traffic.payload_up)
    assert estimate.rounds == result.traffic.rounds
    if plan.algorithm.uses_batches:  # which rows a batch meets is drawn
        assert (estimate.payload_down, estimate.payload_up) == pytest.approx(counted, rel=0.02)
    else:
        assert (estimate.payload_down, estimate.payload_up) == counted
