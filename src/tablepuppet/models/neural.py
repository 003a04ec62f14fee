"""A torch module as a block's model: h = module(T), θ all its trainable parameters as one vector.

In: encoded rows, θ, a signal Y. Out: predictions, and Σ_k (∂h_k/∂θ)ᵀ Y_k by back-propagation: what
every algorithm needs. RowNumbers pass in chunks, so that memory does not grow with the table. A row that
an outer join did not find predicts 0, whatever the module's biases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import TransportError
from tablepuppet.models.ghost import clipped_sums
from tablepuppet.models.inputs import Inputs
from tablepuppet.models.modules import need_torch, torch_random
from tablepuppet.models.spec import ModelSpec
from tablepuppet.tables.features import Features

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_CHUNK = 1 << 15  # rows


@dataclass(eq=False)
class NeuralModel:
    """h = module(T)."""

    module: Module
    train: Inputs
    test: Inputs
    outputs: int
    exists: tuple[NDArray[np.bool_] | None, NDArray[np.bool_] | None]  # train and test rows; None: all
    stream: int  # where this part's random numbers begin

    @classmethod
    def of(
        cls,
        module: Module,
        spec: ModelSpec,
        train: Features,
        test: Features,
        outputs: int,
        *,
        missing: tuple[NDArray[np.bool_], NDArray[np.bool_]],
        stream: int,
    ) -> NeuralModel:
        exists = tuple(None if not m.any() else ~m for m in missing)
        return cls(
            module,
            Inputs.of(train, spec.dtype),
            Inputs.of(test, spec.dtype),
            outputs,
            (exists[0], exists[1]),
            stream,
        )

    def __post_init__(self) -> None:
        torch = need_torch()
        self._names = [name for name, p in self.module.named_parameters() if p.requires_grad]
        given = dict(self.module.named_parameters())
        self._shapes = [given[name].shape for name in self._names]
        self._sizes = [given[name].numel() for name in self._names]
        self._initial: Array = flat_parameters(self.module)
        first: Any = self.module[0] if isinstance(self.module, torch.nn.Sequential) and len(self.module) else None
        # A plain first layer can be applied to category codes without writing out their columns.
        self._is_direct = type(first) is torch.nn.Linear and not first._forward_hooks and bool(self.train.codes)
        self._is_random = self._draws()

    @property
    def width(self) -> int:
        """The number of parameters."""
        return len(self._initial)

    def initial(self) -> Array:
        return self._initial.copy()

    def predict(self, theta: Array, rows: RowNumbers | None = None, draw: int | None = None) -> Array:
        """h of some (or all) train rows; `draw` numbers a draw of dropout masks, None: none."""
        return self._predict(self.train, self.exists[0], theta, rows, draw)

    def predict_test(self, theta: Array) -> Array:
        return self._predict(self.test, self.exists[1], theta, None, None)

    def gradient(self, theta: Array, signal: Array, rows: RowNumbers | None = None, draw: int | None = None) -> Array:
        torch = need_torch()
        flat = self._flat(theta).requires_grad_()
        total = torch.zeros_like(flat)
        given = torch.tensor(np.asarray(signal, theta.dtype))
        with self._mode(draw):
            for place, chunk in self._chunks(self.train, rows):
                out = self._forward(self.train, self.exists[0], flat, chunk)
                total += torch.autograd.grad(out, flat, given[place])[0]
        return np.asarray(total.numpy())

    def clipped_gradient(
        self, theta: Array, signal: Array, clip: float, rows: RowNumbers | None = None, draw: int | None = None
    ) -> Array:
        """The same sum, each row's summand scaled down to a norm of at most `clip` (ghost.py)."""
        torch = need_torch()
        flat = self._flat(theta)
        pieces = zip(torch.split(flat, self._sizes), self._shapes, strict=True)
        parameters = {name: p.view(shape) for name, (p, shape) in zip(self._names, pieces, strict=True)}
        total = torch.zeros_like(flat)
        given = torch.tensor(np.asarray(signal, theta.dtype))
        with self._mode(draw):
            for place, chunk in self._chunks(self.train, rows):
                weighted = given[place]
                if self.exists[0] is not None:
                    weighted = weighted * torch.from_numpy(self.exists[0])[chunk][:, None]
                sums = clipped_sums(self.module, parameters, self.train.matrix(chunk), weighted, clip)
                total += torch.cat([s.reshape(-1) for s in sums])
        return np.asarray(total.numpy())

    def slope(self, theta: Array, signal: Array, quadratic: Array, rows: RowNumbers, draw: int | None) -> Array:
        """∂/∂θ of Σ_k [Y_kᵀ h_k + ½ q_k ‖h_k‖²] over a batch of rows: one pass forth, one back."""
        torch = need_torch()
        flat = self._flat(theta).requires_grad_()
        linear, weights = (torch.tensor(np.asarray(v, theta.dtype)) for v in (signal, quadratic))
        with self._mode(draw):
            out = self._forward(self.train, self.exists[0], flat, torch.from_numpy(rows.astype(np.int64)))
            back = torch.autograd.grad(out, flat, linear + weights[:, None] * out.detach())[0]
        return np.asarray(back.numpy())

    def _predict(
        self, inputs: Inputs, exists: NDArray[np.bool_] | None, theta: Array, rows: RowNumbers | None, draw: int | None
    ) -> Array:
        torch = need_torch()
        if len(theta) != self.width:
            raise TransportError(f"{len(theta)} parameters were sent for a module that has {self.width}")
        flat = self._flat(theta)
        out = np.zeros((len(inputs) if rows is None else len(rows), self.outputs), theta.dtype)
        with self._mode(draw), torch.no_grad():
            for place, chunk in self._chunks(inputs, rows):
                out[place] = self._forward(inputs, exists, flat, chunk).numpy()
        return out

    def _forward(self, inputs: Inputs, exists: NDArray[np.bool_] | None, flat: Tensor, rows: Any) -> Tensor:
        torch = need_torch()
        pieces = zip(torch.split(flat, self._sizes), self._shapes, strict=True)
        parameters = {name: p.view(shape) for name, (p, shape) in zip(self._names, pieces, strict=True)}
        call = torch.func.functional_call
        if self._is_direct:
            layers: Any = self.module
            first = layers[0]
            weight, bias = parameters.get("0.weight", first.weight), parameters.get("0.bias", first.bias)
            out = inputs.linear(rows, weight, bias)
            for i, layer in enumerate(layers[1:], start=1):
                held = {n.partition(".")[2]: p for n, p in parameters.items() if n.startswith(f"{i}.")}
                out = call(layer, held, (out,))
        else:
            out = call(self.module, parameters, (inputs.matrix(rows),))
        if exists is not None:
            out = out * torch.from_numpy(exists)[rows][:, None]
        return out

    def _flat(self, theta: Array) -> Tensor:
        flat: Tensor = need_torch().tensor(theta)  # a copy: θ from a message is read-only
        return flat

    def _chunks(self, inputs: Inputs, rows: RowNumbers | None) -> Iterator[tuple[slice, Any]]:
        """Where each chunk lies in the answer, and its rows."""
        count = len(inputs) if rows is None else len(rows)
        index = None if rows is None else need_torch().from_numpy(rows.astype(np.int64))
        for start in range(0, count, _CHUNK):
            place = slice(start, min(start + _CHUNK, count))
            yield place, place if index is None else index[place]

    def _mode(self, draw: int | None) -> Any:
        """Training or evaluation; the same number always draws the same masks."""
        self.module.train(draw is not None)
        if draw is None or not self._is_random:
            return nullcontext()
        return torch_random(int(np.random.SeedSequence((self.stream, draw)).generate_state(1, np.uint64)[0]))

    def _draws(self) -> bool:
        """Whether the module draws random numbers in training (dropout and its like)."""
        torch = need_torch()
        with torch_random(0), torch.no_grad():
            before = torch.get_rng_state()
            self.module.train()
            self.module(torch.zeros(2, self.train.width, dtype=self.train.dense.dtype))
            return not bool(torch.equal(before, torch.get_rng_state()))


def flat_parameters(module: Module) -> Array:
    """All trainable parameters, one after the other."""
    torch = need_torch()
    trained = [p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]
    return np.asarray(torch.cat(trained).numpy().copy())


def load_parameters(module: Module, theta: Array) -> None:
    """Writes θ back into the module's trainable parameters."""
    torch = need_torch()
    trained = [p for p in module.parameters() if p.requires_grad]
    flat = torch.tensor(theta)
    with torch.no_grad():
        for parameter, piece in zip(trained, torch.split(flat, [p.numel() for p in trained]), strict=True):
            parameter.copy_(piece.view_as(parameter))
