"""Dense layers gone through by hand give the bits that autograd gives, and a pass that is kept those of a new one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tablepuppet.models.dense_chain import DenseChain
from tablepuppet.models.features import Features
from tablepuppet.models.inputs import Inputs
from tablepuppet.models.neural import NeuralModel
from tablepuppet.models.spec import ModelSpec


def _inputs(rows: int, numbers: int, sizes: tuple[int, ...], dtype: str) -> Inputs:
    """Rows with string columns of so many categories, some without any; a few rows that a join did not find."""
    rng = np.random.default_rng(rows)
    starts = numbers + np.cumsum([0, *sizes])
    codes = tuple(rng.integers(-1, size, rows).astype(np.int32) for size in sizes)
    columns = tuple(slice(int(a), int(b)) for a, b in pairwise(starts))
    features = Features(rng.normal(size=(rows, numbers)), codes, np.arange(numbers), columns, int(starts[-1]))
    return Inputs.of(features, dtype, rng.random(rows) < 0.1 if sizes else None)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bend", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize(
    ("numbers", "sizes", "later"),
    [
        (3, (), (1,)),
        (5, (), (16, 1)),
        (30, (), (64, 32, 4)),
        (1, (), (7, 7, 2)),
        (2, (5, 300), (7, 5, 1)),
        (0, (4,), (1,)),
    ],
)
def test_the_chain_has_the_bits_of_autograd(
    dtype: str, bend: type[nn.Module], numbers: int, sizes: tuple[int, ...], later: tuple[int, ...]
) -> None:
    torch.manual_seed(len(later))
    layers: list[nn.Module] = []
    for before, after in pairwise((numbers + sum(sizes), *later)):
        layers += [nn.Linear(before, after), bend()]
    module = nn.Sequential(*layers[:-1]).to(getattr(torch, dtype))
    chain = DenseChain.of(module)
    assert chain is not None
    for count in (1, 33, 250, 1500, 33):  # the last in memory that was used before
        inputs = _inputs(count, numbers, sizes, dtype)
        rows = np.random.default_rng(count).permutation(count)
        signal = np.random.default_rng(1).normal(size=(count, later[-1])).astype(dtype)
        for chosen in (rows, slice(0, count)):
            index = torch.from_numpy(rows) if chosen is rows else slice(0, count)
            first: Any = module[0]
            out = inputs.linear(index, first.weight, first.bias) if sizes else module(inputs.dense[index])
            for layer in layers[1:-1] if sizes else []:
                out = layer(out)
            out = out if inputs.exists is None else out * inputs.exists[index]
            expected = torch.autograd.grad(out, list(module.parameters()), torch.tensor(signal))
            passed = chain.forward(inputs, chosen)
            np.testing.assert_array_equal(passed.out, out.detach().numpy())
            slopes = chain.backward(passed, signal)
            np.testing.assert_array_equal(slopes, torch.cat([g.reshape(-1) for g in expected]).numpy())


def test_modules_that_are_more_than_dense_layers_are_left_to_autograd() -> None:
    shared = nn.Linear(3, 3)
    frozen = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    frozen[0].weight.requires_grad_(False)
    hooked = nn.Sequential(nn.Linear(3, 1))
    hooked.register_forward_hook(lambda module, given, out: 2 * out)
    others: list[nn.Module] = [
        nn.Linear(3, 1),
        nn.Sequential(),
        nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5), nn.Linear(2, 1)),
        nn.Sequential(nn.Linear(3, 2), nn.ReLU()),
        nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, 1)),
        nn.Sequential(nn.Linear(3, 2), nn.ReLU(inplace=True), nn.Linear(2, 1)),
        nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)),
        nn.Sequential(shared, nn.ReLU(), shared),
        nn.Sequential(shared, bend := nn.ReLU(), nn.Linear(3, 3), bend, shared),
        frozen,
        hooked,
    ]
    assert all(DenseChain.of(module) is None for module in others)


@pytest.mark.parametrize("between", [nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(4), nn.GELU()])
def test_a_gradient_after_its_prediction_has_the_bits_of_one_alone(between: nn.Module) -> None:
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(80, 3))
    features = Features(dense, (), np.arange(3), (), 3)
    missing = (np.zeros(80, np.bool_), np.zeros(80, np.bool_))

    def model() -> NeuralModel:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), between, nn.Linear(4, 1))
        given = (ModelSpec(kind="mlp", hidden=(4,), unit=2.0), features, features, 1)
        return NeuralModel.of(module, *given, missing=missing, stream=7)

    rows, signal = np.arange(5, 60, dtype=np.int32), rng.normal(size=(55, 1))
    alone, after = model(), model()
    theta, other = alone.initial(), alone.initial() + 1
    expected = alone.gradient(theta, signal, rows, 3)
    shown = after.predict(theta, rows, 3)
    np.testing.assert_array_equal(shown, alone.predict(theta, rows, 3))
    after.predict_test(other)  # other parameters in between
    np.testing.assert_array_equal(after.gradient(theta, signal, rows, 3), expected)
    after.predict(theta, rows, 3)
    np.testing.assert_array_equal(after.gradient(other, signal, rows, 3), alone.gradient(other, signal, rows, 3))
    after.predict(theta, rows, 3)
    after.predict(other, rows[::-1].copy(), 4)  # as many other rows, in the same memory
    after.predict(theta, None, 3)
    np.testing.assert_array_equal(after.predict(other), alone.predict(other))
    np.testing.assert_array_equal(after.predict(theta), alone.predict(theta))
    np.testing.assert_array_equal(after.gradient(theta, signal, rows, 3), expected)
