"""Modules over codes give what torch gives over a written-out matrix, and a kept pass gives what a new one does."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from tablepuppet.models import modules
from tablepuppet.models.linear import Features
from tablepuppet.models.neural import Inputs, NeuralModel
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
@pytest.mark.parametrize("is_hooked", [False, True])
def test_codes_pick_columns_of_a_first_layer_as_if_they_were_written_out(dtype: str, is_hooked: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(307, 7), nn.Tanh(), nn.Linear(7, 1)).to(getattr(torch, dtype))
    if is_hooked:
        module[0].register_forward_hook(lambda _, given, out: 2 * out)
    inputs = _inputs(1500, 2, (5, 300), dtype)
    model = NeuralModel(module, inputs, inputs, 1, stream=0)
    rows, signal = np.random.default_rng(1).permutation(1500)[:250], np.ones((250, 1))
    found = model.predict(model.initial(), rows), model.gradient(model.initial(), signal, rows)
    assert inputs.exists is not None
    out = module(inputs.matrix(torch.from_numpy(rows))) * inputs.exists[rows]
    slopes = torch.autograd.grad(out, list(module.parameters()), torch.ones_like(out))
    close = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(found[0], out.detach().numpy(), rtol=close, atol=close)
    np.testing.assert_allclose(found[1], torch.cat([s.reshape(-1) for s in slopes]).numpy(), rtol=close, atol=close)


@pytest.mark.parametrize("between", [nn.ReLU(), nn.Dropout(0.3), nn.LayerNorm(4), nn.GELU()])
def test_a_gradient_after_its_prediction_has_the_bits_of_one_alone(between: nn.Module) -> None:
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(80, 3))
    features = Features(dense, (), np.arange(3), (), 3)
    missing = (np.zeros(80, np.bool_), np.zeros(80, np.bool_))

    def model() -> NeuralModel:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), deepcopy(between), nn.Linear(4, 1))
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


def test_a_builder_is_known_until_the_last_call_with_it_ends() -> None:
    """Two threads may predict with one model: the first that ends leaves the builder to the other."""
    with modules.offer(("own", nn.Linear)):
        with modules.offer(("own", nn.Linear), ("none", None)):
            pass
        assert modules.OWN["own"] is nn.Linear
    assert "own" not in modules.OWN
