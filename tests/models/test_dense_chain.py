"""Dense layers gone through by hand give the bits that autograd gives, and a pass that is kept those of a new one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from tablepuppet.models.dense_chain import DenseChain
from tablepuppet.models.features import Features
from tablepuppet.models.neural import NeuralModel
from tablepuppet.models.spec import ModelSpec


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bend", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("sizes", [(3, 1), (5, 16, 1), (30, 64, 32, 4), (1, 7, 7, 2)])
def test_the_chain_has_the_bits_of_autograd(dtype: torch.dtype, bend: type[nn.Module], sizes: tuple[int, ...]) -> None:
    torch.manual_seed(len(sizes))
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), bend()]
    module = nn.Sequential(*layers[:-1]).to(dtype)
    chain = DenseChain.of(module)
    assert chain is not None
    for rows in (1, 33, 250, 1500):
        x, signal = torch.randn(rows, sizes[0], dtype=dtype), torch.randn(rows, sizes[-1], dtype=dtype)
        out = module(x)
        expected = torch.autograd.grad(out, list(module.parameters()), signal)
        with torch.no_grad():
            found, given = chain.forward(x)
            slopes = chain.backward(given, signal)
        assert torch.equal(found, out.detach())
        assert torch.equal(slopes, torch.cat([g.reshape(-1) for g in expected]))


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
