"""How much memory a plan says that the server takes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.plan.jobs import LABELS, shop

import tablepuppet as tp
from tablepuppet.join.mapping import Placement
from tablepuppet.plan.costs import client_memory, server_memory


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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("algorithm", ["newton", "admm"])
def test_many_categories_take_no_matrix_of_their_own_at_the_client(algorithm: str) -> None:
    categories = 14_000
    names = pa.array([f"product {i}" for i in range(categories)])
    items = pa.table({"item_id": range(categories), "name": names})
    orders = pa.table({"item_id": np.arange(20_000) % categories, "stars": np.arange(20_000) % 5.0})
    with tp.Federation({"orders": orders, "items": items}) as owner:
        query = "SELECT i.name, o.stars FROM orders o JOIN items i ON o.item_id = i.item_id"
        plan = owner.explain(query, label="stars", algorithm=algorithm)
        tracemalloc.start()
        owner.train(query, label="stars", algorithm=algorithm, epochs=2)
        _, used = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    [estimated] = [row.client_memory for row in plan.costs if row.algorithm == algorithm]
    assert plan.shape.blocks[0].width > 10_000
    assert estimated < 20e6
    assert estimated < used < 200e6


def test_a_narrow_block_is_estimated_with_its_matrix() -> None:
    label, query = LABELS["logistic"]
    with shop(1) as federation:
        shape = federation.explain(query, label=label, model="logistic").shape
    narrow, wide = (
        replace(shape, blocks=tuple(replace(b, width=w, parameters=w) for b in shape.blocks)) for w in (2000, 2001)
    )
    assert (
        client_memory(narrow, "newton", tp.Newton()) > 4 * 8 * 2000**2 > 50 * client_memory(wide, "newton", tp.Newton())
    )
