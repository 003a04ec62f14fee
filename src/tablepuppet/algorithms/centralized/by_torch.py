"""Networks and heads on the materialised join: one torch model, trained by torch itself.

In: every table's encoded rows, the row of each table in every joined row, and labels. Out: each block's parameters, the
head's and the intercept. The objective, the initial values, the batches and their order are those of federated
training. So the same steps give the same model, to rounding. Nothing else is shared with it. The optimiser is Adam
under a cosine schedule. Everything is in the label's unit u: the objective is divided by u², and the intercept by u.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algorithms.pooled import Fitted, Pooled, PooledBlock
from tablepuppet.arrays import Array
from tablepuppet.models.heads.network import BESIDE, NetworkHead
from tablepuppet.models.linear import LinearModel
from tablepuppet.models.modules import build_module, need_torch
from tablepuppet.models.neural import Inputs

if TYPE_CHECKING:
    from torch import Tensor

# Learning rates where none is given, as federated training has them.
_HEADED, _HEADED_NETWORKS, _SUMMED = 0.02, 0.01, 0.03


def train(pooled: Pooled, learning_rate: float | None) -> Fitted:
    """The model after so many epochs."""
    torch = need_torch()
    blocks = [_block(pooled, number) for number in range(len(pooled.blocks))]
    head = _Sum()
    if isinstance(pooled.head, NetworkHead):
        head = _Network(pooled.head)
    elif pooled.head is not None:
        head = _Factors(pooled.head.spec.outputs)
    shift = torch.tensor(pooled.intercept / pooled.unit, dtype=torch.float64, requires_grad=pooled.has_intercept)
    shrunk = [p for block in blocks for p in block.parameters]
    adam = torch.optim.Adam([*shrunk, *head.parameters, *([shift] if pooled.has_intercept else [])], lr=1.0)
    headed = _HEADED if pooled.spec.is_linear else _HEADED_NETWORKS
    peak = learning_rate or (_SUMMED if pooled.head is None else headed)
    count, fixed = len(pooled.labels), 0.0 if pooled.head is None else pooled.head.spec.shrinkage or 0.0
    size = min(pooled.batch_size or count, count)
    batches, step = -(-count // size), 0
    for epoch in range(pooled.epochs):
        order = np.random.default_rng((pooled.seed, epoch)).permutation(count) if size < count else np.arange(count)
        for start in range(0, count, size):
            rows = order[start : start + size]
            h = [block.outputs(rows) for block in blocks]
            scores = head.scores(h) + shift
            numbers = pooled.unit * scores.detach().numpy().astype(np.float64)
            slope = pooled.loss.gradient(numbers, pooled.labels[rows])  # losses are the project's own, in NumPy
            slope = (slope if pooled.weights is None else pooled.weights[rows, None] * slope) / len(rows)
            weights = None if pooled.weights is None else torch.tensor(pooled.weights[rows])
            penalty = 0.5 * sum(block.squares(pooled.l2) for block in blocks)
            penalty = penalty + 0.5 * pooled.head_l2 * sum(p.square().sum().double() for p in head.parameters)
            shrinkage = [fixed] * len(h) if pooled.noise is None else [torch.tensor(w) for w in pooled.noise.weights]
            if fixed or pooled.noise is not None:
                shrunk_h = [(w * v.square()).sum(dim=1) for w, v in zip(shrinkage, h, strict=True)]
                squares = sum(shrunk_h[1:], start=shrunk_h[0])
                penalty = penalty + 0.5 * (squares if weights is None else weights * squares).mean()
            if pooled.noise is not None:
                lengths = np.stack([v.detach().square().mean(dim=0).numpy() for v in h])
                pooled.noise.see(float(np.square(slope * len(rows)).mean()), lengths)
            adam.zero_grad()
            torch.autograd.backward([scores, penalty], [torch.tensor(slope / pooled.unit, dtype=scores.dtype), None])
            adam.param_groups[0]["lr"] = peak * 0.5 * (1.0 + math.cos(math.pi * step / (batches * pooled.epochs)))
            adam.step()
            step += 1
    unit = 1.0 if pooled.head is not None else pooled.unit
    thetas = [np.asarray(unit * block.theta) for block in blocks]
    return Fitted(thetas, pooled.unit * shift.detach().numpy(), step, own=head.own)


class _Block:
    """A linear map or a network over a table's rows, expanded to joined rows batch by batch."""

    def __init__(self, block: PooledBlock, inputs: Inputs, module: Any, theta: Tensor | None) -> None:
        self._rows, self._inputs, self._module, self._theta = block.rows, inputs, module, theta
        self._is_partial = bool((block.rows < 0).any())
        self.parameters = [theta] if theta is not None else [p for p in module.parameters() if p.requires_grad]
        self.ridge: Tensor | None = None  # of each output, where they differ

    def squares(self, l2: float) -> Tensor:
        """β Σ θ²."""
        if self.ridge is not None:
            return sum((self.ridge * p.square()).sum() for p in self.parameters)  # type: ignore[return-value]
        return l2 * sum(p.square().sum().double() for p in self.parameters)  # type: ignore[return-value]

    def outputs(self, joined: NDArray[Any]) -> Tensor:
        torch = need_torch()
        rows = self._rows[joined]
        chosen = torch.from_numpy(np.maximum(rows, 0).astype(np.int64))
        if self._theta is not None:
            out = self._inputs.linear(chosen, self._theta.t(), None)
        else:
            out = self._module(self._inputs.matrix(chosen))
        return out * torch.from_numpy((rows >= 0)[:, None]) if self._is_partial else out

    @property
    def theta(self) -> Array:
        values = [p.detach().numpy() for p in self.parameters]
        return values[0] if self._theta is not None else np.concatenate([v.reshape(-1) for v in values])


def _block(pooled: Pooled, number: int) -> _Block:
    torch = need_torch()
    block, spec = pooled.blocks[number], pooled.spec
    outputs = pooled.loss.outputs if pooled.head is None else pooled.head.spec.widths[number]
    if spec.is_linear:
        spread = [0.0] * outputs if pooled.head is None else pooled.head.spread(number)
        start = (pooled.seed, number, tuple(spread))
        theta = LinearModel(block.features, block.features, outputs, start=start).initial()
        found = _Block(block, Inputs.of(block.features, "float64"), None, torch.tensor(theta, requires_grad=True))
        ridges = pooled.l2_by_output[number]
        found.ridge = torch.tensor(ridges, dtype=torch.float64) if ridges else None
        return found
    seed = pooled.seed + number
    module = build_module(spec, block.features.width, outputs, seed=seed, name=block.name)
    return _Block(block, Inputs.of(block.features, spec.dtype), module, None)


class _Sum:
    """Σ h_i."""

    parameters: Sequence[Any] = ()
    own: Array = np.zeros(0)

    def scores(self, h: list[Tensor]) -> Tensor:
        return sum(h[1:], start=h[0])


class _Factors(_Sum):
    """Σ b_i + Σ_{i<j} ⟨v_i, v_j⟩, for each class."""

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def scores(self, h: list[Tensor]) -> Tensor:
        c = self._classes
        vectors = [v[:, c:].reshape(len(v), c, -1) for v in h]
        both = sum((vectors[i] * vectors[j]).sum(dim=2) for i in range(len(h)) for j in range(i))
        out: Tensor = sum((v[:, :c] for v in h[1:]), start=h[0][:, :c]) + both
        return out


class _Network(_Sum):
    """A module over all of them, side by side."""

    def __init__(self, head: NetworkHead) -> None:
        torch = need_torch()
        self._module, self._dtype, self._spec = head.module, getattr(torch, head.spec.dtype), head.spec
        self.parameters = [p for p in head.module.parameters() if p.requires_grad]

    def scores(self, h: list[Tensor]) -> Tensor:
        spec, cat = self._spec, need_torch().cat
        if not spec.sum_weight:
            out: Tensor = self._module(cat([v.to(self._dtype) for v in h], dim=1)).double()
            return out
        c = spec.outputs
        out = self._module(cat([v[:, c:].to(self._dtype) for v in h], dim=1)).double()
        return BESIDE * out + spec.sum_weight * sum(v[:, :c] for v in h)

    @property
    def own(self) -> Array:  # type: ignore[override]
        flat = need_torch().cat([p.detach().reshape(-1) for p in self.parameters])
        return np.asarray(flat.numpy(), np.float64)
