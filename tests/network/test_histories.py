"""Histories over mutual TLS: the model of one process, to the last bit, whoever is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.network.parties import SECRET, assert_same, running, tables, train_with_faults

import tablepuppet as tp

QUERY = """SELECT o.x, h.n, h.mean, o.y FROM orders o LEFT JOIN LATERAL (
    SELECT count(*) AS n, avg(i.price) AS mean FROM items i WHERE i.item = o.item AND i.day < o.ts) h ON true"""
JOB: dict[str, Any] = {"label": "y", "algorithm": "sgd", "batch_size": 50, "epochs": 20, "learning_rate": 0.1}
RULES = """keys_in_plain = false
[tables.orders]
features = ["x", "z"]
labels = ["y"]
keys = ["item"]
"""


def with_times() -> dict[str, pa.Table]:
    """Orders with moments, and many prices of an item in the course of time."""
    random, start = np.random.default_rng(3), np.datetime64("2020-01-01")
    held = tables(100)
    for name in ("store-eu", "store-us"):
        moments = start + 7 * random.integers(0, 20, held[name].num_rows)
        held[name] = held[name].append_column("ts", pa.array(moments))
    days = start + random.integers(-50, 150, 300)
    prices = {"item": random.integers(0, 30, 300), "price": random.normal(size=300), "day": days}
    return held | {"supplier": pa.table(prices)}


CUTOFFS = RULES + 'cutoffs = ["ts"]\n'
PAIRS = (
    CUTOFFS
    + """pairs = ["item"]
[tables.items]
features = ["price", "day"]
keys = ["item"]
filters = ["day"]
pairs = ["item"]
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("granted", [CUTOFFS, PAIRS], ids=["cutoffs", "pairs"])
def test_killed_clients_and_a_killed_server_read_the_same_history(tmp_path: Path, granted: str) -> None:
    held = with_times()
    with running(tmp_path, held) as parties:

        def set_policy(text: str) -> None:
            (tmp_path / "open.toml").write_text(text)
            for name in parties.owners:  # a policy is read when a client starts
                parties.restart(name)
            parties.await_clients()

        set_policy(RULES)
        with pytest.raises(tp.TablePuppetError, match="column ts may not"):
            parties.connect().train(QUERY, **JOB)
        set_policy(granted)
        found = train_with_faults(parties, {5: "supplier", 30: "store-us", 45: "server"}, QUERY, **JOB)
        parties.await_clients()
        predicted = parties.connect().predict(found, QUERY, key=["item"])
        joined = "SELECT o.x, o.y FROM orders o JOIN items i USING (item)"
        text = parties.connect().suggest_history(joined, label="y", tables=["items"])
        with pytest.raises(tp.TablePuppetError, match="several owners hold them"):
            parties.connect().submit(joined, "y", split="o.ts")
    assert "items_by_item.price_mean" in text
    given = {"orders": [held["store-eu"], held["store-us"]], "items": held["supplier"]}
    policy = tmp_path / "open.toml"
    with tp.Federation(given, key=SECRET, policies={"orders": policy, "items": policy}) as federation:
        expected = federation.train(QUERY, **JOB)
        assert_same(found, expected)
        again = federation.predict(expected, QUERY, key=["item"])
    order = [("item", "ascending"), ("probability", "ascending")]
    sides = (side.drop_columns("client").sort_by(order) for side in (predicted, again))  # who has other names here
    assert next(sides).equals(next(sides))
