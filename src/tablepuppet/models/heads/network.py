"""The network head: a torch module at the server over the blocks' outputs, side by side.

    score = u · module((h_1, …, h_M); w)

`head="mlp"` is a perceptron; a module of the user's own takes (rows, Σ k_i) to (rows, d_c). Its parameters w are one
vector, and it draws no random numbers and mixes no rows, so that shards of joined rows may pass one at a time.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import JobError, TrainingError
from tablepuppet.models.heads.base import HeadSpec, PullBack
from tablepuppet.models.modules import build_module, need_torch, one_torch_thread
from tablepuppet.models.neural import flat_parameters
from tablepuppet.models.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_SEED = 1 << 20  # added to the job's: blocks take the seeds next to it


@dataclass(frozen=True, eq=False)
class NetworkHead:
    """u · module(h_1 … h_M; w)."""

    spec: HeadSpec
    module: Module
    _shapes: dict[str, Any] = field(init=False)  # of the parameters that are trained
    _copies: threading.local = field(init=False)

    def __post_init__(self) -> None:
        shapes = {name: p.shape for name, p in self.module.named_parameters() if p.requires_grad}
        object.__setattr__(self, "_shapes", shapes)
        object.__setattr__(self, "_copies", threading.local())

    def __reduce__(self) -> tuple[Any, ...]:
        return NetworkHead, (self.spec, self.module)

    def initial(self) -> Array:
        return np.asarray(flat_parameters(self.module), np.float64)

    def spread(self, block: int) -> list[float]:
        return [1.0] * self.spec.widths[block]

    def combine(self, own: Array, h: Sequence[Array]) -> Array:
        torch = need_torch()
        with one_torch_thread(), torch.no_grad():
            return self._scores(self._call(self._split(own), self._inputs(h)))

    def differentiate(self, own: Array, h: Sequence[Array]) -> tuple[Array, PullBack]:
        torch = need_torch()
        with one_torch_thread(), torch.enable_grad():
            inputs = self._inputs(h).requires_grad_()
            parameters = {name: p.requires_grad_() for name, p in self._split(own).items()}
            out = self._call(parameters, inputs)

        def pull_back(residual: Array) -> tuple[list[Array], Array]:
            given = torch.tensor(self.spec.unit * residual, dtype=out.dtype)
            wanted = [inputs, *parameters.values()]
            with one_torch_thread():
                found = torch.autograd.grad(out, wanted, given, allow_unused=True, materialize_grads=True)
            slope = torch.cat([g.reshape(-1) for g in found[1:]]).numpy().astype(np.float64)
            borders = np.cumsum(self.spec.widths)[:-1]
            signals = np.split(found[0].numpy().astype(np.float64), borders, axis=1)
            return [np.ascontiguousarray(s) for s in signals], slope

        return self._scores(out.detach()), pull_back

    def _inputs(self, h: Sequence[Array]) -> Tensor:
        torch = need_torch()
        inputs: Tensor = torch.tensor(np.concatenate(h, axis=1), dtype=getattr(torch, self.spec.dtype))
        return inputs

    def _split(self, own: Array) -> dict[str, Tensor]:
        """The vector as the module's parameters."""
        torch = need_torch()
        flat = torch.tensor(own, dtype=getattr(torch, self.spec.dtype))
        pieces = torch.split(flat, [shape.numel() for shape in self._shapes.values()])
        return {n: piece.view(shape).detach() for (n, shape), piece in zip(self._shapes.items(), pieces, strict=True)}

    def _call(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """A call puts the parameters into the module for a while: shards pass in threads, each has a copy of it."""
        if not hasattr(self._copies, "module"):
            self._copies.module = copy.deepcopy(self.module)
        out: Tensor = need_torch().func.functional_call(self._copies.module, parameters, (inputs,))
        return out

    def _scores(self, out: Tensor) -> Array:
        return np.asarray(self.spec.unit * out.numpy().astype(np.float64))


def network_head(spec: HeadSpec, seed: int, given: Any = None) -> NetworkHead:
    """The head with its initial values; `given`: the module of a head of the user's own, which is copied."""
    torch = need_torch()
    width = sum(spec.widths)
    if spec.kind == "mlp":
        layers = ModelSpec(kind="mlp", hidden=spec.hidden, activation=spec.activation, dtype=spec.dtype)
        return NetworkHead(spec, build_module(layers, width, spec.outputs, seed=seed + _SEED, name="head").eval())
    if not isinstance(given, torch.nn.Module):
        raise JobError(f"the head must be a torch.nn.Module, and is a {type(given).__name__}")
    module = copy.deepcopy(given).to(getattr(torch, spec.dtype))
    _check(module, width, spec)
    return NetworkHead(spec, module.eval())


def _check(module: Module, width: int, spec: HeadSpec) -> None:
    """No chance, no mixing of rows, and the shapes that are needed."""
    torch = need_torch()
    norms = torch.nn.modules.batchnorm._NormBase
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.p > 0:
            raise TrainingError("the head has a Dropout layer, and heads draw no random numbers; leave it out")
        if isinstance(part, norms) and part.track_running_stats:
            raise TrainingError(f"the head has a {type(part).__name__}, which mixes rows; use LayerNorm or GroupNorm")
    if not any(p.requires_grad for p in module.parameters()):
        raise TrainingError("the head has no parameter to train")
    expected = f"it must take 2 rows of {width} numbers to shape (2, {spec.outputs})"
    try:
        with torch.no_grad():
            shape = tuple(module(torch.zeros(2, width, dtype=getattr(torch, spec.dtype))).shape)
    except Exception as error:  # the user's own code
        raise TrainingError(f"the head fails: {type(error).__name__}: {error}; {expected}") from error
    if shape != (2, spec.outputs):
        raise TrainingError(f"the head gives shape {shape}; {expected}")
