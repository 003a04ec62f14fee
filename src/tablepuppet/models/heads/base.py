"""Head: score(j) = intercept + head(h_1[p_1(j)], …, h_M[p_M(j)]), with h_i of width k_i.

In: what every block gives for some joined rows. Out: their scores, and back from ∂ℓ/∂score the signals ∂ℓ/∂h_i, which
are collapsed to each block's rows as the sum's residual is: only widths grow. A head may have parameters of its own,
one vector that the server keeps. `SumHead` is the first of them and has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.models.spec import Activation, Dtype

HeadKind = Literal["sum", "factor", "mlp", "module"]


class HeadSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A head over M blocks: the widths k_i of what each of them gives, and what is made of them."""

    kind: HeadKind = "sum"
    outputs: int = 1  # d_c, scores per joined row
    widths: tuple[int, ...] = ()  # k_i
    unit: float = 1.0  # of a numeric label: scores are so many times what the head computes
    shrinkage: float | None = 0.0  # λ of ½ λ Σ_i ‖h_i‖² per joined row; None: the algorithm learns it
    hidden: tuple[int, ...] = ()  # layers of a network
    activation: Activation = "relu"
    dtype: Dtype = "float32"  # of a network's arithmetic
    module: str = ""  # the name under which the server knows a torch module of the user's own


PullBack = Callable[[Array], tuple[list[Array], Array]]  # ∂ℓ/∂score → ∂ℓ/∂h_i of each block, Σ_j ∂ℓ/∂(own parameters)


class Head(Protocol):
    """What joins the blocks' outputs to scores; pure functions of its own parameters and of h."""

    @property
    def spec(self) -> HeadSpec: ...

    def initial(self) -> Array:
        """Its own parameters before training: one vector."""

    def spread(self, block: int) -> list[float]:
        """The standard deviation of each output of a linear block before training."""

    def combine(self, own: Array, h: Sequence[Array]) -> Array:
        """Scores of some joined rows, (rows, outputs)."""

    def differentiate(self, own: Array, h: Sequence[Array]) -> tuple[Array, PullBack]:
        """The same, and the way back."""


@dataclass
class TrainedHead:
    """A head and where training has taken its own parameters."""

    head: Head
    own: Array
    # Of each block's h²: per joined row, per row; None: the spec's.
    penalties: Sequence[tuple[Array, Array]] | None = None

    @property
    def data(self) -> HeadModel:
        return HeadModel(self.head.spec, self.own)


@dataclass(frozen=True, slots=True, eq=False)
class HeadModel:
    """The same as data, for results and saved models: making.py makes the head of it."""

    spec: HeadSpec
    own: Array


@dataclass(frozen=True)
class SumHead:
    """Σ_i h_i."""

    spec: HeadSpec

    def initial(self) -> Array:
        return np.zeros(0)

    def spread(self, block: int) -> list[float]:
        return [0.0] * self.spec.widths[block]

    def combine(self, own: Array, h: Sequence[Array]) -> Array:
        return np.asarray(self.spec.unit * sum(h[1:], start=h[0]))

    def differentiate(self, own: Array, h: Sequence[Array]) -> tuple[Array, PullBack]:
        def pull_back(residual: Array) -> tuple[list[Array], Array]:
            return [self.spec.unit * residual] * len(h), np.zeros(0)

        return self.combine(own, h), pull_back
