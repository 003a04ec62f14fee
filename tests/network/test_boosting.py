"""Boosted trees over processes, sockets and mutual TLS: the same trees as in one process, whatever is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.network.parties import QUERY, in_process, running, tables, train_with_faults

from tablepuppet.training.result import Result

JOB: dict[str, Any] = {"label": "y", "model": "boosted", "trees": 30, "depth": 3, "min_child_weight": 2.0}


def assert_same(network: Result, local: Result) -> None:
    """The same trees, to the last bit, and the same traffic, to the last byte."""
    assert network.trees == local.trees
    assert [block.splits for block in network.blocks] == [block.splits for block in local.blocks]
    assert network.metrics == local.metrics
    assert network.traffic.rounds == local.traffic.rounds


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("job", "killed"),
    [
        ({**JOB, "reveal": "splits"}, {3: "store-us", 10: "supplier", 17: "server"}),
        ({**JOB, "trees": 400}, {1: "server"}),  # no client is asked about later trees
    ],
    ids=["splits", "columns"],
)
def test_trees_are_the_same_over_the_network_and_after_kills(
    job: dict[str, Any], killed: dict[int, str], tmp_path: Path
) -> None:
    with in_process(tables()) as federation:
        expected = federation.train(QUERY, **job)
        answer = federation.predict(expected, QUERY)
    with running(tmp_path, tables()) as parties:
        result = train_with_faults(parties, killed, **job)
        assert_same(result, expected)
        parties.await_clients()
        predicted = parties.connect().predict(result.model, QUERY)
    assert isinstance(predicted, pa.Table)
    assert sorted(predicted["probability"].to_pylist()) == sorted(answer["probability"].to_pylist())  # in any order


def test_owners_hold_their_splits_across_a_restart(tmp_path: Path) -> None:
    job = JOB | {"trees": 5, "release": False, "splits": "random"}
    with running(tmp_path, tables()) as parties:
        result = parties.connect().train(QUERY, **job)
        parties.restart("supplier")
        parties.await_clients()
        predicted = parties.connect().predict(result.model, QUERY)
    with in_process(tables()) as federation:
        released = federation.train(QUERY, **(job | {"release": True}))
        whole = federation.predict(released, QUERY)  # owners' own orders do not show
        assert sorted(predicted["probability"].to_pylist()) == sorted(whole["probability"].to_pylist())


def test_more_trees_are_added_over_the_network_to_those_that_owners_hold(tmp_path: Path) -> None:
    job = JOB | {"release": False, "leaves": 6}
    with running(tmp_path, tables()) as parties:
        federation = parties.connect()
        held = federation.train(QUERY, **(job | {"trees": 3}))
        more = federation.train(QUERY, **(job | {"trees": 2}), warm_start=held)
        predicted = federation.predict(more.model, QUERY)
    with in_process(tables()) as local:
        whole = local.train(QUERY, **(job | {"trees": 5, "release": True}))
        expected = local.predict(whole, QUERY)
    assert more.metrics == whole.metrics
    assert sorted(predicted["probability"].to_pylist()) == sorted(expected["probability"].to_pylist())
