"""Clients of a masked table that have no rows, or none that train, take part with sums of zero."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.errors import PolicyError
from tablepuppet.exchanges.features import OpenPart
from tablepuppet.owner.policy import Policy

QUERY = "SELECT t.a, t.b, u.c, t.y FROM t JOIN u ON t.k = u.k"
ALGORITHMS: dict[str, dict[str, Any]] = {
    "newton": {"algorithm": "newton", "epochs": 4},
    "sgd": {"algorithm": "sgd", "epochs": 2, "batch_size": None},
    "admm": {"algorithm": "admm", "epochs": 3},
    "elastic": {"algorithm": "elastic", "l1": 0.01},
    "boosted": {"model": "boosted", "trees": 3},
}


def tables(shares: list[slice], rows: int = 120) -> dict[str, Any]:
    random = np.random.default_rng(4)
    t = pa.table(
        {"k": random.integers(0, 20, rows), "a": random.normal(size=rows), "b": random.choice(["x", "z"], rows)}
        | {"y": random.integers(0, 2, rows), "held": np.arange(rows) >= 80}
    )
    return {"t": [t[share] for share in shares], "u": pa.table({"k": np.arange(20), "c": random.normal(size=20)})}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_client_without_rows_changes_no_model(name: str) -> None:
    given: dict[str, Any] = {"label": "y", "test_where": "held"} | ALGORITHMS[name]
    found = []
    for shares in ([slice(0, 40), slice(40, 120)], [slice(0, 40), slice(40, 120), slice(120, 120)]):
        with tp.Federation(tables(shares)) as federation:
            found.append(federation.train(QUERY, **given))
    two, three = found
    assert three.metrics.keys() == two.metrics.keys()
    for metric, value in two.metrics.items():
        assert three.metrics[metric] == pytest.approx(value, abs=2e-3 if name == "admm" else 1e-6)
    told = {key.what for key in three.traffic.all_told if key.client.startswith("t[")}
    assert "category names" in told or name == "boosted"
    assert "statistics" not in told


def test_owners_who_insist_on_masks_let_clients_take_part_that_only_have_test_rows_or_none() -> None:
    shares = [slice(0, 80), slice(80, 120), slice(120, 120)]
    policies = {f"t[{k}]": Policy(minimum_clients=3) for k in range(3)}
    with tp.Federation(tables(shares), policies=policies) as federation:
        assert federation.train(QUERY, label="y", test_where="held", algorithm="newton", epochs=2).history


@pytest.mark.parametrize("shares", [[slice(0, 40), slice(40, 80), slice(80, 120)], [slice(0, 60), slice(60, 120)]])
def test_a_server_that_asks_for_masks_otherwise_than_agreed_is_refused(shares: list[slice]) -> None:
    def change(message: Any) -> Any:
        is_open = isinstance(message, OpenPart)
        return msgspec.structs.replace(message, wants_key=not message.wants_key) if is_open else message

    with tp.Federation(tables(shares)) as federation:
        client = federation._clients["t[0]"]
        inner = client.answer
        client.answer = lambda message: inner(change(message))  # type: ignore[method-assign]
        with pytest.raises(PolicyError, match="under masks if that was agreed on"):
            federation.train(QUERY, label="y", test_where="held", algorithm="newton", epochs=2)
