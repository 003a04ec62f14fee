"""Neural models predict as they did in training, from memory and from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.neural_join import JOINS, federation

import tablepuppet as tp

torch = pytest.importorskip("torch")


def own_network(width: int, outputs: int) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(width, 4), torch.nn.Tanh(), torch.nn.Linear(4, outputs))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("join", ["many-to-many", "left"])
def test_a_saved_perceptron_predicts_what_the_trained_one_did(tmp_path: Path, join: str) -> None:
    query = JOINS[join].format(y="number")
    with federation(2) as owner:
        result = owner.train(query, label="number", model="mlp", algorithm="sgd", epochs=2, test_fraction=0.0)
        result.save(tmp_path / "model")
        loaded = owner.predict(tp.load(tmp_path / "model"), query, key="number")
        fresh = owner.predict(result, query, key="number")
        assert owner.evaluate(result, rows="all")["rmse"] == pytest.approx(result.metrics["train"]["rmse"], rel=1e-6)
    assert loaded.equals(fresh)
    error = np.sqrt(np.mean((fresh["prediction"].to_numpy() - fresh["number"].to_numpy()) ** 2))
    assert error == pytest.approx(result.metrics["train"]["rmse"], rel=1e-6)


def test_a_module_of_ones_own_needs_its_builder_to_be_used_again(tmp_path: Path) -> None:
    query = JOINS["one-to-many"].format(y="flag")
    with federation() as owner:
        result = owner.train(query, label="flag", model=own_network, algorithm="sgd", epochs=1)
        fresh = owner.predict(result, query)
        result.save(tmp_path / "model")
        loaded = tp.load(tmp_path / "model")
        with pytest.raises(tp.TablePuppetError, match="knows no module"):
            owner.predict(loaded, query)
        assert owner.predict(loaded, query, module=own_network).equals(fresh)
