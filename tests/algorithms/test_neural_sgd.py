"""SGD of neural models over tables equals torch on the materialised join, batch for batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.algorithms.neural_join import JOINS, Joined, federation, parameters

import tablepuppet as tp
from tablepuppet.models.spec import l2_of

torch = pytest.importorskip("torch")

OPTIMIZERS: dict[str, tuple[dict[str, Any], Any]] = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=0.05)),
    "momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "decay": ({"weight_decay": 0.01}, lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.01)),
    "adam": ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.05)),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    ),
}


def trained(join: str, label: str, clients: int = 1, **given: Any) -> tuple[tp.Result, Joined]:
    dtype = given.setdefault("dtype", "float64")
    query = JOINS[join].format(y=label)
    options = {"learning_rate": 0.05} | given
    with federation(clients) as owner:
        result = owner.train(query, label=label, model="mlp", algorithm="sgd", epochs=2, seed=3, **options)
        return result, Joined(owner, query, label, result, getattr(torch, dtype))


def fresh(result: tp.Result) -> list[Any]:
    """The documented initial values: each block's network drawn under torch.manual_seed(seed + block)."""
    modules = []
    for number, block in enumerate(result.blocks):
        width = next(result.module(block.name).parameters()).shape[1]
        with torch.random.fork_rng():
            torch.manual_seed(result.plan.job.seed + number)
            outputs = result.plan.loss.outputs
            net = torch.nn.Sequential(torch.nn.Linear(width, 16), torch.nn.ReLU(), torch.nn.Linear(16, outputs))
        modules.append(net.to(getattr(torch, result.plan.job.model.dtype)))
    return modules


def oracle(result: tp.Result, joined: Joined, optimizer: Any, size: int | None, clip: float | None = None) -> list[Any]:
    modules = fresh(result)
    job = result.plan.job
    steps = optimizer([p for m in modules for p in m.parameters()])
    for rows in joined.batches(job.epochs, size, job.seed):
        steps.zero_grad()
        torch.autograd.backward(joined.objective(modules, rows, l2_of(job.model.l2, "", "")))
        if clip is not None:
            for module in modules:
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        steps.step()
    return modules


def assert_same(result: tp.Result, modules: list[Any], tolerance: float) -> None:
    for block, module in zip(result.blocks, modules, strict=True):
        np.testing.assert_allclose(block.theta, parameters(module), rtol=0, atol=tolerance)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("clients", [1, 2, 5])
@pytest.mark.parametrize("join", JOINS)
def test_parameters_equal_those_of_torch_on_the_materialised_join(join: str, clients: int) -> None:
    result, joined = trained(join, "number", clients, batch_size=64)
    assert_same(result, oracle(result, joined, OPTIMIZERS["sgd"][1], 64), 1e-9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("label", ["flag", "class"])
def test_so_they_do_for_classes(label: str) -> None:
    result, joined = trained("many-to-many", label, 2, batch_size=100)
    assert_same(result, oracle(result, joined, OPTIMIZERS["sgd"][1], 100), 1e-9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_takes_the_steps_of_torch(name: str) -> None:
    options, optimizer = OPTIMIZERS[name]
    result, joined = trained("one-to-many", "number", 2, batch_size=50, **options)
    assert_same(result, oracle(result, joined, optimizer, 50), 1e-9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("clients", [1, 2])
def test_single_precision_agrees_to_single_precision(clients: int) -> None:
    result, joined = trained("many-to-many", "number", clients, batch_size=64, dtype="float32")
    assert result.blocks[0].theta.dtype == np.float32
    assert_same(result, oracle(result, joined, OPTIMIZERS["sgd"][1], 64), 1e-5)


def test_full_batches_are_gradient_descent() -> None:
    result, joined = trained("left", "number", 2, batch_size=None)
    assert_same(result, oracle(result, joined, OPTIMIZERS["sgd"][1], None), 1e-9)


def test_gradients_are_clipped_block_by_block_as_torch_clips() -> None:
    result, joined = trained("one-to-many", "number", 2, batch_size=50, clip_norm=0.1)
    assert_same(result, oracle(result, joined, OPTIMIZERS["sgd"][1], 50, clip=0.1), 1e-9)


def test_the_expanded_baseline_trains_the_same_network() -> None:
    query = JOINS["left"].format(y="number")
    options: dict[str, Any] = {"label": "number", "model": "mlp", "dtype": "float64", "epochs": 2}
    with federation(2) as owner:
        tables = owner.train(query, algorithm="sgd", learning_rate=0.1, batch_size=64, **options)
        expanded = owner.train(query, algorithm="vfl-sgd", learning_rate=0.1, batch_size=64, **options)
    for a, b in zip(tables.blocks, expanded.blocks, strict=True):
        np.testing.assert_allclose(a.theta, b.theta, atol=1e-9)
