"""Runs that choose their own steps do not depend on the unit of a numeric label, and speak in that unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp

torch = pytest.importorskip("torch")

QUERY = "SELECT a.y, a.u, a.v, b.w, b.c FROM a LEFT JOIN b ON a.id = b.id"
RUNS: dict[str, dict[str, Any]] = {
    "linear by sgd": {"model": "linear", "algorithm": "sgd"},
    "mlp by sgd": {"model": "mlp", "algorithm": "sgd"},
    "mlp by admm": {"model": "mlp", "algorithm": "admm", "epochs": 3},
    "own module": {"model": lambda width, outputs: torch.nn.Sequential(torch.nn.Linear(width, 4), Last(4, outputs))},
}


class Last(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A last layer that is no plain dense one."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(width, outputs)

    def forward(self, x: Any) -> Any:
        return self.inner(torch.tanh(x))


N = 400


def columns() -> dict[str, Any]:
    rows = np.random.default_rng(4)
    made = {name: rows.normal(size=N) for name in "uvwe"} | {"c": rows.integers(0, 3, N)}
    y = 2.0 * made["u"] - made["v"] ** 2 + np.sin(2.0 * made["w"]) + 0.5 * made["c"] + 0.1 * made["e"]
    return made | {"y": np.round(y * 2**10) / 2**10}  # so that shifts round nothing


def federation(factor: float, shift: float = 0.0, clients: int = 1) -> tp.Federation:
    made = columns()
    a = pa.table({"id": np.arange(N), "y": factor * (made["y"] + shift), "u": made["u"], "v": made["v"]})
    b = pa.table({"id": np.arange(0, N, 2), "w": made["w"][::2], "c": [f"c{k}" for k in made["c"][::2]]})
    split = [b.slice(start, 80) for start in range(0, 200, 80)] if clients > 1 else b
    return tp.Federation({"a": a, "b": split})


def trained(factor: float, shift: float = 0.0, clients: int = 1, **options: Any) -> tuple[tp.Result, Any]:
    with federation(factor, shift, clients) as owner:
        result = owner.train(QUERY, label="y", **({"algorithm": "sgd"} | options))
        return result, result.predict(owner)["prediction"].to_numpy()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("factor", [2.0**-10, 2.0**20])
@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_labels_in_another_unit_give_the_same_model_in_that_unit(options: dict[str, Any], factor: float) -> None:
    plain, predicted = trained(1.0, **options)
    scaled, again = trained(factor, **options)
    np.testing.assert_array_equal(again, factor * predicted)
    assert scaled.metrics["test"]["rmse"] == pytest.approx(factor * plain.metrics["test"]["rmse"], rel=1e-9)
    assert scaled.metrics["test"]["r2"] == pytest.approx(plain.metrics["test"]["r2"], rel=1e-9)
    assert plain.metrics["test"]["r2"] > 0.4
    assert scaled.objective == pytest.approx(factor**2 * plain.objective, rel=1e-9)
    assert scaled.plan.unit == factor * plain.plan.unit


@pytest.mark.one_in(5)
@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_label_far_from_zero_is_learnt_as_well(options: dict[str, Any]) -> None:
    plain, predicted = trained(1.0, **options)
    shifted, again = trained(1.0, 4096.0, **options)
    assert shifted.metrics["test"]["r2"] == pytest.approx(plain.metrics["test"]["r2"], abs=0.02)
    np.testing.assert_allclose(again - 4096.0, predicted, atol=0.3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["mlp by sgd", "own module"])
def test_a_trained_module_scores_in_the_label_s_unit(name: str) -> None:
    with federation(1000.0) as owner:
        query = "SELECT a.y, a.u, a.v FROM a"
        result = owner.train(query, label="y", **({"algorithm": "sgd"} | RUNS[name]))
        expected = result.predict(owner)["prediction"].to_numpy()
    assert result.plan.unit in (1024.0, 2048.0)
    encoded = [(columns()[k] - e.mean) / e.scale for k, e in zip(("u", "v"), result.blocks[0].encoders, strict=True)]  # type: ignore[union-attr]
    with torch.no_grad():
        scores = result.module("a")(torch.tensor(np.stack(encoded, axis=1), dtype=torch.float32)).numpy()[:, 0]
    np.testing.assert_allclose(np.sort(scores + result.encoded_intercept[0]), np.sort(expected), rtol=1e-4, atol=0.5)


def test_a_learning_rate_that_is_given_means_what_it_did() -> None:
    given: dict[str, Any] = {
        "model": "mlp",
        "learning_rate": 0.01,
        "optimizer": "adam",
        "batch_size": None,
        "epochs": 1,
    }
    result, _ = trained(1000.0, **given)
    assert result.plan.unit == 1.0
    assert result.encoded_intercept.tolist() == [0.0]


def test_bounds_of_private_labels_give_their_unit() -> None:
    privacy = {"label": {"epsilon": 2.0, "bounds": [-400.0, 400.0]}}
    plans = []
    for factor in (1.0, 100.0):
        with federation(factor) as owner:
            plans.append(owner.explain(QUERY, label="y", model="mlp", algorithm="sgd", privacy=privacy))
    assert [plan.unit for plan in plans] == [256.0, 256.0]


def test_explain_says_the_batch_that_it_chose() -> None:
    with federation(1000.0) as owner:
        plan = owner.explain(QUERY, label="y", model="mlp", algorithm="sgd")
    assert "batches of 16 joined rows (chosen from the number of rows) by adam, in units of" in plan.explain()
    assert plan.batch_size == 16
