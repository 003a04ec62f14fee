"""Clipped gradients of modules equal clipping each row's own gradient."""

from __future__ import annotations

import pytest
import torch

from tablepuppet.models.modules import clipped_sums, is_dense_chain
from tablepuppet.privacy.gaussian import GradientPrivacy

CHAIN = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


class Residual(torch.nn.Module):
    """Not a chain: its input is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4).double()
        self.outer = torch.nn.Linear(4, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.outer(x + torch.tanh(self.inner(x)))
        return out


@pytest.mark.parametrize("module", [CHAIN, Residual()], ids=["chain", "residual"])
@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_clipped_sums_equal_the_sum_of_each_rows_clipped_gradient(module: torch.nn.Module, clip: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 4, dtype=torch.float64, generator=generator)
    signal = torch.randn(12, 2, dtype=torch.float64, generator=generator)
    parameters: dict[str, torch.Tensor] = dict(module.named_parameters())
    expected = [torch.zeros_like(p) for p in parameters.values()]
    for k in range(12):
        own = torch.autograd.grad(module(x[k : k + 1]), list(parameters.values()), signal[k : k + 1])
        norm = torch.sqrt(sum(((g**2).sum() for g in own), torch.zeros(())))
        for total, gradient in zip(expected, own, strict=True):
            total += gradient * min(1.0, clip / float(norm))
    found = clipped_sums(module, parameters, x, signal, GradientPrivacy(clip=clip, noise=0.0))
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e.detach())
    assert is_dense_chain(module) == (module is CHAIN)
