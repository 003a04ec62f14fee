"""Clipped gradients of a torch module without a gradient per row where that can be avoided.

In: a module, its parameters by name, rows x and a signal Y. Out: Σ_k s_k (∂h_k/∂θ)ᵀ Y_k, by parameter, with
s_k = min(1, C/‖·‖, R‖Y_k‖/‖·‖). In a chain of dense layers the gradient of a row is an outer product per layer, δ aᵀ,
whose norm is known from its factors: ‖g_k‖² = Σ_layers ‖δ‖² (‖a‖² + 1). Other modules get a gradient per row, few rows
at a time.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, cast

from tablepuppet.arrays import NUMBERS_PER_ROW_GRADIENTS
from tablepuppet.errors import TrainingError
from tablepuppet.models.modules import need_torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


def clipped_sums(
    module: Module, parameters: dict[str, Tensor], x: Tensor, signal: Tensor, clip: float, reach: float = inf
) -> list[Tensor]:
    """The clipped sum, one tensor per parameter, in their order; no summand is longer than `reach`·‖Y_k‖ either."""
    sums = _by_layers if is_dense_chain(module) else _by_rows
    most = (reach * (signal * signal).sum(1).sqrt()).nan_to_num(clip).clamp(max=clip)
    return sums(module, parameters, x, signal, most)


def _scale(squares: Tensor, most: Tensor) -> Tensor:
    """The factor that brings each row's norm to at most `most`."""
    return cast("Tensor", need_torch().where(squares > most * most, most / squares.clamp(min=1e-300).sqrt(), 1.0))


def is_dense_chain(module: Module) -> bool:
    """Whether the module is dense layers one after the other, with nothing trainable between them."""
    nn = need_torch().nn
    if not isinstance(module, nn.Sequential):
        return False
    return all(type(layer) is nn.Linear or not list(layer.parameters()) for layer in module)


def _by_layers(module: Module, parameters: dict[str, Tensor], x: Tensor, signal: Tensor, most: Tensor) -> list[Tensor]:
    torch = need_torch()
    layers: Any = module
    out, inputs, outputs = x, {}, {}
    for i, layer in enumerate(layers):
        if type(layer) is torch.nn.Linear:
            weight = parameters.get(f"{i}.weight", layer.weight).detach()
            bias = parameters.get(f"{i}.bias", layer.bias)
            inputs[i] = out
            out = torch.nn.functional.linear(out, weight, None if bias is None else bias.detach())
            outputs[i] = out if out.requires_grad else out.requires_grad_()
        else:
            out = layer(out)
    deltas = dict(zip(outputs, torch.autograd.grad(out, list(outputs.values()), signal), strict=True))
    squares = torch.zeros(len(x), dtype=signal.dtype)
    for i, delta in deltas.items():
        own = (delta * delta).sum(1)
        if f"{i}.weight" in parameters:
            squares += own * (inputs[i].detach() ** 2).sum(1)
        if f"{i}.bias" in parameters:
            squares += own
    scale = _scale(squares, most)
    found = {}
    for i, delta in deltas.items():
        scaled = delta * scale[:, None]
        found[f"{i}.weight"] = scaled.T @ inputs[i].detach()
        found[f"{i}.bias"] = scaled.sum(0)
    return [found[name] for name in parameters]


def _by_rows(module: Module, parameters: dict[str, Tensor], x: Tensor, signal: Tensor, most: Tensor) -> list[Tensor]:
    torch = need_torch()
    held = {name: p.detach() for name, p in parameters.items()}

    def score(given: dict[str, Tensor], row: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(module, given, (row[None],))
        return (out[0] * weight).sum()

    each = torch.func.vmap(torch.func.grad(score), in_dims=(None, 0, 0), randomness="different")
    size = max(1, NUMBERS_PER_ROW_GRADIENTS // max(1, sum(p.numel() for p in held.values())))
    totals = [torch.zeros_like(p) for p in held.values()]
    for start in range(0, len(x), size):
        try:
            found = each(held, x[start : start + size], signal[start : start + size])
        except RuntimeError:
            raise TrainingError(
                "this module has no gradient per row (does it mix rows, as batch normalisation does?); "
                "replace such layers, for example by LayerNorm or GroupNorm"
            ) from None
        gradients = [found[name] for name in held]
        squares = sum((g.flatten(1) ** 2).sum(1) for g in gradients)
        scale = _scale(torch.as_tensor(squares), most[start : start + size])
        for total, gradient in zip(totals, gradients, strict=True):
            total += torch.tensordot(scale, gradient, dims=1)
    return totals
