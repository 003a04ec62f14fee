"""Dense layers in a row, forth and back by hand: of a few hundred rows, autograd takes longer to arrange than compute.

In: some rows, for a module that is nothing but dense layers with ReLU, tanh or sigmoid between them. Out: its output;
from a signal Y of the same rows, Σ_k (∂out_k/∂θ)ᵀ Y_k as one vector. Products and sums are the operations that autograd
calls, so that the bits are the same (a test holds them to it). They write into memory that the next pass of as many
rows uses again, and what is moved or compared is left to NumPy: both take less time to begin. Whatever else a module
has, a dropout, a hook, a frozen layer, a weight that two layers share, leaves it to autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, RowNumbers
from tablepuppet.models.inputs import Inputs
from tablepuppet.models.modules import need_torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_WIDE = 8  # columns of a first layer per row that is looked up, up to which they are all put side by side first
_KEPT = 64  # sizes of passes whose memory is kept
_LARGE = 1 << 12  # rows of a pass whose memory is not


Layers = list[tuple["Tensor", "Tensor"]]  # weight and bias of each


class Both(NamedTuple):
    """The same memory for torch, which has it aligned as products want it, and for NumPy."""

    tensor: Tensor
    array: NDArray[Any]

    @classmethod
    def of(cls, tensor: Tensor) -> Both:
        return cls(tensor, tensor.numpy())


class _Bend(NamedTuple):
    """What lies between two layers, in place."""

    forth: Callable[[Both], object]
    back: Callable[[Both, Both], object]  # a signal, and what `forth` gave → the signal before it


class Pass:
    """What went forth through a chain, and can be gone back through until its memory is used again."""

    def __init__(self, layers: Layers, inputs: Inputs, rows: int) -> None:
        torch, dtype = need_torch(), inputs.dense.dtype

        def empty(*shape: int, of: Any = dtype) -> Both:
            return Both.of(torch.empty(*shape, dtype=of))

        self.number = 0  # of times that the memory was used
        self.inputs = inputs
        self.dense = empty(rows, inputs.dense.shape[1])
        self.codes = [empty(rows, of=torch.int64) for _ in inputs.codes]
        self.exists = None if inputs.exists is None else np.empty((rows, 1), np.bool_)
        self.outs = [empty(rows, len(bias)) for _, bias in layers]
        self.signals = [empty(rows, len(bias)) for _, bias in layers]
        self.turned = [signal.tensor.t() for signal in self.signals]
        moved: list[tuple[NDArray[Any], NDArray[Any]]] = [(inputs.dense.numpy(), self.dense.array)]
        moved += [(given.numpy(), place.array) for given, place in zip(inputs.codes, self.codes, strict=True)]
        if inputs.exists is not None and self.exists is not None:
            moved.append((inputs.exists.numpy(), self.exists))
        self._moved = moved

    def take(self, rows: RowNumbers | slice) -> None:
        """Other rows, as many."""
        self.number += 1
        for given, place in self._moved:
            if isinstance(rows, slice):
                place[...] = given[rows]
            else:
                given.take(rows, axis=0, out=place, mode="clip")

    @property
    def out(self) -> Array:
        """h/u of the rows."""
        return self.outs[-1].array


class DenseChain:
    """Layers in their order: weight and bias of each, and what lies between."""

    def __init__(self, layers: Layers, bend: _Bend | None) -> None:
        torch = need_torch()
        self._layers, self._bend = layers, bend
        self._turned = [weight.t() for weight, _ in layers]
        # Slopes of a weight come in memory of their own: a product that is written to another place has other bits.
        self._weights = [Both.of(torch.empty_like(weight)) for weight, _ in layers]
        sizes = [p.numel() for layer in layers for p in layer]
        self._slopes = Both.of(layers[0][0].new_empty(sum(sizes)))
        self._biases = list(torch.split(self._slopes.tensor, sizes))[1::2]
        borders = np.cumsum([0, *sizes])
        self._places = [
            self._slopes.array[start : start + weight.numel()].reshape(weight.shape)
            for start, (weight, _) in zip(borders[::2], layers, strict=False)
        ]
        self._passes: dict[tuple[int, int, bool], Pass] = {}
        self._first: _CodedLayer | None = None

    @classmethod
    def of(cls, module: Module) -> DenseChain | None:
        """The chain that a module is, over its own memory; None: it is something else."""
        nn, known = need_torch().nn, _bends()
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
        return cls([(m.weight.data, m.bias.data) for m in dense], known[kinds.pop()] if kinds else None)

    def forward(self, inputs: Inputs, rows: RowNumbers | slice) -> Pass:
        """A pass of some rows."""
        addmm, passed = need_torch().addmm, self._room(inputs, rows)
        passed.take(rows)
        if inputs.codes:
            self._coded(inputs).forward(passed)
        else:
            addmm(self._layers[0][1], passed.dense.tensor, self._turned[0], out=passed.outs[0].tensor)
        for number in range(1, len(self._layers)):
            before = passed.outs[number - 1]
            assert self._bend is not None
            self._bend.forth(before)
            addmm(self._layers[number][1], before.tensor, self._turned[number], out=passed.outs[number].tensor)
        if passed.exists is not None:
            np.multiply(passed.out, passed.exists, out=passed.out)
        return passed

    def backward(self, passed: Pass, signal: Array) -> Array:
        """All parameters' slopes, one after the other as the module has them; the next ones are written over them."""
        torch, last = need_torch(), len(self._layers) - 1
        given = passed.signals[last].array
        given[...] = signal
        if passed.exists is not None:
            np.multiply(given, passed.exists, out=given)
        for number in range(last, 0, -1):
            own, weight = passed.signals[number], self._weights[number]
            before, following = passed.outs[number - 1], passed.signals[number - 1]
            torch.sum(own.tensor, 0, out=self._biases[number])
            torch.mm(passed.turned[number], before.tensor, out=weight.tensor)
            self._places[number][...] = weight.array
            torch.mm(own.tensor, self._layers[number][0], out=following.tensor)
            assert self._bend is not None
            self._bend.back(following, before)
        torch.sum(passed.signals[0].tensor, 0, out=self._biases[0])
        if passed.codes:
            self._coded(passed.inputs).backward(passed)
        else:
            torch.mm(passed.turned[0], passed.dense.tensor, out=self._weights[0].tensor)
            self._places[0][...] = self._weights[0].array
        return self._slopes.array

    def _coded(self, inputs: Inputs) -> _CodedLayer:
        """The first layer, where rows have codes."""
        if self._first is None:
            self._first = _CodedLayer(inputs, *self._layers[0], self._places[0])
        return self._first

    def _room(self, inputs: Inputs, rows: RowNumbers | slice) -> Pass:
        """Memory for a pass of as many rows."""
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        key = (id(inputs), count, isinstance(rows, slice))
        found = self._passes.get(key)
        if found is not None:
            return found
        found = Pass(self._layers, inputs, count)
        if len(self._passes) == _KEPT:
            self._passes.clear()
        if count <= _LARGE:
            self._passes[key] = found
        return found


class _CodedLayer:
    """A first layer over numbers and codes, in memory of its own: codes pick columns of W and are never written out."""

    def __init__(self, inputs: Inputs, weight: Tensor, bias: Tensor, slope: Array) -> None:
        columns, size = inputs.dense_columns.numpy(), (len(weight), inputs.dense.shape[1])
        is_run = bool((np.diff(columns) == 1).all()) and len(columns) > 0
        self._columns = slice(int(columns[0]), int(columns[-1]) + 1) if is_run else columns  # of numbers
        self._weight, self._bias, self._slope = weight.numpy(), bias, slope
        self._of_numbers, self._slope_of_numbers = Both.of(weight.new_empty(size)), Both.of(weight.new_empty(size))
        self._turned = self._of_numbers.tensor.t()
        self._by_column = np.zeros((inputs.width + 1, len(weight)), self._weight.dtype)  # the last one is of no column
        self._sums = Both.of(weight.new_empty(inputs.width + 1, len(weight)))

    def forward(self, passed: Pass) -> None:
        """X Wᵀ + b."""
        out = passed.outs[0]
        self._of_numbers.array[...] = self._weight[:, self._columns]
        need_torch().addmm(self._bias, passed.dense.tensor, self._turned, out=out.tensor)
        width, columns = self._weight.shape[1], self._by_column
        if width <= _WIDE * len(out.array):
            columns[:-1] = self._weight.T
            for codes in passed.codes:
                np.add(out.array, columns.take(codes.array, axis=0), out=out.array)
            return
        for codes in passed.codes:
            picked = self._weight.T[np.minimum(codes.array, width - 1)]
            picked[codes.array == width] = 0.0
            np.add(out.array, picked, out=out.array)

    def backward(self, passed: Pass) -> None:
        """Σ_k Y_k x_kᵀ: by a product with numbers, by sums over each code's rows."""
        self._sums.array.fill(0.0)
        for codes in passed.codes:
            self._sums.tensor.index_add_(0, codes.tensor, passed.signals[0].tensor)
        self._slope[...] = self._sums.array[:-1].T
        need_torch().mm(passed.turned[0], passed.dense.tensor, out=self._slope_of_numbers.tensor)
        self._slope[:, self._columns] = self._slope_of_numbers.array


def _bends() -> dict[type, _Bend]:
    torch = need_torch()
    nn, aten = torch.nn, torch.ops.aten

    def forth(function: Callable[[Tensor], Tensor]) -> Callable[[Both], object]:
        return lambda out: function(out.tensor)

    def back(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Both, Both], object]:
        return lambda signal, out: signal.tensor.copy_(function(signal.tensor, out.tensor))

    return {
        nn.ReLU: _Bend(
            lambda out: np.maximum(out.array, 0.0, out=out.array),
            lambda signal, out: np.copyto(signal.array, 0.0, where=out.array <= 0.0),
        ),
        nn.Tanh: _Bend(forth(torch.tanh_), back(aten.tanh_backward)),
        nn.Sigmoid: _Bend(forth(torch.sigmoid_), back(aten.sigmoid_backward)),
    }
