"""A torch module as a block's model: h = u · module(T; θ/u), θ/u all its trainable parameters as one vector.

In: encoded rows, θ, a signal Y. Out: predictions, and Σ_k (∂h_k/∂θ)ᵀ Y_k by back-propagation, for every algorithm. Rows
pass in chunks, so that memory does not grow with the table. A row that an outer join did not find predicts 0, whatever
the module's biases. The unit u is the label's (ModelSpec.unit): h, θ and gradients are in it, as those of a linear
model are. The module itself works on numbers near 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import ROWS_PER_NETWORK_PASS, Array, RowNumbers, pieces
from tablepuppet.errors import TransportError
from tablepuppet.models.linear import Features, LinearModel
from tablepuppet.models.modules import clipped_sums, need_torch, one_torch_thread, torch_random
from tablepuppet.models.spec import ModelSpec
from tablepuppet.privacy.gaussian import GradientPrivacy

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter


class Inputs(msgspec.Struct, frozen=True, eq=False):
    """The encoded rows of one side (train or test) of a part, whole or one first layer at a time. Codes pick columns of
    the layer's weights, so wide one-hot columns are never written out."""

    dense: Tensor  # (n, p)
    dense_columns: Tensor
    codes: tuple[Tensor, ...]  # of each string column, the column of X that is 1; that behind the last: none
    width: int
    exists: Tensor | None = None  # (n, 1): whether an outer join found the row; None: all

    @classmethod
    def of(cls, features: Features, dtype: str, missing: NDArray[np.bool_] | None = None) -> Inputs:
        """`missing`: rows that an outer join did not find."""
        torch = need_torch()
        codes = [
            np.where(given < 0, features.width, given.astype(np.int64) + columns.start)
            for given, columns in zip(features.codes, features.code_columns, strict=True)
        ]
        return cls(
            torch.from_numpy(np.ascontiguousarray(features.dense, dtype=dtype)),
            torch.from_numpy(features.dense_columns.astype(np.int64)),
            tuple(torch.from_numpy(found) for found in codes),
            features.width,
            None if missing is None or not missing.any() else torch.from_numpy(~missing)[:, None],
        )

    def __len__(self) -> int:
        return len(self.dense)

    def matrix(self, rows: Any) -> Tensor:
        """X of some rows (an index tensor or a slice)."""
        dense = self.dense[rows]
        if not self.codes:
            return dense
        out = dense.new_zeros(len(dense), self.width + 1)
        out[:, self.dense_columns] = dense
        one = dense.new_ones(()).expand(len(dense), 1)
        for codes in self.codes:
            out.scatter_(1, codes[rows][:, None], one)
        return out[:, : self.width].contiguous()

    def linear(self, rows: Any, weight: Tensor, bias: Tensor | None) -> Tensor:
        """X Wᵀ + b of some rows, to be differentiated by W and b."""
        F = need_torch().nn.functional
        out: Tensor = F.linear(self.dense[rows], weight[:, self.dense_columns], bias)
        picked = F.pad(weight, (0, 1)).t() if self.codes else weight
        for codes in self.codes:
            out = out + F.embedding(codes[rows], picked)
        return out


@dataclass(eq=False)
class NeuralModel:
    """h = u · module(T; θ/u)."""

    module: Module
    train: Inputs
    test: Inputs
    outputs: int
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
        sides = [Inputs.of(f, spec.dtype, m) for f, m in zip((train, test), missing, strict=True)]
        return cls(module, sides[0], sides[1], outputs, stream, spec.unit)

    def __post_init__(self) -> None:
        torch = need_torch()
        self._trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self._initial: Array = self.unit * flat_parameters(self.module)
        # The module's parameters lie one after the other in one array, so that a step writes θ/u there and no more.
        # It is torch's own: memory that is aligned otherwise changes the last bits of products.
        own = torch.tensor(self._initial)
        self._own: Array = own.numpy()
        self._slopes = torch.zeros_like(own)
        sizes = [p.numel() for p in self._trained.values()]
        places = zip(torch.split(own, sizes), torch.split(self._slopes, sizes), strict=True)
        for parameter, (piece, slope) in zip(self._trained.values(), places, strict=True):
            parameter.data = piece.view(parameter.shape)
            parameter.grad = slope.view(parameter.shape)
        self._load(self._initial)
        self._is_random = self._draws()
        self._is_direct = bool(self.train.codes) and self._has_plain_first_layer()
        self._has_buffers = any(True for _ in self.module.buffers())  # which a pass may change: it is not left out
        # The last pass of a batch: at which θ, of which rows, with which draw.
        self._kept: tuple[Array, RowNumbers | None, int, Tensor] | None = None

    @property
    def width(self) -> int:
        return len(self._initial)

    def initial(self) -> Array:
        return self._initial.copy()

    def predict(self, theta: Array, rows: RowNumbers | None = None, draw: int | None = None) -> Array:
        """As of a linear model; the pass of a batch is kept, because its gradient is asked for next."""
        count = len(self.train) if rows is None else len(rows)
        if draw is None or self._has_buffers or not 0 < count <= ROWS_PER_NETWORK_PASS:
            return self._predict(self.train, theta, rows, draw)
        self._check_size(theta)
        self._load(theta)
        with self._mode(draw):
            passed = self._pass(self.train, slice(0, count) if rows is None else rows)
        self._kept = theta, rows, draw, passed
        return self._scale(passed)

    def predict_test(self, theta: Array) -> Array:
        return self._predict(self.test, theta, None, None)

    def gradient(self, theta: Array, signal: Array, rows: RowNumbers | None = None, draw: int | None = None) -> Array:
        self._load(theta)
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] is theta and kept[1] is rows and kept[2] == draw:
            with one_torch_thread():
                return self._backward(kept[3], signal)
        total = np.zeros_like(theta)
        with self._mode(draw):
            for place, chunk in self._chunks(self.train, rows):
                total += self._backward(self._pass(self.train, chunk), signal[place])
        return total

    def clipped_gradient(
        self, theta: Array, signal: Array, privacy: GradientPrivacy, rows: RowNumbers | None, draw: int | None
    ) -> Array:
        torch = need_torch()
        self._load(theta)
        parameters = {name: p.detach() for name, p in self._trained.items()}
        total = torch.zeros(self.width, dtype=self.train.dense.dtype)
        given = torch.tensor(np.asarray(signal, theta.dtype))
        with self._mode(draw):
            for place, chunk in self._chunks(self.train, rows):
                chosen = chunk if isinstance(chunk, slice) else torch.from_numpy(chunk.astype(np.int64, copy=False))
                weighted = given[place]
                if self.train.exists is not None:
                    weighted = weighted * self.train.exists[chosen]
                sums = clipped_sums(self.module, parameters, self.train.matrix(chosen), weighted, privacy)
                total += torch.cat([s.reshape(-1) for s in sums])
        return np.asarray(total.numpy())

    def slope(self, theta: Array, signal: Array, quadratic: Array, rows: RowNumbers, draw: int | None) -> Array:
        """∂/∂θ of Σ_k [Y_kᵀ h_k + ½ q_k ‖h_k‖²] over a batch of rows: one pass forth, one back."""
        self._load(theta)
        with self._mode(draw):
            passed = self._pass(self.train, rows)
            return self._backward(passed, signal + quadratic[:, None] * self._scale(passed))

    def _predict(self, inputs: Inputs, theta: Array, rows: RowNumbers | None, draw: int | None) -> Array:
        self._check_size(theta)
        self._load(theta)
        out = np.zeros((len(inputs) if rows is None else len(rows), self.outputs), theta.dtype)
        with self._mode(draw), need_torch().no_grad():
            for place, chunk in self._chunks(inputs, rows):
                out[place] = self._scale(self._pass(inputs, chunk))
        return out

    def _check_size(self, theta: Array) -> None:
        if len(theta) != self.width:
            raise TransportError(f"{len(theta)} parameters were sent for a module that has {self.width}")

    def _pass(self, inputs: Inputs, rows: RowNumbers | slice) -> Tensor:
        """module(T; θ/u) = h/u of some rows at the parameters that were loaded last, to be gone back through."""
        chosen = rows if isinstance(rows, slice) else need_torch().from_numpy(rows.astype(np.int64, copy=False))
        out: Tensor
        if self._is_direct:
            layers: Any = self.module
            out = inputs.linear(chosen, layers[0].weight, layers[0].bias)
            for layer in layers[1:]:
                out = layer(out)
        else:
            out = self.module(inputs.matrix(chosen))
        return out if inputs.exists is None else out * inputs.exists[chosen]

    def _scale(self, passed: Tensor) -> Array:
        return np.asarray(self.unit * passed.detach().numpy())

    def _backward(self, passed: Tensor, signal: Array) -> Array:
        """Σ_k (∂h_k/∂θ)ᵀ Y_k of train rows: the unit of h and that of θ cancel."""
        self._slopes.zero_()
        torch = need_torch()
        torch.autograd.backward(passed, torch.tensor(np.asarray(signal, self._own.dtype)))
        return np.asarray(self._slopes.numpy().copy())

    def _load(self, theta: Array) -> None:
        np.divide(theta, self.unit, out=self._own, casting="same_kind")

    def _chunks(self, inputs: Inputs, rows: RowNumbers | None) -> Iterator[tuple[slice, RowNumbers | slice]]:
        """Where each chunk lies in the answer, and its rows."""
        count = len(inputs) if rows is None else len(rows)
        for place in pieces(count, ROWS_PER_NETWORK_PASS):
            yield place, place if rows is None else rows[place]

    @contextmanager
    def _mode(self, draw: int | None) -> Iterator[None]:
        """Training or evaluation, in one thread; the same number always draws the same masks."""
        if self.module.training != (draw is not None):
            self.module.train(draw is not None)
        with one_torch_thread(), ExitStack() as random:
            if draw is not None and self._is_random:
                seed = np.random.SeedSequence((self.stream, draw)).generate_state(1, np.uint64)[0]
                random.enter_context(torch_random(int(seed)))
            yield

    def _draws(self) -> bool:
        """Whether the module draws random numbers in training (dropout and its like)."""
        torch = need_torch()
        with torch_random(0), torch.no_grad():
            before = torch.get_rng_state()
            self.module.train()
            self.module(torch.zeros(2, self.train.width, dtype=self.train.dense.dtype))
            return not bool(torch.equal(before, torch.get_rng_state()))

    def _has_plain_first_layer(self) -> bool:
        """Whether the module begins with a dense layer: codes pick its columns, which are never written out.

        A hook may change a layer's output, so the module is compared with its layers on two rows.
        """
        torch, layers = need_torch(), cast("Any", self.module)
        if not isinstance(self.module, torch.nn.Sequential) or not layers or type(layers[0]) is not torch.nn.Linear:
            return False
        x = torch.linspace(-1.0, 1.0, 2 * self.train.width, dtype=self.train.dense.dtype).view(2, -1)
        with torch.no_grad():
            out = torch.nn.functional.linear(x, layers[0].weight, layers[0].bias)
            self.module.eval()
            for layer in layers[1:]:
                out = layer(out)
            return bool(torch.allclose(self.module(x), out))


Model = LinearModel | NeuralModel


def flat_parameters(module: Module) -> Array:
    flat = need_torch().nn.utils.parameters_to_vector(trained_parameters(module))
    return np.asarray(flat.detach().numpy().copy())


def trained_parameters(module: Module) -> list[Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def trained_module(module: Module, spec: ModelSpec, theta: Array, outputs: int) -> Module:
    """u · module(T; θ/u) as a module of its own: a dense last layer takes u in, others are followed by one."""
    torch = need_torch()
    torch.nn.utils.vector_to_parameters(torch.tensor(theta) / spec.unit, trained_parameters(module))
    with torch.no_grad():
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
