"""ADMM under feature privacy where a table has several clients: their noisy steps add up to those of one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.algorithms.neural_join import JOINS, tables

import tablepuppet as tp

BORDERS = (0.0, 0.05, 0.3, 1.0)
FEATURES: dict[str, Any] = {
    "noise": 1e-15,
    "clip": 1e4,
    "sample": 1.0,
    "local_steps": 6,
    "bounds": {"q": (-4, 4), "t": (-4, 4), "price": (-4, 4), "v": (-4, 4)},
}


def train(model: str, *, is_cut: bool, features: dict[str, Any]) -> tp.Result:
    held: dict[str, Any] = {}
    for name, table in tables().items():
        borders = [round(b * len(table)) for b in BORDERS] if is_cut else [0, len(table)]
        held[name] = [table.slice(a, b - a) for a, b in itertools.pairwise(borders)]
    network: dict[str, Any] = {"hidden": (4,), "dtype": "float64", "local_optimizer": "sgd"} if model == "mlp" else {}
    with tp.Federation(held) as owner:
        return owner.train(
            JOINS["left"].format(y="number"),
            label="number",
            model=model,
            algorithm="admm",
            epochs=3,
            l2=0.01,
            inner_rounds=6,
            privacy={"features": features, "allow_reconstruction": True},
            **network,
        )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_unequal_clients_take_the_steps_of_one_that_holds_all_rows(model: str) -> None:
    """One local step an inner round: the part's shares of the block weigh them, whatever a LEFT JOIN left out."""
    whole, cut = (train(model, is_cut=is_cut, features=FEATURES) for is_cut in (False, True))
    assert whole.history[0].objective > 1.001 * whole.objective  # it moves
    for one, several in zip(whole.history, cut.history, strict=True):
        assert several.objective == pytest.approx(one.objective, rel=1e-9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_several_local_steps_an_inner_round_end_near_those_of_one_client(model: str) -> None:
    features = FEATURES | {"local_steps": 18}
    whole, cut = (train(model, is_cut=is_cut, features=features) for is_cut in (False, True))
    assert np.isfinite(cut.objective)
    assert cut.history[0].objective > 1.001 * cut.objective  # it moves
    assert cut.objective == pytest.approx(whole.objective, rel=0.05)
