"""Ten clients, the coordinator and the user on hosts of their own: the model of one process, to the last bit."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.network import party
from tests.network.namespaces import hosts, needs_root
from tests.network.parties import QUERY, SECRET, Parties, tables

import tablepuppet as tp

pytestmark = [pytest.mark.root, needs_root]


def ten_clients() -> tuple[dict[str, str], dict[str, pa.Table]]:
    """Nine shares of the orders, one supplier."""
    held = tables(600)
    orders = pa.concat_tables([held["store-eu"], held["store-us"]])
    shares = np.linspace(0, orders.num_rows, 10).astype(int)
    split = {f"store-{i}": orders.slice(a, b - a) for i, (a, b) in enumerate(itertools.pairwise(shares))}
    owners = dict.fromkeys(split, "orders") | {"supplier": "items"}
    return owners, split | {"supplier": held["supplier"]}


def test_ten_clients_on_ten_hosts_give_the_model_of_one_process(tmp_path: Path) -> None:
    owners, held = ten_clients()
    with hosts(["server", *owners, "analyst"]) as made:
        parties = Parties(
            tmp_path, owners, host=made.addresses["server"], port=8470, health=8471, namespaces=made.namespaces
        )
        parties.write(held)
        (tmp_path / "job.toml").write_text(f'query = "{QUERY}"\nlabel = "y"\n')
        parties.start()
        train = ["train", f"{tmp_path}/job.toml", "--federation", str(parties.federation), "--json"]
        user = party.start(
            [*train, "--save", f"{tmp_path}/model"], tmp_path / "analyst.out", namespace=made.namespaces["analyst"]
        )
        user.join(120)
        codes = parties.stop()
    assert user.exitcode == 0, parties.logs()
    assert set(codes.values()) == {0}, parties.logs()
    stores = [held[name] for name in owners if name != "supplier"]
    with tp.Federation({"orders": stores, "items": held["supplier"]}, key=SECRET) as federation:
        local = federation.train(QUERY, label="y")
    trained = tp.load(tmp_path / "model")
    for network, block in zip(trained.blocks, local.model.blocks, strict=True):
        assert np.array_equal(network.theta, block.theta)
    said = (tmp_path / "analyst.out").read_text()
    assert json.loads(said[said.index("{") :])["objective"] == local.objective
