"""How much memory a plan says that the server takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.jobs import LABELS, shop

from tablepuppet.mapping.mapping import Placement
from tablepuppet.plan.memory import server_memory


@pytest.mark.parametrize("algorithm", ["newton", "admm"])
def test_with_workers_that_join_the_server_has_nothing_per_joined_row(algorithm: str) -> None:
    label, query = LABELS["logistic"]
    with shop(1) as federation:
        plan = federation.explain(query, label=label, model="logistic", algorithm=algorithm)
    shape, options, there = plan.shape, plan.job.options, Placement(4, is_joined_there=True)
    more = replace(shape, joined=1000 * shape.joined, test_joined=1000 * shape.test_joined)
    assert server_memory(more, algorithm, options, there) == server_memory(shape, algorithm, options, there)
    assert server_memory(more, algorithm, options) > 100 * server_memory(shape, algorithm, options)
    here_first = server_memory(more, algorithm, options, Placement(4, is_joined_there=False))
    assert here_first > 100 * server_memory(shape, algorithm, options, there)


def test_baselines_run_here_whatever_the_engine() -> None:
    label, query = LABELS["logistic"]
    with shop(1) as federation:
        plan = federation.explain(query, label=label, model="logistic", algorithm="vfl-admm")
    given = plan.shape, "vfl-admm", plan.job.options
    assert server_memory(*given, Placement(4, is_joined_there=True)) == server_memory(*given)
