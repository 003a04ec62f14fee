"""The baseline on the materialised join is what federated training gives, for networks and heads too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.algorithms.neural_join import JOINS, federation

import tablepuppet as tp

pytest.importorskip("torch")

MODELS: dict[str, dict[str, Any]] = {
    "factors": {"head": "factor", "rank": 3, "shrinkage": 0.1},
    "factors at defaults": {"head": "factor", "rank": 2},
    "a network head": {"head": "mlp", "widths": 4, "dtype": "float64"},
    "networks": {"model": "mlp", "dtype": "float64"},
    "networks under a network head": {"model": "mlp", "head": "mlp", "widths": 3, "dtype": "float64"},
}


@pytest.mark.one_in(11)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("join", "label", "clients"), [("left", "number", 1), ("many-to-many", "class", 3)])
def test_one_word_compares_with_the_pooled_join(model: str, join: str, label: str, clients: int) -> None:
    query, given = JOINS[join].format(y=label), MODELS[model] | {"epochs": 2}
    with federation(clients) as owner:
        pooled = owner.train(query, label=label, algorithm="centralized", **given)
        apart = owner.train(query, label=label, algorithm="sgd", **given)
        assert owner.evaluate(pooled, rows="all") == pytest.approx(owner.evaluate(apart, rows="all"))
    for a, b in zip(pooled.blocks, apart.blocks, strict=True):
        np.testing.assert_allclose(a.theta, b.theta, rtol=0, atol=1e-9)
    np.testing.assert_allclose(pooled.encoded_intercept, apart.encoded_intercept, rtol=0, atol=1e-9)
    assert pooled.objective == pytest.approx(apart.objective, abs=1e-9)
    assert pooled.metrics["test"] == pytest.approx(apart.metrics["test"], abs=1e-9)


def test_rows_may_weigh_differently_and_a_learning_rate_may_be_given() -> None:
    query = JOINS["many-to-many"].format(y="flag")
    given: dict[str, Any] = {"label": "flag", "head": "factor", "rank": 2, "epochs": 2, "class_weight": "balanced"}
    steps: dict[str, Any] = {"optimizer": "adam", "schedule": "cosine", "learning_rate": 0.1}
    with federation() as owner:
        pooled = owner.train(query, algorithm="centralized", learning_rate=0.1, **given)
        apart = owner.train(query, algorithm="sgd", **steps, **given)
    for a, b in zip(pooled.blocks, apart.blocks, strict=True):
        np.testing.assert_allclose(a.theta, b.theta, rtol=0, atol=1e-9)


def test_a_head_of_ones_own_is_trained_and_blocks_of_ones_own_are_refused() -> None:
    torch = pytest.importorskip("torch")
    query = JOINS["one-to-many"].format(y="number")
    with federation() as owner:
        given: dict[str, Any] = {"label": "number", "epochs": 1}
        module = torch.nn.Linear(4, 1)
        pooled = owner.train(query, algorithm="centralized", head=module, widths=2, **given)
        apart = owner.train(query, algorithm="sgd", head=module, widths=2, **given)
        assert pooled.head is not None
        assert apart.head is not None
        np.testing.assert_allclose(pooled.head.own, apart.head.own, rtol=0, atol=1e-5)
        with pytest.raises(tp.TablePuppetError, match="builds networks itself"):
            owner.train(query, algorithm="centralized", model=lambda w, k: torch.nn.Linear(w, k), **given)
