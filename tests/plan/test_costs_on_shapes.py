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


def of_ids(users: int) -> Case:
    """Two ratings of each of so many users, whose features are their ids."""
    rng = np.random.default_rng(0)
    ids, films = np.arange(users), np.arange(400)
    who, what = np.repeat(ids, 2), rng.integers(0, len(films), 2 * users)
    tables = {
        "users": pa.table({"u": ids}),
        "films": pa.table({"m": films}),
        "ratings": pa.table({"u": who, "m": what, "stars": rng.normal(size=2 * users)}),
    }
    query = (
        "SELECT CAST(users.u AS VARCHAR) AS uid, CAST(films.m AS VARCHAR) AS mid, ratings.stars FROM ratings "
        "JOIN users ON ratings.u = users.u JOIN films ON ratings.m = films.m"
    )
    return Case("ids", tables, query, "stars")


def test_twice_as_many_ids_take_twice_the_cpu_time_and_not_four_times() -> None:
    found: dict[str, list[float]] = {"als": [], "sgd": []}
    for users in (1_000, 2_000):
        case = of_ids(users)
        with tp.Federation(case.tables) as federation:
            plan = federation.explain(case.query, label=case.label, head="factor", rank=8, batch_size=2 * users)
        for algorithm, seconds in found.items():
            seconds.append(plan.cost(algorithm, 1, after=1).computing or 0.0)
    for one, two in found.values():
        assert 1.5 * one < two < 2.1 * one


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["als", "sgd"])
def test_an_epoch_over_many_ids_takes_the_cpu_time_that_explain_names(algorithm: str) -> None:
    case, stamps, slower = of_ids(100_000), [], []

    def at_the_end_of_an_epoch(event: RoundEvent) -> None:
        if event.record is not None:
            stamps.append(time.process_time())

    given: dict[str, Any] = {"label": case.label, "algorithm": algorithm, "head": "factor", "rank": 8, "epochs": 3}
    with tp.Federation(case.tables) as federation:
        estimated = federation.explain(case.query, **given).cost(algorithm, 1, after=1).cpu
        assert estimated is not None
        for _ in range(3):
            before = speed()
            result = federation.train(case.query, on_round=at_the_end_of_an_epoch, **given)
            epochs = len(result.history)
            measured = (stamps[-1] - stamps[-epochs]) / max(1, epochs - 1)
            slower.append(measured / estimated / (0.5 * (before + speed())))
    assert 0.4 <= np.median(slower) <= 2.5, slower
