"""Groups of two owners' rows, merged over mutual TLS: the model of one process, to the last bit, whoever is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.network.parties import SECRET, assert_same, running, tables, train_with_faults

import tablepuppet as tp
from tablepuppet.owner.policy import Policy

QUERY = """SELECT i.price, i.kind, o.n, o.mean, o.spread, o.most, i.item % 2 AS y FROM items i JOIN (
    SELECT item, count(*) AS n, avg(x) AS mean, stddev(z) AS spread, max(x) AS most FROM orders GROUP BY item
    HAVING count(*) > 1) o ON o.item = i.item"""
JOB: dict[str, Any] = {"label": "y", "algorithm": "sgd", "batch_size": 5, "epochs": 20, "learning_rate": 0.1}
MERGING = Policy(merge_groups="extremes", keys_in_plain=False)


def test_killed_clients_and_a_killed_server_hold_the_same_merged_groups(tmp_path: Path) -> None:
    with running(tmp_path, tables(100)) as parties:
        (tmp_path / "open.toml").write_text('keys_in_plain = false\nmerge_groups = "extremes"\n')
        for name in parties.owners:  # a policy is read when a client starts
            parties.restart(name)
        parties.await_clients()
        found = train_with_faults(parties, {5: "store-eu", 30: "store-us", 60: "server"}, QUERY, **JOB)
        parties.await_clients()
        predicted = parties.connect().predict(found, QUERY)
    held = tables(100)
    given = {"orders": [held["store-eu"], held["store-us"]], "items": held["supplier"]}
    policies = dict.fromkeys(("orders", "items"), MERGING)
    with tp.Federation(given, key=SECRET, policies=policies) as federation:
        expected = federation.train(QUERY, **JOB)
        assert_same(found, expected)
        assert predicted.sort_by("item").equals(federation.predict(expected, QUERY).sort_by("item"))
