"""A torch module as a block's model: h = u · module(T; θ/u), θ/u all its trainable parameters as one vector.

In: encoded rows, θ, a signal Y. Out: predictions, and Σ_k (∂h_k/∂θ)ᵀ Y_k by back-propagation: what
every algorithm needs. Rows pass in chunks, so that memory does not grow with the table. A row that
an outer join did not find predicts 0, whatever the module's biases. The unit u is the label's (ModelSpec.unit): h, θ
and gradients are in it, as those of a linear model are, while the module itself works on numbers near 1.

Encoded rows become torch input whole or one first layer at a time: W x + b picks columns of W by code, so that wide
one-hot columns are never written out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.errors import TransportError
from tablepuppet.models.dense_chain import DenseChain
from tablepuppet.models.features import Features
from tablepuppet.models.ghost_clipping import clipped_sums
from tablepuppet.models.modules import need_torch, one_torch_thread, torch_random
from tablepuppet.models.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The rows of one side (train or test) of a part."""

    dense: Tensor  # (n, p)
    dense_columns: Tensor
    codes: tuple[Tensor, ...]  # the zero vector has the code behind the last category
    code_columns: tuple[slice, ...]
    width: int

    @classmethod
    def of(cls, features: Features, dtype: str) -> Inputs:
        torch = need_torch()
        codes = []
        for given, columns in zip(features.codes, features.code_columns, strict=True):
            size = columns.stop - columns.start
            codes.append(torch.from_numpy(np.where(given < 0, size, given).astype(np.int64)))
        return cls(
            torch.from_numpy(np.ascontiguousarray(features.dense, dtype=dtype)),
            torch.from_numpy(features.dense_columns.astype(np.int64)),
            tuple(codes),
            features.code_columns,
            features.width,
        )

    def __len__(self) -> int:
        return len(self.dense)

    def matrix(self, rows: Any) -> Tensor:
        """X of some rows (an index tensor or a slice)."""
        dense = self.dense[rows]
        if not self.codes:
            return dense
        out = dense.new_zeros(len(dense), self.width)
        out[:, self.dense_columns] = dense
        one = dense.new_ones(())
        for codes, columns in zip(self.codes, self.code_columns, strict=True):
            size = columns.stop - columns.start
            wide = dense.new_zeros(len(dense), size + 1)
            wide.scatter_(1, codes[rows][:, None], one.expand(len(dense), 1))
            out[:, columns] = wide[:, :size]
        return out

    def linear(self, rows: Any, weight: Tensor, bias: Tensor | None) -> Tensor:
        """X Wᵀ + b of some rows."""
        F = need_torch().nn.functional
        out: Tensor = F.linear(self.dense[rows], weight[:, self.dense_columns], bias)
        for codes, columns in zip(self.codes, self.code_columns, strict=True):
            picked = F.pad(weight[:, columns], (0, 1)).t()
            out = out + F.embedding(codes[rows], picked)
        return out


_CHUNK = 1 << 15  # rows


class Passed(NamedTuple):
    """What went forth through a module, and can be gone back through."""

    out: Tensor
    given: list[Tensor] | None  # to each layer of a chain; None: autograd knows


@dataclass(eq=False)
class NeuralModel:
    """h = u · module(T; θ/u)."""

    module: Module
    train: Inputs
    test: Inputs
    outputs: int
    exists: tuple[NDArray[np.bool_] | None, NDArray[np.bool_] | None]  # train and test rows; None: all
    stream: int  # where this part's random numbers begin
    unit: float = 1.0  # u

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
            spec.unit,
        )

    def __post_init__(self) -> None:
        torch = need_torch()
        self._trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self._initial: Array = self.unit * flat_parameters(self.module)
        # The module's parameters lie one after the other in one array, so that a step writes θ/u there and no more.
        # It is torch's own: memory that is aligned otherwise changes the last bits of products.
        own = torch.tensor(self._initial)
        self._own: Array = own.numpy()
        pieces = torch.split(own, [p.numel() for p in self._trained.values()])
        for parameter, piece in zip(self._trained.values(), pieces, strict=True):
            parameter.data = piece.view(parameter.shape)
        self._load(self._initial)
        first: Any = self.module[0] if isinstance(self.module, torch.nn.Sequential) and len(self.module) else None
        # A plain first layer can be applied to category codes without writing out their columns.
        self._is_direct = type(first) is torch.nn.Linear and not first._forward_hooks and bool(self.train.codes)
        self._is_random = self._draws()
        self._has_buffers = any(True for _ in self.module.buffers())  # which a pass may change: it is not left out
        self._passed: tuple[Array, RowNumbers, int, Passed] | None = None  # θ, rows and draw of the last batch
        is_plain = self.exists[0] is None and not self.train.codes
        self._chain = DenseChain.of(self.module) if is_plain else None

    @property
    def width(self) -> int:
        """The number of parameters."""
        return len(self._initial)

    def initial(self) -> Array:
        return self._initial.copy()

    def predict(self, theta: Array, rows: RowNumbers | None = None, draw: int | None = None) -> Array:
        """h of some (or all) train rows; `draw` numbers a draw of dropout masks, None: none.

        Of a batch, the pass is kept: its gradient is what is asked for next.
        """
        if rows is None or draw is None or self._has_buffers or not 0 < len(rows) <= _CHUNK:
            return self._predict(self.train, self.exists[0], theta, rows, draw)
        self._check_size(theta)
        self._load(theta)
        with self._mode(draw):
            passed = self._pass(need_torch().from_numpy(rows.astype(np.int64)))
        self._passed = (theta, rows, draw, passed)
        return np.asarray(self.unit * passed.out.detach().numpy())

    def predict_test(self, theta: Array) -> Array:
        return self._predict(self.test, self.exists[1], theta, None, None)

    def gradient(self, theta: Array, signal: Array, rows: RowNumbers | None = None, draw: int | None = None) -> Array:
        self._load(theta)
        total = np.zeros_like(theta)
        given = need_torch().tensor(np.asarray(signal, theta.dtype))
        passed, self._passed = self._passed, None
        if passed is not None and passed[0] is theta and passed[1] is rows and passed[2] == draw:
            with one_torch_thread():
                return total + self._backward(passed[3], given)
        with self._mode(draw):
            for place, chunk in self._chunks(self.train, rows):
                total += self._backward(self._pass(chunk), given[place])
        return total

    def clipped_gradient(
        self,
        theta: Array,
        signal: Array,
        clip: float,
        rows: RowNumbers | None = None,
        draw: int | None = None,
        reach: float = inf,
    ) -> Array:
        """The same sum, each row's summand scaled to a norm of at most `clip` and `reach`·‖Y_k‖ (ghost_clipping.py)."""
        torch = need_torch()
        self._load(theta)
        parameters = {name: p.detach() for name, p in self._trained.items()}
        total = torch.zeros(self.width, dtype=self.train.dense.dtype)
        given = torch.tensor(np.asarray(signal, theta.dtype))
        with self._mode(draw):
            for place, chunk in self._chunks(self.train, rows):
                weighted = given[place]
                if self.exists[0] is not None:
                    weighted = weighted * torch.from_numpy(self.exists[0])[chunk][:, None]
                sums = clipped_sums(self.module, parameters, self.train.matrix(chunk), weighted, clip, reach)
                total += torch.cat([s.reshape(-1) for s in sums])
        return np.asarray(total.numpy())

    def slope(self, theta: Array, signal: Array, quadratic: Array, rows: RowNumbers, draw: int | None) -> Array:
        """∂/∂θ of Σ_k [Y_kᵀ h_k + ½ q_k ‖h_k‖²] over a batch of rows: one pass forth, one back."""
        torch = need_torch()
        self._load(theta)
        with self._mode(draw):
            passed = self._pass(torch.from_numpy(rows.astype(np.int64)))
            h = self.unit * passed.out.detach().numpy()
            pull = np.asarray(signal + quadratic[:, None] * h, theta.dtype)
            return self._backward(passed, torch.tensor(pull))

    def _predict(
        self, inputs: Inputs, exists: NDArray[np.bool_] | None, theta: Array, rows: RowNumbers | None, draw: int | None
    ) -> Array:
        torch = need_torch()
        self._check_size(theta)
        self._load(theta)
        out = np.zeros((len(inputs) if rows is None else len(rows), self.outputs), theta.dtype)
        with self._mode(draw), torch.no_grad():
            for place, chunk in self._chunks(inputs, rows):
                out[place] = self._forward(inputs, exists, chunk).numpy()
        return out if self.unit == 1.0 else self.unit * out

    def _check_size(self, theta: Array) -> None:
        if len(theta) != self.width:
            raise TransportError(f"{len(theta)} parameters were sent for a module that has {self.width}")

    def _forward(self, inputs: Inputs, exists: NDArray[np.bool_] | None, rows: Any) -> Tensor:
        """module(T; θ/u) = h/u at the parameters that were loaded last."""
        out: Tensor
        if self._is_direct:
            layers: Any = self.module
            out = inputs.linear(rows, layers[0].weight, layers[0].bias)
            for layer in layers[1:]:
                out = layer(out)
        else:
            out = self.module(inputs.matrix(rows))
        if exists is not None:
            out = out * need_torch().from_numpy(exists)[rows][:, None]
        return out

    def _pass(self, rows: Any) -> Passed:
        """h/u of some train rows, to be gone back through."""
        if self._chain is None:
            return Passed(self._forward(self.train, self.exists[0], rows), None)
        with need_torch().no_grad():
            return Passed(*self._chain.forward(self.train.dense[rows]))

    def _backward(self, passed: Passed, signal: Tensor) -> Array:
        """Σ_k (∂h_k/∂θ)ᵀ Y_k: the unit of h and that of θ cancel."""
        torch = need_torch()
        if passed.given is not None:
            assert self._chain is not None
            with torch.no_grad():
                return np.asarray(self._chain.backward(passed.given, signal).numpy())
        out = passed.out
        trained = list(self._trained.values())
        found = torch.autograd.grad(out, trained, signal, allow_unused=True, materialize_grads=True)
        return np.asarray(torch.cat([g.reshape(-1) for g in found]).numpy())

    def _load(self, theta: Array) -> None:
        np.divide(theta, self.unit, out=self._own, casting="same_kind")

    def _chunks(self, inputs: Inputs, rows: RowNumbers | None) -> Iterator[tuple[slice, Any]]:
        """Where each chunk lies in the answer, and its rows."""
        count = len(inputs) if rows is None else len(rows)
        index = None if rows is None else need_torch().from_numpy(rows.astype(np.int64))
        for start in range(0, count, _CHUNK):
            place = slice(start, min(start + _CHUNK, count))
            yield place, place if index is None else index[place]

    @contextmanager
    def _mode(self, draw: int | None) -> Iterator[None]:
        """Training or evaluation, in one thread; the same number always draws the same masks."""
        with one_torch_thread(), self._random(draw):
            yield

    def _random(self, draw: int | None) -> AbstractContextManager[None]:
        if self.module.training != (draw is not None):
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


def trained_module(module: Module, spec: ModelSpec, theta: Array, outputs: int) -> Module:
    """u · module(T; θ/u) as a module of its own: a dense last layer takes u in, others are followed by one."""
    torch = need_torch()
    trained = [p for p in module.parameters() if p.requires_grad]
    flat = torch.tensor(theta) / spec.unit
    with torch.no_grad():
        for parameter, piece in zip(trained, torch.split(flat, [p.numel() for p in trained]), strict=True):
            parameter.copy_(piece.view_as(parameter))
        if spec.unit == 1.0:
            return module
        layers: Any = module
        last: Any = layers[-1] if isinstance(module, torch.nn.Sequential) else module
        every = [id(p) for _, p in module.named_parameters(remove_duplicate=False)]
        if type(last) is torch.nn.Linear and all(every.count(id(p)) == 1 for p in last.parameters()):
            for parameter in last.parameters():
                parameter *= spec.unit
            return module
        scale = torch.nn.Linear(outputs, outputs, bias=False, dtype=getattr(torch, spec.dtype))
        scale.weight.copy_(spec.unit * torch.eye(outputs))
        whole: Module = torch.nn.Sequential(module, scale)
        return whole
