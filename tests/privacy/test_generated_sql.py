"""Generated SQL under noise: whatever two neighbouring tables are asked, all that leaves beside the noise is the same,
the sums under it lie no further apart than is claimed, and a refusal says nothing of the rows."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.fuzz.private_queries import draw_query
from tests.privacy.white_box import gaussian_epsilon, run_both

import tablepuppet as tp
from tablepuppet.owner import labels
from tablepuppet.owner.policy import Policy
from tablepuppet.privacy.accounting import replacement_epsilon
from tablepuppet.privacy.ledger import TableBudget

DELTA = 1e-5
ALGORITHMS: tuple[dict[str, Any], ...] = (
    {"algorithm": "sgd", "epochs": 1, "batch_size": None},
    {"algorithm": "sgd", "epochs": 1, "batch_size": 40},
    {"algorithm": "admm", "epochs": 1},
    {"model": "boosted", "trees": 2, "depth": 2, "splits": "random"},
)
BUDGETS = {"features": TableBudget(features=50.0), "label": TableBudget(label=50.0)}


Changed = dict[str, float | str | None]


def tables(changed: Changed) -> dict[str, Any]:
    """A shop; the order 7 has these values, and all others are the same in every shop."""
    random, rows = np.random.default_rng(6), 120
    columns = {
        "id": np.arange(rows),
        "item": random.integers(0, 30, rows),
        "amount": random.uniform(-1, 1, rows),
        "salary": random.uniform(0, 1, rows),
        "note": random.choice(["a", "b", "c"], rows),
        "y": random.integers(0, 2, rows),
    }
    kinds = dict.fromkeys(columns, pa.int64()) | {"amount": pa.float64(), "salary": pa.float64(), "note": pa.string()}
    listed = {name: values.tolist() for name, values in columns.items()}
    listed["note"][90] = "only one"  # the names in a column are public
    for name, value in changed.items():
        listed[name][7] = value
    orders = pa.table({name: pa.array(values, kinds[name]) for name, values in listed.items()})
    return {"orders": orders, "items": pa.table({"item": np.arange(30), "price": random.uniform(-1, 1, 30)})}


def outcome(changed: Changed, rng: Random, privacy: dict[str, Any]) -> Callable[[], tuple[str, float]]:
    """What an outsider and the server are told of a job over a shop, and the ε that is claimed for one order."""
    budget = {"orders": BUDGETS["features" if "features" in privacy else "label"]}
    query, given, policy = (
        draw_query(rng),
        rng.choice(ALGORITHMS),
        Policy(budget=budget, minimum_rows=rng.choice([1, 5])),
    )
    if "features" in privacy:
        bounds = {f"f{number}": (-2.0, 2.0) for number in range(6)}
        privacy = {**privacy, "features": {**privacy["features"], "bounds": bounds, "cap": 20}}
    given = given if "model" in given else given | {"model": "logistic"}

    def run() -> tuple[str, float]:
        with tp.Federation(tables(changed), policies={"orders": policy}) as federation:
            for client in federation._clients.values():
                client.secret = bytes(32)  # by which figures are rounded
            try:
                result = federation.train(query, label="z", test_fraction=0.0, privacy=privacy, **given)
            except tp.TablePuppetError as error:
                return f"{type(error).__name__} {error}", 0.0
            told = result.for_release()
            shown = [
                [block.theta.tolist() for block in told.blocks],
                told.encoded_intercept.tolist(),
                told.classes,
                msgspec.json.encode(told.trees),
                told.notes,
                told.epoch,
            ]
            lines = list(result.privacy.lines())
            counts = [result.plan.mapping.train_rows, sorted(map(str, result.traffic.all_told.items()))]
            paid = [r.gaussian for r in result.privacy.releases if (r.what, r.table) == ("features", "orders")]
            whole = tuple(mechanism._replace(probability=1.0) for mechanism in paid)  # the batches are known here
            claim = replacement_epsilon(whole, DELTA) if paid else 0.0
            return repr([shown, lines, counts]), claim

    return run


@pytest.mark.one_in(40)
@pytest.mark.parametrize("seed", range(300))
def test_features_of_an_order_leave_under_noise_alone(seed: int) -> None:
    rng = Random(seed)
    values: list[Changed] = [  # none is NULL: whether a column has a value is public
        {"amount": 2.0, "salary": 1.0, "note": "b"},
        {"amount": -2.0, "salary": -1.0, "note": "a"},
        {"amount": 0.0, "salary": 0.0, "note": "c"},
        {"amount": 1e30, "salary": 5.0, "note": "only one"},
    ]
    first, second = rng.sample(values, 2)
    case = rng.randint(0, 2**32)
    privacy = {"features": {"epsilon": 2.0, "delta": DELTA}, "allow_reconstruction": True}
    runs = (outcome(first, Random(case), privacy), outcome(second, Random(case), privacy))
    told, distance = run_both(runs)
    assert told[0] == told[1], draw_query(Random(case))
    assert gaussian_epsilon(distance, DELTA) <= told[0][1] + 1e-3, draw_query(Random(case))


@pytest.mark.one_in(40)
@pytest.mark.parametrize("seed", range(200))
def test_the_label_of_an_order_leaves_under_noise_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(values: Any, privacy: Any, classes: int | None, uniform: Any) -> Any:
        return np.random.default_rng(9).integers(0, classes or 1, len(values)).astype(np.float64)

    monkeypatch.setattr(labels, "privatise", draw)
    rng = Random(1000 + seed)
    first, second = rng.sample([0.0, 1.0, None], 2)
    case = rng.randint(0, 2**32)
    privacy: dict[str, Any] = {"label": {"epsilon": 1.0}}
    if rng.random() < 0.5:
        privacy["label"]["classes"] = [0, 1]
    runs = tuple(outcome({"y": y}, Random(case), privacy) for y in (first, second))
    told, _ = run_both((runs[0], runs[1]))
    assert told[0] == told[1], draw_query(Random(case))
