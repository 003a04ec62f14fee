"""Ten clients, the coordinator and the user on hosts of their own: the model of one process, to the last bit."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.network import party
from tests.network.namespaces import hosts, needs_root
from tests.network.parties import QUERY, SECRET, Parties, tables

import tablepuppet as tp
from tablepuppet import demo as demo

pytestmark = [pytest.mark.root, needs_root]
MOVIELENS = os.environ.get("TABLEPUPPET_TEST_MOVIELENS")  # a folder with ratings, users and movies_genre as Parquet


@dataclass(frozen=True)
class Case:
    """A job, and the tables of ten clients: by table, then by client."""

    query: str
    label: str
    tables: dict[str, dict[str, pa.Table]]

    @property
    def held(self) -> dict[str, pa.Table]:
        return {client: table for shares in self.tables.values() for client, table in shares.items()}

    @property
    def owners(self) -> dict[str, str]:
        return {client: name for name, shares in self.tables.items() for client in shares}


def shares(table: pa.Table, name: str, count: int) -> dict[str, pa.Table]:
    """A table cut into pieces of about the same size, in order."""
    partition_specs = np.linspace(0, table.num_rows, count + 1).astype(int)
    return {f"{name}-{i}": table.slice(a, b - a) for i, (a, b) in enumerate(itertools.pairwise(partition_specs))}


def orders() -> Case:
    held = tables(600)
    every = pa.concat_tables([held["store-eu"], held["store-us"]])
    return Case(QUERY, "y", {"orders": shares(every, "store", 9), "items": {"supplier": held["supplier"]}})


def flights() -> Case:
    """New York's flights of 2013 in seven shares, the weather, the planes and the airports."""
    every, others = demo.read_flights()
    held = {name: {name: table} for name, table in others.items()}
    return Case(demo.QUERY, demo.LABEL, {"flights": shares(every, "airline", 7), **held})


def movielens() -> Case:
    """MovieLens-1M: ratings in seven shares, users in two, the movies' genres."""
    assert MOVIELENS is not None
    ratings, users, movies = (pq.read_table(f"{MOVIELENS}/{n}.parquet") for n in ("ratings", "users", "movies_genre"))
    query = (
        "SELECT u.gender, u.age, u.occupation::VARCHAR AS occupation, m.genre, r.rating >= 4 AS liked FROM ratings r "
        "JOIN users u ON r.user_id = u.user_id JOIN movies m ON r.movie_id = m.movie_id"
    )
    held = {"ratings": shares(ratings, "cinema", 7), "users": shares(users, "bank", 2), "movies": {"archive": movies}}
    return Case(query, "liked", held)


needs_movielens = pytest.mark.skipif(MOVIELENS is None, reason="TABLEPUPPET_TEST_MOVIELENS names no folder")
CASES = [
    orders,
    pytest.param(flights, marks=pytest.mark.slow),
    pytest.param(movielens, marks=[pytest.mark.slow, needs_movielens]),
]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_ten_clients_on_ten_hosts_give_the_model_of_one_process(tmp_path: Path, make: Callable[[], Case]) -> None:
    case = make()
    assert len(case.owners) == 10
    with hosts(["server", *case.owners, "analyst"]) as made:
        parties = Parties(
            tmp_path,
            case.owners,
            host=made.addresses["server"],
            port=8470,
            health=8471,
            namespaces=made.namespaces,
            heartbeat=5.0,
        )
        parties.write(case.held)
        (tmp_path / "job.toml").write_text(f'query = """{case.query}"""\nlabel = "{case.label}"\n')
        parties.start()
        train = ["train", f"{tmp_path}/job.toml", "--federation", str(parties.federation), "--json"]
        user = party.start(
            [*train, "--save", f"{tmp_path}/model"], tmp_path / "analyst.out", namespace=made.namespaces["analyst"]
        )
        user.join(300)
        codes = parties.stop()
    assert user.exitcode == 0, parties.logs()
    assert set(codes.values()) == {0}, parties.logs()
    given = {name: list(shares.values()) for name, shares in case.tables.items()}
    with tp.Federation(given, key=SECRET) as federation:
        local = federation.train(case.query, label=case.label)
    trained = tp.load(tmp_path / "model")
    for network, block in zip(trained.blocks, local.model.blocks, strict=True):
        assert np.array_equal(network.theta, block.theta)
    said = (tmp_path / "analyst.out").read_text()
    assert json.loads(said[said.index("{") :])["objective"] == local.objective
