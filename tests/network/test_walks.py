"""Sums over the join's tree with owners in other processes, with mutual TLS: the model of one process, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.network.parties import Parties, assert_same, in_process, running, tables

import tablepuppet as tp

QUERY = (
    "SELECT o.x, o.{0}, o.{1}, i.price, p.z AS other FROM orders o JOIN items i ON o.item = i.item "
    "JOIN orders p ON o.item = p.item"
)
LABELS = {"linear": ("y", "z"), "logistic": ("z", "y")}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    folder: Path = tmp_path_factory.mktemp("walks")
    with running(folder, tables()) as found:
        yield found


@pytest.fixture(scope="module")
def local() -> Iterator[tp.Federation]:
    with in_process(tables()) as federation:
        yield federation


@pytest.mark.parametrize("model", list(LABELS))
def test_sums_over_a_tree_are_the_same_over_processes(parties: Parties, local: tp.Federation, model: str) -> None:
    feature, label = LABELS[model]
    query = QUERY.format(feature, label)
    given: dict[str, Any] = {"label": label, "model": model, "walk": "factorised"}
    apart, here = (federation.train(query, **given) for federation in (parties.connect(), local))
    assert_same(apart, here)
    rows = local.train(query, **given | {"walk": "materialised"})
    assert apart.objective == pytest.approx(rows.objective, rel=1e-9)
    assert apart.metrics["test"] == pytest.approx(rows.metrics["test"], rel=1e-6)


@pytest.mark.parametrize("given", [{"walk": "factorised"}, {"walk": "drawn", "max_joined_rows": 2000}])
def test_a_killed_server_resumes_with_the_same_bits(
    parties: Parties, local: tp.Federation, given: dict[str, Any]
) -> None:
    query, kills = QUERY.format("z", "y"), [lambda: parties.restart("server")]
    log = parties.folder / "server.log"
    before = len(log.read_text())

    def on_round(event: Any) -> None:
        if event.round > 1 and kills:
            kills.pop()()

    apart = parties.connect().train(query, label="y", on_round=on_round, **given)
    parties.await_clients()
    assert "goes on from its journal" in log.read_text()[before:]
    assert_same(apart, local.train(query, label="y", **given))


def test_drawn_rows_are_the_same_over_processes(parties: Parties, local: tp.Federation) -> None:
    given: dict[str, Any] = {"label": "y", "walk": "drawn", "max_joined_rows": 2000, "algorithm": "sgd", "epochs": 2}
    query = QUERY.format("z", "y")
    apart, here = (federation.train(query, **given) for federation in (parties.connect(), local))
    assert_same(apart, here)
    assert apart.measured == here.measured
    assert "trained on 2,000 of " in str(apart)
