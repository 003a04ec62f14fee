"""Dense layers in a row, forth and back by hand: of a few hundred rows, autograd takes longer to arrange than compute.

In: the input of a module that is nothing but dense layers with ReLU, tanh or sigmoid between them. Out: its output,
with what each layer was given; from that and a signal Y, Σ_k (∂out_k/∂θ)ᵀ Y_k as one vector. The operations are those
that autograd calls, so that the bits are the same (a test holds them to it). Whatever else a module has, a dropout, a
hook, a frozen layer, a weight that two layers share, leaves it to autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tablepuppet.models.modules import need_torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True, eq=False)
class DenseChain:
    """Layers in their order: weight and bias of each, and what follows it."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    bend: Callable[[Tensor], Tensor] | None  # between two layers
    unbend: Callable[[Tensor, Tensor], Tensor] | None  # a signal and what bend gave → the signal before it

    @classmethod
    def of(cls, module: Module) -> DenseChain | None:
        """The chain that a module is; None: it is something else."""
        torch = need_torch()
        nn, aten = torch.nn, torch.ops.aten
        known: dict[type, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
            nn.ReLU: (torch.relu, lambda signal, out: aten.threshold_backward(signal, out, 0)),
            nn.Tanh: (torch.tanh, aten.tanh_backward),
            nn.Sigmoid: (torch.sigmoid, aten.sigmoid_backward),
        }
        every: list[Any] = list(module._modules.values()) if type(module) is nn.Sequential else []
        if not every or any(getattr(m, hooks) for m in (module, *every) for hooks in _HOOKS):
            return None
        dense, between = every[::2], every[1::2]
        kinds = {type(m) for m in between}
        if len(every) % 2 == 0 or any(type(m) is not nn.Linear or m.bias is None for m in dense):
            return None
        if len(kinds) > 1 or not kinds <= set(known) or any(getattr(m, "inplace", False) for m in between):
            return None
        own = [p for m in dense for p in (m.weight, m.bias)]
        if len({id(p) for p in own}) < len(own) or not all(p.requires_grad for p in own):
            return None
        bend, unbend = known[kinds.pop()] if kinds else (None, None)
        return cls(tuple((m.weight, m.bias) for m in dense), bend, unbend)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output, and what each layer was given."""
        linear, given = need_torch().nn.functional.linear, [x]
        for number, (weight, bias) in enumerate(self.layers):
            if number:
                assert self.bend is not None
                x = self.bend(x)
                given.append(x)
            x = linear(x, weight, bias)
        return x, given

    def backward(self, given: list[Tensor], signal: Tensor) -> Tensor:
        """All parameters' slopes, one after the other as the module has them."""
        found: list[Tensor] = []
        for number in reversed(range(len(self.layers))):
            weight, before = self.layers[number][0], given[number]
            found += [signal.sum(0), signal.t().mm(before).reshape(-1)]
            if number:
                assert self.unbend is not None
                signal = self.unbend(signal.mm(weight), before)
        whole: Tensor = need_torch().cat(found[::-1])
        return whole
