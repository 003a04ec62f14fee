"""ADMM with a local solver for neural models; what neural models refuse; determinism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.algorithms.neural_join import JOINS, federation

import tablepuppet as tp

torch = pytest.importorskip("torch")
QUERY = JOINS["one-to-many"].format(y="number")


def train(clients: int = 1, **given: Any) -> tp.Result:
    with federation(clients) as owner:
        return owner.train(QUERY, label="number", **({"model": "mlp"} | given))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("clients", [1, 2])
def test_admm_reaches_what_sgd_reaches(clients: int) -> None:
    sgd = train(algorithm="sgd", optimizer="adam", epochs=20, batch_size=32)
    admm = train(clients, algorithm=tp.Admm(inner_rounds=5), epochs=10)
    linear = train(model="linear", algorithm="newton")
    assert admm.objective < sgd.objective + 0.1 * (linear.objective - sgd.objective)
    assert admm.history[-1].rounds == (10 if clients == 1 else 60)


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_the_same_run_twice_gives_the_same_bits_dropout_or_not(algorithm: str) -> None:
    given: dict[str, Any] = {"algorithm": algorithm, "epochs": 1, "batch_size": 50, "dropout": 0.3, "hidden": (8, 4)}
    first, second = (train(2, **given) for _ in range(2))
    for a, b in zip(first.blocks, second.blocks, strict=True):
        assert np.array_equal(a.theta, b.theta)


def test_newton_refuses_a_neural_model_and_names_the_alternatives() -> None:
    with pytest.raises(tp.TablePuppetError, match='algorithm="admm" or algorithm="sgd"'):
        train(algorithm="newton")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algorithm": tp.Admm(union="exact")}, "consensus"),
        ({"algorithm": "sgd", "hidden": (0,)}, "at least 1"),
        ({"algorithm": "sgd", "dropout": 1.0}, "dropout"),
        ({"algorithm": "newton", "model": "linear", "hidden": (3,)}, "neural model"),
        ({"algorithm": "sgd", "model": "logistic", "loss": "squared"}, "already names its loss"),
        ({"algorithm": "sgd", "model": lambda width, outputs: "no module"}, "torch.nn.Module"),
        ({"algorithm": "sgd", "model": lambda width, outputs: torch.nn.Linear(width, 3)}, r"shape \(2, 1\)"),
        ({"algorithm": "sgd", "model": lambda width, outputs: torch.nn.Linear(1, 1)}, "fails on rows"),
        ({"algorithm": "sgd", "model": lambda width, outputs: torch.nn.ReLU()}, "no parameter"),
        ({"algorithm": "sgd", "model": lambda width, outputs: torch.nn.BatchNorm1d(width)}, "LayerNorm"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_to_do(given: dict[str, Any], message: str) -> None:
    with pytest.raises(tp.TablePuppetError, match=message):
        train(**given)


def test_a_builder_may_ask_for_the_block_it_builds() -> None:
    def build(width: int, outputs: int, block: str) -> Any:
        linear = torch.nn.Linear(width, outputs)
        return linear if block == "o" else torch.nn.Sequential(torch.nn.LayerNorm(width), linear)

    result = train(model=build, algorithm="sgd", epochs=1)
    assert [type(result.module(name)).__name__ for name in ("o", "i")] == ["Linear", "Sequential"]


def test_a_linear_module_trains_to_the_linear_model() -> None:
    with federation(2) as owner:
        given: dict[str, Any] = {"label": "number", "batch_size": None, "l2": 0.0, "epochs": 300}
        module = owner.train(QUERY, model=torch.nn.Linear, algorithm="sgd", momentum=0.9, dtype="float64", **given)
        linear = owner.train(QUERY, label="number", model="linear", algorithm="newton", l2=0.0)
    assert module.objective == pytest.approx(linear.objective, rel=1e-6)
