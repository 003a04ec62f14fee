"""Heads and their ids over real processes with mutual TLS: the model of one process, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.network.parties import SECRET, Parties, running, train_with_faults
from tests.owner.test_ids import QUERY, tables

import tablepuppet as tp

OWNERS = {"shop": "ratings", "east": "users", "west": "users", "north": "users", "maker": "items"}


def held() -> dict[str, pa.Table]:
    whole = tables(users=90)
    users = whole["users"]
    parts = {name: users.slice(30 * k, 30) for k, name in enumerate(("east", "west", "north"))}
    return {"shop": whole["ratings"], "maker": whole["items"], **parts}


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    with running(tmp_path_factory.mktemp("heads"), held(), owners=OWNERS) as found:
        yield found


@pytest.fixture(scope="module")
def local() -> Iterator[tp.Federation]:
    own = held()
    together = {"ratings": own["shop"], "users": [own[n] for n in ("east", "west", "north")], "items": own["maker"]}
    with tp.Federation(together, key=SECRET) as federation:
        yield federation


MODELS: list[dict[str, Any]] = [
    {"head": "factor", "rank": 2, "epochs": 3},
    {"head": "factor", "rank": 2, "epochs": 2, "algorithm": "sgd", "batch_size": 200},
    {"head": "mlp", "widths": 3, "epochs": 2, "batch_size": 200},
    {"head": "factor", "rank": 2, "epochs": 3, "negatives": 3},
    {"head": "factor", "rank": 2, "epochs": 2, "algorithm": "sgd", "batch_size": 500, "negatives": 2},
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("given", MODELS, ids=["als", "sgd", "a network head", "negatives by als", "negatives by sgd"])
def test_heads_over_processes_are_the_heads_of_one_process(
    parties: Parties, local: tp.Federation, given: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    apart, here = (federation.train(QUERY, label="stars", **given) for federation in (parties.connect(), local))
    assert apart.metrics == here.metrics
    assert apart.objective == here.objective
    assert apart.head is not None
    assert here.head is not None
    np.testing.assert_array_equal(apart.head.own, here.head.own)
    np.testing.assert_array_equal(apart.blocks[0].theta, here.blocks[0].theta)  # by tokens: its clients agree on it
    assert apart.withheld == ("i",)  # whose ids only their owner knows
    assert here.withheld == ()
    one, other = (f.predict(r, key=["u", "i"]) for f, r in ((parties.connect(), apart), (local, here)))
    order = [[("u", "ascending"), ("i", "ascending"), ("prediction", "ascending")]] * 2
    np.testing.assert_array_equal(
        one.sort_by(order[0])["prediction"].to_numpy(), other.sort_by(order[1])["prediction"].to_numpy()
    )
    assert apart.traffic.rounds == here.traffic.rounds


def test_a_probe_over_processes_finds_what_it_finds_in_one(parties: Parties, local: tp.Federation) -> None:
    given: dict[str, Any] = {"label": "stars", "head": "factor", "negatives": 3, "probe": True}
    apart, here = (federation.explain(QUERY, **given).gains for federation in (parties.connect(), local))
    assert len(apart) == 4
    assert apart == here


def test_a_user_of_the_network_is_recommended_what_one_process_recommends(
    parties: Parties, local: tp.Federation, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"label": "stars", **MODELS[0]}
    apart, here = parties.connect().train(QUERY, **given), local.train(QUERY, **given)
    apart.save(tmp_path / "model")
    found = parties.connect().recommend(tp.load(tmp_path / "model"), user=5, n=7)
    assert found.select(["i", "prediction"]).equals(local.recommend(here, user=5, n=7).select(["i", "prediction"]))


def test_killed_processes_change_nothing_in_a_factor_model(parties: Parties, local: tp.Federation) -> None:
    given: dict[str, Any] = {"label": "stars", "head": "factor", "rank": 3, "epochs": 8, "seed": 1}
    apart = train_with_faults(parties, {4: "maker", 9: "east", 13: "server"}, QUERY, **given)
    here = local.train(QUERY, **given)
    assert apart.metrics == here.metrics
    assert apart.objective == here.objective
