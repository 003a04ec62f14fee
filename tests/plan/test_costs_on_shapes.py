"""Every algorithm's cost is what the meter counts, on stars, chains, partners, shared tables and tables with gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.algorithms.registry import OF_SUMS
from tablepuppet.bench.cases import Case, chain, many, star
from tablepuppet.tables.encoding import encoded_width

ROWS = 3_000


def shared() -> Case:
    """A star whose facts lie with three clients."""
    case = star(ROWS)
    facts: pa.Table = case.tables["facts"]
    cut = [facts.slice(i * ROWS // 3, ROWS // 3) for i in range(3)]
    return replace(case, name="shared", tables={**case.tables, "facts": cut})


def gaps() -> Case:
    """A star in which a third of the users are missing, and their facts stay."""
    case = star(ROWS)
    users: pa.Table = case.tables["users"]
    query = case.query.replace("JOIN users", "LEFT JOIN users")
    return replace(case, name="gaps", tables={**case.tables, "users": users.slice(len(users) // 3)}, query=query)


SHAPES: dict[str, Callable[[], Case]] = {
    "star": lambda: star(ROWS),
    "chain": lambda: chain(ROWS),
    "many": lambda: many(ROWS),
    "shared": shared,
    "gaps": gaps,
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [a.name for a in OF_SUMS])
@pytest.mark.parametrize("shape", SHAPES)
def test_rounds_and_bytes_are_those_that_explain_names(shape: str, algorithm: str) -> None:
    case = SHAPES[shape]()
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
