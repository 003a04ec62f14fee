"""Opacus as oracle: clipped sums and their noise are those of its optimiser, for linear models and for networks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from tablepuppet.models.linear import Features, LinearModel
from tablepuppet.models.modules import clipped_sums
from tablepuppet.privacy.gaussian import GradientPrivacy

ROWS, WIDTH, CLIP = 40, 5, 0.7  # Opacus adds a millionth to every norm
PRIVACY = GradientPrivacy(clip=CLIP, noise=0.0)


def opacus_sums(module: torch.nn.Module, x: torch.Tensor, signal: torch.Tensor, clip: float) -> list[torch.Tensor]:
    """What Opacus would add noise to: the sum of per-sample gradients, each clipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        wrapped = GradSampleModule(module, loss_reduction="sum")
        optimizer = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=1.0),
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=1,
            loss_reduction="sum",
        )
        (wrapped(x) * signal).sum().backward()
        optimizer.clip_and_accumulate()
        return [p.summed_grad for p in wrapped.parameters()]


def data(outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator)
    return x, torch.randn(ROWS, outputs, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("outputs", [1, 3])
def test_clipped_gradients_of_a_linear_model_are_those_of_opacus(outputs: int) -> None:
    x, signal = data(outputs)
    module = torch.nn.Linear(WIDTH, outputs, bias=False).double()
    expected = opacus_sums(module, x, signal, CLIP)[0].T.numpy()
    features = Features(x.numpy(), (), np.arange(WIDTH), (), WIDTH)
    model = LinearModel(features, features, outputs, features.row_norms())
    found = model.clipped_gradient(model.initial(), signal.numpy(), PRIVACY, None, None)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_clipped_gradients_of_a_network_are_those_of_opacus() -> None:
    x, signal = data(2)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2)).double()
    parameters: dict[str, torch.Tensor] = dict(module.named_parameters())
    found = clipped_sums(module, parameters, x, signal, PRIVACY)
    for f, e in zip(found, opacus_sums(module, x, signal, CLIP), strict=True):
        torch.testing.assert_close(f.reshape(e.shape), e, rtol=1e-5, atol=1e-5)
