"""The network head: a torch module at the server over the blocks' outputs, side by side.

    score = u · module((h_1, …, h_M); w)                                 a module, or a perceptron
    score = u · (α Σ_i b_i + γ perceptron((v_1, …, v_M); w))             beside the sum of tables: h_i = (b_i, v_i)

`head="mlp"` is a perceptron, added to the sum if the user leaves its steps open. A user's own module takes (rows, Σ
k_i) to (rows, d_c). Its parameters w are one vector. It draws no random numbers and mixes no rows, so shards of joined
rows can pass one at a time.
"""

import copy
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import JobError, TrainingError
from tablepuppet.models.heads.base import HeadSpec, PullBack
from tablepuppet.models.modules import build_module, check_module, need_torch, one_torch_thread
from tablepuppet.models.neural import flat_parameters, trained_parameters
from tablepuppet.models.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_SEED = 1 << 20  # added to the job's: blocks take the seeds next to it
_BESIDE = 0.3  # γ: next to a sum the perceptron begins small


class NetworkHead:
    """u · module(h_1 … h_M; w)."""

    def __init__(self, spec: HeadSpec, module: "Module") -> None:
        self.spec, self.module = spec, module
        self._copies = threading.local()
        self._summed = spec.outputs if spec.sum_weight else 0  # outputs of each block that the perceptron does not see
        self._share = _BESIDE if spec.sum_weight else 1.0  # γ

    def __reduce__(self) -> tuple[Any, ...]:
        return NetworkHead, (self.spec, self.module)

    def initial(self) -> Array:
        return np.asarray(flat_parameters(self.module), np.float64)

    def spread(self, block: int) -> list[float]:
        return [0.0] * self._summed + [1.0] * (self.spec.widths[block] - self._summed)

    def combine(self, own: Array, h: Sequence[Array]) -> Array:
        torch = need_torch()
        with one_torch_thread(), torch.no_grad():
            return self._scores(self._load(own)(self._inputs(h)), h)

    def differentiate(self, own: Array, h: Sequence[Array]) -> tuple[Array, PullBack]:
        torch, unit, summed = need_torch(), self.spec.unit, self._summed
        with one_torch_thread(), torch.enable_grad():
            inputs, module = self._inputs(h).requires_grad_(), self._load(own)
            out = module(inputs)

        def pull_back(residual: Array) -> tuple[list[Array], Array]:
            given = torch.tensor(self._share * unit * residual, dtype=out.dtype)
            wanted = [inputs, *trained_parameters(module)]
            with one_torch_thread():
                found = torch.autograd.grad(out, wanted, given, allow_unused=True, materialize_grads=True)
            slope = torch.cat([g.reshape(-1) for g in found[1:]]).numpy().astype(np.float64)
            signals, start = [np.empty((len(residual), width)) for width in self.spec.widths], 0
            for signal in signals:
                signal[:, :summed] = self.spec.sum_weight * unit * residual if summed else 0.0
                end = start + signal.shape[1] - summed
                signal[:, summed:] = found[0][:, start:end].numpy()
                start = end
            return signals, slope

        return self._scores(out.detach(), h), pull_back

    def _inputs(self, h: Sequence[Array]) -> "Tensor":
        torch = need_torch()
        seen = [v[:, self._summed :] for v in h]
        inputs: Tensor = torch.from_numpy(np.concatenate(seen, axis=1, dtype=self.spec.dtype, casting="same_kind"))
        return inputs

    def _load(self, own: Array) -> "Module":
        """The module with these parameters: shards pass in threads, each has a copy of it."""
        torch = need_torch()
        if not hasattr(self._copies, "module"):
            self._copies.module = copy.deepcopy(self.module)
        module: Module = self._copies.module
        flat = torch.tensor(own, dtype=getattr(torch, self.spec.dtype))
        torch.nn.utils.vector_to_parameters(flat, trained_parameters(module))
        return module

    def _scores(self, out: "Tensor", h: Sequence[Array]) -> Array:
        scores = np.asarray(self._share * self.spec.unit * out.numpy().astype(np.float64))
        if not self.spec.sum_weight:
            return scores
        return scores + self.spec.unit * self.spec.sum_weight * sum(v[:, : self.spec.outputs] for v in h)


def network_head(spec: HeadSpec, seed: int, given: Any = None) -> NetworkHead:
    """The head with its initial values; `given`: the module of a head of the user's own, which is copied."""
    torch = need_torch()
    width = sum(spec.widths) - (spec.outputs * len(spec.widths) if spec.sum_weight else 0)
    if spec.kind == "mlp":
        layers = ModelSpec(kind="mlp", hidden=spec.hidden, activation=spec.activation, dtype=spec.dtype)
        return NetworkHead(spec, build_module(layers, width, spec.outputs, seed=seed + _SEED, name="head").eval())
    if not isinstance(given, torch.nn.Module):
        raise JobError(f"the head must be a torch.nn.Module, and is a {type(given).__name__}")
    module = copy.deepcopy(given).to(getattr(torch, spec.dtype))
    nn = torch.nn
    dropouts = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
    if any(isinstance(part, dropouts) and part.p > 0 for part in module.modules()):
        raise TrainingError("the head has a Dropout layer, and heads draw no random numbers; leave it out")
    check_module(module, (width, spec.outputs), "the head")
    return NetworkHead(spec, module)
